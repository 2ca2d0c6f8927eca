"""Erases records of a stream: checks whether the stream can erase, selects the records, and
maintains the list of erasures.

`Erasing.erase_matching` erases the records that match a filter; call it for any request that
removes records by subject, key, header or time. `Erasing.erase` answers the request `erase`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Hashable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

from liftlog.errors import Conflict, InvalidArgument, NotReady, ShuttingDown
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.erasing import Chosen, Selection, joined
from liftlog.log.files.erasures import Erasure, append_erasure, note_done
from liftlog.log.files.filesystem import storage_errors
from liftlog.protocol.administration import (
    MAX_ERASED_RANGES,
    Erased,
    ErasedOffsetsAnswer,
    EraseRecords,
    ErasuresAnswer,
    ProofAnswer,
)
from liftlog.records.columns import selection as filters
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.administration import Administration
from liftlog.server.streams.erased_offsets import ErasedOffsetsReader
from liftlog.server.streams.erasures import (
    Progress,
    begin_proof,
    list_erasures,
    note_removal,
    to_remove,
)
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.places import Places
from liftlog.server.streams.settings import check_incarnation

logger = logging.getLogger("liftlog.server")

_MAX_REASON = 256
_MOST_LISTED_BYTES = 8 * 1024 * 1024
"""If the bitmaps of an erasure are larger, the list of erasures has only its ranges."""

Result = TypeVar("Result")

Ranges = tuple[tuple[int, int], ...]
"""Ranges of offsets, each [first, next)."""


class Wanted(NamedTuple):
    """The records to erase: those in some ranges that match a filter, and whose timestamps are in
    [since_ns, until_ns). `ranges` ascend and do not overlap. Without a filter and bounds of time,
    all records of the ranges are wanted."""

    ranges: Ranges
    matching: filters.Selection | None = None
    since_ns: int | None = None
    until_ns: int | None = None

    @property
    def selects(self) -> bool:
        bounds = (self.since_ns, self.until_ns)
        return self.matching is not None or any(bound is not None for bound in bounds)


class Finder(Protocol):
    """Searches a log for records. Its searches take turns with the reads of clients."""

    async def find(self, log: Log, wanted: Wanted, party: Hashable) -> Selection:
        """Return the committed records that match, without those that are erased already. Raises
        StorageError, StreamUnavailable, LimitExceeded."""

    async def run(self, party: Hashable, function: Callable[[], Result]) -> Result:
        """Run a short search in a thread, in its turn."""

    async def subjects(
        self, log: Log, offsets: ErasedSet, readable: Sequence[str] | None, party: Hashable
    ) -> list[str]:
        """Return a few of the subjects of these records, in order; only subjects that match one of
        `readable`, unless it is None."""


class Eraser(NamedTuple):
    """The client that erases records. `principal` is empty without an ACL. The turns and the limits
    of waiting requests are per `party`. `check` raises Forbidden if the client may no longer erase
    the records; it is called after the search."""

    principal: str
    party: Hashable
    check: Callable[[], None] = lambda: None
    cause: Literal["request", "jetstream"] = "request"
    """The interface of the client, for the metrics."""
    confirm: Callable[[], None] = lambda: None
    """Called in a writer thread immediately before the records are hidden, while no commit runs. An
    exception ends the erasure, and the caller gets it."""


class Erasing:
    """Erases records. Belongs to the event loop. Methods raise LiftlogErrors."""

    def __init__(
        self,
        administration: Administration,
        hosted: HostedStreams,
        now_ns: Callable[[], int],
        finder: Callable[[], Finder | None],
    ) -> None:
        """`finder` returns None until the daemon serves clients."""
        self._administration = administration
        self._hosted = hosted
        self._now_ns = now_ns
        self._finder = finder
        # An erasure makes the selections of concurrent requests stale, and repeating a selection
        # would take long.
        self._places = Places()
        self._readers = Places()

    # --- for requests ---

    async def erase(
        self,
        message: EraseRecords,
        by: Eraser,
        *,
        erasable: Sequence[str] | None = None,
        readable: Sequence[str] | None = None,
    ) -> Erased:
        """Hide the records that the request selects from every reader. On return the erasure is
        durable, and no read that begins afterwards shows one of the records, also after a kill or a
        power cut. Their bytes stay until a rewrite of their segments.

        Only records on subjects that match one of the patterns `erasable` are erased, unless it is
        None. A dry run shows only subjects that match `readable`. Raises Conflict for a stream that
        cannot erase records yet, InvalidArgument for wrong ranges or filters, StaleIncarnation,
        LimitExceeded if too many requests wait, or if the offsets are too many and too scattered.
        After an error, no record is hidden, but a restart may hide all of them.
        """
        host = self._administration.changeable(message.stream)
        check_incarnation(host.name, host.log.incarnation, message.incarnation)
        check_can_erase(host)
        matching = filter_of(message, erasable)
        _check_texts(message)
        async with self._places.of(host, by.party):
            end = host.log.high_watermark
            wanted = Wanted(
                _ranges_of(host.log, message), matching, message.since_ns, message.until_ns
            )
            chosen = await self._choose(host, wanted, by.party)
            found, erasure_id, subjects = chosen.selection, "", list[str]()
            if message.dry_run:
                finder = self._finder()
                if finder is not None:
                    subjects = await finder.subjects(host.log, found.offsets, readable, by.party)
            elif found.offsets:
                requested = tuple(message.ranges) or wanted.ranges
                made = _Made(message.reason, requested, _hash_of(host, message), message.now)
                scan = host.subjects.request
                erasure_id, found = await self._hide(host, chosen, by, made, scan)
        return _answer(message, found, erasure_id, end, subjects)

    async def erase_matching(
        self,
        name: str,
        wanted: Wanted,
        by: Eraser,
        *,
        reason: str = "",
        keep: int = 0,
        scans_subjects: bool = True,
    ) -> Selection:
        """Erase the records of a stream that match, except for the last `keep` of them; returns the
        erased ones. On return the erasure is as durable as after `erase`, and the errors are the
        same. Without `scans_subjects`, the caller corrects the last offsets of subjects
        (`SubjectUpkeep.erasing`).

        For example, to erase all records on a subject:

            matching = parse_selection(subjects=["orders.eu.17"])
            wanted = Wanted(((log.log_start_offset, log.high_watermark),), matching)
            erased = await broker.erasing.erase_matching("orders", wanted, Eraser(principal, party))
            len(erased.offsets)

        The columns of the filter have no meaning. Records that arrive after the call are not erased
        if the ranges end at the high watermark. Damaged records are not erased, and `unreadable`
        names their ranges.
        """
        host = self._administration.changeable(name)
        check_can_erase(host)
        async with self._places.of(host, by.party):
            chosen = await self._choose(host, wanted, by.party)
            offsets = chosen.selection.offsets
            if keep:
                end = 0 if keep >= len(offsets) else offsets.offset_at(len(offsets) - keep)
                offsets = offsets.within(0, end)
                chosen = chosen._replace(selection=chosen.selection._replace(offsets=offsets))
            if not offsets:
                return chosen.selection
            made = _Made(reason, wanted.ranges, "")
            then = host.subjects.request if scans_subjects else None
            return (await self._hide(host, chosen, by, made, then))[1]

    async def erase_offsets(
        self, name: str, offsets: ErasedSet, by: Eraser, *, reason: str = ""
    ) -> Selection:
        """Like `erase_matching` without `scans_subjects`, for the records at some offsets. The
        stream may keep a number of messages per subject. For such a stream, the offsets must
        include those of all older records of each subject that are not shown, and the caller
        corrects the view of the bucket."""
        host = self._administration.changeable(name)
        check_can_erase(host, of_bucket=True)
        async with self._places.of(host, by.party):
            chosen = await asyncio.to_thread(host.log.structure.select, offsets)
            if not chosen.selection.offsets:
                return chosen.selection
            is_short = offsets.range_count <= MAX_ERASED_RANGES
            ranges = (
                offsets.ranges() if is_short else [(offsets.next_at(0) or 0, offsets.end_offset)]
            )
            made = _Made(reason, tuple(ranges), "")
            return (await self._hide(host, chosen, by, made, None, of_bucket=True))[1]

    # --- questions ---

    async def erasures(
        self, name: str, erasure_id: str = "", principal: str | None = None
    ) -> ErasuresAnswer:
        """Return the list of erasures, or one of them; with `principal`, only those of this
        principal. Raises InvalidArgument if there is no such erasure."""
        host = self._administration.running(name)
        compactor, progress = self._hosted.compactor, Progress()
        if compactor is not None and compactor.removals.is_requested(host):
            progress = Progress(True, compactor.failures().get(host.name, ""))
        return await asyncio.to_thread(
            list_erasures, host.log, host.settings, erasure_id, self._now_ns(), progress, principal
        )

    async def remove(self, name: str, erasure_id: str = "", principal: str | None = None) -> None:
        """Let the cleaner remove the bytes of the records of one erasure at once, or of all erased
        records; with `principal`, only those that it has erased. Does not wait for that. Raises the
        errors of `erasures`."""
        host = self._administration.changeable(name)
        remover = self._remover()
        ids, offsets = await asyncio.to_thread(to_remove, host.log, erasure_id, principal)
        if ids:
            await host.exclusively(
                lambda: note_removal(host.log, ids), reserve=self._hosted.reserve
            )
        if offsets:
            remover.remove_now(host, offsets)

    async def prove(
        self, name: str, erasure_id: str, party: Hashable, principal: str | None = None
    ) -> ProofAnswer:
        """Search all files of the stream for erased records; with `principal`, only for those that
        it has erased. Raises the errors of `erasures`."""
        host, finder = self._administration.running(name), self._finder()
        if finder is None:
            raise NotReady("the daemon does not search its streams yet", hint="try again")
        async with self._places.of(host, party):
            search = await asyncio.to_thread(begin_proof, host.log, erasure_id, principal)
            while await finder.run(party, search.step):
                pass
            return search.answer()

    async def erased_offsets(
        self, name: str, after: str, part: int, party: Hashable
    ) -> ErasedOffsetsAnswer:
        """Return the offsets of all erased records from a part on, unless `after` is the newest
        erasure. Raises NotReady, LimitExceeded, StorageError."""
        host, finder = self._administration.running(name), self._finder()
        if finder is None:
            raise NotReady("the daemon does not search its streams yet", hint="try again")
        async with self._readers.of(host, party):
            reading = ErasedOffsetsReader(host.log, after, part)
            while await finder.run(party, reading.step):
                pass
            return reading.answer()

    # --- parts ---

    def _remover(self) -> Cleaner:
        compactor = self._hosted.compactor
        if compactor is None:
            raise ShuttingDown("no bytes are removed at the moment")
        return compactor

    async def _choose(self, host: StreamHost, wanted: Wanted, party: Hashable) -> Chosen:
        log = host.log
        if not wanted.selects:
            return await asyncio.to_thread(log.structure.select, ErasedSet.of_ranges(wanted.ranges))
        finder = self._finder()
        if finder is None:
            raise NotReady("the daemon does not search its streams yet", hint="try again")
        view = log.view  # taken before the search, so that a later change is seen
        return Chosen(view, await finder.find(log, wanted, party))

    async def _hide(
        self,
        host: StreamHost,
        chosen: Chosen,
        by: Eraser,
        made: _Made,
        then: Callable[[], None] | None,
        *,
        of_bucket: bool = False,
    ) -> tuple[str, Selection]:
        """List the erasure, hide its records, and call `then`. Returns its id, and the hidden
        records."""
        offsets = chosen.selection.offsets
        one = Erasure(
            secrets.token_hex(8),
            self._now_ns(),
            by.principal,
            made.reason,
            len(offsets),
            made.requested,
            made.selector,
            offsets.to_plain() if offsets.size_bytes <= _MOST_LISTED_BYTES else (),
            made.now,
        )
        remover = self._remover() if made.now else None

        def hidden() -> None:  # also called if the caller has gone
            if remover is not None:
                remover.remove_now(host, offsets)
            host.observed.erasures[by.cause] += 1
            host.observed.erased[by.cause] += len(offsets)
            if then is not None:
                then()

        by.check()
        # Under the lock, no setting changes that decides whether the stream can erase records.
        async with self._administration.lock_of(host):
            check_can_erase(host, of_bucket=of_bucket)
            found = await host.exclusively(
                lambda: (by.confirm(), erase_listed(host.log, chosen, one))[1],
                hidden,
                reserve=self._hosted.reserve,
            )
        lost = joined([*found.unreadable, *chosen.selection.unreadable])
        return one.erasure_id, found._replace(unreadable=tuple(lost))


class _Made(NamedTuple):
    """The reason and the selection of an erasure, for the list of erasures."""

    reason: str
    requested: Ranges
    selector: str = ""
    now: bool = False


def check_can_erase(host: StreamHost, *, of_bucket: bool = False) -> None:
    """Raise Conflict if the stream cannot erase records. With `of_bucket`, a stream that keeps a
    number of messages per subject is allowed."""
    own = host.settings.jetstream
    if host.log.config.replicated:
        raise Conflict(
            f"stream {host.name} belongs to a cluster, and its replicas do not exchange erased "
            "records yet",
            hint="truncate the stream, or delete its keys with compaction",
        )
    if own is not None and own.max_msgs_per_subject is not None and not of_bucket:
        raise Conflict(
            f"stream {host.name} keeps a number of messages per subject, and records of such a "
            "stream cannot be erased by offset yet",
            hint="delete or purge the key of the bucket",
        )


def filter_of(message: EraseRecords, erasable: Sequence[str] | None) -> filters.Selection | None:
    """Return the filter of a request, which selects the offsets of records; None if it selects all.
    Raises InvalidArgument."""
    given = (message.filter_subjects, message.filter_keys, message.filter_headers)
    if erasable is None and all(one is None for one in given):
        return None
    return filters.parse_selection(
        subjects=message.filter_subjects,
        keys=message.filter_keys,
        headers=message.filter_headers,
        readable=None if erasable is None else tuple(erasable),
    )


def _check_texts(message: EraseRecords) -> None:
    if len(message.reason) > _MAX_REASON:
        raise InvalidArgument(f"the reason is longer than {_MAX_REASON} characters")
    since_ns, until_ns = message.since_ns, message.until_ns
    if since_ns is not None and until_ns is not None and since_ns >= until_ns:
        raise InvalidArgument("the lower bound of the time is not before the upper bound")


def _ranges_of(log: Log, message: EraseRecords) -> Ranges:
    """Return the requested offsets that the stream may have. Raises InvalidArgument for wrong
    ranges, and if nothing is requested."""
    borders = message.borders
    if len(borders) % 2 or not (borders or message.selects):
        raise InvalidArgument(
            "the offsets to erase are ranges, each with a first offset and an end"
        )
    view = log.view
    start, end = view.manifest.log_start_offset, view.committed.offset
    if not borders:
        return ((start, end),)
    ranges = []
    for first, following in message.ranges:
        if first >= following:
            raise InvalidArgument(f"the range from {first} to {following} is empty")
        low, high = max(first, start), min(following, end)
        if low < high:
            ranges.append((low, high))
    return tuple(joined(ranges))


def _hash_of(host: StreamHost, message: EraseRecords) -> str:
    """Return a hash of the filter and the incarnation; empty without a filter. The list of erasures
    must not contain the values that an erasure removes."""
    if not message.selects:
        return ""
    about = [
        message.filter_subjects,
        [key.hex() for key in message.filter_keys or ()],
        message.filter_headers,
        message.since_ns,
        message.until_ns,
        host.log.incarnation,
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]


def _answer(
    message: EraseRecords, found: Selection, erasure_id: str, end: int, subjects: list[str]
) -> Erased:
    offsets = found.offsets
    borders = [border for pair in found.unreadable[:MAX_ERASED_RANGES] for border in pair]
    return Erased(
        len(offsets),
        erasure_id,
        message.dry_run,
        borders,
        offsets.next_at(0),
        offsets.end_offset - 1 if offsets else None,
        offsets.range_count,
        end,
        subjects,
    )


def erase_listed(log: Log, chosen: Chosen, one: Erasure) -> Selection:
    """Add the erasure to the stream's list, then hide the records. Blocking; durable on return.
    Raises the errors of `LogStructure.erase`; the list may then contain an erasure that did not
    happen."""
    with storage_errors(f"listing an erasure of {log.name}"):
        append_erasure(log.environment.fs, log.directory, one)
    found = log.structure.erase(chosen.selection.offsets, chosen)
    logger.info(
        "records-erased stream=%s id=%s records=%d principal=%s reason=%r",
        log.name,
        one.erasure_id,
        len(found.offsets),
        one.principal or "-",
        one.reason,
    )
    with contextlib.suppress(OSError):  # without the note, the list is compared with the records
        note_done(log.environment.fs, log.directory, one.erasure_id)
    return found
