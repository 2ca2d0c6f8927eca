"""Lists the erasures of a stream with the bytes that are left of each, and searches all files of
the stream for erased records. Blocking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from liftlog.errors import InvalidArgument
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import Erasure, note_now, read_erasures
from liftlog.log.files.filesystem import storage_errors
from liftlog.protocol.administration import MAX_ERASURES, ErasuresAnswer, ProofAnswer
from liftlog.protocol.described import ErasureInfo, ProvenFile
from liftlog.server.cleaning.removing import left_in
from liftlog.settings import StreamSettings

if TYPE_CHECKING:
    from liftlog.log.offline.proving import Examined

_SHOWN_RANGES = 64


class Progress(NamedTuple):
    """The state of the removals that were requested: `problem` is the reason why the last attempt
    failed."""

    is_removing: bool = False
    problem: str = ""


def list_erasures(
    log: Log,
    settings: StreamSettings,
    erasure_id: str,
    now_ns: int,
    progress: Progress,
    principal: str | None = None,
) -> ErasuresAnswer:
    """Return the newest erasures, or only the one with this id; with `principal`, only those of
    this principal. Raises InvalidArgument if there is none, StorageError."""
    found = _listed(log, erasure_id, principal)
    newest = [*reversed(found)][:MAX_ERASURES]
    shown = [_described(log, settings, one, now_ns, progress).to_wire() for one in newest]
    return ErasuresAnswer(shown, len(found))


def _listed(log: Log, erasure_id: str, principal: str | None = None) -> list[Erasure]:
    with storage_errors(f"reading the erasures of {log.name}"):
        found = list(read_erasures(log.environment.fs, log.directory))
    if principal is not None:
        found = [one for one in found if one.principal == principal]
    if not erasure_id:
        return found
    wanted = [one for one in found if one.erasure_id == erasure_id]
    if not wanted:
        raise InvalidArgument(
            f"stream {log.name} has no erasure {erasure_id!r}",
            hint="`liftlog erase ls STREAM` lists the erasures",
        )
    return wanted


def _described(
    log: Log, settings: StreamSettings, one: Erasure, now_ns: int, progress: Progress
) -> ErasureInfo:
    offsets, erased = _offsets_of(one), log.view.erased
    first = offsets.next_at(0) if one.offsets else None
    left = ErasedSet({}) if erased is None else offsets & erased
    is_removing = progress.is_removing and one.now and bool(left)
    state = left_in(log, settings, left, now_ns)
    reasons = list(state.reasons)
    if not one.offsets:
        reasons.append("the list does not have the offsets of the records any more")
    elif not one.done:
        shown = len(log.structure.select(offsets).selection.offsets)
        if shown:
            reasons.append(f"{shown:,} are not erased: the erasure was interrupted, or has failed")
    return ErasureInfo(
        one.erasure_id,
        one.time_ns,
        one.principal,
        one.reason,
        one.selector,
        one.count,
        [[first, end] for first, end in one.ranges[:_SHOWN_RANGES]],
        offsets.range_count if one.offsets else None,
        first,
        offsets.end_offset - 1 if one.offsets else None,
        state.records,
        state.size_bytes,
        one.now,
        is_removing,
        reasons,
        progress.problem if is_removing else "",
    )


def _offsets_of(one: Erasure) -> ErasedSet:
    """Return the erased records of an entry. If the entry does not have them, return the requested
    ranges, which may also contain other records."""
    return ErasedSet.from_plain(one.offsets) if one.offsets else ErasedSet.of_ranges(one.ranges)


def to_remove(
    log: Log, erasure_id: str, principal: str | None = None
) -> tuple[list[str], ErasedSet]:
    """Return the erased records of an erasure, or of all, whose bytes are still there, and the ids
    of those erasures for which `note_removal` is to be called; with `principal`, only of its own
    erasures. Raises InvalidArgument, StorageError."""
    listed, erased = _listed(log, erasure_id, principal), log.view.erased
    if erased is None:
        return [], ErasedSet({})
    found = [(one, offsets) for one in listed if (offsets := _offsets_of(one) & erased)]
    ids = [one.erasure_id for one, _ in found if not one.now]
    is_all = not erasure_id and principal is None
    return ids, erased if is_all else ErasedSet.of_all([some for _, some in found])


def note_removal(log: Log, erasure_ids: list[str]) -> None:
    """Note that the bytes of these erasures are to be removed at once, so that a start continues.
    Called by the writer of the log. Raises StorageError, DiskFull."""
    with storage_errors(f"noting a removal of {log.name}"):
        note_now(log.environment.fs, log.directory, erasure_ids)


class Proof:
    """A search in all files of a stream, step by step. Used by one thread at a time."""

    def __init__(self, log: Log, wanted: ErasedSet) -> None:
        # Imported here, because a daemon needs these tools only for a proof.
        from liftlog.log.offline.proving import examine
        from liftlog.log.offline.repair import KEPT_NAME

        self._wanted = wanted
        self._found = ErasedSet({})
        self._files: list[ProvenFile] = []
        self._count = self._size = 0
        # The data directory has the streams in a folder of their own.
        kept = log.directory.parent.parent / KEPT_NAME
        self._log = log
        fs = log.environment.fs
        self._steps: Iterator[Examined | None] = examine(
            fs, log.directory, kept, wanted, lambda: log.view.manifest
        )

    def step(self) -> bool:
        """Search some more megabytes; return False at the end. Raises StorageError."""
        with storage_errors(f"searching the files of {self._log.name}"):
            for one in self._steps:
                if one is None:
                    return True
                self._note(one)
        return False

    def _note(self, one: Examined) -> None:
        self._count += 1
        self._size += one.size_bytes
        self._found |= one.found
        if one.found or one.problem:
            first = one.found.next_at(0)
            self._files.append(
                ProvenFile(
                    one.file,
                    one.is_listed,
                    one.size_bytes,
                    len(one.found),
                    first,
                    one.problem,
                )
            )

    def answer(self) -> ProofAnswer:
        shown = [one.to_wire() for one in self._files[:MAX_ERASURES]]
        return ProofAnswer(len(self._wanted), len(self._found), self._count, self._size, shown)


def begin_proof(log: Log, erasure_id: str, principal: str | None = None) -> Proof:
    """Begin to search for the records of one erasure, or of all. Without an id, leaves out records
    that readers still get, because an erasure was interrupted: its entry names them. Raises
    InvalidArgument, StorageError."""
    wanted, erased = list[ErasedSet](), log.view.erased
    for one in _listed(log, erasure_id, principal):
        offsets = _offsets_of(one)
        if not one.offsets:  # the ranges may also have records that were not erased
            offsets = ErasedSet({}) if erased is None else offsets & erased
        elif not (one.done or erasure_id):
            offsets -= log.structure.select(offsets).selection.offsets
        wanted.append(offsets)
    return Proof(log, ErasedSet.of_all(wanted))
