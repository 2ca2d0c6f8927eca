"""Keys and message ids of a whole run, taken from its header blocks by one regular expression.

The blocks are joined, each closed by a NUL, and one `split` returns a row of groups for each. A
block that the expression does not describe in full is *odd*: its message is judged by itself, by
`control.parse_control`. Blocks are described if they hold, in any order, at most one `Liftlog-Key`
or one on each side of the id, at most one `Nats-Msg-Id`, and a few headers that ask nothing of the
stream. Whatever `parse_control` would have to refuse, or compare with something, is odd.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from liftlog.records import message_headers
from liftlog.records.message_headers import PREAMBLE
from liftlog.stream.control import MAX_MESSAGE_ID_BYTES

MAX_BLOCK_BYTES = 4096
MAX_FOREIGN_LINES = 24
"""In a row. Publishers choose how many lines they send, and each costs a step of the expression."""

_ODD = b"\n"  # no header block, so the expression finds it odd
# Names are case-sensitive, as in nats-server: any other line asks nothing of the stream. Lines are
# matched possessively, so that no input makes the expression go back over them.
_FOREIGN = rb"(?:(?!Nats-|Liftlog-)[^\r\n\0]++\r\n){0,%d}+" % MAX_FOREIGN_LINES
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
    """One entry per block, None for a block without one; or None for a column without any."""

    keys: list[bytes | None] | None
    message_ids: list[bytes | None] | None
    odd: list[int]
    """Rows whose blocks have to be looked at one by one, in ascending order."""


def header_columns(blocks: Sequence[bytes]) -> HeaderColumns:
    """What `parse_control` would find in each block. Of odd rows the columns say nothing."""
    count = len(blocks)
    joined = b"\0".join(blocks) + b"\0"
    if joined.count(b"\0") != count or len(max(blocks, key=len)) > MAX_BLOCK_BYTES:
        joined = b"\0".join(map(_or_odd, blocks)) + b"\0"
    # Every row ends with the only NUL that it holds, so there is one match for each.
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
