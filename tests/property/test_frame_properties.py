"""The frame reader with arbitrary bytes, cut at arbitrary places."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st
from support.clients.hostile_frames import hostile_maps

from liftlog.errors import BadRequest, LimitExceeded
from liftlog.protocol.frames import FrameReader, decode_map, encode_frame
from liftlog.protocol.limits import MAX_DEPTH

scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=40)
maps = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key != "b"),
    scalars | st.lists(scalars, max_size=4) | st.binary(max_size=60),
    max_size=6,
)
messages = st.lists(st.tuples(maps, st.binary(max_size=300)), max_size=8)
LIMIT = 2000


def run(data: bytes, cuts: list[int], buffer_bytes: int) -> list[Any]:
    frames = FrameReader(max_frame_bytes=LIMIT, max_body_bytes=LIMIT, buffer_bytes=buffer_bytes)
    found: list[Any] = []
    position, turn = 0, 0
    while position < len(data):
        room = frames.get_buffer()
        assert len(room) > 0
        assert len(room) <= max(LIMIT, buffer_bytes) + 4
        step = cuts[turn % len(cuts)] if cuts else len(data)
        count = min(len(room), step, len(data) - position)
        room[:count] = data[position : position + count]
        frames.buffer_updated(count)
        position += count
        turn += 1
        while (event := frames.next_event()) is not None:
            found.append(bytes(event) if isinstance(event, memoryview) else event)
    return found


def survive(data: bytes, cuts: list[int]) -> None:
    """Read. Any other exception is a failure of the test."""
    with contextlib.suppress(BadRequest, LimitExceeded):
        run(data, cuts, 64)


@given(messages, st.lists(st.integers(1, 50), max_size=10), st.integers(8, 600))
def test_any_cut_gives_the_same_messages(
    sent: list[tuple[dict[str, Any], bytes]], cuts: list[int], buffer_bytes: int
) -> None:
    data, expected = b"", []
    for message, body in sent:
        whole = {**message, "b": len(body)}
        data += encode_frame(whole) + body
        expected.append(whole)
        if body:
            expected.append(body)
    assert run(data, cuts, buffer_bytes) == expected


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), max_size=5))
def test_garbage_ends_in_a_coded_error_or_waits_for_more(data: bytes, cuts: list[int]) -> None:
    survive(data, cuts)


@given(maps, st.data())
def test_a_flipped_byte_never_escapes_as_another_exception(
    message: dict[str, Any], draw: st.DataObject
) -> None:
    data = bytearray(encode_frame(message) * 2)
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))
    survive(bytes(data), [7])


# --- what the check before the decoder lets through ---

values = st.recursive(
    scalars | st.binary(max_size=300) | st.floats(allow_nan=False) | st.text(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=40), inner, max_size=20)
    ),
    max_leaves=40,
)


def shape(value: Any) -> tuple[int, int]:
    """Return the depth, and the number of values in its maps and arrays."""
    if isinstance(value, dict):
        inner, count = list(value.values()), 2 * len(value)
    elif isinstance(value, list):
        inner, count = value, len(value)
    else:
        return 0, 0
    shapes = [shape(one) for one in inner]
    return 1 + max([d for d, _ in shapes], default=0), count + sum(c for _, c in shapes)


def judged(data: bytes, max_values: int) -> Any:
    """Decode only with the decoder, which is slow or uses much memory, and checks its limits
    last."""
    try:
        found = msgpack.unpackb(data, strict_map_key=True, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if type(found) is not dict or not all(type(key) is str for key in found):
        return None
    depth, count = shape(found)
    # Of equal keys the decoder keeps one, so it may count less.
    return found if depth <= MAX_DEPTH and count <= max_values else None


def decoded(data: bytes, max_values: int) -> Any:
    try:
        return decode_map(data, max_values)
    except BadRequest:
        return None


@given(st.dictionaries(st.text(max_size=40), values, max_size=20), st.integers(20, 200))
def test_what_is_within_the_limits_is_decoded_and_nothing_else(
    message: dict[str, Any], max_values: int
) -> None:
    depth, count = shape(message)
    found = decoded(msgpack.packb(message), max_values)
    if depth > MAX_DEPTH or count <= max_values:
        assert found == (message if depth <= MAX_DEPTH else None)
    marked = {**message, "mark": b"\xdc\xdd"}  # its values are counted, however short it is
    depth, count = shape(marked)
    fits = depth <= MAX_DEPTH and count <= max_values
    assert decoded(msgpack.packb(marked), max_values) == (marked if fits else None)


@given(st.dictionaries(st.text(max_size=40), values, max_size=20), st.data())
def test_a_wrong_size_is_refused_as_the_decoder_refuses_it(
    message: dict[str, Any], draw: st.DataObject
) -> None:
    data = bytearray(msgpack.packb({**message, "mark": b"\xdc"}))
    for _ in range(draw.draw(st.integers(1, 3))):
        place = draw.draw(st.integers(0, len(data) - 1))
        data[place] = draw.draw(
            st.sampled_from([*range(0x80, 0xA0, 5), *range(0xC0, 0xE0), 0, 255])
        )
    expected, found = judged(bytes(data), 1 << 30), decoded(bytes(data), 1 << 30)
    assert repr(found) == repr(expected)  # a NaN is not equal to itself


@given(st.sampled_from(sorted(hostile_maps(1024))), st.integers(600, 4096), st.integers(0, 10))
@example("arrays of 1000 in arrays", 4096, 0)
def test_a_hostile_frame_ends_in_a_coded_error(name: str, size: int, cut: int) -> None:
    data = hostile_maps(size)[name]
    survive(len(data).to_bytes(4, "little") + data[: len(data) - cut] + bytes(cut), [500])
