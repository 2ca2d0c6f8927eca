"""Liftbridge's envelope: bytes of its own library, and everything that is not one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from envelope import liftbridge, protobuf
from envelope.liftbridge import (
    Ack,
    Publish,
    decode_ack,
    decode_publish,
    encode_ack,
    encode_publish,
)

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = json.loads((ROOT / "tests/golden/envelope/liftbridge-v0.json").read_text())
KILLER = bytes.fromhex("B90E43B400FF0000")


def fields_of(case: dict[str, Any]) -> dict[str, Any]:
    """The fields of a golden case, bytes out of hex."""
    fields = dict(case["fields"])
    for name in ("key", "value"):
        if name in fields:
            fields[name] = bytes.fromhex(fields[name])
    if "headers" in fields:
        fields["headers"] = {k: bytes.fromhex(v) for k, v in fields["headers"].items()}
    return fields


def names(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


def head(*, version: int = 0, size: int = 8, flags: int = 0, kind: int = 0) -> bytes:
    return liftbridge.COOKIE + bytes([version, size, flags, kind])


# --- what Liftbridge's generated code writes ---


@pytest.mark.parametrize("case", GOLDEN["publish"], ids=names(GOLDEN["publish"]))
def test_golden_publish(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    expected = Publish(**fields_of(case))
    assert decode_publish(data) == expected
    assert encode_publish(expected, crc=False) == data
    assert decode_publish(encode_publish(expected)) == expected
    assert decode_ack(data) is None


@pytest.mark.parametrize("case", GOLDEN["ack"], ids=names(GOLDEN["ack"]))
def test_golden_ack(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    expected = Ack(**case["fields"])
    assert encode_ack(expected) == data
    assert decode_ack(data) == expected
    assert decode_ack(encode_ack(expected, crc=True)) == expected
    assert decode_publish(data) is None


def test_the_golden_file_holds_every_field() -> None:
    assert {name for case in GOLDEN["publish"] for name in case["fields"]} == set(Publish._fields)
    assert {name for case in GOLDEN["ack"] for name in case["fields"]} == set(Ack._fields)


def test_the_checksum_is_big_endian() -> None:
    body = bytes.fromhex("1a0568656c6c6f")
    data = head(size=12, flags=1) + crc32c(body).to_bytes(4, "big") + body
    assert decode_publish(data) == Publish(value=b"hello")
    assert encode_publish(Publish(value=b"hello")) == data


# --- envelopes that deviate ---


def test_the_eight_bytes_that_stop_a_liftbridge_server() -> None:
    assert decode_publish(KILLER) is None
    assert decode_ack(KILLER) is None


GOOD = encode_publish(Publish(value=b"hello"), crc=False)
BODY = GOOD[8:]
DEVIATIONS = {
    "nothing": b"",
    "cookie alone": liftbridge.COOKIE,
    "seven bytes": GOOD[:7],
    "another cookie": b"\xb9\x0e\x4c\x4c" + GOOD[4:],
    "version 1": head(version=1) + BODY,
    "header length 0": head(size=0) + BODY,
    "header length 7": head(size=7) + BODY,
    "header length past the end": head(size=len(GOOD) + 1) + BODY,
    "an ack": head(kind=1) + BODY,
    "an internal message": head(kind=2) + BODY,
    "unknown flag": head(flags=2) + BODY,
    "checksum without room": head(flags=1) + BODY,
    "checksum wrong": head(size=12, flags=1) + bytes(4) + BODY,
    "checksum in a longer header": head(size=13, flags=1) + crc32c(BODY).to_bytes(5) + BODY,
    "field number 0": head() + b"\x02\x01x",
    "length past the end": head() + b"\x1a\x06hello",
    "length of 2^63": head() + b"\x1a" + b"\xff" * 8 + b"\x7f",
    "length of more than 64 bits": head() + b"\x1a" + b"\xff" * 9 + b"\x7f",
    "number of more than 64 bits": head() + b"\x08" + b"\xff" * 9 + b"\x02",
    "number without end": head() + b"\x08" + b"\xff" * 20,
    "number cut off": head() + b"\x08\xff",
    "group": head() + b"\x1b\x1c",
    "end of a group": head() + b"\x1c",
    "wire type 6": head() + b"\x1e",
    "fixed number cut off": head() + b"\x79" + bytes(7),
    "text that is not UTF-8": head() + b"\x52\x01\xff",
    "header name that is not UTF-8": head() + b"\x4a\x03\x0a\x01\xff",
    "map entry cut off": head() + b"\x4a\x02\x0a\x01",
    "too many fields": head() + b"\x1a\x00" * (protobuf.MAX_FIELDS + 1),
    "too many fields in an entry": head() + b"\x4a\x12" + b"\x1a\x00" * 9,
}


@pytest.mark.parametrize("data", DEVIATIONS.values(), ids=DEVIATIONS)
def test_deviations_are_plain_messages(data: bytes) -> None:
    assert decode_publish(data) is None


def test_what_protobuf_allows_is_understood() -> None:
    def of(body: bytes) -> Publish | None:
        return decode_publish(head() + body)

    assert decode_publish(head()) == Publish()
    assert decode_publish(head(size=10) + b"??" + BODY) == Publish(value=b"hello")
    assert of(b"\x1a\x01a\x1a\x01b") == Publish(value=b"b"), "the last one counts"
    unknown = b"\x78\x05" + b"\x79" + bytes(8) + b"\x7d" + bytes(4) + b"\x7a\x01x"
    assert of(unknown + BODY) == Publish(value=b"hello"), "unknown fields are skipped"
    assert of(b"\x18\x07" + BODY) == Publish(value=b"hello"), "and known ones of another type"
    entry = b"\x4a\x06\x12\x01v\x0a\x01k"
    assert of(entry) == Publish(headers={"k": b"v"}), "in any order"
    assert of(entry + b"\x4a\x03\x0a\x01k") == Publish(headers={"k": b""})
    assert of(b"\x4a\x00") == Publish(headers={"": b""})
    assert of(b"\x08\x80\x80\x00") == Publish(), "a number with more bytes than it needs"
    assert of(b"\x60" + b"\xff" * 4 + b"\x0f") == Publish(ack_policy=-1)


def test_numbers_that_do_not_fit_are_not_written() -> None:
    with pytest.raises(OverflowError):
        encode_publish(Publish(offset=2**63))
