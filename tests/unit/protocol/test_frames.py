from __future__ import annotations

import contextlib
import math
import struct
import time
import tracemalloc
from typing import Any

import msgpack
import pytest
from support.clients.hostile_frames import hostile_maps

from liftlog.errors import BadRequest, LimitExceeded
from liftlog.protocol.frames import FrameReader, decode_map, encode_frame
from liftlog.protocol.groups import MAX_SLOTS, CommitGroup
from liftlog.protocol.limits import MAX_DEPTH, MAX_REQUEST_VALUES
from liftlog.protocol.messages import Fetch


def reader(**options: Any) -> FrameReader:
    return FrameReader(**{"max_frame_bytes": 1 << 20, "max_body_bytes": 1 << 20, **options})


def feed(frames: FrameReader, data: bytes, step: int | None = None) -> list[Any]:
    """What comes out when `data` arrives at most `step` bytes at a time."""
    found: list[Any] = []
    view = memoryview(data)
    while view:
        room = frames.get_buffer()
        count = min(len(room), len(view), step or len(view))
        room[:count] = view[:count]
        frames.buffer_updated(count)
        view = view[count:]
        while (event := frames.next_event()) is not None:
            found.append(bytes(event) if isinstance(event, memoryview) else event)
    return found


BODY = bytes(range(256)) * 3
STREAM = (
    encode_frame({"k": "a", "i": 1})
    + encode_frame({"k": "data", "i": 2, "b": len(BODY)})
    + BODY
    + encode_frame({"k": "data", "i": 3, "b": 0})
    + encode_frame({"k": "long", "i": 4, "x": "y" * 400})
)
EVENTS = [
    {"k": "a", "i": 1},
    {"k": "data", "i": 2, "b": len(BODY)},
    BODY,
    {"k": "data", "i": 3, "b": 0},
    {"k": "long", "i": 4, "x": "y" * 400},
]


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 64, 100, 769, None])
@pytest.mark.parametrize("buffer_bytes", [16, 64, 4096])
def test_the_same_events_come_out_however_the_bytes_arrive(
    step: int | None, buffer_bytes: int
) -> None:
    frames = reader(buffer_bytes=buffer_bytes)
    assert feed(frames, STREAM, step) == EVENTS
    assert not frames.mid_frame


def test_events_left_in_the_reader_survive_further_bytes() -> None:
    """An owner that holds its peer back takes events later; the buffer grows meanwhile."""
    frames = reader(buffer_bytes=32)
    message = encode_frame({"k": "ping", "i": 1})
    for _ in range(20):
        view = frames.get_buffer()
        assert len(view) > 0
        data = memoryview(message)
        while data:
            room = frames.get_buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            frames.buffer_updated(count)
            data = data[count:]
    found = 0
    while frames.next_event() is not None:
        found += 1
    assert found == 20


def test_the_map_comes_before_its_body_has_arrived() -> None:
    frames = reader()
    assert feed(frames, encode_frame({"b": 4}) + b"ab") == [{"b": 4}]
    assert frames.arrived_bytes == 2
    assert bytes(frames.arriving_body or b"")[:2] == b"ab"
    assert frames.mid_frame
    assert feed(frames, b"cd") == [b"abcd"]
    assert frames.arriving_body is None


def test_a_body_is_received_into_the_memory_that_is_handed_out() -> None:
    memory = bytearray(1000)
    frames = reader(allocate=lambda length: memoryview(memory)[:length])
    feed(frames, encode_frame({"b": 500}) + b"x" * 10)
    room = frames.get_buffer()
    assert len(room) == 490
    assert room.obj is memory
    room[:] = b"y" * 490
    frames.buffer_updated(490)
    body = frames.next_event()
    assert isinstance(body, memoryview)
    assert body.obj is memory
    assert body == b"x" * 10 + b"y" * 490


def test_a_length_over_the_limit_is_refused_before_the_frame_is_here() -> None:
    frames = reader(max_frame_bytes=100)
    with pytest.raises(LimitExceeded, match="101 bytes"):
        feed(frames, struct.pack("<I", 101))
    assert feed(reader(max_frame_bytes=100), struct.pack("<I", 100)) == []


def test_a_body_over_the_limit_is_refused_before_memory_is_taken() -> None:
    def allocate(length: int) -> memoryview:
        raise AssertionError("memory was taken")

    with pytest.raises(LimitExceeded, match="longer than the limit of 10"):
        feed(reader(max_body_bytes=10, allocate=allocate), encode_frame({"b": 11}))


@pytest.mark.parametrize("length", [-1, "1", 1.0, True, None, [1]])
def test_a_body_length_must_be_an_unsigned_integer(length: object) -> None:
    with pytest.raises(BadRequest, match="body length"):
        feed(reader(), encode_frame({"b": length}))


def test_a_long_frame_does_not_cost_memory_for_ever() -> None:
    frames = reader(buffer_bytes=64)
    feed(frames, encode_frame({"x": "y" * 10_000}))
    assert len(frames.get_buffer()) == 64


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01",
        msgpack.packb([1, 2]),
        msgpack.packb("text"),
        msgpack.packb({1: 2}),
        msgpack.packb({b"k": 2}),
        msgpack.packb({"k": 1}) + b"\x00",
        msgpack.packb({"k": 1})[:-1],
        b"\x81\xa1k\xa2\xff\xfe",  # not UTF-8
        b"\x81\xa1k\xd4\x05\x00",  # an extension type
        b"\x81\xa1k\xdd\xff\xff\xff\xff",  # an array of 4 G entries
        b"\xdf\xff\xff\xff\xff",  # a map of 4 G entries
        b"\x81\xa1k\xdb\xff\xff\xff\xff",  # a string of 4 GiB
        b"\x81\xa1k\xc6\xff\xff\xff\xff",
        b"\x81\x90\x01",  # an array as a key
        b"\x81\xa1k" + b"\x91" * 4000 + b"\x01",
        b"\x81\xa1k" * 4000 + b"\x01",
        msgpack.packb({"k": nested(MAX_DEPTH)}),
    ],
)
def test_hostile_maps_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_map(data)


def test_nesting_up_to_the_limit_is_accepted() -> None:
    message = {"k": nested(MAX_DEPTH - 1)}
    assert decode_map(msgpack.packb(message)) == message


@pytest.mark.parametrize("size", [4096, 65_536, 1 << 20])
@pytest.mark.parametrize("name", hostile_maps(4096))
def test_a_hostile_map_costs_no_more_than_an_ordinary_one(name: str, size: int) -> None:
    """Whatever it declares: an event loop reads such frames for everybody."""
    data = memoryview(hostile_maps(size)[name])
    best = math.inf
    for _ in range(20):
        began = time.perf_counter()
        with contextlib.suppress(BadRequest):
            decode_map(data, MAX_REQUEST_VALUES)
        best = min(best, time.perf_counter() - began)
    assert best < 0.001


@pytest.mark.parametrize("name", hostile_maps(4096))
def test_a_hostile_map_costs_no_memory(name: str) -> None:
    data = hostile_maps(65_536)[name]
    tracemalloc.start()
    try:
        with contextlib.suppress(BadRequest):
            decode_map(data, MAX_REQUEST_VALUES)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(data)
    finally:
        tracemalloc.stop()


def test_values_up_to_the_limit_are_accepted() -> None:
    message = {"k": [b"%d" % number for number in range(98)]}
    assert decode_map(msgpack.packb(message), 100) == message
    with pytest.raises(BadRequest, match="more than 99 values"):
        decode_map(msgpack.packb(message), 99)


def test_the_longest_fetch_is_within_the_limit() -> None:
    longest = Fetch(
        "orders",
        1,
        filter_subjects=["a"] * 64,
        filter_keys=[b"\xdc\xdd"] * 1024,
        filter_headers=["a: b"] * 16,
        columns=["value"] * 16,
    )
    decoded = decode_map(encode_frame(longest.to_map(1))[4:], MAX_REQUEST_VALUES)
    assert Fetch.from_map(decoded) == longest


def test_a_commit_of_all_slots_is_within_the_limit() -> None:
    """Who is alone in a group has all of them, and each may be anywhere."""
    slots = [*range(MAX_SLOTS)]
    longest = CommitGroup("orders", "billing", "w1", 1, 1, slots, slots, "0" * 32, 1)
    decoded = decode_map(encode_frame(longest.to_map(1))[4:], MAX_REQUEST_VALUES)
    assert CommitGroup.from_map(decoded) == longest


@pytest.mark.parametrize(
    "value",
    [
        [*range(40)], {str(i): i for i in range(40)}, "x" * 40, "x" * 400, "x" * 70_000,
        b"\xdc" * 40, b"\xdc" * 400, b"\xdd" * 70_000, 1.5, -(2**63), 2**64 - 1, -1, -33, 200,
        [[[[], {}], [{"a": [1, None, True]}]], [], {}], [[b"\xdc\xdd"] * 20] * 20,
    ],
)  # fmt: skip
def test_every_kind_of_value_passes_the_check_of_its_shape(value: object) -> None:
    message = {"k": value, "l": [value, value], "mark": b"\xdc"}
    assert decode_map(msgpack.packb(message)) == message
