"""Extracts the keys and message ids of a whole run from its header blocks, as columns.

Blocks of the same length that differ only in the values of their headers are sliced at the same
positions. All other blocks are joined, each with a NUL at its end, and one `split` by a regular
expression returns a row of groups for each block. A block that the expression does not match
completely is *odd*: `control.parse_control` parses the block, and its message is judged separately.
A matching block has, in any order, at most one `Nats-Msg-Id`, at most one `Liftlog-Key` (or one
before and one after the id), and a few headers without a meaning for the stream. Blocks that
`parse_control` might refuse, or that contain an expectation, are odd.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from envelope.same_shape import rows_by_length, split
from liftlog.records import message_headers
from liftlog.records.message_headers import PREAMBLE
from liftlog.sequencing.control import MAX_MESSAGE_ID_BYTES

MAX_BLOCK_BYTES = 4096
MAX_FOREIGN_LINES = 24
"""Maximum number of consecutive lines without a meaning. Publishers choose the number of lines, and
each line takes one step of the expression."""

_CRLF = b"\r\n"
_BREAK = re.compile(rb"[\r\n\0]")
_ODD = b"\n"  # not a header block, so the expression does not match it
# Names are case-sensitive, as in nats-server: any other line has no meaning for the stream. The
# atomic group prevents that any input makes the expression backtrack over lines. A possessive
# repeat of a group would do the same, but Python 3.11.0 to 3.11.4 compile it wrongly (CPython
# gh-100061).
_FOREIGN = rb"(?>(?:(?!Nats-|Liftlog-)[^\r\n\0]++\r\n){0,%d})" % MAX_FOREIGN_LINES
_VALUE = rb":[ \t]*+([^\r\n\0]{1,%d}+)(?<![ \t])\r\n"
_KEY = re.escape(message_headers.KEY.encode()) + _VALUE % MAX_BLOCK_BYTES
_ID = re.escape(message_headers.MESSAGE_ID.encode()) + _VALUE % MAX_MESSAGE_ID_BYTES
_ROW = re.compile(
    rb"(?:(?:%b\r\n%b(?:%b%b)?(?:%b%b)?(?:%b%b)?\r\n)?()|[^\0]*+)\0"
    % (re.escape(PREAMBLE), _FOREIGN, _KEY, _FOREIGN, _ID, _FOREIGN, _KEY, _FOREIGN)
)
_GROUPS = 4
_STRIDE = _GROUPS + 1


class HeaderColumns(NamedTuple):
    """The values of many header blocks. Each column has one entry per block, None for a block
    without the header. A column is None if no block has the header."""

    keys: Sequence[bytes | None] | None
    message_ids: Sequence[bytes | None] | None
    odd: list[int]
    """Rows whose blocks must be parsed one by one, in ascending order."""


def header_columns(blocks: Sequence[bytes]) -> HeaderColumns:
    """Return the values that `parse_control` would find in each block. The entries of odd rows are
    undefined."""
    count = len(blocks)
    parts: list[tuple[Sequence[int], HeaderColumns]] = []
    for rows in rows_by_length(blocks, range(count)):
        whole = len(rows) == count
        found = _alike(blocks if whole else [blocks[row] for row in rows])
        if found is not None:
            if whole and not found.odd:
                return found
            parts.append((rows, found))
    if not parts:
        return _by_expression(blocks)
    left = {*range(count)}
    for rows, found in parts:
        odd = {rows[at] for at in found.odd}
        left.difference_update(rows if not odd else {*rows}.difference(odd))
    rest = sorted(left)
    found = _by_expression([blocks[row] for row in rest])
    parts.append((rest, found))
    keys = _gathered(count, [(rows, part.keys) for rows, part in parts])
    message_ids = _gathered(count, [(rows, part.message_ids) for rows, part in parts])
    return HeaderColumns(keys, message_ids, [rest[at] for at in found.odd])


_Column = Sequence[bytes | None] | None


def _gathered(count: int, columns: Sequence[tuple[Sequence[int], _Column]]) -> _Column:
    """Join the columns of all parts. The last part contains the rows that another part marks as
    odd."""
    if all(column is None for _, column in columns):
        return None
    whole: list[bytes | None] = [None] * count
    for rows, column in columns:
        for row, item in zip(rows, column or [None] * len(rows), strict=True):
            whole[row] = item
    return whole


def _alike(blocks: Sequence[bytes]) -> HeaderColumns | None:
    """Return the columns of blocks of equal length that differ from one of these blocks only in
    their values.

    The other blocks are odd in the result. Returns None if few blocks match.
    """
    example = blocks[len(blocks) // 2]
    match = _ROW.fullmatch(example + b"\0")
    if not example or len(example) > MAX_BLOCK_BYTES or match is None or match[_GROUPS] is None:
        return None if example else HeaderColumns(None, None, [])
    spans, asks = _values(example, {match.start(group): group for group in (1, 2, 3)})
    columns, misfits = split(blocks, example, spans)
    first_key, message_id, second_key = None, None, None
    for column, group in zip(columns, asks, strict=True):
        joined = b"\0".join(column)
        if b"\r" in joined or b"\n" in joined or joined.count(b"\0") >= len(column):
            misfits.update(row for row, value in enumerate(column) if _BREAK.search(value))
        if group and (b" " in joined or b"\t" in joined):
            misfits.update(row for row, value in enumerate(column) if value != value.strip(b" \t"))
        if group == 1:
            first_key = column
        elif group == 2:
            message_id = column
        elif group == 3:
            second_key = column
    if len(misfits) * 2 > len(blocks):
        return None
    return HeaderColumns(first_key or second_key, message_id, sorted(misfits))


def _values(block: bytes, groups: Mapping[int, int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the positions of the header values. Also return, for each value, the number of the
    group that begins at it, or 0 if no group begins there."""
    spans, found = [], []
    pos = len(PREAMBLE) + len(_CRLF)
    while (end := block.index(_CRLF, pos)) > pos:
        starts = [start for start in groups if pos < start < end]
        colon = block.find(b":", pos, end)
        if starts:
            spans.append((starts[0], end))
            found.append(groups[starts[0]])
        elif colon >= 0:
            spans.append((colon + 1, end))
            found.append(0)
        pos = end + len(_CRLF)
    return spans, found


def _by_expression(blocks: Sequence[bytes]) -> HeaderColumns:
    count = len(blocks)
    if not count:
        return HeaderColumns(None, None, [])
    joined = b"\0".join(blocks) + b"\0"
    if joined.count(b"\0") != count or len(max(blocks, key=len)) > MAX_BLOCK_BYTES:
        joined = b"\0".join(map(_or_odd, blocks)) + b"\0"
    # Every row ends with the only NUL that it contains, so each row has one match.
    found = _ROW.split(joined)
    first_keys = found[1::_STRIDE]
    message_ids = found[2::_STRIDE]
    second_keys = found[3::_STRIDE]
    plain = found[4::_STRIDE]
    odd = [row for row, mark in enumerate(plain) if mark is None] if None in plain else []
    has_second = second_keys.count(None) < count
    if has_second:
        pairs = zip(first_keys, second_keys, strict=True)
        first_keys = [second if first is None else first for first, second in pairs]
    has_keys = first_keys.count(None) < count
    has_ids = message_ids.count(None) < count
    return HeaderColumns(first_keys if has_keys else None, message_ids if has_ids else None, odd)


def _or_odd(block: bytes) -> bytes:
    return _ODD if len(block) > MAX_BLOCK_BYTES or b"\0" in block else block
