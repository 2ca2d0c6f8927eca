"""Properties of Liftbridge's envelope: encoding and decoding give the same message, and no input is
misread or raises an error."""

from __future__ import annotations

from functools import partial

import hypothesis.strategies as st
from hypothesis import given, settings
from support.rounds import examples
from support.timing import is_cheap

from envelope import liftbridge, protobuf
from envelope.liftbridge import (
    Ack,
    Publish,
    decode_ack,
    decode_publish,
    encode_ack,
    encode_acks,
    encode_publish,
)
from liftlog.records.message_headers import build_block, header_lines

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(max_size=40)
raw = st.binary(max_size=200)
publishes = st.builds(
    Publish,
    offset=int64,
    key=raw,
    value=raw,
    timestamp=int64,
    stream=text,
    partition=int32,
    subject=text,
    reply_subject=text,
    headers=st.dictionaries(text, raw, max_size=5),
    ack_inbox=text,
    correlation_id=text,
    ack_policy=int32,
)
acks = st.builds(
    Ack,
    stream=text,
    partition_subject=text,
    msg_subject=text,
    offset=int64,
    ack_inbox=text,
    correlation_id=text,
    ack_policy=int32,
    reception_timestamp=int64,
    commit_timestamp=int64,
    ack_error=int32,
)


@given(publishes, st.booleans())
def test_a_publish_comes_back(publish: Publish, crc: bool) -> None:
    data = encode_publish(publish, crc=crc)
    assert decode_publish(data) == publish
    assert decode_ack(data) is None


@given(acks, st.booleans())
def test_an_ack_comes_back(ack: Ack, crc: bool) -> None:
    data = encode_ack(ack, crc=crc)
    assert decode_ack(data) == ack
    assert decode_publish(data) is None


@settings(max_examples=examples(5))
@given(st.binary(max_size=300), st.sampled_from([8, 9, 12]))
def test_no_body_raises(body: bytes, header_size: int) -> None:
    found = decode_publish(liftbridge.COOKIE + bytes([0, header_size, 0, 0]) + body)
    if found is not None:
        assert decode_publish(encode_publish(found)) == found


@settings(max_examples=examples(3))
@given(publishes, st.data())
def test_damage_in_several_places_never_raises(publish: Publish, data: st.DataObject) -> None:
    damaged = bytearray(encode_publish(publish, crc=False))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(4, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    decode_publish(bytes(damaged))


SAMPLE = Publish(
    offset=-1, key=b"k", value=b"paid", headers={"a": b"b"}, ack_inbox="acks.1", correlation_id="c"
)


def test_every_changed_byte_is_noticed() -> None:
    data = encode_publish(SAMPLE, crc=True)
    unnoticed = {
        (position, value)
        for position in range(len(data))
        for value in range(256)
        if value != data[position]
        and decode_publish(data[:position] + bytes([value]) + data[position + 1 :]) is not None
    }
    assert unnoticed == {(6, 0)}, "only the flag that says there is no checksum"


def test_every_cut_with_a_checksum_is_a_plain_message() -> None:
    data = encode_publish(SAMPLE, crc=True)
    assert [n for n in range(len(data)) if decode_publish(data[:n]) is not None] == []
    assert decode_publish(data + b"\x00") is None


def test_every_single_bit_of_the_header_matters() -> None:
    data = encode_publish(SAMPLE, crc=False)
    for bit in range(64):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = decode_publish(bytes(damaged))
        if bit // 8 != 5:  # a longer header hides a part of the body
            assert found is None, bit


def test_hostile_fields_cost_little() -> None:
    """A megabyte of the smallest possible fields."""
    for fields in (b"\x1a\x00", b"\x4a\x00", b"\x78\x00", b"\x4a\x06" + b"\x0a\x00" * 3):
        data = liftbridge.COOKIE + b"\x00\x08\x00\x00" + fields * (2**20 // len(fields))
        assert decode_publish(data) is None
        assert is_cheap(partial(decode_publish, data), 0.1)
    nested = b"\x4a\x80\x80\x40" + b"\x0a\x00" * 2**19
    data = liftbridge.COOKIE + b"\x00\x08\x00\x00" + nested
    assert decode_publish(data) is None
    assert is_cheap(partial(decode_publish, data), 0.1)


@given(st.dictionaries(st.text(max_size=20), raw, max_size=5))
def test_headers_come_back_from_nats_headers(headers: dict[str, bytes]) -> None:
    found = liftbridge.nats_headers(headers)
    assert len(found) == len(headers)
    lines = [(name.encode(), value.encode()) for name, value in found.items()]
    assert header_lines(build_block(lines)) == lines
    assert liftbridge.liftbridge_headers(found) == headers
    for name, value in headers.items():
        if name.isalnum() and name.isascii() and value.isalnum():
            assert found[name] == value.decode()


@given(st.lists(st.tuples(acks, st.integers(0, 2**63 - 1)), max_size=8), int64)
def test_acks_together_are_what_each_is_alone(pairs: list[tuple[Ack, int]], time_ns: int) -> None:
    alone = [
        encode_ack(ack._replace(offset=offset, commit_timestamp=time_ns)) for ack, offset in pairs
    ]
    assert list(encode_acks(pairs, commit_timestamp=time_ns)) == alone


@given(publishes, st.data())
def test_what_is_decoded_at_once_is_what_is_decoded_by_field(
    publish: Publish, data: st.DataObject
) -> None:
    """Also after damage, after which both may find another message, or none."""
    body = bytearray(protobuf.encode(publish._replace(headers={}), liftbridge.PUBLISH))
    for _ in range(data.draw(st.integers(0, 2)) if body else 0):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(body[: data.draw(st.integers(0, len(body)))])
    fields = protobuf.decode(raw, liftbridge.PUBLISH)
    by_field = None if fields is None else Publish(**fields)
    found = list(Publish())
    try:
        if protobuf.decode_known(raw, liftbridge.PUBLISH_TAGS, found):
            assert Publish(*found) == by_field
    except (ValueError, IndexError):
        assert by_field is None


def test_ordinary_messages_are_decoded_at_once() -> None:
    publish = Publish(
        key=b"k", value=b"v" * 10_000, ack_inbox="_INBOX.1", correlation_id="c", ack_policy=1
    )
    found = list(Publish())
    body = protobuf.encode(publish, liftbridge.PUBLISH)
    assert protobuf.decode_known(body, liftbridge.PUBLISH_TAGS, found)
    assert Publish(*found) == publish
