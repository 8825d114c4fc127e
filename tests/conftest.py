"""Session-wide hooks: the count of gradient checks, also across the workers of pytest-xdist; and
numbers that do not depend on the tests before."""

import pytest

from tests import checks

KEY = "gradient_checks"


@pytest.fixture(autouse=True)
def _same_numbers(request):
    """A module's ``RNG`` gives each of its tests the same numbers, whichever ran before."""
    rng = getattr(request.module, "RNG", None)
    if rng is not None:
        names = vars(request.module)
        rng.bit_generator.state = names.setdefault("_RNG_STATE", rng.bit_generator.state)


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
