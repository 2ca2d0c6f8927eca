"""Hypothesis profiles: `short` is the default, `full` and `repeatable` (which CI uses) search three
times as long, `clocks` for minutes (`make clock-torture`), `fuzz` for hours (`make fuzz`)."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tools.compiled_tests import write_bytecode

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so would everything
# that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest writes the compiled tests, and the hundreds of daemons and commands that are started find
# their modules compiled.
write_bytecode()

# What a helper asserts is told as in a test: with the values.
pytest.register_assert_rewrite("support")

_LIMIT_SECONDS = 300
_WAITING = ("tests/web/", "tests/integration/", "tests/crash/")
_SLOW_MACHINES = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile(
    "full", deadline=None, max_examples=50, suppress_health_check=_SLOW_MACHINES
)
# The profile of `make test`, which draws new examples in each run. `support.rounds` reads its name.
settings.register_profile("short", settings.get_profile("full"), max_examples=15)
# CI judges a change by the same examples each time. Other runs search further.
settings.register_profile("repeatable", settings.get_profile("full"), derandomize=True)
settings.register_profile(
    "fuzz", deadline=None, max_examples=20_000, suppress_health_check=_SLOW_MACHINES
)
settings.register_profile(
    "clocks", deadline=None, max_examples=2_000, suppress_health_check=_SLOW_MACHINES
)
_USUAL = "full" if os.environ.get("TORTURE_ROUNDS") else "short"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or _USUAL)


def pytest_configure() -> None:
    from support.daemons import forks

    forks.allow()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """All that collecting makes stays to the end: the garbage collector need not look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of the browser first, then all that may take long: at the end, they would run
    alone. Several workers each begin with a share of the tests that wait for processes."""
    from support.order import in_parts

    items.sort(key=lambda item: (not item.nodeid.startswith("tests/web/"), not _is_long(item)))
    waiting = [item for item in items if item.nodeid.startswith(_WAITING)]
    computing = [item for item in items if not item.nodeid.startswith(_WAITING)]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = in_parts(waiting, computing, workers, _module_of)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A fixture with a cluster does not learn that its test has failed."""
    report = yield
    clusters = sys.modules.get("support.daemons.cluster")
    if clusters is not None and report.failed and report.when == "call":
        for one in clusters.RUNNING:
            report.sections.append(("Logs of the nodes", one.log_tails()))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print each reason for a skip once, with the number of tests that it kept from running."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} {'test' if count == 1 else 'tests'}: {reason}")


def _module_of(item: pytest.Item) -> str:
    """Return its file, or the folder of the tests that share one Chromium."""
    return "tests/web" if item.nodeid.startswith("tests/web/") else item.nodeid.partition("::")[0]


def _is_long(item: pytest.Item) -> bool:
    """Whether it has a limit of its own."""
    limit = item.get_closest_marker("timeout")
    return limit is not None and bool(limit.args) and limit.args[0] > _LIMIT_SECONDS
