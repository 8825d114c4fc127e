"""The tests of this folder run in Numba's simulator, which must be on before Numba is imported:
``tests/test_cuda.py`` starts processes for them, and a plain run does not collect them."""

import os

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
collect_ignore_glob = [] if SIMULATED else ["test_*.py"]

if SIMULATED and os.environ.get("NUMGRAD_TEST_SCHEDULER") != "stock":
    from tests.cuda_sim import scheduler

    scheduler.install()


def pytest_terminal_summary(terminalreporter):
    """The line that the process that started this one looks for."""
    if SIMULATED:
        passed = len(terminalreporter.stats.get("passed", ()))
        collected = terminalreporter._session.testscollected
        terminalreporter.write_line(f"simulated: {passed} of {collected} passed")
