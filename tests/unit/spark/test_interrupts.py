"""Signals during the start and the work of Spark, without Spark."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from liftlog.spark.export import interrupts


class Gate:
    """A call that ends when the gate is opened. `begin` is called when it runs."""

    def __init__(self, begin: Callable[[], None] = lambda: None) -> None:
        self.opened = threading.Event()
        self.ended = threading.Event()
        self._begin = begin

    def __call__(self) -> str:
        self._begin()
        assert self.opened.wait(20)
        self.ended.set()
        return "made"


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def the_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before


def test_a_start_that_is_not_disturbed() -> None:
    assert interrupts.start_jvm(lambda: "made", lambda: False) == "made"
    with pytest.raises(KeyError):
        interrupts.start_jvm(lambda: {}["nothing"], lambda: False)


def test_a_signal_waits_until_the_jvm_is_known() -> None:
    gate = Gate(interrupt)
    asked: list[float] = []

    def is_connected() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 4

    with pytest.raises(KeyboardInterrupt):
        interrupts.start_jvm(gate, is_connected)
    assert len(asked) == 5
    assert asked[-1] - asked[0] > 0.15
    assert not gate.ended.is_set()  # it waits no longer than that
    gate.opened.set()


def test_a_signal_waits_until_the_start_has_failed() -> None:
    def fail() -> None:
        interrupt()
        time.sleep(0.1)
        raise KeyError("no JVM")

    with pytest.raises(KeyboardInterrupt):
        interrupts.start_jvm(fail, lambda: False)


def test_a_signal_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_LONGEST_START_SECONDS", 0.1)
    gate = Gate(interrupt)
    with pytest.raises(KeyboardInterrupt):
        interrupts.start_jvm(gate, lambda: False)
    gate.opened.set()


def test_a_handler_of_the_caller_is_asked() -> None:
    """Like the handler of `orders_into_a_lake`. If it does not raise, the start continues."""
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:

        def make() -> str:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
            assert not seen
            return "made"

        assert interrupts.start_jvm(make, lambda: False) == "made"
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_work_is_cancelled_and_awaited() -> None:
    gate = Gate(interrupt)
    cancels: list[str] = []

    def cancel() -> None:
        cancels.append(threading.current_thread().name)
        if len(cancels) == 2:  # the first one came too early
            gate.opened.set()

    with pytest.raises(KeyboardInterrupt):
        interrupts.run_cancellable(gate, cancel)
    assert gate.ended.is_set()
    assert len(cancels) == 2
    assert threading.main_thread().name not in cancels  # a further Ctrl-C does not hit this call


def test_work_that_is_not_disturbed() -> None:
    def never() -> None:
        raise AssertionError

    assert interrupts.run_cancellable(lambda: "done", never) == "done"
    with pytest.raises(KeyError):
        interrupts.run_cancellable(lambda: {}["nothing"], never)


def test_in_another_thread() -> None:
    """No signal arrives in this thread, and no handler can be set."""
    found: list[str] = []

    def work() -> None:
        found.append(interrupts.start_jvm(lambda: "made", lambda: False))
        found.append(
            interrupts.run_cancellable(lambda: threading.current_thread().name, lambda: None)
        )

    thread = threading.Thread(target=work, name="other")
    thread.start()
    thread.join()
    assert found == ["made", "other"]
