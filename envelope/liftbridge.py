"""The envelope of Liftbridge, for publishers written for Liftbridge.

    0  4  magic number B9 0E 43 B4
    4  1  version 0
    5  1  header length (8, or 12 with CRC)
    6  1  flags (bit 0: CRC present)
    7  1  message type (0 publish, 1 ack)
    8  4  CRC-32C of the body u32 big-endian (only with flag bit 0)
    .. the rest is the body, one protobuf message

Sources: documentation/envelope_protocol.md and server/protocol/envelope.go of
https://github.com/liftbridge-io/liftbridge, and api.proto of liftbridge-io/liftbridge-api for the
messages. As with liftlog's own envelope, input that is not exactly an envelope is a plain message:
`decode_publish` and `decode_ack` return None and never raise. (The eight bytes B9 0E 43 B4 00 FF 00
00, whose header is longer than the message, crash a Liftbridge server.)
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from crc32c import crc32c

from . import protobuf
from .fields import is_header
from .protobuf import BYTES, INT32, INT64, MAP, TEXT, Table

COOKIE = b"\xb9\x0e\x43\xb4"
VERSION = 0
FLAG_CRC = 0x01

TYPE_PUBLISH = 0
TYPE_ACK = 1

# Ack policies
LEADER: Final = 0
ALL: Final = 1
NONE: Final = 2

# Ack errors
OK: Final = 0
UNKNOWN: Final = 1
INCORRECT_OFFSET: Final = 2
TOO_LARGE: Final = 3

_HEADER = struct.Struct(
    ">"
    "4s"  # magic number
    "B"  # version
    "B"  # header length
    "B"  # flags
    "B"  # message type
)
_CRC = struct.Struct(">I")
_HEADER_SIZE = _HEADER.size
_HEADER_SIZE_WITH_CRC = _HEADER.size + _CRC.size

_USUAL = [
    _HEADER.pack(COOKIE, VERSION, _HEADER_SIZE_WITH_CRC, FLAG_CRC, message_type)
    for message_type in (TYPE_PUBLISH, TYPE_ACK)
]
"""The header of each message type with a checksum. The checksum follows the header."""

_NO_HEADERS: Mapping[str, bytes] = {}


BINARY_HEADER_PREFIX = "Liftlog-Binary-"
"""Prefix for the names of headers that a NATS header line cannot carry unchanged."""

_SAFE_IN_NAMES = "!#$&'()*+,/;<=>?@[]^`{|}"


class Publish(NamedTuple):
    """The `Message` of api.proto, of which a publisher sets some fields.

    In protobuf, an absent field and its default value are the same: a missing key is an empty key.
    `offset` is the expected offset of the record; both -1 and the default 0 mean that no offset is
    expected.
    """

    offset: int = 0
    key: bytes = b""
    value: bytes = b""
    timestamp: int = 0
    stream: str = ""
    partition: int = 0
    subject: str = ""
    reply_subject: str = ""
    headers: Mapping[str, bytes] = _NO_HEADERS
    ack_inbox: str = ""
    correlation_id: str = ""
    ack_policy: int = LEADER


class Ack(NamedTuple):
    """The `Ack` of api.proto. Times are in nanoseconds since 1970."""

    stream: str = ""
    partition_subject: str = ""
    msg_subject: str = ""
    offset: int = 0
    ack_inbox: str = ""
    correlation_id: str = ""
    ack_policy: int = LEADER
    reception_timestamp: int = 0
    commit_timestamp: int = 0
    ack_error: int = OK


# Number, name and type of each field, in the order of the tuples above.
PUBLISH: Table = {
    1: ("offset", INT64),
    2: ("key", BYTES),
    3: ("value", BYTES),
    4: ("timestamp", INT64),
    5: ("stream", TEXT),
    6: ("partition", INT32),
    7: ("subject", TEXT),
    8: ("reply_subject", TEXT),
    9: ("headers", MAP),
    10: ("ack_inbox", TEXT),
    11: ("correlation_id", TEXT),
    12: ("ack_policy", INT32),
}
ACK: Table = {
    1: ("stream", TEXT),
    2: ("partition_subject", TEXT),
    3: ("msg_subject", TEXT),
    4: ("offset", INT64),
    5: ("ack_inbox", TEXT),
    6: ("correlation_id", TEXT),
    7: ("ack_policy", INT32),
    8: ("reception_timestamp", INT64),
    9: ("commit_timestamp", INT64),
    10: ("ack_error", INT32),
}


_OFFSET_TAG, _INBOX_TAG, _CORRELATION_TAG = b"\x20", b"\x2a", b"\x32"
PUBLISH_TAGS = protobuf.known_tags(PUBLISH)
_NOTHING = list(Publish())
_new = tuple.__new__


def decode_publish(data: bytes) -> Publish | None:
    """Return the published message, or None if `data` is a plain message. Never raises."""
    body = _open(data, TYPE_PUBLISH)
    if body is None:
        return None
    known = _NOTHING.copy()
    try:
        if protobuf.decode_known(body, PUBLISH_TAGS, known):
            return _new(Publish, known)
    except (ValueError, IndexError):  # as in `protobuf.decode`
        return None
    fields = protobuf.decode(body, PUBLISH)
    return None if fields is None else Publish(**fields)


def decode_ack(data: bytes) -> Ack | None:
    """Return the ack in `data`, or None if `data` is not an ack. Never raises."""
    body = _open(data, TYPE_ACK)
    fields = None if body is None else protobuf.decode(body, ACK)
    return None if fields is None else Ack(**fields)


def encode_publish(publish: Publish, *, crc: bool = True) -> bytes:
    """Encode one envelope, ready to publish."""
    return _close(protobuf.encode(publish, PUBLISH), TYPE_PUBLISH, crc=crc)


def encode_ack(ack: Ack, *, crc: bool = False) -> bytes:
    """Encode one ack, by default without a checksum, like Liftbridge."""
    return _close(protobuf.encode(ack, ACK), TYPE_ACK, crc=crc)


def encode_acks(acks: Iterable[tuple[Ack, int]], *, commit_timestamp: int) -> Iterator[bytes]:
    """Encode each ack like `encode_ack`, with its offset and this commit timestamp.

    Acks have many fields in common. These fields, before the offset and after the correlation id,
    are encoded once.
    """
    names: tuple[str, str, str] | None = None
    rest: tuple[int, int, int] | None = None
    start = end = b""
    sized, varint, join = protobuf.sized, protobuf.varint, b"".join
    for ack, offset in acks:
        (stream, partition_subject, msg_subject, _, inbox, correlation_id, policy, reception, _,
         error) = ack  # fmt: skip
        if names != (stream, partition_subject, msg_subject):
            names = (stream, partition_subject, msg_subject)
            start = encode_ack(Ack(*names))
        if rest != (policy, reception, error):
            rest = (policy, reception, error)
            last = Ack("", "", "", 0, "", "", policy, reception, commit_timestamp, error)
            end = protobuf.encode(last, ACK)
        yield join(
            (
                start,
                _OFFSET_TAG + varint(offset) if offset else b"",
                _INBOX_TAG + sized(inbox.encode()) if inbox else b"",
                _CORRELATION_TAG + sized(correlation_id.encode()) if correlation_id else b"",
                end,
            )
        )


def encode_alike_acks(
    acks: Sequence[Ack], offsets: Sequence[int], *, commit_timestamp: int
) -> tuple[int, list[Sequence[bytes]]] | None:
    """Encode acks that differ only in the offset, and in ack inboxes and correlation ids of equal
    length.

    Returns the size of each ack, and columns that form the acks if they are joined row by row.
    Returns None if the acks have other differences.
    """
    fields = list(zip(*acks, strict=True))
    inboxes, correlation_ids = fields[4], fields[5]
    same = [column for at, column in enumerate(fields) if at not in (4, 5)]
    if any(column.count(column[0]) != len(acks) for column in same):
        return None
    numbers = _varints(offsets)
    texts = [_equally_long(column) for column in (inboxes, correlation_ids)]
    if None in texts or len({*map(len, numbers)}) != 1 or 0 in offsets:
        return None
    first = acks[0]
    start = encode_ack(Ack(*first[:3])) + _OFFSET_TAG
    rest = Ack("", "", "", 0, "", "", first.ack_policy, first.reception_timestamp, commit_timestamp,
               first.ack_error)  # fmt: skip
    end = protobuf.encode(rest, ACK)
    columns: list[Sequence[bytes]] = [[start] * len(acks), numbers]
    between = b""
    for tag, text in zip((_INBOX_TAG, _CORRELATION_TAG), texts, strict=True):
        if text and text[0]:
            between += tag + protobuf.varint(len(text[0]))
            columns += [[between] * len(acks), text]
            between = b""
    columns.append([between + end] * len(acks))
    return sum(len(column[0]) for column in columns), columns


def _equally_long(texts: Sequence[str]) -> Sequence[bytes] | None:
    """Return the encoded texts if they are ASCII without blanks and of equal length; None
    otherwise."""
    joined = " ".join(texts)
    size = len(texts[0])
    if not joined.isascii() or {*map(len, texts)} != {size}:
        return None
    encoded = joined.encode().split(b" ")
    return encoded if len(encoded) == len(texts) else None


def _varints(numbers: Sequence[int]) -> list[bytes]:
    """Encode numbers, most of which are close to each other."""
    highs = {high: protobuf.varint(high) for high in {number >> 7 for number in numbers}}
    continued = protobuf.CONTINUED
    return [
        continued[number & 0x7F] + highs[number >> 7] if number > 0x7F else bytes((number,))
        for number in numbers
    ]


def nats_headers(headers: Mapping[str, bytes]) -> dict[str, str]:
    """Convert Liftbridge headers (text to bytes) to NATS headers (lines).

    A header that fits into one line does not change. The value of any other header is encoded in
    base64, and its name gets the prefix `Liftlog-Binary-` and is percent-encoded where a header
    name requires it.
    """
    found = {}
    for name, value in headers.items():
        text = _text(value)
        if text is None or _is_marked(name) or not is_header(name, text):
            name = BINARY_HEADER_PREFIX + quote(name, safe=_SAFE_IN_NAMES)
            text = binascii.b2a_base64(value, newline=False).decode()
        found[name] = text
    return found


def liftbridge_headers(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Reverse `nats_headers`. A value that is not base64 stays unchanged."""
    found = {}
    for name, text in headers.items():
        value = text.encode()
        if _is_marked(name):
            try:
                value = binascii.a2b_base64(text, strict_mode=True)
                name = unquote(name[len(BINARY_HEADER_PREFIX) :])
            except ValueError:
                pass
        found[name] = value
    return found


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _is_marked(name: str) -> bool:
    return name[: len(BINARY_HEADER_PREFIX)].lower() == BINARY_HEADER_PREFIX.lower()


def _open(data: bytes, wanted_type: int) -> bytes | None:
    """Return the body if `data` is an envelope of this type, else None."""
    if data[:_HEADER_SIZE] == _USUAL[wanted_type]:
        body = data[_HEADER_SIZE_WITH_CRC:]
        wanted = int.from_bytes(data[_HEADER_SIZE:_HEADER_SIZE_WITH_CRC], "big")
        return body if crc32c(body) == wanted and len(data) >= _HEADER_SIZE_WITH_CRC else None
    if len(data) < _HEADER_SIZE:
        return None
    cookie, version, header_size, flags, message_type = _HEADER.unpack_from(data)
    if cookie != COOKIE or version != VERSION or message_type != wanted_type:
        return None
    if not _HEADER_SIZE <= header_size <= len(data):
        return None
    body = data[header_size:]
    if flags == FLAG_CRC:
        if header_size != _HEADER_SIZE_WITH_CRC:
            return None
        if crc32c(body) != int.from_bytes(data[_HEADER_SIZE:_HEADER_SIZE_WITH_CRC], "big"):
            return None
    elif flags:
        return None
    return body


def _close(body: bytes, message_type: int, *, crc: bool) -> bytes:
    if not crc:
        return _HEADER.pack(COOKIE, VERSION, _HEADER_SIZE, 0, message_type) + body
    head = _HEADER.pack(COOKIE, VERSION, _HEADER_SIZE_WITH_CRC, FLAG_CRC, message_type)
    return head + _CRC.pack(crc32c(body)) + body
