"""The publisher of code that blocks: in a thread, which ends with it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.clients.ingesting import assert_no_traceback
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client.publisher import NotPublished
from liftlog.client.sync_publisher import SyncPublisher
from liftlog.errors import InvalidArgument, LiftlogError, NatsUnavailable

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": {"orders": {"subject": "orders.>"}}}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "liftlog-publisher"]


def test_any_number_of_threads_publish(daemon: Daemon, server: NatsServer) -> None:
    with SyncPublisher(server.url, expect=["orders"]) as publisher:
        assert threads()
        with ThreadPoolExecutor(8) as pool:
            found = list(
                pool.map(lambda n: publisher.publish("orders.x", f"{n}", key="k"), range(64))
            )
        assert {one.offset for one in found} == set(range(1, 65))
        again = publisher.publish("orders.x", None, key="k", message_id="one")
        assert again.acks[0].stream == "orders"
        assert publisher.publish("orders.x", None, key="k", message_id="one").duplicate
        with pytest.raises(InvalidArgument):
            publisher.publish("orders.*", b"")
    assert threads() == []
    with pytest.raises(LiftlogError, match="not open"):
        publisher.publish("orders.x", b"")
    publisher.close()  # again does nothing


def test_without_nats_no_thread_is_left() -> None:
    with (
        pytest.raises(NatsUnavailable),
        SyncPublisher("nats://127.0.0.1:1", connect_timeout=0.2),
    ):
        pass
    assert threads() == []


def test_a_connection_of_a_loop_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="event loop"):
        SyncPublisher(object())  # type: ignore[arg-type]


class Interrupted(Exception):
    """What the handler of a signal raises."""


def test_the_handler_of_a_signal_ends_the_wait(daemon: Daemon, server: NatsServer) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted), SyncPublisher(server.url) as publisher:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            publisher.publish("nowhere", b"")  # it would try for 30 s
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert threads() == []


def test_a_message_that_no_stream_takes(daemon: Daemon, server: NatsServer) -> None:
    with SyncPublisher(server.url, retry_for=0) as publisher:
        with pytest.raises(NotPublished):
            publisher.publish("nowhere", b"")
        publisher.publish("orders.x", b"")
