import re
from collections.abc import Callable
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.values import binary
from support.rounds import examples

from envelope import ACK_POLICIES, Envelope, codec, decode, encode

line_chars = st.characters(codec="utf-8", categories=["L", "N", "P", "S"], include_characters=" ")
lines = st.text(line_chars, max_size=60).filter(lambda text: text == text.strip(" "))
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20).map(
    lambda name: name.replace(":", "-")
)
tokens = st.from_regex(re.compile(r"[A-Za-z0-9_-]{1,10}"), fullmatch=True)
subjects = (
    st.lists(tokens, min_size=1, max_size=5)
    .map(".".join)
    .filter(lambda subject: not subject.startswith("liftlog."))
)

arguments = st.fixed_dictionaries(
    {"value": binary(300)},
    optional={
        "key": binary(),
        "headers": st.dictionaries(names, lines, max_size=8),
        "ack_subject": subjects,
        "correlation_id": lines.filter(bool),
        "ack_policy": st.sampled_from(ACK_POLICIES),
        "message_id": lines.filter(bool),
        "expected_last_offset": st.integers(0, 2**63 - 1),
    },
)


@given(arguments, st.booleans())
def test_what_is_encoded_is_decoded(given: dict[str, Any], crc: bool) -> None:
    data = encode(**given, crc=crc)
    assert decode(data) == Envelope(**given)
    assert encode(**given, crc=crc) == data


@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    decode(data)


@given(st.binary(max_size=200))
def test_no_body_raises(body: bytes) -> None:
    found = decode(b"\xb9\x0e\x4c\x4c\x01\x00\x08\x00" + body)
    if found is not None:
        # Everything that was accepted can be encoded again.
        again = encode(
            found.value,
            key=found.key,
            headers=found.headers,
            ack_subject=found.ack_subject,
            correlation_id=found.correlation_id,
            ack_policy=found.ack_policy,
            message_id=found.message_id,
            expected_last_offset=found.expected_last_offset,
        )
        assert decode(again) == found


SAMPLES = [
    {"value": b"hello"},
    {"value": None, "key": b"k"},
    {
        "value": b"v" * 40,
        "key": b"key",
        "headers": {"Trace": "abc", "b": ""},
        "ack_subject": "acks.me",
        "correlation_id": "c",
        "ack_policy": "leader",
        "message_id": "m",
        "expected_last_offset": 7,
    },
]


def test_every_changed_byte_is_noticed() -> None:
    for sample in SAMPLES:
        expected = Envelope(**sample)  # type: ignore[arg-type]
        for crc in (True, False):
            data = encode(**sample, crc=crc)  # type: ignore[arg-type]
            unnoticed = []
            for position in range(len(data)):
                for value in range(256):
                    if value == data[position]:
                        continue
                    found = decode(data[:position] + bytes([value]) + data[position + 1 :])
                    if found is not None:
                        unnoticed.append((position, value))
                        # Without a checksum a changed value is another value.
                        assert found == expected or not crc
            if crc:
                # Only the flag "no checksum" leaves a valid envelope, of the same content.
                assert unnoticed == [(5, 0)]


def test_every_truncation_is_a_plain_message() -> None:
    for sample in SAMPLES:
        for crc in (True, False):
            data = encode(**sample, crc=crc)  # type: ignore[arg-type]
            assert [n for n in range(len(data)) if decode(data[:n]) is not None] == []
            assert decode(data + b"\xc0") is None


@settings(max_examples=examples(3))
@given(arguments, st.data())
def test_damage_in_several_places_never_raises(given: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(encode(**given, crc=False))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    decode(bytes(raw))


ODD_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), binary(20), lines, st.just([]), st.just({}),
    st.dictionaries(names, lines, max_size=2), st.just({"a": {"b": {"c": 1}}}),
)  # fmt: skip
ODD_MAPS = st.lists(st.tuples(st.sampled_from([*"kvhacpie", "x"]), ODD_VALUES), max_size=6)


@settings(max_examples=examples(5))
@given(ODD_MAPS, st.integers(0, 6), st.binary(max_size=2))
def test_a_small_body_is_decoded_as_any_other(
    pairs: list[tuple[str, Any]], declared: int, rest: bytes
) -> None:
    """With any content: equal keys, a wrong count, values of other types, trailing bytes."""
    declared = len(pairs) if declared > len(pairs) else declared
    items = b"".join(msgpack.packb(key) + msgpack.packb(value) for key, value in pairs)
    body = bytes([0x80 | declared]) + items + rest

    def outcome(function: Callable[[bytes], Envelope | None]) -> Envelope | None:
        try:
            return function(body)
        except (ValueError, msgpack.UnpackException):
            return None

    assert outcome(codec._decode_small) == outcome(codec._decode_body)
