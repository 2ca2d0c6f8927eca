"""The frame reader under arbitrary bytes and arbitrary cuts."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import BadRequest, LimitExceeded
from liftlog.protocol.frames import FrameReader, encode_frame

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
    """Any other exception is a failure of the test."""
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
