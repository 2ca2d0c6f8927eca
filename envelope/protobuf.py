"""The part of protobuf's wire format that Liftbridge's messages need, driven by tables.

A message is a sequence of fields. Each field is a tag (number and wire type) and a value: an
integer, a text, bytes, or a map of text to bytes. Specification:
https://protobuf.dev/programming-guides/encoding/

Publishers control the input of `decode`. For malformed input `decode` returns None, and it never
raises. It reads at most `MAX_FIELDS` fields of a message, and `MAX_ENTRY_FIELDS` fields of each
entry of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

INT64: Final = 0
INT32: Final = 1  # and enumerations
TEXT: Final = 2
BYTES: Final = 3
MAP: Final = 4
"""A map of text to bytes."""

Table = Mapping[int, tuple[str, int]]
"""Maps the number of a field to (name, kind)."""

MAX_FIELDS: Final = 256
"""Maximum number of fields in a message. Without this limit, a megabyte of two-byte fields would
take half a second."""

MAX_ENTRY_FIELDS: Final = 8
"""Maximum number of fields in an entry of a map. An entry has two fields; the limit is higher
because fields may be repeated or unknown."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_WIRE_TYPE = {INT64: _VARINT, INT32: _VARINT, TEXT: _LENGTH, BYTES: _LENGTH, MAP: _LENGTH}
_UNKNOWN = ("", -1)
_UNKNOWN_TAG = (-1, -1)
_MAX_KNOWN = 16
_ENTRY: Table = {1: ("key", TEXT), 2: ("value", BYTES)}
_MAX_VARINT_BYTES = 10
_MAX_FIELD_NUMBER = 2**29 - 1


KnownTags = Sequence[tuple[int, int]]
"""Maps each first byte of a field to (place in the table, kind), or to (-1, -1)."""


def known_tags(table: Table) -> KnownTags:
    """Return the fields of the table whose tags are one byte, except maps."""
    tags = [_UNKNOWN_TAG] * 256
    for place, (number, (_, kind)) in enumerate(table.items()):
        if kind != MAP and number < 16:
            tags[number << 3 | _WIRE_TYPE[kind]] = (place, kind)
    return tags


def decode_known(data: bytes, tags: KnownTags, fields: list[Any]) -> bool:
    """Decode an ordinary message into `fields`, by index. Returns False if the message is not
    ordinary; `decode` must then read it.

    An ordinary message has a few short fields, all of them in the table and none of them a map. If
    the result is True, `decode` would give the same fields. Raises ValueError and IndexError for a
    malformed message.
    """
    pos, end = 0, len(data)
    for _ in range(_MAX_KNOWN):
        if pos >= end:
            return pos == end
        place, kind = tags[data[pos]]
        value = data[pos + 1]
        pos += 2
        if kind >= TEXT:  # or BYTES
            if value >= 0x80:
                high = data[pos]
                if high >= 0x80:
                    return False
                value = value & 0x7F | high << 7
                pos += 1
            start = pos
            pos += value
            fields[place] = data[start:pos] if kind == BYTES else data[start:pos].decode()
        elif place < 0 or value >= 0x80:
            return False
        else:
            fields[place] = value
    return False


def decode(data: bytes, table: Table) -> dict[str, Any] | None:
    """Return the fields in the message, by name; None if the message is malformed.

    Fields that the table does not name, or that have another wire type, are skipped. If a field
    is repeated, the last one counts.
    """
    try:
        return _decode(data, table, MAX_FIELDS)
    except (ValueError, IndexError):  # too short, too long, or text that is not UTF-8
        return None


def _decode(data: bytes, table: Table, max_fields: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    pos = count = 0
    end = len(data)
    while pos < end:
        count += 1
        if count > max_fields:
            raise ValueError("too many fields")
        tag, pos = _varint(data, pos)
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number <= _MAX_FIELD_NUMBER:
            raise ValueError("no such field number")
        value: Any = None
        if wire_type == _LENGTH:
            size = data[pos]
            start = pos + 1
            if size >= 0x80:
                size, start = _varint(data, pos)
            pos = start + size
            value = data[start:pos]
        elif wire_type == _VARINT:
            value, pos = _varint(data, pos)
        elif wire_type in (_FIXED64, _FIXED32):
            pos += 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError("groups are not supported")
        if pos > end:
            raise ValueError("a field passes the end")
        name, kind = table.get(number, _UNKNOWN)
        if kind in (BYTES, TEXT, MAP) and wire_type == _LENGTH:
            if kind == BYTES:
                found[name] = value
            elif kind == TEXT:
                found[name] = value.decode()
            else:
                entry = _decode(value, _ENTRY, MAX_ENTRY_FIELDS)
                found.setdefault(name, {})[entry.get("key", "")] = entry.get("value", b"")
        elif kind in (INT64, INT32) and wire_type == _VARINT:
            found[name] = _signed(value, 64 if kind == INT64 else 32)
    return found


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    """Return (value, position after it)."""
    value = data[pos]
    if value < 0x80:
        return value, pos + 1
    value &= 0x7F
    for i in range(1, _MAX_VARINT_BYTES):
        byte = data[pos + i]
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if value >= 2**64:
                break
            return value, pos + i + 1
    raise ValueError("a number of more than 64 bits")


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def encode(values: Iterable[Any], table: Table) -> bytes:
    """Encode a message of these values, in the order of the table. Default values are left out.

    Raises OverflowError for a number that does not fit 64 bits.
    """
    parts: list[bytes] = []
    for value, (number, (_, kind)) in zip(values, table.items(), strict=True):
        if not value:
            continue
        tag = _to_varint(number << 3 | _WIRE_TYPE[kind])
        if kind == MAP:
            parts += _entries(value, tag)
        elif kind in (INT64, INT32):
            parts += (tag, _to_varint(value))
        else:
            raw = value.encode() if kind == TEXT else value
            parts += (tag, _to_varint(len(raw)), raw)
    return b"".join(parts)


def _entries(items: Mapping[str, bytes], tag: bytes) -> Iterator[bytes]:
    for key, value in items.items():
        # Both fields are written even if empty, as protobuf's own libraries do.
        entry = b"\x0a" + sized(key.encode()) + b"\x12" + sized(value)
        yield tag + sized(entry)


def sized(raw: bytes) -> bytes:
    """Return the bytes, preceded by their length."""
    size = len(raw)
    return (_ONE_BYTE[size] if size < 0x80 else _to_varint(size)) + raw


_ONE_BYTE = [bytes([value]) for value in range(0x80)]
CONTINUED = [bytes([0x80 | low]) for low in range(0x80)]
"""First byte of a varint of several bytes, for each value of its lowest seven bits."""


def varint(value: int) -> bytes:
    """Encode a number from 0 to 2^63 - 1. For numbers that seldom occur again, such as offsets."""
    if value < 0x80:
        return _to_varint(value)
    low, middle, high = value & 0x7F, value >> 7 & 0x7F, value >> 14
    if not high:
        return CONTINUED[low] + _to_varint(middle)
    return CONTINUED[low] + CONTINUED[middle] + _to_varint(high)


@lru_cache(maxsize=4096)  # tags, sizes and times recur
def _to_varint(value: int) -> bytes:
    if not -(2**63) <= value < 2**63:
        raise OverflowError(f"{value} does not fit 64 bits")
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
