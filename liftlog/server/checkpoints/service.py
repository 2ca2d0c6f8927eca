"""The checkpoints of the daemon: judged one by one, stored many at a time.

Belongs to the event loop. Changes are written to disk in *flights*. There is one flight at a time.
Changes that arrive during a flight wait for the next flight. Each flight judges its changes by the
durable state at its start. So no answer depends on a write that may still fail, and all waiting
changes share one fsync.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from liftlog.errors import (
    CheckpointMoved,
    CheckpointUncertain,
    LiftlogError,
    LimitExceeded,
    NotReady,
    RequestTimeout,
    StreamUnavailable,
)
from liftlog.groups.quota import Limits
from liftlog.names import check_consumer_name, check_stream_name
from liftlog.protocol.checkpoints import PAGE_CHECKPOINTS, Checkpoint
from liftlog.server.checkpoints.checkpoint import (
    CheckpointKey,
    Stored,
    StreamBounds,
    encode_key,
    encode_value,
    readable_offsets,
    why_not_readable,
    why_not_storable,
)
from liftlog.server.checkpoints.groups import Groups
from liftlog.server.checkpoints.newer import GROUP, in_words, kind_of, refusal
from liftlog.server.checkpoints.table import CheckpointTable
from liftlog.server.commits.host import StreamHost

logger = logging.getLogger("liftlog.server.checkpoints")

_MAX_WAITING = 100_000
_MAX_WAITING_CHARS = 64 * 1024 * 1024
"""Maximum number of characters of metadata in waiting changes."""
_MAX_OWNER_WAITING = 10_000
"""Maximum number of waiting changes per principal. The limit prevents one principal from using the
whole queue."""
_MAX_FLIGHT = 1_000
_MAX_FLIGHT_CHARS = 500_000
"""Maximum number of changes per flight, and of characters of their metadata. The event loop judges,
encodes and answers a flight in three turns; each turn takes some 10 ms."""
_MAX_LOOKED_AT = 10_000
"""Maximum number of checkpoints examined for one page, because this blocks the event loop."""

_Bounds = dict[tuple[str, str, int], tuple[range, int]]
"""A function from stream, incarnation and epoch to two values: the offsets at which a consumer can
continue, and the high watermark. The result is valid until the next await."""

Told = Callable[[LiftlogError | None], None]
"""A callback on the event loop. It receives None when the change is durable, or the error of the
change."""


@dataclass(slots=True, eq=False)
class Change:
    """One requested change. If `stored` is None, the change deletes the checkpoint."""

    key: CheckpointKey
    stored: Stored | None
    told: Told
    expected: int | None = None
    only_if: Stored | None = None
    """Apply the change only if the stored checkpoint equals this checkpoint."""

    @property
    def owner(self) -> str:
        return "" if self.stored is None else self.stored.owner

    @property
    def chars(self) -> int:
        return 0 if self.stored is None else len(self.stored.metadata)


class _Verdict(NamedTuple):
    change: Change
    error: LiftlogError | None


class Checkpoints:
    """Commits, deletes, lists and expires checkpoints. `opening.open_checkpoints` creates it.

    `find_stream` raises StreamNotFound and StreamUnavailable; `offsets` is the stream `_offsets`.
    """

    def __init__(
        self,
        find_stream: Callable[[str], StreamHost | StreamBounds],
        offsets: StreamHost,
        table: CheckpointTable,
        *,
        subject_prefix: str,
        max_count: int,
        max_count_per_principal: int = sys.maxsize,
        group_limits: Limits = Limits(),  # noqa: B008 - frozen
        now_ns: Callable[[], int],
        check_storable: Callable[[], None] = lambda: None,
    ) -> None:
        """`check_storable` raises an error while changes cannot be stored."""
        self.table = table
        self.commits = 0
        self.refused: Counter[str] = Counter()
        self._find_stream = find_stream
        self._offsets = offsets
        self._subject_prefix = subject_prefix
        self._max_count = max_count
        self._max_owned = max_count_per_principal
        self._now_ns = now_ns
        self.groups = Groups(
            find_stream,
            offsets,
            table.groups,
            newer={key for key in table.newer if kind_of(key) == GROUP},
            subject_prefix=subject_prefix,
            limits=group_limits,
            now_ns=now_ns,
        )
        self._check_storable = check_storable
        self._waiting: list[Change] = []
        self._waiting_chars = 0
        self._waiting_of: Counter[str] = Counter()  # number of waiting changes, by owner
        self._in_flight = False
        self._scheduled = False

    # --- changes ---

    def commit(
        self,
        consumer: str,
        stream: str,
        offset: int,
        told: Told,
        *,
        expected: int | None = None,
        metadata: str = "",
        incarnation: str | None = None,
        epoch: int | None = None,
        owner: str = "",
    ) -> None:
        """Store a checkpoint, which counts against the quota of `owner`, the calling principal.
        `told` is called later, never within this call.

        Raises InvalidArgument, StreamNotFound, StreamUnavailable, OffsetOutOfRange,
        StaleIncarnation, Diverged, LimitExceeded. The error that `told` receives may be
        CheckpointMoved, LimitExceeded, DiskFull, StreamUnavailable, ShuttingDown.
        """
        try:
            check_consumer_name(consumer)
            if self.table.is_newer((consumer, stream)):
                raise refusal(f"checkpoint of {consumer} in stream {stream}")
            log = self._find_stream(stream).log
            error = why_not_storable(log, stream, offset, incarnation, epoch)
            if error is not None:
                raise error
            # The flight sets the time.
            stored = Stored(
                offset,
                log.leader_epoch if epoch is None else epoch,
                log.incarnation,
                0,
                metadata,
                owner,
            )
            self._add(Change((consumer, stream), stored, told, expected))
        except LiftlogError as error:
            self.refused[error.name] += 1
            raise

    def delete(
        self,
        consumer: str,
        stream: str,
        told: Told,
        *,
        expected: int | None = None,
        only_if: Stored | None = None,
    ) -> None:
        """Delete a checkpoint, like `commit`, but even if its stream no longer exists."""
        check_consumer_name(consumer)
        check_stream_name(stream, may_be_system=True)
        self._add(Change((consumer, stream), None, told, expected, only_if))

    async def deleted(self, consumer: str, stream: str, *, only_if: Stored | None = None) -> None:
        """Delete a checkpoint. Durable on return."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.delete(consumer, stream, partial(complete, future), only_if=only_if)
        await future

    async def restamped(self, consumer: str, stream: str, stored: Stored) -> None:
        """Store a checkpoint again with the present time. Durable on return. Raises CheckpointMoved
        if the checkpoint is no longer `stored`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        told = partial(complete, future)
        self._add(Change((consumer, stream), stored, told, only_if=stored))
        await future

    def _add(self, change: Change) -> None:
        if self._offsets.failure:
            raise StreamUnavailable(f"checkpoints cannot be stored: {self._offsets.failure}")
        self._check_storable()
        owner = change.owner
        chars = self._waiting_chars + change.chars
        if (
            len(self._waiting) >= _MAX_WAITING
            or chars > _MAX_WAITING_CHARS
            or (owner and self._waiting_of[owner] >= _MAX_OWNER_WAITING)
        ):
            raise LimitExceeded("too many checkpoints wait for the disk", hint="try again")
        self._waiting.append(change)
        self._waiting_of[owner] += 1
        self._waiting_chars = chars
        self._go_on()  # later, so that other changes of this turn join the flight

    # --- flights ---

    def _begin_flight(self) -> None:
        self._scheduled = False
        changes = self._take_waiting()
        try:
            self._check_storable()  # otherwise the table may be out of date
        except LiftlogError as refusal:
            self._tell([_Verdict(change, refusal) for change in changes])
            self._go_on()
            return
        now_ns = self._now_ns()
        found: dict[CheckpointKey, Stored | None] = {}
        verdicts: list[_Verdict] = []
        count = len(self.table)
        owned: Counter[str] = Counter()  # number of checkpoints, in addition to the table
        for change in changes:
            key, stored = change.key, change.stored
            present = found[key] if key in found else self.table.get(key)
            error = self._why_refused(change, present, count, owned)
            verdicts.append(_Verdict(change, error))
            is_known = not (self.table.is_uncertain(key) or self.table.is_newer(key))
            nothing = stored is None and present is None and is_known
            if error is None and not nothing:
                found[key] = stored and stored._replace(time_ns=now_ns)
                count += (present is None) - (stored is None)
                if present is not None:
                    owned[present.owner] -= 1
                if stored is not None:
                    owned[stored.owner] += 1
        if not found:
            self._tell(verdicts)
            self._go_on()
            return
        self._in_flight = True
        self._offsets.store(
            [self._subject(key) for key in found],
            [encode_key(key) for key in found],
            [stored and encode_value(stored) for stored in found.values()],
            partial(self._landed, found, verdicts),
        )

    def _take_waiting(self) -> list[Change]:
        """Return the oldest waiting changes, as many as fit into one flight."""
        taken: list[Change] = []
        chars = 0
        for change in self._waiting[:_MAX_FLIGHT]:
            taken.append(change)
            chars += change.chars
            self._waiting_of[change.owner] -= 1
            if chars >= _MAX_FLIGHT_CHARS:
                break
        del self._waiting[: len(taken)]
        self._waiting_chars -= chars
        if not self._waiting:
            self._waiting_of.clear()
        return taken

    def _go_on(self) -> None:
        if self._waiting and not self._in_flight and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_flight)

    def _subject(self, key: CheckpointKey) -> bytes:
        consumer, stream = key
        return f"{self._subject_prefix}.{stream}.{consumer}".encode("ascii")

    def _why_refused(
        self, change: Change, present: Stored | None, count: int, owned: Counter[str]
    ) -> LiftlogError | None:
        offset = 0 if present is None else present.offset
        if change.expected not in (None, offset) or (
            change.only_if is not None and change.only_if is not present
        ):
            consumer, stream = change.key
            return CheckpointMoved(
                f"the checkpoint of {consumer} in stream {stream} is {offset or 'not set'}, "
                f"not {change.expected or 'unset'}",
                offset=offset,
            )
        if present is not None or change.stored is None:
            return None
        owner = change.owner
        if owner and self.table.owned_count(owner) + owned[owner] >= self._max_owned:
            return LimitExceeded(
                f"{owner} has {self._max_owned} checkpoints already, the maximum for a principal",
                hint="delete some (liftlog offsets rm), or raise "
                "checkpoints.max_count_per_principal",
            )
        if count >= self._max_count:
            return LimitExceeded(
                f"there are {count} checkpoints already",
                hint="delete some (liftlog offsets rm), or raise checkpoints.max_count",
            )
        return None

    def _landed(
        self,
        found: dict[CheckpointKey, Stored | None],
        verdicts: list[_Verdict],
        error: LiftlogError | None,
    ) -> None:
        """Answer the changes of a flight. A flight is either durable or lost as a whole.

        If the flight is lost, every change gets the error. Even a refused change gets it, because
        the refusal may depend on changes that were never stored.
        """
        self._in_flight = False
        if error is None:
            self.table.apply(found)
        else:
            verdicts = [_Verdict(one.change, _for(one.change, error)) for one in verdicts]
        self._tell(verdicts)
        if self._waiting and not self._scheduled:
            self._begin_flight()

    def _tell(self, verdicts: list[_Verdict]) -> None:
        for change, error in verdicts:
            if error is None:
                self.commits += 1
            else:
                self.refused[error.name] += 1
            try:
                change.told(error)
            except (
                Exception
            ):  # a supervisor: an error in one callback must not stop the other answers
                logger.exception("checkpoint-answer-failed")

    # --- look-ups ---

    @property
    def newer(self) -> str:
        """A description of the records that only a newer version can read; empty if there are
        none."""
        groups = {key for key in self.table.newer if kind_of(key) == GROUP}
        return in_words((self.table.newer - groups) | self.groups.newer)

    def fetch(self, consumer: str, stream: str, *, check: bool) -> Checkpoint | None:
        """Return the durable checkpoint, or None. If `check` is true, raises the error that a
        reader at this checkpoint gets.

        If damage may have destroyed the only checkpoint, the error is CheckpointUncertain. If
        `check` is false, the result is then an uncertain checkpoint at offset 0.
        """
        check_consumer_name(consumer)
        stored = self.table.get((consumer, stream))
        if self.table.is_newer((consumer, stream)):
            raise refusal(f"checkpoint of {consumer} in stream {stream}")
        if stored is None:
            self._find_stream(stream)  # a stream that does not exist is an error, not "none"
            if not self.table.is_uncertain((consumer, stream)):
                return None
            if check:
                raise CheckpointUncertain(
                    f"checkpoints were lost through damage, possibly that of {consumer} in stream "
                    f"{stream}"
                )
            return Checkpoint(consumer, stream, problem=CheckpointUncertain.name, uncertain=True)
        found, error = self._describe((consumer, stream), stored, {})
        if check and error is not None:
            raise error
        return found

    def page(
        self,
        may_read: Callable[[str], bool],
        *,
        consumer: str | None = None,
        stream: str | None = None,
        after: str | None = None,
        limit: int = PAGE_CHECKPOINTS,
    ) -> tuple[list[Checkpoint], str | None]:
        """Return a page of checkpoints, and the `after` of the next page; None at the end.

        A page may be shorter than `limit`. The `after` may name a checkpoint that `may_read` hides,
        so it must not be shown to clients.
        """
        behind: CheckpointKey | None = None
        if after is not None:
            first, _, second = after.partition("/")
            behind = (first, second)
        found: list[Checkpoint] = []
        allowed: dict[str, bool] = {}
        bounds: _Bounds = {}
        wanted = self.table.after(behind, consumer=consumer, stream=stream)
        for looked_at, (key, stored) in enumerate(wanted, 1):
            name = key[1]
            if name not in allowed:
                allowed[name] = may_read(name)
            if allowed[name]:
                found.append(self._describe(key, stored, bounds)[0])
            if len(found) == limit or looked_at == _MAX_LOOKED_AT:
                return found, "/".join(key)
        return found, None

    def lags(
        self, after: CheckpointKey | None, limit: int
    ) -> list[tuple[CheckpointKey, int | None]]:
        """Return the sorted lags of the next checkpoints after a key; None for a consumer that
        cannot continue. Takes a tenth of the time of `page`."""
        bounds: _Bounds = {}
        return [
            (key, self._lag(key[1], stored, bounds))
            for key, stored in islice(self.table.after(after), limit)
        ]

    def _lag(self, stream: str, stored: Stored, bounds: _Bounds) -> int | None:
        """Return the lag of a consumer; None if the consumer cannot continue, or if this node does
        not know the stream."""
        read = (stream, stored.incarnation, stored.epoch)
        if read not in bounds:
            bounds[read] = self._readable(*read)
        offsets, end = bounds[read]
        return max(end - stored.offset, 0) if stored.offset in offsets else None

    def _readable(self, stream: str, incarnation: str, epoch: int) -> tuple[range, int]:
        try:
            log = self._find_stream(stream).log
        except LiftlogError:
            return range(0), 0
        if log.high_watermark is None:
            return range(0), 0
        return readable_offsets(log, incarnation, epoch), log.high_watermark

    def _problem(self, stream: str, stored: Stored) -> LiftlogError | None:
        try:
            log = self._find_stream(stream).log
        except LiftlogError as unknown:
            return unknown
        return why_not_readable(log, stream, stored.offset, stored.incarnation, stored.epoch)

    def _describe(
        self, key: CheckpointKey, stored: Stored, bounds: _Bounds
    ) -> tuple[Checkpoint, LiftlogError | None]:
        consumer, stream = key
        lag = self._lag(stream, stored, bounds)
        error = None if lag is not None else self._problem(stream, stored)
        described = Checkpoint(
            consumer,
            stream,
            stored.offset,
            stored.epoch,
            stored.incarnation,
            stored.time_ns,
            stored.metadata,
            lag,
            "" if error is None else error.name,
            self.table.is_uncertain(key),
            stored.owner,
        )
        return described, error


def _for(change: Change, error: LiftlogError) -> LiftlogError:
    """Return the error for one change of a flight that failed. The next leader may still store the
    change, so the error permits a retry only if the change can be repeated."""
    if isinstance(error, RequestTimeout) and change.expected is None and change.only_if is None:
        return NotReady(error.message, hint="try again: storing it twice changes nothing")
    return error


def complete(future: asyncio.Future[None], error: LiftlogError | None) -> None:
    """Complete a future, unless the waiting task was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
