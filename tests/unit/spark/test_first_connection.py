"""A job or a task that begins during a restart of its daemon."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemons.cutting_proxy import cutting_proxy
from support.daemons.loop_thread import LoopThread
from support.daemons.ports import free_port
from support.daemons.served_logs import ServedLogs

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.errors import ConnectionLost, Unauthenticated
from liftlog.spark import daemon_transport
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.scan import plan, read
from liftlog.spark.transport import ScanRange

GAP_SECONDS = 1.0


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[ServedLogs]:
    with ServedLogs(tmp_path / "streams") as served:
        served.add("orders")
        served.append("orders", [b"%d" % number for number in range(10)])
        yield served


@contextmanager
def served_later(logs: ServedLogs, port: int, seconds: float) -> Iterator[None]:
    """Nothing listens on `port` at first."""

    @asynccontextmanager
    async def serving() -> AsyncIterator[None]:
        await asyncio.sleep(seconds)
        async with cutting_proxy(logs.address, port):
            yield None

    thread = LoopThread("later", serving)
    opening = threading.Thread(target=thread.__enter__)
    opening.start()
    try:
        yield
    finally:
        opening.join()
        thread.__exit__(None, None, None)


def options_for(port: int) -> ScanOptions:
    return parse_options({"stream": "orders", "server": f"127.0.0.1:{port}"})


def values(options: ScanOptions, planned: Sequence[ScanRange]) -> list[bytes]:
    return [
        value
        for wanted in planned
        for rows in read(options, wanted)
        for value in rows.column("value").to_pylist()
    ]


def test_a_task_waits_for_the_daemon(logs: ServedLogs) -> None:
    port = free_port()
    planned = plan(parse_options({"stream": "orders", "server": logs.server}))
    began = time.monotonic()
    with served_later(logs, port, GAP_SECONDS):
        assert values(options_for(port), planned) == [b"%d" % number for number in range(10)]
    assert time.monotonic() - began >= GAP_SECONDS


def test_so_does_the_planning(logs: ServedLogs) -> None:
    port = free_port()
    with served_later(logs, port, GAP_SECONDS):
        planned = plan(options_for(port))
        assert (planned[0].first_offset, planned[-1].end_offset) == (1, 11)


def test_planning_that_was_connected_waits_as_long_as_tasks(
    logs: ServedLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_transport, "PLANNING_SECONDS", GAP_SECONDS / 10)
    with LoopThread("proxy", lambda: cutting_proxy(logs.address)) as proxied:
        proxy = proxied.served
        options = options_for(int(proxy.address.rpartition(":")[2]))
        with daemon_transport.DaemonTransport(options) as transport:
            assert transport.state().end_offset == 11
            proxied.call(lambda: setattr(proxy, "target", None))
            proxied.call(proxy.cut)
            back = threading.Timer(GAP_SECONDS, setattr, (proxy, "target", logs.address))
            back.start()
            began = time.monotonic()
            assert transport.state().end_offset == 11
            assert time.monotonic() - began >= GAP_SECONDS / 2
            back.join()
            assert transport._client.request_timeout == daemon_transport.READING_SECONDS


def test_a_daemon_that_never_comes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match=str(port)):
        daemon_transport.connect(options_for(port), patience_seconds=0.5)
    assert time.monotonic() - began < 5


def test_what_another_attempt_cannot_mend_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("nobody.with-a-secret-that-is-wrong")
    with ServedLogs(
        tmp_path / "streams",
        policy=Policy.load(f'principals: {{ops: {{token_hash: "{hash_token("x" * 32)}"}}}}'),
    ) as served:
        wanted = replace(
            parse_options({"stream": "orders", "server": served.server}),
            token_file=str(tmp_path / "token"),
        )
        began = time.monotonic()
        with pytest.raises(Unauthenticated):
            daemon_transport.connect(wanted, patience_seconds=30)
        assert time.monotonic() - began < 10
