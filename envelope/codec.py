"""Encodes and decodes envelopes.

`decode` runs for every message of a stream, and publishers control its input. So it returns None
for input that is not exactly an envelope, and never raises. Time and memory are at most a small
multiple of the input's size, regardless of the lengths and nesting that the input declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgpack
from crc32c import crc32c

from . import fields as check
from .fields import NO_HEADERS, AckPolicy, Envelope
from .format import (
    COOKIE,
    CRC,
    FLAG_CRC,
    HEADER,
    HEADER_SIZE,
    HEADER_SIZE_WITH_CRC,
    MAX_HEADERS,
    MAX_KEY_BYTES,
    VERSION,
)

_KEYS = frozenset("kvhacpie")
_MAX_MAPS = 2  # key `h`, and the body itself
_SMALL = 8192
_SMALL_MAP = 0x80  # of up to 15 pairs, in msgpack
_USUAL_HEADER = HEADER.pack(COOKIE, VERSION, FLAG_CRC, HEADER_SIZE_WITH_CRC)

_packb = msgpack.packb
_unpackb = msgpack.unpackb
_unpack_header = HEADER.unpack_from
_unpack_crc = CRC.unpack_from
_new = tuple.__new__


def encode(
    value: bytes | str | None,
    *,
    key: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    ack_subject: str | None = None,
    correlation_id: str | None = None,
    ack_policy: AckPolicy | None = None,
    message_id: str | None = None,
    expected_last_offset: int | None = None,
    crc: bool = True,
) -> bytes:
    """Encode one envelope, ready to publish.

    A `value` of None makes a tombstone, which needs a `key`. Text is encoded as UTF-8. Equal
    arguments give equal bytes. Raises ValueError for a field that `decode` would not accept,
    TypeError for a value or key that is neither bytes nor text.
    """
    body: dict[str, Any] = {}
    if key is not None:
        raw_key = _to_bytes(key, "key")
        _demand(check.wrong_key(raw_key))
        body["k"] = raw_key
    elif value is None:
        raise ValueError("a tombstone (value None) needs a key")
    body["v"] = None if value is None else _to_bytes(value, "value")
    if headers:
        _demand(check.wrong_headers(headers))
        body["h"] = dict(headers)
    for name, given, wrong in (
        ("a", ack_subject, check.wrong_ack_subject),
        ("c", correlation_id, check.wrong_id),
        ("p", ack_policy, check.wrong_ack_policy),
        ("i", message_id, check.wrong_id),
        ("e", expected_last_offset, check.wrong_offset),
    ):
        if given is not None:
            _demand(wrong(given))
            body[name] = given
    packed = cast(bytes, _packb(body, use_bin_type=True))
    if not crc:
        return HEADER.pack(COOKIE, VERSION, 0, HEADER_SIZE) + packed
    head = HEADER.pack(COOKIE, VERSION, FLAG_CRC, HEADER_SIZE_WITH_CRC)
    return head + CRC.pack(crc32c(packed)) + packed


def decode(data: bytes) -> Envelope | None:
    """Return the envelope in `data`, or None if `data` is a plain message. Never raises."""
    if data[:HEADER_SIZE] == _USUAL_HEADER:
        body: bytes | memoryview = data[HEADER_SIZE_WITH_CRC:]
        if crc32c(body) != int.from_bytes(data[HEADER_SIZE:HEADER_SIZE_WITH_CRC], "little"):
            return None
    else:
        found = _unusual_body(data)
        if found is None:
            return None
        body = found
    try:
        return _decode_small(body) if len(body) <= _SMALL else _decode_body(body)
    except (ValueError, msgpack.UnpackException):
        # broken msgpack, bad UTF-8, too much nesting, trailing bytes
        return None


def _unusual_body(data: bytes) -> bytes | memoryview | None:
    if data[:4] != COOKIE or len(data) <= HEADER_SIZE:
        return None
    _, version, flags, header_size = _unpack_header(data)
    if version != VERSION or header_size < HEADER_SIZE or header_size >= len(data):
        return None
    # Copying a small body is cheaper than a view of it.
    whole = data if len(data) <= _SMALL else memoryview(data)
    body = whole[header_size:]
    if flags == FLAG_CRC:
        if header_size < HEADER_SIZE_WITH_CRC or crc32c(body) != _unpack_crc(data, HEADER_SIZE)[0]:
            return None
    elif flags:
        return None
    return body


def _decode_small(body: bytes | memoryview) -> Envelope | None:
    """Decode like `_decode_body`, but in one call into C unless there are headers.

    Maps inside the map become dicts, which take a hundred times the size of the maps: at most a
    megabyte for a body of `_SMALL` bytes.
    """
    fields = _unpackb(body, use_list=False, max_array_len=0, max_map_len=MAX_HEADERS, max_ext_len=0)
    # The first byte of a small map contains its number of pairs. If keys are equal, the result has
    # fewer.
    if type(fields) is not dict or body[0] != _SMALL_MAP | len(fields) or "h" in fields:
        return _decode_body(body)
    if not _KEYS.issuperset(fields) or "v" not in fields:
        return None
    return _checked(fields)


def _decode_body(body: bytes | memoryview) -> Envelope | None:
    maps = 0

    def on_map(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        # A pair of two bytes becomes a tuple of 56 bytes, so the result is limited: at most two
        # maps are ever completed, each with at most MAX_HEADERS pairs.
        nonlocal maps
        maps += 1
        if maps > _MAX_MAPS:
            raise ValueError("more maps than an envelope has")
        return pairs

    # Pairs are used instead of dicts to detect duplicate keys. With `use_list=False` an array is a
    # tuple, so a list is always a map. Text and bytes cannot be longer than the input. msgpack's
    # defaults require UTF-8 text, and text or bytes as keys.
    pairs = _unpackb(
        body,
        use_list=False,
        object_pairs_hook=on_map,
        max_array_len=0,
        max_map_len=MAX_HEADERS,
        max_ext_len=0,
    )
    if type(pairs) is not list:
        return None
    fields = dict(pairs)
    if len(fields) != len(pairs) or not _KEYS.issuperset(fields) or "v" not in fields:
        return None
    return _checked(fields)


def _checked(fields: dict[str, Any]) -> Envelope | None:
    get = fields.get
    value, key = fields["v"], get("k")
    if type(value) is str:
        value = value.encode()
    elif value is not None and type(value) is not bytes:
        return None
    if type(key) is str:
        key = key.encode()
    if key is None:
        if value is None:
            return None
    elif type(key) is not bytes or len(key) > MAX_KEY_BYTES:
        return None
    if len(fields) == (1 if key is None else 2):
        return _new(Envelope, (value, key, NO_HEADERS, None, None, None, None, None))

    headers: Mapping[str, str] = NO_HEADERS
    pairs = get("h")
    if pairs is not None:
        if type(pairs) is not list:
            return None
        headers = dict(pairs)
        if len(headers) != len(pairs) or check.wrong_headers(headers):
            return None

    ack_subject, correlation_id, ack_policy = get("a"), get("c"), get("p")
    message_id, expected = get("i"), get("e")
    if (
        (ack_subject is not None and check.wrong_ack_subject(ack_subject))
        or (correlation_id is not None and check.wrong_id(correlation_id))
        or (ack_policy is not None and check.wrong_ack_policy(ack_policy))
        or (message_id is not None and check.wrong_id(message_id))
        or (expected is not None and check.wrong_offset(expected))
    ):
        return None
    return _new(
        Envelope,
        (value, key, headers, ack_subject, correlation_id, ack_policy, message_id, expected),
    )


def _to_bytes(value: object, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the {what} must be bytes or text, not {type(value).__name__}")


def _demand(problem: str | None) -> None:
    if problem is not None:
        raise ValueError(problem)
