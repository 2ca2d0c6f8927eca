"""Where we plug into nats-py: the checks, the fallback, the reader that hands over at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from liftlog.errors import ConfigError
from liftlog.sequencing import MessageRun
from liftlog.server.ingest.seam import choose_seam, make_client, replace_done_pongs
from liftlog.server.ingest.transport import DirectReader


def test_the_installed_release_fits() -> None:
    assert choose_seam("auto") == "parser"
    assert choose_seam("parser") == "parser"
    assert choose_seam("client") == "client"


def without_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Client.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        del self._ps

    monkeypatch.setattr(Client, "__init__", init)


def other_pongs(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Client.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._pongs = {}

    monkeypatch.setattr(Client, "__init__", init)


def sync_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parser, "parse", lambda self, data: None)


def other_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    async def parse(self: Any, data: bytes, extra: int) -> None: ...

    monkeypatch.setattr(Parser, "parse", parse)


CHANGES = [
    other_pongs,
    sync_parse,
    other_parse,
    without_parser,
]


@pytest.mark.parametrize("change", CHANGES)
def test_another_shape_falls_back(
    change: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    change(monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert choose_seam("auto") == "client"
    assert "nats-seam-fallback" in caplog.text
    with pytest.raises(ConfigError, match=r"nats\.seam is `parser`, but"):
        choose_seam("parser")


def test_neither_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    other_parse(monkeypatch)
    monkeypatch.delattr(Client, "_process_msg")
    for wanted in ("auto", "client"):
        with pytest.raises(ConfigError, match=r"cannot be used: Client\._process_msg"):
            choose_seam(wanted)


@pytest.mark.parametrize("name", ["connect", "connect_tls", "read"])
@pytest.mark.parametrize("wanted", ["auto", "client", "parser"])
def test_a_transport_of_another_shape_fits_neither(
    name: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours takes its place in the fallback too: connecting would fail for ever."""

    async def other(self: Any) -> None: ...

    monkeypatch.setattr(TcpTransport, name, other)
    with pytest.raises(ConfigError, match=rf"cannot be used: TcpTransport\.{name} "):
        choose_seam(wanted)


@pytest.mark.parametrize("name", ["_reading_task", "_server_pool"])
def test_what_the_watchdog_needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Client.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        delattr(self, name)

    monkeypatch.setattr(Client, "__init__", init)
    with pytest.raises(ConfigError, match=name):
        choose_seam("auto")


def test_a_pong_handler_that_is_no_coroutine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "_process_pong", lambda self: None)
    with pytest.raises(ConfigError, match="_process_pong"):
        choose_seam("client")


# --- the reader ---


class Feed:
    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.leave = b""
        self.error: Exception | None = None

    def __call__(self, data: bytes) -> bytes:
        if self.error is not None:
            raise self.error
        self.taken.append(data)
        leave, self.leave = self.leave, b""
        return leave


async def waiting_read(reader: DirectReader) -> asyncio.Task[bytes]:
    task = asyncio.create_task(reader.read(100))
    await asyncio.sleep(0)
    return task


async def test_data_is_fed_only_while_the_loop_waits() -> None:
    feed = Feed()
    reader = DirectReader(1000, feed)
    reader.feed_data(b"early")
    task = await waiting_read(reader)
    assert await task == b"early"
    reader.feed_data(b"busy")
    assert feed.taken == []
    assert await reader.read(100) == b"busy"
    task = await waiting_read(reader)
    reader.feed_data(b"now")
    assert feed.taken == [b"now"]
    assert not task.done()
    task.cancel()


async def test_nothing_overtakes_what_the_feed_left() -> None:
    feed = Feed()
    reader = DirectReader(1000, feed)
    task = await waiting_read(reader)
    feed.leave = b"PING\r\n"
    reader.feed_data(b"MSG..PING\r\n")
    reader.feed_data(b"after")
    assert feed.taken == [b"MSG..PING\r\n"]
    assert await task == b"PING\r\nafter"
    task = await waiting_read(reader)
    reader.feed_data(b"again")
    assert feed.taken == [b"MSG..PING\r\n", b"again"]
    task.cancel()


async def test_more_than_one_read_holds() -> None:
    feed = Feed()
    reader = DirectReader(1000, feed)
    reader.feed_data(b"x" * 250)
    for size in (100, 100, 50):
        assert len(await reader.read(100)) == size
        if size == 100:
            reader.feed_data(b"")
            assert feed.taken == []
    task = await waiting_read(reader)
    reader.feed_data(b"fed")
    assert feed.taken == [b"fed"]
    task.cancel()


async def test_an_error_ends_the_connection_and_feeds_no_more() -> None:
    feed = Feed()
    reader = DirectReader(1000, feed)
    task = await waiting_read(reader)
    feed.error = ValueError("bug")
    reader.feed_data(b"bad")
    feed.error = None
    reader.feed_data(b"MSG forged 1 0\r\n\r\n")
    with pytest.raises(ProtocolError):
        await task
    assert feed.taken == []


# --- pongs, and the fallback client ---


async def test_only_a_finished_future_is_replaced() -> None:
    client = Client()
    waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    pongs = client._pongs = [waiting]
    replace_done_pongs(client)
    assert pongs == [waiting]
    waiting.cancel()
    replace_done_pongs(client)
    assert len(pongs) == 1
    assert not pongs[0].done()
    replace_done_pongs(Client())


async def received(client: Client, data: bytes) -> None:
    """As the read loop of nats-py hands over what it has read."""
    await client._ps.parse(data)


class Owner:
    def __init__(self) -> None:
        self.words: list[str] = []
        self.errors: list[Exception] = []

    def on_error_words(self, words: str) -> None:
        self.words.append(words)

    def on_trouble(self, error: Exception) -> None:
        self.errors.append(error)

    def on_info(self, info: Any) -> None:
        pass


class Sink:
    def __init__(self) -> None:
        self.runs: list[tuple[int, MessageRun]] = []
        self.chunk_ends = 0

    def deliver(self, sid: int, run: MessageRun) -> None:
        self.runs.append((sid, run))

    def chunk_end(self) -> None:
        self.chunk_ends += 1


async def no_pressure() -> None:
    return


async def test_the_fallback_delivers_raw_bytes_in_runs() -> None:
    sink = Sink()
    client, _ = make_client("client", "nats", sink, no_pressure, lambda: False, Owner())
    data = (
        b"MSG a.\xff 1 3\r\none\r\n"
        b"HMSG a 2 r\xff 2 5\r\nXXtwo\r\n"
        b"MSG a 1 5\r\nthree\r\n"
        b"HMSG a 1 8 8\r\nNATS/1.0\r\n"
    )
    await received(client, data)
    await asyncio.sleep(0)
    assert [(sid, len(run)) for sid, run in sink.runs] == [(1, 3), (2, 1)]
    assert sink.chunk_ends == 1
    first, second = sink.runs[0][1], sink.runs[1][1]
    assert list(first.subjects) == [b"a.\xff", b"a", b"a"]
    assert list(first.payloads) == [b"one", b"three", b""]
    assert list(first.headers or ()) == [b"", b"", b"NATS/1.0"]
    assert list(second.replies) == [b"r\xff"]
    assert list(second.headers or ()) == [b"XX"]


async def test_the_fallback_separates_at_blanks_only() -> None:
    sink = Sink()
    client, _ = make_client("client", "nats", sink, no_pressure, lambda: False, Owner())
    forged = b"MSG forged 1 2\r\nno\r\n"
    data = (
        b"HMSG a 1 6 %d\r\n" % (6 + len(forged)) + b"3\r\n\r\n\r" + forged + b"\r\n"
        b"MSG a\x0bb 1 r\x0c 2\r\nok\r\n"
    )
    await received(client, data)
    await asyncio.sleep(0)
    [(_, run)] = sink.runs
    assert list(run.subjects) == [b"a", b"a\x0bb"]
    assert list(run.payloads) == [forged, b"ok"]


@pytest.mark.parametrize("seam", ["parser", "client"])
async def test_what_nats_says_is_told_to_the_owner(seam: str) -> None:
    owner = Owner()
    client, _ = make_client(seam, "nats", Sink(), no_pressure, lambda: False, owner)
    refused = b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
    await received(client, refused * 2 + b"-ERR 'Stale Connection'\r\n")
    told = ['permissions violation for publish to "a"'] * 2 + ["stale connection"]
    assert [words.lower() for words in owner.words] == told
    await client._process_op_err(ProtocolError())
    assert len(owner.errors) == 1


async def test_refusals_between_messages() -> None:
    """There may be one for each ack: they neither end the run of messages nor cost much."""
    sink, owner = Sink(), Owner()
    client, _ = make_client("parser", "nats", sink, no_pressure, lambda: False, owner)
    refused = b"-ERR 'Permissions Violation for Publish to \"a\"'\r\n"
    data = (b"MSG a 1 1\r\nx\r\n" + refused) * 10_000
    cut = len(data) // 2 + 7
    began = time.process_time()
    await received(client, data[:cut])
    await received(client, data[cut:])
    assert time.process_time() - began < 2, "quadratic"
    assert len(owner.words) == 10_000
    assert sum(len(run) for _, run in sink.runs) == 10_000
