"""Session-wide hooks: the count of gradient checks, also across the workers of pytest-xdist."""

import pytest

from tests import checks

KEY = "gradient_checks"


def pytest_sessionfinish(session):
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[KEY] = [list(check) for check in sorted(checks.performed)]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    for entry, dtype, order in getattr(node, "workeroutput", {}).get(KEY, []):
        checks.performed.add((entry, dtype, order))


def pytest_terminal_summary(terminalreporter):
    if checks.performed:
        terminalreporter.write_line(
            f"gradient checks: {len(checks.performed)} (entry x dtype x order)"
        )
