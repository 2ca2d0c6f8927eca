"""Roll-ups: records that erase older records when they are committed (`Nats-Rollup`).

1. A group with roll-ups is written and synced like any other. The high watermark stays below the
   group while a thread searches the older records; later groups are written in the meantime.
2. In one step, the high watermark passes the group, and the view hides the older records. So no
   reader sees a record together with one that it has replaced, or none of both. Then the acks are
   sent.
3. Soon afterwards, the offsets of the hidden records are written to files of erased records. The
   manifest notes the offset up to which these files are complete.
4. After a kill or a power cut, `restore_rollups` reads the roll-ups from that offset on, and hides
   the older records again, before the stream is served.

A stream that allows no roll-ups has no part in this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from acl.subjects import matches
from liftlog.errors import (
    CorruptBatch,
    CorruptRange,
    LiftlogError,
    OffsetOutOfRange,
    StorageError,
)
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.segment.segment import Segment
from liftlog.log.state import NOTHING
from liftlog.records.columns.heads import WantedSubjects
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.records.message_headers import ROLLUP, first_value
from liftlog.sequencing import CommitGroup, Sequencer
from liftlog.sequencing.control import ROLLUP_ALL, ROLLUP_SUBJECT

logger = logging.getLogger("liftlog.server.stream")

ALL = b""
"""Stands for all subjects."""
_HEADER = ROLLUP.encode()
_PIECE_BYTES = 1024 * 1024
FIRST_RECORDS = 1000
"""Number of records that a search of a segment reads first."""
_MOST_NAMES = 16
"""Maximum number of subjects that are searched in the subject index of a segment."""
_PAUSE_SECONDS = 0.001
"""Pause between two pieces of a search, so that commits get the interpreter."""
_LIST_SECONDS = 0.05
_LIST_PAUSE = 10.0
"""Least pause before the next write of hidden offsets, as a multiple of the time of the last."""
RETRY_SECONDS = 1.0
_TRIES = 5
"""Number of searches that fail at an unreadable record; the next one skips such records."""
_MOST_KNOWN = 10_000


class Waiting(NamedTuple):
    """A stored group with roll-ups."""

    base_offset: int
    next_offset: int
    ends: dict[bytes, int]
    """The offset of the last roll-up of each subject: it erases the records below."""
    inside: ErasedSet
    """The records of the group itself that are erased."""
    lasts: tuple[int, ...] | None
    """The last offsets of the subjects before the group, 0 for none; None if one is unknown."""

    @property
    def needs_search(self) -> bool:
        return self.lasts is None or any(self.lasts)


class Rollups:
    """The roll-ups of one stream that are stored and not committed. Belongs to the event loop."""

    def __init__(
        self,
        log: Log,
        sequencer: Sequencer,
        resolved: Callable[[int], None],
        rolled_up: Callable[[str], None],
    ) -> None:
        """`resolved` is called after a search: the high watermark may now move up to the offset
        that it gets, as far as `commit_up_to` allows. `rolled_up` is called with the name of the
        stream when records were hidden."""
        self._log, self._sequencer = log, sequencer
        self._resolved, self._rolled_up = resolved, rolled_up
        self._waiting: deque[Waiting] = deque()
        self._found: ErasedSet | None = None
        """The older records that the first waiting group erases, if they are known."""
        self._hidden = NOTHING
        """Records to hide with the next move of the high watermark."""
        self._reached = 0
        self._defect: Exception | None = None
        self._search: asyncio.Task[None] | None = None
        self._listing: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._is_closed = False
        if log.structure.has_unlisted:
            self._list_soon(RETRY_SECONDS)

    def stored(self, group: CommitGroup) -> None:
        """Add a group with roll-ups that is stored. Call this before `hold` and `committed` of the
        sequencer, and `commit_up_to` afterwards."""
        rollups, table, base = group.rollups or [], self._sequencer.subjects, group.base_offset
        ends = {subject: base + row for row, subject in rollups}
        lasts: tuple[int, ...] | None = None
        if table is not None and not any(map(_selects_many, ends)):
            known = [table.last_committed(subject) for subject in ends]
            lasts = None if None in known else tuple([one or 0 for one in known])
        inside = ErasedSet.of_offsets(np.array(_older_in(group.subjects, ends, base), np.int64))
        self._waiting.append(Waiting(base, group.next_offset, ends, inside, lasts))

    def commit_up_to(self, offset: int) -> int:
        """Move the high watermark to `offset`, or to the first group whose search has not ended.
        Returns the high watermark. See `Log.commit_up_to`. Raises the error of a search that has
        a defect."""
        if self._defect is not None:
            raise self._defect
        if not self._waiting and not self._hidden:
            return self._log.commit_up_to(offset)
        self._reached, hidden = offset, self._hidden
        while self._waiting and self._waiting[0].next_offset <= offset:
            first = self._waiting[0]
            if self._found is None and first.needs_search:
                break
            hidden = hidden | first.inside | (self._found or NOTHING)
            self._found = None
            self._waiting.popleft()
            self._correct_table(first.ends, hidden)
        if self._waiting:
            offset = min(offset, self._waiting[0].base_offset)
        before = self._log.high_watermark
        high_watermark = self._log.commit_up_to(offset, hidden)
        self._hidden = hidden if high_watermark == before else NOTHING
        if hidden:
            self._rolled_up(self._log.name)
            self._list_soon(_LIST_SECONDS)
        if self._waiting and self._waiting[0].next_offset <= self._reached:
            self._begin_search(self._waiting[0])
        return high_watermark

    def _correct_table(self, ends: Mapping[bytes, int], hidden: ErasedSet) -> None:
        """Correct the table of last offsets if records of other subjects are erased."""
        table = self._sequencer.subjects
        if table is None or not hidden:
            return
        if ALL in ends:
            table.erased_below(ends[ALL])
        if any(one != ALL and _selects_many(one) for one in ends):
            gone = hidden.offsets_in(0, hidden.end_offset)
            table.erased_whole(lambda offsets: np.isin(offsets, gone))

    def _begin_search(self, first: Waiting) -> None:
        if self._search is None and not self._is_closed:
            self._search = asyncio.get_running_loop().create_task(self._run_search(first))

    async def _run_search(self, first: Waiting) -> None:
        """Search, and repeat the search after an error. The last search skips what cannot be read,
        so a bad sector does not stop the stream. The group is stored, so its publishers get their
        acks late."""
        found: ErasedSet | None = None
        tries = 0
        while found is None and self._defect is None and not self._is_closed:
            tries += 1
            try:
                found = await asyncio.to_thread(_search, self._log, first, skips=tries > _TRIES)
            except (LiftlogError, OSError) as error:
                logger.warning("roll-up-waits stream=%s error=%s", self._log.name, error)
                await asyncio.sleep(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001  # `commit_up_to` raises it: the stream fails
                self._defect = error
        self._search = None
        if self._is_closed or not self._waiting:
            return
        if found is not None and self._waiting[0] is first:
            self._found = found
        self._resolved(self._reached)

    def lost_from(self, offset: int) -> None:
        """Forget the groups from `offset` on, because they are lost."""
        while self._waiting and self._waiting[-1].next_offset > offset:
            self._waiting.pop()
        if not self._waiting:
            self._found = None

    # --- files ---

    def adopt(self) -> None:
        """Note in the manifest where roll-ups begin or end, if the stream has just been set to
        allow or to refuse them: so the next start does not search the whole log."""
        is_noted = self._log.view.manifest.rolled_up_below is not None
        if self._log.config.rolls_up is not is_noted:
            self._list_soon(_LIST_SECONDS)

    def _list_soon(self, seconds: float) -> None:
        if self._listing is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            self._listing = loop.call_later(seconds, self._begin_listing)

    def _begin_listing(self) -> None:
        self._listing = asyncio.get_running_loop().create_task(self._list())

    async def _list(self) -> None:
        began, pause = time.monotonic(), RETRY_SECONDS
        manifest = self._log.view.manifest
        try:
            await asyncio.to_thread(self._log.structure.list_hidden)
            if self._log.view.manifest is not manifest:  # else it waits for a sync
                pause = _LIST_PAUSE * (time.monotonic() - began)
        except LiftlogError as error:
            logger.warning("hidden-not-listed stream=%s error=%s", self._log.name, error)
        self._listing = None
        if self._log.structure.has_unlisted:
            self._list_soon(max(pause, _LIST_SECONDS))

    def close(self) -> None:
        """Begin no more searches and no more writes."""
        self._is_closed = True
        if isinstance(self._listing, asyncio.TimerHandle):
            self._listing.cancel()


def _selects_many(subject: bytes) -> bool:
    """Return True for a pattern, which may match several subjects, and for all subjects."""
    tokens = subject.split(b".")
    return subject == ALL or b"*" in tokens or tokens[-1] == b">"


class _Ends:
    """Decides which records are erased, by their subjects and offsets."""

    def __init__(self, ends: Mapping[bytes, int]) -> None:
        self._all = ends.get(ALL, 0)
        self._patterns = {
            one.decode("utf-8", "replace"): end
            for one, end in ends.items()
            if one and _selects_many(one)
        }
        self.literals = {one: end for one, end in ends.items() if not _selects_many(one)}
        self.has_patterns = bool(self._patterns)
        self._known: dict[bytes, int] = {}

    def of(self, subject: bytes) -> int:
        """Return the offset below which the records of a subject are erased."""
        end = max(self._all, self.literals.get(subject, 0))
        if self._patterns:
            if subject not in self._known:
                text = subject.decode("utf-8", "replace")
                some = [at for one, at in self._patterns.items() if matches(one, text)]
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[subject] = max(some, default=0)
            end = max(end, self._known[subject])
        return end


def _older_in(subjects: Sequence[bytes], ends: Mapping[bytes, int], base_offset: int) -> list[int]:
    """Return the offsets of the records of a group that its own roll-ups erase."""
    if len(subjects) == 1:
        return []
    found = _Ends(ends)
    return [at for at, one in enumerate(subjects, base_offset) if at < found.of(one)]


# --- searches; blocking ---


def _search(log: Log, first: Waiting, *, skips: bool) -> ErasedSet:
    end = first.base_offset
    if first.lasts is not None:
        end = max(first.lasts) + 1
        if len(first.lasts) == 1 and _is_rollup(log, first.lasts[0], skips=skips):
            return ErasedSet.of_ranges([(first.lasts[0], end)])  # it has erased the others itself
    ends = {subject: min(at, end) for subject, at in first.ends.items()}
    return older_records(log, ends, first.base_offset, skips=skips)


def _is_rollup(log: Log, offset: int, *, skips: bool) -> bool:
    for batch in _batches(log, offset, offset + 1, skips=skips):
        return len(batch) == 1 and _kind(batch.headers()[0]) in (ROLLUP_SUBJECT, ROLLUP_ALL)
    return False


def _kind(block: bytes) -> bytes:
    return (first_value(block, _HEADER) or b"").lower() if _HEADER in block else b""


def _batches(
    log: Log, first_offset: int, next_offset: int, *, skips: bool
) -> Iterator[RecordBatch]:
    """Yield the committed records of a range as they are stored. Leaves out damaged ones: their
    damage is reported in another way. With `skips`, a segment that cannot be read is left out from
    there on; otherwise raises StorageError, OSError."""
    at = first_offset
    while at < next_offset:
        try:
            raw, following = _piece(log, at)
        except (StorageError, OSError) as error:
            if not skips:
                raise
            ends = [one.next_offset for one in log.view.segments if one.next_offset > at]
            following = min([*ends, next_offset])
            logger.error(  # noqa: TRY400  # the traceback says no more
                "roll-up-incomplete stream=%s offset=%d next_offset=%d error=%s",
                log.name,
                at,
                following,
                error,
            )
            raw = b""
        except CorruptRange as damage:
            at = max(damage.next_offset, at + 1)
            continue
        except OffsetOutOfRange:
            if log.log_start_offset <= at:
                return
            at = log.log_start_offset
            continue
        if following == at:
            return
        try:
            for batch in iter_batches(raw):
                some = batch.trim(at, next_offset)
                if len(some):
                    yield some
        except CorruptBatch:
            pass
        at = max(following, at + 1)
        time.sleep(_PAUSE_SECONDS)


def _piece(log: Log, offset: int) -> tuple[bytes, int]:
    """Return stored bytes from `offset` on, and the offset at which they end; `offset` itself if
    no committed record follows."""
    piece = log.read_stored(offset, _PIECE_BYTES)
    if piece is None:
        return b"", offset
    with piece:
        return piece.pread(), max(piece.next_offset, offset + 1)


def older_records(
    log: Log, ends: Mapping[bytes, int], applied_below: int, *, skips: bool = False
) -> ErasedSet:
    """Return the committed records that roll-ups erase: for each subject those below an offset.
    Leaves out those that are erased already. The roll-ups below `applied_below` have erased what
    they erase, so the search for a subject ends at its last one. With `skips`, leaves out records
    that cannot be read. Blocking. Raises LiftlogErrors."""
    found = ErasedSet({})
    if ALL in ends:
        wanted = ErasedSet.of_ranges([(log.log_start_offset, ends[ALL])])
        found = log.structure.select(wanted).selection.offsets
    wanted_ends = _Ends({one: end for one, end in ends.items() if one != ALL})
    left, end = set(wanted_ends.literals), max([*ends.values()], default=0)
    for segment in reversed(log.view.segments):
        if not left and not wanted_ends.has_patterns:
            break
        first = max(segment.base_offset, log.log_start_offset)
        stop = min(segment.next_offset if segment.sealed else end, end)
        if not wanted_ends.has_patterns:
            first, stop = _narrowed(log, segment, left, first, stop)
        for low, high in _backwards(first, stop):
            offsets, reached = _in_range(log, wanted_ends, low, high, applied_below, skips=skips)
            found |= ErasedSet.of_offsets(np.array(offsets, np.int64))
            left -= reached
            if not left and not wanted_ends.has_patterns:
                break
    erased = log.view.erased
    return found if erased is None else found - erased


def _backwards(first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Divide [first, stop) into ranges, the last one first. Each is longer than the one before, so
    a search that ends soon reads little."""
    count = FIRST_RECORDS
    while first < stop:
        low = max(first, stop - count)
        yield low, stop
        stop, count = low, 4 * count


def _narrowed(
    log: Log, segment: Segment, subjects: set[bytes], first: int, stop: int
) -> tuple[int, int]:
    """Return the part of [first, stop) that can have records of these subjects, by the subject
    index of a sealed segment, if there is one."""
    index = log.subject_index(segment.base_offset) if first < stop else None
    if index is None or len(subjects) > _MOST_NAMES:
        return first, stop
    borders = index.runs_of(WantedSubjects(tuple(subjects), None), _MOST_NAMES)
    if borders is None:
        return first, stop
    low, high = stop, first
    for begin, following in borders:
        low = min(low, segment.base_offset + int(index.runs["first"][begin]))
        high = max(high, segment.base_offset + int(index.runs["last"][following - 1]) + 1)
    return max(low, first), min(high, stop)


def _in_range(
    log: Log, ends: _Ends, first: int, stop: int, applied_below: int, *, skips: bool
) -> tuple[list[int], set[bytes]]:
    """Return the offsets of the erased records in [first, stop), and the subjects of which an older
    roll-up lies there."""
    found: dict[bytes, list[int]] = {}
    reached: set[bytes] = set()
    for batch in _batches(log, first, stop, skips=skips):
        subjects = batch.raw_subjects()
        if not ends.has_patterns and ends.literals.keys().isdisjoint(subjects):
            continue
        headers = batch.headers()
        for row, (subject, at) in enumerate(zip(subjects, batch.offsets(), strict=True)):
            if at >= ends.of(subject):
                continue
            if at < applied_below and _kind(headers[row]) in (ROLLUP_SUBJECT, ROLLUP_ALL):
                reached.add(subject)
                found[subject] = []
            found.setdefault(subject, []).append(at)
    return sorted([at for some in found.values() for at in some]), reached


def restore_rollups(log: Log) -> None:
    """Erase the records that the last roll-ups before a stop erase, also if the stream was set to
    refuse roll-ups soon before. Durable on return, unless the disk refuses it: the next start then
    does the same. Records that cannot be read stay. Does nothing if the stream allows no roll-ups,
    or if it was closed. Blocking. Raises LiftlogErrors."""
    below = log.view.manifest.rolled_up_below
    if not log.config.rolls_up and below is None:
        return
    start = max(below or 0, log.log_start_offset)
    ends: dict[bytes, int] = {}
    for batch in _batches(log, start, log.high_watermark, skips=True):
        for row, block in enumerate(batch.headers()):
            kind = _kind(block)
            if kind in (ROLLUP_SUBJECT, ROLLUP_ALL):
                subject = ALL if kind == ROLLUP_ALL else batch.raw_subjects()[row]
                ends[subject] = batch.offsets()[row]
    if ends:
        found = older_records(log, ends, start, skips=True)
        log.structure.hide(found)
        logger.info("rolled-up stream=%s records=%d", log.name, len(found))
        try:
            log.structure.list_hidden()
        except LiftlogError as error:  # `Rollups` tries again
            logger.warning("hidden-not-listed stream=%s error=%s", log.name, error)
