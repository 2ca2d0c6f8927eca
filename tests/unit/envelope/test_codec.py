import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from crc32c import crc32c

import envelope
from envelope import Envelope, decode, encode


def wrap(body: bytes, *, crc: bool = True, header: bytes | None = None) -> bytes:
    if header is not None:
        return header + body
    if not crc:
        return b"\xb9\x0e\x4c\x4c" + struct.pack("<BBH", 1, 0, 8) + body
    return b"\xb9\x0e\x4c\x4c" + struct.pack("<BBHI", 1, 1, 12, crc32c(body)) + body


def packed(**fields: Any) -> bytes:
    return wrap(msgpack.packb({"v": b"x"} | fields))


def test_the_smallest_envelope() -> None:
    assert decode(encode(b"hello")) == Envelope(b"hello")
    assert encode(b"hello", crc=False) == bytes.fromhex("b90e4c4c 01000800 81 a176 c405") + b"hello"


def test_all_fields() -> None:
    data = encode(
        "value",
        key="k1",
        headers={"Trace": "abc", "x": ""},
        ack_subject="acks.me",
        correlation_id="c-1",
        ack_policy="all",
        message_id="m-1",
        expected_last_offset=0,
    )
    assert decode(data) == Envelope(
        value=b"value",
        key=b"k1",
        headers={"Trace": "abc", "x": ""},
        ack_subject="acks.me",
        correlation_id="c-1",
        ack_policy="all",
        message_id="m-1",
        expected_last_offset=0,
    )


def test_a_tombstone_has_a_key() -> None:
    found = decode(encode(None, key=b"k"))
    assert found == Envelope(None, b"k")
    assert found is not None
    assert found.is_tombstone
    with pytest.raises(ValueError, match="needs a key"):
        encode(None)
    assert decode(wrap(msgpack.packb({"v": None}))) is None


def test_a_missing_value_is_not_a_tombstone() -> None:
    assert decode(wrap(msgpack.packb({"k": b"k"}))) is None
    assert decode(wrap(b"\x80")) is None


def test_an_envelope_cannot_be_changed() -> None:
    found = decode(encode(b"x"))
    with pytest.raises(AttributeError):
        found.value = b"y"  # type: ignore[union-attr,misc]
    with pytest.raises(TypeError):
        found.headers["a"] = "b"  # type: ignore[union-attr,index]


def test_the_header_may_grow() -> None:
    body = msgpack.packb({"v": b"x"})
    longer = b"\xb9\x0e\x4c\x4c" + struct.pack("<BBHI", 1, 1, 20, crc32c(body)) + b"8 bytes!" + body
    assert decode(longer) == Envelope(b"x")
    assert decode(b"\xb9\x0e\x4c\x4c" + struct.pack("<BBH", 1, 0, 9) + b"?" + body) == Envelope(
        b"x"
    )


def test_text_counts_as_bytes_and_any_map_size_is_read() -> None:
    assert decode(wrap(b"\xde\x00\x02\xa1k\xa1a\xa1v\xa1b")) == Envelope(b"b", b"a")
    assert decode(wrap(b"\xdf\x00\x00\x00\x01\xd9\x01v\xc4\x00")) == Envelope(b"")


def test_null_means_not_set() -> None:
    assert decode(packed(k=None, h=None, a=None, c=None, p=None, i=None, e=None)) == Envelope(b"x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xb9",
        b"\xb9\x0e\x4c\x4c",
        b"\xb9\x0e\x4c\x4c\x01\x00\x08\x00",
        # The eight bytes that crash a Liftbridge server on any streamed subject.
        bytes.fromhex("B9 0E 43 B4 00 FF 00 00"),
        # The same trick with our cookie.
        bytes.fromhex("B9 0E 4C 4C 01 FF 00 00"),
        bytes.fromhex("B9 0E 4C 4C 01 00 FF FF"),
        bytes.fromhex("B9 0E 4C 4C 00 00 08 00 80"),
        encode(b"x")[:4] + b"\x02" + encode(b"x")[5:],
        encode(b"x")[:5] + b"\x03" + encode(b"x")[6:],
        encode(b"x", crc=False)[:6] + b"\x07\x00" + encode(b"x", crc=False)[8:],
        encode(b"x")[:6] + b"\x0b\x00" + encode(b"x")[8:],
        encode(b"x") + b"\x00",
        encode(b"x", crc=False) + b"\x00",
        encode(b"x", crc=False) * 2,
        b'{"json": true}',
    ],
)
def test_a_bad_header_is_a_plain_message(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize(
    "body",
    [
        b"\xc0",
        b"\x01",
        b"\x90",
        b"\xa1v",
        b"\x81\xa1v",
        b"\x81\xa1v\xc1",
        b"\x82\xa1v\xc4\x00\xa1v\xc4\x00",  # `v` twice
        b"\x82\xa1v\xc4\x00\xa1h\x82\xa1a\xa1b\xa1a\xa1c",  # header `a` twice
        b"\x82\xa1v\xc4\x00\xa1h\x90",  # an empty array for a map
        b"\x82\xa1v\xc4\x00\xa1k\x80",
        b"\x81\xa1v\x80",
        b"\x81\xa1v\x91\x01",
        b"\x81\xa1v\xd4\x01\x00",  # ext
        b"\x81\xa1v\xd6\xff\x00\x00\x00\x00",  # timestamp
        b"\x81\xa1v\xc7\x00\xff",  # empty timestamp
        b"\x81\xc4\x01v\xc4\x00",  # bytes as a key
        b"\x81\x01\xc4\x00",
        b"\x81\x90\xc4\x00",
        b"\x81\x80\xc4\x00",
        b"\x81\xa1v\xa1\xff",  # not UTF-8
        b"\x81\xa1v\xa3\xed\xa0\x80",  # a lone surrogate
        b"\x82\xa1v\xc4\x00\xa1z\xc4\x00",  # a key that does not exist
        b"\x81\xa1v\xc6\xff\xff\xff\xff",
        b"\x81\xa1v\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1v\xdd\xff\xff\xff\xff",
        b"\x81\xa1v\xdf\xff\xff\xff\xff",
        b"\x81\xa1v\xc9\xff\xff\xff\xff\x01",
    ],
)
def test_a_bad_body_is_a_plain_message(body: bytes) -> None:
    assert decode(wrap(body)) is None
    assert decode(wrap(body, crc=False)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 1},
        {"v": True},
        {"v": 1.5},
        {"k": 1},
        {"k": b"x" * 65_536},
        {"h": "a: b"},
        {"h": {"a": 1}},
        {"h": {"a": b"b"}},
        {"h": {"a": None}},
        {"h": {b"a": "b"}},
        {"h": {"a": {"b": "c"}}},
        {"h": {"": "b"}},
        {"h": {"a b": "c"}},
        {"h": {"a:b": "c"}},
        {"h": {"a\r\nb": "c"}},
        {"h": {"é": "c"}},
        {"h": {"a" * 256: "c"}},
        {"h": {"a": "b\r\nNats-Rollup: all"}},
        {"h": {"a": "b\nc"}},
        {"h": {"a": "b\0c"}},
        {"h": {"a": " b"}},
        {"h": {"a": "b\t"}},
        {"h": {"a": " "}},
        {"h": {"a": "b\u2028c"}},
        {"h": {"a": "b\x85c"}},
        {"h": {"a": "b" * 4097}},
        {"h": {"a": "é" * 2049}},
        {"h": {f"h{n}": "" for n in range(65)}},
        {"a": b"acks.me"},
        {"a": 1},
        {"a": ""},
        {"a": "a b"},
        {"a": "a\tb"},
        {"a": "a\r\nPUB b 0\r\n"},
        {"a": "a\n"},
        {"a": "a.*"},
        {"a": "a.>"},
        {"a": "a*"},
        {"a": ">"},
        {"a": "a..b"},
        {"a": ".a"},
        {"a": "a."},
        {"a": "é"},
        {"a": "a\x7f"},
        {"a": "$JS.API.STREAM.PURGE.X"},
        {"a": "$SYS.REQ.SERVER.PING"},
        {"a": "$anything"},
        {"a": "liftlog.node.offsets.s.c"},
        {"a": "a" * 256},
        {"c": 1},
        {"c": ""},
        {"c": "a\nb"},
        {"c": "a" * 256},
        {"i": b"id"},
        {"i": ""},
        {"i": "a\rb"},
        {"i": "é" * 128},
        {"p": 0},
        {"p": "LEADER"},
        {"p": ""},
        {"p": b"all"},
        {"e": -1},
        {"e": True},
        {"e": False},
        {"e": 1.0},
        {"e": "1"},
        {"e": 2**63},
    ],
)
def test_a_bad_field_is_a_plain_message(fields: dict[str, Any]) -> None:
    assert decode(packed(**fields)) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"k": b""},
        {"k": b"x" * 65_535},
        {"h": {}},
        {"h": {"a": ""}},
        {"h": {"a": "b c\td"}},
        {"h": {"a": "é" * 2048}},
        {"h": {"A!#~": "b:c"}},
        {"h": {f"h{n}": "" for n in range(64)}},
        {"a": "a"},
        {"a": "_INBOX.abc.1"},
        {"a": "a.$b"},
        {"a": "liftlogs.a"},
        {"a": "a" * 255},
        {"a": "a!'()+,-/:;<=?@[]^_`{|}~"},
        {"c": "a" * 255},
        {"i": "ü"},
        {"p": "none"},
        {"e": 2**63 - 1},
    ],
)
def test_a_field_at_its_limit_is_accepted(fields: dict[str, Any]) -> None:
    found = decode(packed(**fields))
    assert found is not None
    names = {"k": "key", "h": "headers", "a": "ack_subject", "c": "correlation_id"}
    names |= {"i": "message_id", "p": "ack_policy", "e": "expected_last_offset"}
    for short, value in fields.items():
        assert getattr(found, names[short]) == value


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"key": b"x" * 65_536}, "key longer"),
        ({"headers": {"a b": "c"}}, "header name"),
        ({"headers": {"a": "b\r\nc"}}, "header line"),
        ({"headers": {f"h{n}": "" for n in range(65)}}, "more than 64"),
        ({"ack_subject": "$JS.API.X"}, "ack subject"),
        ({"ack_subject": "a.*"}, "ack subject"),
        ({"correlation_id": ""}, "an id"),
        ({"message_id": "a\nb"}, "an id"),
        ({"ack_policy": "some"}, "ack policy"),
        ({"expected_last_offset": True}, "whole number"),
        ({"expected_last_offset": -1}, "whole number"),
    ],
)
def test_encode_refuses_what_decode_would_not_take(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        encode(b"x", **arguments)


def test_encode_wants_bytes_or_text() -> None:
    with pytest.raises(TypeError, match="value"):
        encode(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="key"):
        encode(b"x", key=5)  # type: ignore[arg-type]
    assert decode(encode(bytearray(b"x"), key=memoryview(b"k"))) == Envelope(b"x", b"k")  # type: ignore[arg-type]


def nested(depth: int) -> bytes:
    return b"\x81\xa1h" * depth


def wide(inner: bytes) -> bytes:
    return b"\xde\x00\x40" + b"".join(b"\xa1a" + inner for _ in range(64))


def filled(depth: int) -> bytes:
    return (b"\xde\x00\x40" + b"\xa0\xc0" * 63 + b"\xa1h") * depth + b"\xc0"


@pytest.mark.parametrize(
    "body",
    [
        nested(500_000),
        b"\x81\xa1v" + b"\x91" * 500_000,
        b"\x81\xa1v" + b"\x90" * 500_000,
        wide(wide(wide(b"\xc0"))),
        filled(1000),
        b"\x81\xa1v\xc6\x7f\xff\xff\xff" + b"x" * 1000,
        b"\xdf\x00\x10\x00\x00" + b"\xa0\xc0" * 100_000,
    ],
    ids=["nested maps", "nested arrays", "arrays", "wide maps", "full nested", "long", "many"],
)
def test_what_a_bomb_costs_is_bounded(body: bytes) -> None:
    data = wrap(body, crc=False)
    tracemalloc.start()
    try:
        assert decode(data) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * 2**20


def test_the_package_says_whose_it_is() -> None:
    assert envelope.PART_OF == "liftlog"
    assert envelope.COOKIE == b"\xb9\x0e\x4c\x4c"
