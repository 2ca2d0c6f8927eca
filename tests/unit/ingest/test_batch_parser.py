"""The batch parser beside nats-py's own, whatever the bytes and however they are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import cycle, repeat
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from nats.errors import ProtocolError
from nats.protocol.parser import Parser
from support.rounds import examples

from envelope import COOKIE, COOKIES
from liftlog.sequencing import MessageRun
from liftlog.server.ingest.batch_parser import MAX_CONTROL_LINE, BatchParser


class Row(NamedTuple):
    sid: int
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Recorder:
    """Sink of the batch parser and client of the stock parser: both tell it what they see."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.events: list[str] = []
        self.infos: list[Any] = []
        self.runs: list[MessageRun] = []
        self.chunk_ends = 0
        self.gate: asyncio.Event | None = None
        """When set, every await of the client waits for it."""

    def deliver(self, sid: int, run: MessageRun) -> None:
        self.runs.append(run)
        headers = run.headers or [b""] * len(run)
        for subject, reply, block, payload in zip(
            run.subjects, run.replies, headers, run.payloads, strict=True
        ):
            self.rows.append(Row(sid, subject, reply, block, payload))
            assert run.has_cookie or not payload.startswith(COOKIES)

    def chunk_end(self) -> None:
        self.chunk_ends += 1

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.rows.append(Row(sid, bytes(subject), bytes(reply), headers or b"", data))

    async def event(self, name: str) -> None:
        self.events.append(name)
        if self.gate is not None:
            await self.gate.wait()

    async def _process_ping(self) -> None:
        await self.event("PING")

    async def _process_pong(self) -> None:
        await self.event("PONG")

    async def _process_err(self, text: str) -> None:
        await self.event("ERR " + text)

    async def _process_info(self, info: Any) -> None:
        self.infos.append(info)
        await self.event("INFO")


async def no_pressure() -> None:
    return


def make(recorder: Recorder, **options: Any) -> BatchParser:
    arguments: dict[str, Any] = {"before_pong": lambda: None, "pressure": no_pressure} | options
    return BatchParser(Parser(recorder), recorder, **arguments)


def frame(row: Row) -> bytes:
    words = [row.subject, b"%d" % row.sid]
    if row.reply:
        words.append(row.reply)
    total = len(row.headers) + len(row.payload)
    if row.headers:
        head = b"HMSG " + b" ".join([*words, b"%d %d" % (len(row.headers), total)])
    else:
        head = b"MSG " + b" ".join([*words, b"%d" % total])
    return head + b"\r\n" + row.headers + row.payload + b"\r\n"


# What neither nats-server nor nats-py's parser takes for a separator.
SUBJECTS = st.one_of(
    st.sampled_from([b"a", b"orders.new", b"x\xff", b"MSG", b"caf\xc3\xa9", b"1", b"5"]),
    st.binary(min_size=1, max_size=6).map(lambda raw: bytes(b for b in raw if b > 32) or b"s"),
)
PAYLOADS = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"",
            b"\r\n",
            b"MSG a 1 5\r\nhello\r\n",
            b"\r\nMSG a 1 5\r\nhello\r\n",
            b"PING\r\n",
            b"HMSG a 1 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
            COOKIE + b"\x01\x00\x08\x00",
            COOKIES[1] + b"\x00\x08\x00\x00",
            b"x" * 300,
        ]
    ),
)
HEADER_BLOCKS = st.sampled_from(
    [b"NATS/1.0\r\nA: b\r\n\r\n", b"XX", b"NATS/1.0", b"NATS/1.0 \xff\xfe\r\n\r\n", b"\r\n"]
)
ROWS = st.builds(
    Row,
    sid=st.sampled_from([1, 2, 77]),
    subject=SUBJECTS,
    reply=st.one_of(st.just(b""), SUBJECTS),
    headers=st.one_of(st.just(b""), st.just(b""), HEADER_BLOCKS),
    payload=PAYLOADS,
)


@given(ROWS, st.integers(0, 400))
def test_a_message_alone_in_a_chunk_or_cut_in_two(row: Row, cut: int) -> None:
    data = frame(row)
    for pieces in ([data], [data[:cut], data[cut:]]):
        recorder = Recorder()
        parser = make(recorder)
        assert [parser.feed(piece) for piece in pieces if piece][-1] == b""
        assert recorder.rows == [row]
        assert recorder.chunk_ends == 1


@pytest.mark.parametrize(
    "data", [b"MSG a 1 r 9\r", b"MSG a 1 r 1\r\n", b"HMSG a 1 r 0 9\r", b"MSG a 1 r 10\r\n\r\nxx"]
)
def test_a_chunk_that_ends_in_a_message_delivers_nothing(data: bytes) -> None:
    recorder = Recorder()
    assert make(recorder).feed(data) == b""
    assert recorder.rows == []


@pytest.mark.parametrize("data", [b"HMSG a 1 r 5 3\r\nabc\r\n", b"MSG a 1 r b 3\r\nabc\r\n"])
def test_a_lone_message_with_a_wrong_control_line_is_an_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        make(Recorder()).feed(data)


BLOCKS = [
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0\r\nA: %d\r\n\r\n" % 2**40,
    b"HMSG 5 5\r\n",
    b"1 1\r\n",
]


@st.composite
def uniform_runs(draw: st.DrawFn) -> list[Row]:
    """What the fast path is for, and what looks like it for a while."""
    sizes = draw(st.sampled_from([[0], [5], [18], [20], [0, 5], [5, 18, 20]]))
    blocks = draw(st.sampled_from([[b""], [b""], BLOCKS[:1], BLOCKS[:2], BLOCKS, [b"", *BLOCKS]]))
    sid = draw(st.sampled_from([1, 2]))
    subjects = draw(st.sampled_from([SUBJECTS, st.just(b"orders.new")]))
    has_reply = draw(st.booleans())
    forged = [b"MSG a %d 5\r\nhello\r\n" % sid, b" %d %d\r\n" % (sid, sizes[0])]
    payload = st.sampled_from(sizes).flatmap(
        lambda size: st.one_of(
            st.binary(min_size=size, max_size=size),
            st.sampled_from([text.ljust(size)[:size] for text in forged]),
        )
    )
    messages = st.tuples(subjects, SUBJECTS, st.sampled_from(blocks), payload)
    rows = [
        Row(sid, subject, reply if has_reply else b"", block, body)
        for subject, reply, block, body in draw(st.lists(messages, min_size=8, max_size=40))
    ]
    if draw(st.booleans()):
        rows.insert(draw(st.integers(0, len(rows))), draw(ROWS))
    return rows


CONTROLS = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b'INFO {"version":"2.15.1","max_payload":1048576}\r\n',
    ]
)


def of_several_subscriptions(rows: list[Row]) -> list[Row]:
    return [row._replace(sid=(1, 2, 77, 3)[number % 4]) for number, row in enumerate(rows)]


def of_several_in_turn(rows: list[Row]) -> list[Row]:
    return [row._replace(sid=(1, 2, 77, 3)[number // 9 % 4]) for number, row in enumerate(rows)]


PIECES = st.lists(
    st.one_of(
        ROWS.map(lambda row: [row]),
        uniform_runs(),
        uniform_runs(),
        uniform_runs().map(of_several_subscriptions),
        uniform_runs().map(of_several_in_turn),
        CONTROLS.map(lambda line: [line]),
    ),
    max_size=8,
)


def cut(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    pos = 0
    while pos < len(data):
        size = next(sizes)
        yield data[pos : pos + size]
        pos += size


def by_sid(rows: list[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row.sid, []).append(row)
    return found


@settings(max_examples=examples(1.5))
@given(PIECES, st.lists(st.one_of(st.integers(1, 40), st.integers(100, 5000)), min_size=1))
def test_the_same_messages_as_the_stock_parser(
    pieces: list[list[Row | bytes]], sizes: list[int]
) -> None:
    items = [item for piece in pieces for item in piece]
    data = b"".join(frame(item) if isinstance(item, Row) else item for item in items)
    ours, stock = Recorder(), Recorder()

    async def scenario() -> None:
        batch, reference = make(ours), Parser(stock)
        numbers = cycle(sizes)
        for chunk in cut(data, numbers):
            await batch.parse(chunk)
        await reference.parse(data)

    asyncio.run(scenario())
    rows = [item for item in items if isinstance(item, Row)]
    assert by_sid(stock.rows) == by_sid(rows), "the stock parser reads what was meant"
    assert by_sid(ours.rows) == by_sid(rows)
    assert ours.events == stock.events
    assert ours.infos == stock.infos


@settings(max_examples=examples(1.5))
@given(
    st.lists(st.one_of(uniform_runs().map(of_several_subscriptions), uniform_runs()), max_size=6),
    st.lists(st.one_of(st.integers(1, 40), st.integers(100, 5000)), min_size=1),
)
def test_the_messages_of_joined_subscriptions_keep_their_order(
    runs: list[list[Row]], sizes: list[int]
) -> None:
    rows = [row for run in runs for row in run]
    data = b"".join(map(frame, rows))
    recorder = Recorder()
    joined = {b"2": b"1", b"77": b"1", b"3": b"1"}

    async def scenario() -> None:
        parser = make(recorder, joined_runs=joined)
        for chunk in cut(data, cycle(sizes)):
            await parser.parse(chunk)

    asyncio.run(scenario())
    assert recorder.rows == [row._replace(sid=1) for row in rows]


@settings(max_examples=examples(3))
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=20),
            CONTROLS,
            ROWS.map(frame),
            st.sampled_from([b"MSG a 1 -5\r\n", b"HMSG a 1 9 3\r\n", b"MSG a b c\r\n", b"\r\n"]),
        ),
        max_size=12,
    ),
    st.lists(st.integers(1, 60), min_size=1),
)
def test_garbage_is_a_protocol_error_or_nothing(parts: list[bytes], sizes: list[int]) -> None:
    data = b"".join(parts)

    async def scenario() -> None:
        recorder = Recorder()
        parser = make(recorder)
        try:
            for chunk in cut(data, cycle(sizes)):
                await parser.parse(chunk)
        except ProtocolError:
            parser.reset()
        # And it goes on with the next connection.
        parser.reset()
        recorder.rows.clear()
        await parser.parse(b"MSG a 1 2\r\nok\r\n")
        assert recorder.rows == [Row(1, b"a", b"", b"", b"ok")]

    asyncio.run(scenario())


# --- the fast path ---


def shape_of(parser: Any) -> object:
    """What it expects each further message of a run to look like; None outside of one."""
    return parser._uniform


def watch_slow_path(
    parser: Any, monkeypatch: pytest.MonkeyPatch, called: Callable[[], None]
) -> None:
    """Call `called` whenever it reads messages one by one."""
    take_any = parser._take_any

    def watched(data: bytes, pos: int, until: int, by_sid: Any) -> int:
        if pos < until:
            called()
        taken: int = take_any(data, pos, until, by_sid)
        return taken

    monkeypatch.setattr(parser, "_take_any", watched)


def rows_of(count: int, size: int = 20, reply: bytes = b"_INBOX.x", sid: int = 3) -> list[Row]:
    return [Row(sid, b"orders.%d" % i, reply, b"", b"%*d" % (size, i)) for i in range(count)]


@pytest.mark.parametrize("reply", [b"", b"_INBOX.x"])
async def test_uniform_runs_are_whole(reply: bytes) -> None:
    recorder = Recorder()
    parser = make(recorder)
    chunk = b"".join(map(frame, rows_of(100, reply=reply)))
    for _ in range(3):
        await parser.parse(chunk)
    assert shape_of(parser) is not None, "the fast path was taken"
    assert recorder.rows == rows_of(100, reply=reply) * 3
    assert [len(run) for run in recorder.runs] == [100, 100, 100]
    assert recorder.chunk_ends == 3


async def test_joined_subscriptions_are_on_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    joined = {b"%d" % sid: b"3" for sid in (4, 5)}
    parser = make(recorder, joined_runs=joined)
    rows = [row._replace(sid=3 + row.payload[-1] % 3) for row in rows_of(99)]
    chunk = b"".join(map(frame, rows))
    await parser.parse(chunk)

    def must_not() -> None:
        raise AssertionError("it read a message by itself")

    joined[b"10"] = b"3"  # longer than the others
    odd = Row(10, b"orders.10", b"_INBOX.x", b"", b"%20d" % 1)
    watch_slow_path(parser, monkeypatch, must_not)
    await parser.parse(chunk)
    monkeypatch.undo()
    await parser.parse(chunk + frame(odd) + chunk)
    expected = [row._replace(sid=3) for row in [*rows, *rows, *rows, odd, *rows]]
    assert recorder.rows == expected
    assert [len(run) for run in recorder.runs] == [99, 99, 199]


def of_streams(count: int, in_a_row: int, first: int = 0, size: int = 20) -> list[Row]:
    """Messages of that many subscriptions, a few of each in a row."""
    rows = rows_of(count * in_a_row, size)
    return [row._replace(sid=first + 1 + number // in_a_row) for number, row in enumerate(rows)]


@pytest.mark.parametrize("in_a_row", [1, 12])
async def test_many_subscriptions_are_on_the_fast_path(
    in_a_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    parser = make(recorder)
    rows = of_streams(64, in_a_row)
    odd = Row(5, b"s", b"_INBOX.x", b"NATS/1.0\r\nA: b\r\n\r\n", b"of another size")
    await parser.parse(b"".join(map(frame, rows)))
    calls: list[None] = []
    watch_slow_path(parser, monkeypatch, lambda: calls.append(None))
    for number in range(3):
        other = of_streams(64, in_a_row, first=100 * number)
        await parser.parse(b"".join(map(frame, other[:100])))
        assert not calls
        recorder.rows.clear()
        recorder.runs.clear()
        await parser.parse(b"".join(map(frame, [*other[:30], odd, *other[30:]])))
        assert len(calls) == 1, "one for the odd message"
        calls.clear()
        assert by_sid(recorder.rows) == by_sid([*other[:30], odd, *other[30:]])
        assert len(recorder.runs) == len({row.sid for row in [*other, odd]})
        of_odd = [run for run in recorder.runs if run.headers is not None]
        assert len(of_odd) == 1, "the others have no header column"


async def test_chunks_of_one_subscription_each_are_on_the_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    parser = make(recorder)
    for sid in (1, 2):
        await parser.parse(b"".join(map(frame, rows_of(30, sid=sid))))
    calls: list[None] = []
    watch_slow_path(parser, monkeypatch, lambda: calls.append(None))
    for number in range(20):
        for count in (3, 30):
            await parser.parse(b"".join(map(frame, rows_of(count, sid=number + 3))))
    assert not calls
    assert len(recorder.rows) == 60 + 20 * 33


async def test_the_fast_path_returns_to_one_subscription() -> None:
    """Its expression is shorter."""
    recorder = Recorder()
    parser = make(recorder)
    await parser.parse(b"".join(map(frame, of_streams(10, 10))))
    shape: Any = shape_of(parser)
    assert shape.run is None
    for _ in range(70):
        await parser.parse(b"".join(map(frame, rows_of(20))))
    shape = shape_of(parser)
    assert shape.run == b"3"
    assert recorder.rows[100:] == rows_of(20) * 70


async def test_a_shape_that_no_message_has_is_forgotten() -> None:
    recorder = Recorder()
    parser = make(recorder)
    await parser.parse(b"".join(map(frame, rows_of(20))))
    few = rows_of(5, size=30)
    for _ in range(3):
        await parser.parse(b"".join(map(frame, few)))
    assert shape_of(parser) is not None
    await parser.parse(b"".join(map(frame, few)))
    assert shape_of(parser) is None
    assert recorder.rows == rows_of(20) + few * 4


async def test_many_joined_subscriptions_are_on_the_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    parser = make(recorder, joined_runs={b"%d" % sid: b"1" for sid in range(2, 50)})
    rows = of_streams(49, 3)
    await parser.parse(b"".join(map(frame, rows)))
    calls: list[None] = []
    watch_slow_path(parser, monkeypatch, lambda: calls.append(None))
    await parser.parse(b"".join(map(frame, rows)))
    assert not calls
    assert recorder.rows == [row._replace(sid=1) for row in rows * 2]
    assert len(recorder.runs) == 2


async def test_the_fast_path_ends_where_the_run_does() -> None:
    recorder = Recorder()
    parser = make(recorder)
    uniform = rows_of(50)
    odd = [
        Row(3, b"a", b"", b"", b"other size"),
        Row(4, b"a", b"r", b"", b"%20d" % 1),
        Row(3, b"a", b"r", b"NATS/1.0\r\n\r\n", b"12345678"),
        Row(3, b"a", b"", b"", b"%20d" % 2),
    ]
    await parser.parse(b"".join(map(frame, uniform)))
    for row in odd:
        mixed = [*uniform, row, *uniform]
        recorder.rows.clear()
        await parser.parse(b"".join(map(frame, mixed)))
        assert by_sid(recorder.rows) == by_sid(mixed)


@pytest.mark.parametrize("sizes", [[40], [40, 41, 300]])
async def test_headers_and_several_sizes_are_on_the_fast_path(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    parser = make(recorder)
    blocks = [b"NATS/1.0\r\nKey: %b\r\n\r\n" % (b"k" * (i % 4)) for i in range(30)]
    rows = [Row(3, b"s", b"_INBOX.x", block, b"v" * n) for block in blocks for n in sizes]
    await parser.parse(b"".join(map(frame, rows)))
    shape = shape_of(parser)
    assert shape is not None
    calls: list[None] = []
    watch_slow_path(parser, monkeypatch, lambda: calls.append(None))
    recorder.rows.clear()
    # One message of another size in between costs no more than itself.
    odd = Row(3, b"s", b"_INBOX.x", b"", b"of another size")
    await parser.parse(b"".join(map(frame, [*rows, odd, *rows])))
    assert recorder.rows == [*rows, odd, *rows]
    assert shape_of(parser) is shape
    assert len(calls) == 1


async def test_a_run_without_headers_has_no_header_column() -> None:
    recorder = Recorder()
    parser = make(recorder)
    plain = [Row(3, b"s", b"_INBOX.x", b"", b"v" * (40 + i % 3)) for i in range(30)]
    with_headers = plain[0]._replace(headers=b"NATS/1.0\r\nA: b\r\n\r\n")
    await parser.parse(b"".join(map(frame, [*plain, with_headers])))
    assert recorder.runs[0].headers is not None
    await parser.parse(b"".join(map(frame, plain)))
    assert recorder.runs[1].headers is None


async def test_what_follows_an_odd_message_is_not_taken_from_inside_it() -> None:
    recorder = Recorder()
    parser = make(recorder)
    rows = rows_of(60)
    await parser.parse(b"".join(map(frame, rows)))
    shadow = Row(3, b"s", b"r", b"", b"".join(map(frame, rows[:3])) + b"more")
    cut_off = Row(3, b"s", b"r", b"", frame(rows[0])[:-2])
    for odd in (shadow, cut_off):
        recorder.rows.clear()
        await parser.parse(b"".join(map(frame, [*rows, odd, *rows])))
        assert recorder.rows == [*rows, odd, *rows]


async def test_payloads_full_of_protocol() -> None:
    recorder = Recorder()
    parser = make(recorder)
    size = 40
    inner = frame(Row(3, b"forged", b"r", b"", b"x" * 5))
    rows = [Row(3, b"s", b"r", b"", (inner * 2).ljust(size)[:size])] * 60
    for _ in range(3):
        await parser.parse(b"".join(map(frame, rows)))
    assert recorder.rows == rows * 3


# --- large messages ---


async def test_a_large_message_in_many_chunks() -> None:
    recorder = Recorder()
    parser = make(recorder)
    payload = bytes(range(256)) * 12_000
    row = Row(1, b"big", b"r", b"NATS/1.0\r\nA: b\r\n\r\n", payload)
    data = frame(rows_of(1)[0]) + frame(row) + frame(rows_of(2)[1]) + b"PING\r\n"
    for chunk in cut(data, repeat(1000)):
        await parser.parse(chunk)
    assert recorder.rows == [rows_of(1)[0], row, rows_of(2)[1]]
    assert recorder.events == ["PING"]


@pytest.mark.parametrize("tail", [0, 1, 2])
async def test_cut_at_the_last_bytes(tail: int) -> None:
    recorder = Recorder()
    parser = make(recorder)
    data = frame(Row(1, b"a", b"", b"", b"hello"))
    await parser.parse(data[: len(data) - tail])
    assert len(recorder.rows) == (tail == 0)
    await parser.parse(data[len(data) - tail :])
    assert [row.payload for row in recorder.rows] == [b"hello"]


# --- errors, awaits ---


async def test_a_control_line_without_end() -> None:
    parser = make(Recorder())
    with pytest.raises(ProtocolError):
        for _ in range(MAX_CONTROL_LINE // 1000 + 2):
            await parser.parse(b"x" * 1000)


@pytest.mark.parametrize(
    "line",
    [
        b"NONSENSE\r\n",
        b"MSG a\r\n",
        b"MSG a 1 x\r\n",
        b"MSG a 1 2 3 4\r\n",
        b"MSG a 1 -1\r\n",
        b"HMSG a 1 9 3\r\nxxx\r\n",
        b"HMSG a 1 x 3\r\nxxx\r\n",
        b"INFO {nonsense\r\n",
        b"-ERR\r\n",
    ],
)
async def test_malformed_lines_are_protocol_errors(line: bytes) -> None:
    parser = make(Recorder())
    with pytest.raises(ProtocolError):
        await parser.parse(b"MSG a 1 2\r\nok\r\n" + line + b"MSG a 1 2\r\nno\r\n")


async def test_an_unexpected_exception_becomes_a_protocol_error() -> None:
    class Broken(Recorder):
        async def _process_ping(self) -> None:
            raise RuntimeError("bug")

    with pytest.raises(ProtocolError) as caught:
        await make(Broken()).parse(b"PING\r\n")
    assert isinstance(caught.value.__cause__, RuntimeError)


async def test_messages_are_handed_over_before_anything_is_awaited() -> None:
    recorder = Recorder()
    recorder.gate = asyncio.Event()
    parser = make(recorder)
    data = frame(rows_of(1)[0]) + b"PING\r\n" + frame(rows_of(2)[1])
    task = asyncio.create_task(parser.parse(data))
    await asyncio.sleep(0)
    assert recorder.events == ["PING"]
    assert recorder.rows == rows_of(1)
    recorder.gate.set()
    await task
    assert recorder.rows == rows_of(2)


async def test_cancelling_at_any_await_loses_nothing() -> None:
    """Cancelled at the n-th await for every n, then fed the rest: every message arrives once."""
    rows = rows_of(6)
    pieces = [
        frame(row) + line for row, line in zip(rows, [b"PING\r\n", b"+OK\r\n"] * 3, strict=True)
    ]
    data = b"".join(pieces) + b"MSG tail 3 4\r\nta"
    for n in range(1, 5):
        recorder = Recorder()
        parser = make(recorder, pressure=lambda r=recorder: r.event("pressure"))
        recorder.gate = asyncio.Event()
        task = asyncio.create_task(parser.parse(data))
        await asyncio.sleep(0)
        for _ in range(n - 1):
            recorder.gate.set()
            recorder.gate = asyncio.Event()
            for _ in range(3):
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        recorder.gate = None
        await parser.parse(b"il\r\n")
        assert recorder.rows == [*rows, Row(3, b"tail", b"", b"", b"tail")]


async def test_reset_during_an_await_ends_the_parse() -> None:
    recorder = Recorder()
    recorder.gate = asyncio.Event()
    parser = make(recorder)
    task = asyncio.create_task(parser.parse(b"PING\r\n" + frame(rows_of(1)[0])))
    await asyncio.sleep(0)
    parser.reset()
    await parser.parse(b"MSG new 3 1\r\nn\r\n")
    recorder.gate.set()
    await task
    assert recorder.rows == [Row(3, b"new", b"", b"", b"n")]
    await parser.parse(b"MSG new 3 1\r\nm\r\n")
    assert [row.payload for row in recorder.rows] == [b"n", b"m"]


async def test_reset_in_the_middle_of_a_message() -> None:
    recorder = Recorder()
    parser = make(recorder)
    for unfinished in (b"MSG a 1 100\r\nabc", b"MSG a 1", b"PIN"):
        await parser.parse(unfinished)
        parser.reset()
        await parser.parse(b"MSG new 3 1\r\nn\r\n")
    assert [row.payload for row in recorder.rows] == [b"n"] * 3


async def test_done_futures_are_replaced_before_a_pong() -> None:
    seen = []
    recorder = Recorder()
    parser = make(recorder, before_pong=lambda: seen.append(list(recorder.events)))
    await parser.parse(b"PING\r\nPONG\r\nPONG\r\n")
    assert seen == [["PING"], ["PING", "PONG"]]


async def test_pressure_is_felt_after_a_chunk_is_handed_over() -> None:
    recorder = Recorder()
    order = []

    async def pressure() -> None:
        order.append(len(recorder.rows))

    parser = make(recorder, pressure=pressure)
    await parser.parse(b"".join(map(frame, rows_of(3))))
    assert order == [3]
