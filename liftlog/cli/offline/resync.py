"""Where good batches go on behind one that cannot be read.

A value may hold the bytes of whole foreign batches, perhaps put there on purpose, so a batch that
looks good proves nothing. But a chain of such batches breaks where the value ends, while the log's
own leads on: to a position that the sealed index names, or to the end of the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from liftlog.cli.offline.window import WINDOW_BYTES, Window
from liftlog.errors import CorruptBatch
from liftlog.log.index import SparseIndex
from liftlog.records.decode import decode_batch
from liftlog.records.format import ALIGNMENT, HEADER_SIZE, MAGIC
from liftlog.records.header import BatchHeader, parse_header

_MIN_RECORD_BYTES = 4


class Resync(NamedTuple):
    position: int
    offset: int


class _Chain(NamedTuple):
    """How far headers continue each other from a candidate on; `is_ours` if that is proof."""

    end_position: int
    is_ours: bool


def find_resync(
    window: Window, data_end: int, index: SparseIndex | None, position: int, offset: int, epoch: int
) -> Resync | None:
    """The first good batch behind `position`, where the batch of `offset` is bad.

    When no chain is proven to be ours, because the data ends in a torn write, the one that leads
    furthest is taken. None when nothing that follows looks like a batch.
    """
    known: dict[int, _Chain] = {}
    best: tuple[int, Resync] | None = None
    for at in _magics(window, position + ALIGNMENT, data_end):
        header = _header(window, at)
        most = offset + (at - position) // _MIN_RECORD_BYTES
        if header is None or not offset <= header.base_offset <= most:
            continue
        if header.leader_epoch < epoch or not _is_whole(window, at, header):
            continue
        chain = _follow(window, data_end, index, at, header, known)
        found = Resync(at, header.base_offset)
        if chain.is_ours:
            return found
        if best is None or chain.end_position > best[0]:
            best = (chain.end_position, found)
    return None if best is None else best[1]


def _magics(window: Window, start: int, end: int) -> Iterator[int]:
    """Aligned positions in [start, end) at which a batch may begin."""
    at = start
    while at < end:
        raw = bytes(window.view(at, WINDOW_BYTES))
        candidate = raw.find(MAGIC)
        while candidate >= 0:
            found = at + candidate
            if found < end and found % ALIGNMENT == 0:
                yield found
            candidate = raw.find(MAGIC, candidate + 1)
        # The next piece overlaps this one: a magic may lie across the border.
        at += max(len(raw) - ALIGNMENT, ALIGNMENT)


def _header(window: Window, position: int) -> BatchHeader | None:
    try:
        return parse_header(window.view(position, HEADER_SIZE))
    except CorruptBatch:
        return None


def _is_whole(window: Window, position: int, header: BatchHeader) -> bool:
    try:
        decode_batch(window.view(position, header.length))
    except CorruptBatch:
        return False
    return True


def _follow(
    window: Window,
    data_end: int,
    index: SparseIndex | None,
    position: int,
    header: BatchHeader,
    known: dict[int, _Chain],
) -> _Chain:
    """Go from header to header; `known` remembers where earlier candidates led."""
    passed: list[int] = []
    at, offset = position, header.base_offset
    chain: _Chain | None = None
    while chain is None:
        previous = known.get(at)
        entry = None if index is None else index.floor_position(at)
        if previous is not None:
            chain = previous
        elif at >= data_end or (entry is not None and entry == (offset, at) and at > 0):
            chain = _Chain(at, is_ours=True)
        elif entry is not None and passed and passed[-1] < entry.position < at:
            chain = _Chain(
                passed[-1], is_ours=False
            )  # it steps over a place where ours has a batch
        else:
            following = _header(window, at)
            if following is None or following.base_offset != offset:
                chain = _Chain(at, is_ours=False)
            else:
                passed.append(at)
                at, offset = at + following.length, following.next_offset
    known.update(dict.fromkeys(passed, chain))
    return chain
