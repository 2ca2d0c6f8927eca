"""Decodes many envelopes at once, if they have the same length and differ only in some fields.

Most envelopes of one publisher have the same fields in the same order, with the same lengths. The
positions of the fields are found in one example. Then one call into C per envelope extracts the
fields, and all bytes between them must be the same in all envelopes. An envelope that does not fit
must be decoded separately. For an envelope that fits, `decode` or `liftbridge.decode_publish` would
give the same result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain, compress
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from . import liftbridge
from .codec import decode
from .fields import wrong_ack_subject
from .format import COOKIE as OUR_COOKIE
from .format import FLAG_CRC, HEADER, HEADER_SIZE, HEADER_SIZE_WITH_CRC, VERSION

MIN_ROWS = 16
"""Minimum number of envelopes. Fewer envelopes are decoded one by one, because decoding them
together would not be faster."""

_BINARY, _ASCII, _WORD, _CHECKSUM = range(4)
_FIELDS = {
    ord("k"): "key",
    ord("v"): "value",
    ord("c"): "correlation_id",
    ord("i"): "message_id",
    ord("a"): "ack_subject",
}
_THEIR_FIELDS = {
    0x12: "key",
    0x1A: "value",
    0x52: "ack_inbox",
    0x5A: "correlation_id",
}
_WORD_BYTES = bytes(range(ord("!"), ord("~") + 1))
_IS_WORD = re.compile(rb"[!-~]*+").fullmatch
_OUR_HEADERS = {
    HEADER.pack(OUR_COOKIE, VERSION, FLAG_CRC, HEADER_SIZE_WITH_CRC): HEADER_SIZE_WITH_CRC,
    HEADER.pack(OUR_COOKIE, VERSION, 0, HEADER_SIZE): HEADER_SIZE,
}
_THEIR_HEADERS = {
    liftbridge.COOKIE + bytes((0, 12, 1, 0)): 12,
    liftbridge.COOKIE + bytes((0, 8, 0, 0)): 8,
}


class Span(NamedTuple):
    """The position of a field in each envelope."""

    name: str
    start: int
    stop: int
    kind: int


class Alike(NamedTuple):
    """The result for envelopes of the same shape. The fields that differ have one entry per
    envelope in `rows`, and their text is ASCII. All other fields are those of `example`."""

    example: bytes
    rows: Sequence[int]
    values: Sequence[bytes] | None = None
    keys: Sequence[bytes] | None = None
    correlation_ids: Sequence[bytes] | None = None
    message_ids: Sequence[bytes] | None = None
    ack_subjects: Sequence[bytes] | None = None
    """The ack subjects, or the ack inboxes in Liftbridge's envelopes."""


def ours(envelopes: Sequence[bytes]) -> Alike | None:
    """Decode envelopes that all have the same length. Tries three examples, and decodes the
    envelopes with the same shape as an example. Returns None unless more than half of the envelopes
    have this shape."""
    return _alike(envelopes, _our_spans, "<")


def liftbridges(envelopes: Sequence[bytes]) -> Alike | None:
    """Decode envelopes of Liftbridge like `ours`."""
    return _alike(envelopes, _their_spans, ">")


def _alike(
    envelopes: Sequence[bytes], spans_of: Callable[[bytes], list[Span] | None], order: str
) -> Alike | None:
    """Decode envelopes. `order` is the byte order of the checksums."""
    for example in (envelopes[0], envelopes[len(envelopes) // 2], envelopes[-1]):
        spans = spans_of(example)
        if spans is not None:
            found = _split(example, envelopes, spans, order)
            if len(found.rows) * 2 > len(envelopes):
                return found
    return None


def split(
    items: Sequence[bytes], example: bytes, spans: Sequence[tuple[int, int]]
) -> tuple[list[Sequence[bytes]], set[int]]:
    """Return, by column, the bytes at `spans` (start and end, ascending) of each item, and the rows
    that differ from `example` outside of the spans. All items are as long as `example`."""
    values, rest, between, at = "", "", [], 0
    for start, stop in [*spans, (len(example), len(example))]:
        values += f"{start - at}x{stop - start}s"
        rest += f"{start - at}s{stop - start}x"
        between.append(example[at:start])
        at = stop
    joined, count, width = b"".join(items), len(items), len(spans) + 1
    flat = list(chain.from_iterable(Struct(values).iter_unpack(joined)))
    columns: list[Sequence[bytes]] = [flat[at::width] for at in range(width)]
    # The bytes between the spans are compared by joining all parts again.
    pieces = [b""] * (2 * width * count)
    for at, constant in enumerate(between):
        pieces[2 * at :: 2 * width] = [constant] * count
        pieces[2 * at + 1 :: 2 * width] = columns[at]
    misfits: set[int] = set()
    if b"".join(pieces) != joined:
        wanted = tuple(between)
        found = Struct(rest).iter_unpack(joined)
        misfits = {row for row, constants in enumerate(found) if constants != wanted}
    return columns[:-1], misfits


def rows_by_length(items: Sequence[bytes], rows: Sequence[int]) -> list[Sequence[int]]:
    """Group rows whose items have the same length; groups of fewer than MIN_ROWS are left out."""
    lengths = list(map(len, items))
    if len(rows) == len(items) and lengths.count(lengths[0]) == len(lengths):
        return [rows] if len(rows) >= MIN_ROWS else []
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(lengths[row], []).append(row)
    return [alike for alike in found.values() if len(alike) >= MIN_ROWS]


def _split(example: bytes, envelopes: Sequence[bytes], spans: list[Span], order: str) -> Alike:
    count = len(envelopes)
    columns, misfits = split(envelopes, example, [(span.start, span.stop) for span in spans])
    fields = {}
    for span, column in zip(spans, columns, strict=True):
        if span.kind == _CHECKSUM:
            numbers = Struct(f"{order}{count}I").unpack(b"".join(column))
            sums = [crc32c(data[span.stop :]) for data in envelopes]
            if sums != list(numbers):
                pairs = zip(sums, numbers, strict=True)
                misfits.update(row for row, (made, told) in enumerate(pairs) if made != told)
        else:
            misfits.update(_wrong_text(span, column))
            fields[span.name] = column
    rows: Sequence[int] = range(count)
    if misfits:
        chosen = [row not in misfits for row in rows]
        rows = list(compress(rows, chosen))
        fields = {name: list(compress(column, chosen)) for name, column in fields.items()}
    return Alike(
        example,
        rows,
        fields.get("value"),
        fields.get("key"),
        fields.get("correlation_id"),
        fields.get("message_id"),
        fields.get("ack_subject", fields.get("ack_inbox")),
    )


def _wrong_text(span: Span, column: Sequence[bytes]) -> list[int]:
    """Return the rows whose field may not be text, or not the usual kind of text."""
    if span.kind == _BINARY:
        return []
    joined = b"".join(column)
    if span.kind == _ASCII:
        if joined.isascii():
            return []
        return [row for row, text in enumerate(column) if not text.isascii()]
    wrong = []
    if joined.translate(None, _WORD_BYTES):
        wrong = [row for row, text in enumerate(column) if not _IS_WORD(text)]
    if span.name == "ack_subject" and column.count(column[0]) < len(column):
        wrong += [
            row for row, text in enumerate(column) if wrong_ack_subject(text.decode("latin-1"))
        ]
    return wrong


def _our_spans(data: bytes) -> list[Span] | None:
    """Return the spans of an envelope without headers and without an expected offset."""
    pos = _OUR_HEADERS.get(data[:HEADER_SIZE])
    if pos is None or decode(data) is None:
        return None  # the code below needs valid msgpack
    spans = [Span("crc", HEADER_SIZE, pos, _CHECKSUM)] if pos > HEADER_SIZE else []
    pairs = data[pos] - 0x80
    if not 0 < pairs < 16:
        return None
    pos += 1
    for _ in range(pairs):
        letter, kind = data[pos + 1], data[pos + 2]
        if data[pos] != 0xA1:
            return None
        pos += 3
        if kind == 0xC0:  # nil
            continue
        is_text = 0xA0 <= kind < 0xC0 or 0xD9 <= kind < 0xDC
        if 0xA0 <= kind < 0xC0:
            size = kind - 0xA0
        elif is_text or 0xC4 <= kind < 0xC7:
            width = 1 << (kind - (0xD9 if is_text else 0xC4))
            size = int.from_bytes(data[pos : pos + width], "big")
            pos += width
        else:
            return None
        name = _FIELDS.get(letter)
        if name is not None:
            kind = _BINARY if not is_text else _ASCII if name in ("key", "value") else _WORD
            spans.append(Span(name, pos, pos + size, kind))
        pos += size
    return spans


def _their_spans(data: bytes) -> list[Span] | None:
    """Return the spans of an envelope without headers, in which each field occurs once."""
    pos = _THEIR_HEADERS.get(data[:8])
    if pos is None or liftbridge.decode_publish(data) is None:
        return None  # the code below needs valid protobuf
    spans = [Span("crc", 8, pos, _CHECKSUM)] if pos > 8 else []
    seen = set()
    while pos < len(data):
        tag = data[pos]
        if tag >= 0x80 or tag in seen or tag & 7 not in (0, 2):
            return None
        seen.add(tag)
        number = shift = 0
        while True:
            pos += 1
            number |= (data[pos] & 0x7F) << shift
            shift += 7
            if data[pos] < 0x80:
                break
        pos += 1
        if tag & 7:
            name = _THEIR_FIELDS.get(tag)
            if name is not None:
                kind = _BINARY if name in ("key", "value") else _WORD
                spans.append(Span(name, pos, pos + number, kind))
            elif tag == 0x4A:
                return None  # headers
            pos += number
    return spans
