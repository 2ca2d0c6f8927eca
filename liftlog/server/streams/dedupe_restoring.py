"""Restores the message ids of a stream when the stream is opened. The ids come from the snapshot of
a clean stop, or from the log. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from compaction.ages import TOLERANCE_NS
from liftlog.errors import CorruptBatch, CorruptRange, StorageError
from liftlog.log import Log, LogSlice
from liftlog.log.files.checkpoint_file import read_dispensable_file, write_checkpoint_file
from liftlog.log.files.kept_ids import KeptId, read_kept_ids
from liftlog.log.read.reading import Gap
from liftlog.records import Place, decode_batch, iter_batches, parse_header
from liftlog.records.format import HEADERS
from liftlog.sequencing import DedupeWindow
from liftlog.sequencing.dedupe import StoredHeaders, StoredIds
from liftlog.server.commits.damage import quarantine_found

logger = logging.getLogger("liftlog.server.stream")

_SNAPSHOT_NAME = "dedupe"
_SNAPSHOT_MAX_IDS = 200_000  # with more ids, scanning the log takes less time than the snapshot
_SCAN_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class LearnedIds:
    """The ids of a log up to the offset `end`. A follower reads them before it becomes the
    leader."""

    dedupe: DedupeWindow
    end: int
    lineage: str
    knew_clock: bool
    """True if the difference between the timestamps and the clock of this process was known."""

    def are_of(self, log: Log) -> bool:
        """Return True if these ids still match the log. This is the case if the log was not
        truncated, and if there is no new information about the ages of its records."""
        return (
            self.lineage == log.view.manifest.lineage
            and self.end <= log.log_end_offset
            and self.knew_clock == log.arrivals.has_marks
        )


def begin_to_learn(log: Log, dedupe: DedupeWindow) -> LearnedIds:
    """Begin to learn the ids of a log. Starts with the ids of a snapshot if a snapshot matches the
    log's current state; otherwise starts without ids. Blocking."""
    lineage, end, knows_clock = (
        log.view.manifest.lineage,
        log.log_end_offset,
        log.arrivals.has_marks,
    )
    if dedupe.window_ns and not _restore_snapshot(log, dedupe, end):
        end = 0
    return LearnedIds(dedupe, end, lineage, knows_clock)


def learn_piece(log: Log, known: LearnedIds, now_ns: int) -> LearnedIds:
    """Learn some more ids of a growing log. If the log is truncated during the call, `are_of`
    returns False for the result.

    If the log is damaged, the function stops before the damage, because the damage may be repaired
    before the ids are needed. Raises CorruptBatch if the function cannot learn any id because of
    damage. Blocking. Raises StorageError, CorruptRange, OffsetOutOfRange, OSError.
    """
    dedupe, offset = known.dedupe, known.end
    if dedupe.window_ns:
        dedupe.expire(now_ns)
        ages = _Ages(log, dedupe.window_ns, now_ns)
        offset = max(offset, _first_recent(log, ages))
        reached = _learn_from(log, offset, dedupe, ages, is_strict=True)
        if reached == offset:
            raise CorruptBatch(f"stream {log.name} is damaged at offset {offset}")
        offset = reached or offset
    return replace(known, end=offset)


def learn_more(log: Log, known: LearnedIds, now_ns: int) -> LearnedIds | None:
    """Add the ids of records that were appended after `known.end`. The log must not be truncated
    during the call. Returns None if the ids in `known` no longer match the log."""
    if not known.are_of(log):
        return None
    end, dedupe = log.log_end_offset, known.dedupe
    if dedupe.window_ns:
        _rebuild(log, dedupe, now_ns, start=known.end)
        dedupe.expire(now_ns)
    return replace(known, end=end)


def restore_dedupe(log: Log, dedupe: DedupeWindow, now_ns: int) -> None:
    """Fill an empty window with the ids that it would contain if the daemon had never stopped.
    `now_ns` is the current time of the clock that determines the ages of ids."""
    if not dedupe.window_ns:
        return
    kept = _recall_kept(log, dedupe)
    if not _restore_snapshot(log, dedupe, log.log_end_offset):
        _rebuild(log, dedupe, now_ns, kept=kept)
    dedupe.expire(now_ns)


def _recall_kept(log: Log, dedupe: DedupeWindow) -> Sequence[KeptId]:
    """Make the window recognise the ids of records whose bytes were removed early. Returns these
    ids."""
    try:
        kept = read_kept_ids(log.environment.fs, log.directory)
    except OSError as error:
        _note_loss(log.name, 0, error)
        return ()
    if kept is None or not kept.ids:
        return ()
    newest_ns = max([one.timestamp_ns for one in kept.ids])
    dedupe.recall(kept.key, [one.hashed for one in kept.ids], newest_ns)
    return kept.ids


class _Ages:
    """The ages of records. If a record arrived while this process had the log open, its age is the
    time since its arrival. This age is independent of the leader's clock. The age of any other
    record follows from its timestamp."""

    def __init__(self, log: Log, window_ns: int, now_ns: int) -> None:
        self.latest_ns = now_ns + TOLERANCE_NS
        self._known = log.arrivals.known()
        self._offset_ns = now_ns - log.environment.clock.monotonic_ns()
        most_ahead_ns = 0 if self._known is None else self._known.most_ahead_ns + self._offset_ns
        self.since_ns = now_ns - window_ns - most_ahead_ns
        """All records of the window have this timestamp or a higher one."""

    def ahead_ns(self, offset: int) -> int:
        """Return the correction for the timestamp of the record at `offset`."""
        return 0 if self._known is None else self._known.ahead_ns(offset) + self._offset_ns


def _rebuild(
    log: Log,
    dedupe: DedupeWindow,
    now_ns: int,
    *,
    start: int = 0,
    kept: Sequence[KeptId] = (),
) -> None:
    """Learn the message ids of the window from the log, from offset `start` on. Reads also records
    below the log start whose files still exist. The ids of unreadable records are lost. `kept`
    contains ids that the log no longer has."""
    ages = _Ages(log, dedupe.window_ns, now_ns)
    end = log.log_end_offset  # if a replica's uncommitted records are truncated, so are their ids
    offset = max(_first_recent(log, ages), start)
    recent = [one.offset for one in kept if one.timestamp_ns >= ages.since_ns]
    offset = min([offset, *recent])
    while offset < end:
        reached, problem = offset, None
        try:
            found = _learn_from(log, offset, dedupe, ages, kept)
            if found is None:
                return
            reached = found
        except CorruptRange as error:
            with suppress(StorageError):  # if this fails, the next reader tries to quarantine again
                quarantine_found(log, error)
            reached, problem = error.next_offset, str(error)
        except (StorageError, OSError) as error:
            problem = str(error)
        if problem or reached == offset:
            _note_loss(log.name, offset, problem or "a damaged batch header")
        if reached == offset:  # the end of the damage is unknown: continue with the next segment
            ends = [segment.next_offset for segment in log.segments]
            reached = min([one for one in ends if one > offset], default=end)
        offset = reached


def _first_recent(log: Log, ages: _Ages) -> int:
    """Return the offset of the first record in the window; the log end if the window has no
    records."""
    end = log.log_end_offset
    recent = (one.base_offset for one in log.segments if one.max_timestamp_ns >= ages.since_ns)
    return next(recent, end)


def _learn_from(
    log: Log,
    offset: int,
    dedupe: DedupeWindow,
    ages: _Ages,
    kept: Sequence[KeptId] = (),
    *,
    is_strict: bool = False,
) -> int | None:
    """Learn the ids of a piece of the log from `offset` on.

    Returns the end of the piece, or None at the end of the log. Returns `offset` itself if a header
    is damaged. If `is_strict` is true, any damage has this effect. Raises CorruptRange,
    StorageError, OSError.
    """
    found = _read(log, offset, _SCAN_BYTES)
    if found is None:
        return None
    if isinstance(found, Gap):
        return found.next_offset
    with found:
        place = Place(found.first_offset, found.next_offset)
        reached, ids = _learn(log.name, found.pread(), offset, place, ages, is_strict=is_strict)
    dedupe.add_stored(
        _with_kept(ids, [one for one in kept if offset <= one.offset < reached], ages)
    )
    return reached


def _with_kept(ids: StoredIds, kept: Sequence[KeptId], ages: _Ages) -> StoredIds:
    """Add kept ids to the ids of the same part of the log, in the order of the log. The window uses
    the hash of a kept id as its mark."""
    if not kept:
        return ids
    rows = [*zip(ids.offsets, ids.stamps_ns, ids.ids, strict=True)]
    rows += [
        (one.offset, min(one.timestamp_ns, ages.latest_ns), one.hashed)
        for one in kept
        if one.timestamp_ns >= ages.since_ns
    ]
    offsets, stamps, marks = zip(*sorted(rows), strict=True) if rows else ((), (), ())
    return StoredIds(offsets, stamps, marks)


def _read(log: Log, offset: int, max_bytes: int) -> LogSlice | Gap | None:
    """Read batches, including batches below the log start and a replica's uncommitted batches."""
    if log.config.replicated:
        return log.read_replica(offset, max_bytes)
    return log.read_stored(offset, max_bytes)


def _note_loss(name: str, offset: int, error: object) -> None:
    logger.warning("dedupe-ids-lost stream=%s offset=%d error=%s", name, offset, error)


def _learn(
    name: str,
    raw: bytes,
    offset: int,
    place: Place,
    ages: _Ages,
    *,
    is_strict: bool,
) -> tuple[int, StoredIds]:
    """Find the ids of the batches in `raw` from `offset` on. Returns the offset to continue at, and
    the ids.

    A batch without headers has no ids, so its body is skipped. If another body is damaged, the ids
    of its batch are lost; if `is_strict` is true, the function stops there instead. It always stops
    at a damaged header, because a read from that header determines the extent of the damage.
    """
    reached, position = offset, 0
    headers = StoredHeaders()
    while position < len(raw):
        try:
            header = parse_header(raw, position)
            place.take(header)
        except CorruptBatch:
            break
        if header.attributes & HEADERS and header.max_timestamp_ns >= ages.since_ns:
            try:
                batch = decode_batch(raw, position).trim(offset)
                headers.add(batch, ages.ahead_ns(header.base_offset), ages.latest_ns)
            except CorruptBatch as error:
                if is_strict:
                    break
                _note_loss(name, header.base_offset, error)
        position += header.length
        reached = max(offset, header.next_offset)
    return reached, headers.ids()


def last_message_id(log: Log) -> bytes:
    """Return the message id of the newest record. Return b"" if the record has no id or cannot be
    read."""
    last = log.log_end_offset - 1
    try:
        found = _read(log, last, 1) if last >= log.segments[0].base_offset else None
        if found is None or isinstance(found, Gap):
            return b""
        with found:
            for batch in iter_batches(found.pread()):
                headers = StoredHeaders()
                headers.add(batch)
                ids = headers.ids()
                if last in ids.offsets[-1:]:
                    return ids.ids[-1]
    except (CorruptRange, CorruptBatch, StorageError, OSError) as error:
        logger.warning("last-message-id-lost stream=%s error=%s", log.name, error)
    return b""


# --- the snapshot of a clean stop ---


def write_dedupe_snapshot(log: Log, dedupe: DedupeWindow, *, stepped_ns: int = 0) -> None:
    """Save the window, so that the next start does not have to scan the log. Raises OSError.

    `stepped_ns` is the sum of the jumps of the wall clock since the start. The next start measures
    ages by the wall clock. Therefore the function moves each timestamp by `stepped_ns`, so that the
    age of each id does not change.
    """
    if not len(dedupe) or len(dedupe) > _SNAPSHOT_MAX_IDS:
        return
    # If a stop could not drain, some ids belong to messages that were never stored.
    end = log.log_end_offset
    kept = read_kept_ids(log.environment.fs, log.directory)
    hashes = None if kept is None else {one.offset: one.hashed for one in kept.ids}
    content: dict[str, Any] = dedupe.snapshot(hashes)
    content["remembered"] = [
        [seen_ns + stepped_ns, mark, offset]
        for seen_ns, mark, offset in content["remembered"]
        if offset < end
    ]
    content |= {"lineage": log.view.manifest.lineage, "log_end_offset": end}
    write_checkpoint_file(log.environment.fs, _snapshot_path(log), _SNAPSHOT_NAME, content)


def _restore_snapshot(log: Log, dedupe: DedupeWindow, end: int) -> bool:
    """Restore the window from its snapshot. Returns True if the snapshot belongs to this lineage of
    the log, and was made when the log ended at `end`."""
    try:
        content = read_dispensable_file(log.environment.fs, _snapshot_path(log), _SNAPSHOT_NAME)
        if content is None or (content["lineage"], content["log_end_offset"]) != (
            log.view.manifest.lineage,
            end,
        ):
            return False
        dedupe.restore(content)
    except (KeyError, TypeError, ValueError, OSError) as error:
        logger.warning("dedupe-snapshot-ignored stream=%s error=%s", log.directory.name, error)
        return False
    return True


def _snapshot_path(log: Log) -> Path:
    return log.directory / _SNAPSHOT_NAME
