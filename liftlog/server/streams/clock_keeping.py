"""Keeps the time that determines the ages of records. Stores this time for the next start, decides
when to accept a jump of the wall clock, and finds streams with timestamps ahead of the clock."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Mapping

from liftlog.errors import StorageError
from liftlog.log import FileSystem
from liftlog.log.data_dir import DataDir
from liftlog.log.read.ages import seconds_ahead, span
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.cleaning.compaction import compaction_of
from liftlog.server.commits.host import StreamHost
from liftlog.server.vitals.clock_guard import (
    ClockGuard,
    ClockState,
    read_clock_state,
    write_clock_state,
)
from liftlog.server.vitals.conditions import Condition
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server")

_STORE_NS = 300 * 1_000_000_000
_PARTS = 10


class ClockKeeper:
    """Runs a `ClockGuard`. `look` is called regularly, on the event loop. Files are read and
    written in a thread."""

    def __init__(
        self,
        guard: ClockGuard,
        hosts: Mapping[str, StreamHost],
        data_dir: DataDir,
        *,
        checkpoint_seconds: float | None = None,
    ) -> None:
        """`checkpoint_seconds` is the time, in seconds, for which unused checkpoints are kept."""
        self.guard = guard
        self.is_confirmed: Callable[[], bool] = lambda: False
        """Function that returns True if the other nodes of a cluster have the same time."""
        self._checkpoint_seconds = checkpoint_seconds or math.inf
        self.at_stake: list[str] = []
        """Streams that would lose many records if a wrong clock were trusted. The clock has jumped
        by more than a tenth of the time for which these streams keep records."""
        self._hosts = hosts
        self._fs: FileSystem = data_dir.environment.fs
        self._clock = data_dir.environment.clock
        self._path = data_dir.path
        self._stored: ClockState | None = None
        self._ahead: dict[str, float] = {}

    def recall(self) -> None:
        """Continue from the time that an earlier process has stored. Blocking. If the stored time
        cannot be read, the read is retried later. Until it succeeds, no other time is stored."""
        try:
            before = read_clock_state(self._fs, self._path)
        except StorageError as error:
            if error.message != self.guard.unread:
                logger.warning("clock-not-read error=%s", error)
            self.guard.unread = error.message
        else:
            self.guard.resume(before)

    async def look(self) -> None:
        hosts = [host for host in self._hosts.values() if not host.failure]
        steps, is_confirmed = self.guard.steps, self.is_confirmed()
        await asyncio.to_thread(self._look, hosts, steps, is_confirmed=is_confirmed)

    def _look(
        self, hosts: list[StreamHost], steps: int | None = None, *, is_confirmed: bool = False
    ) -> None:
        guard, now_ns = self.guard, self._clock.now_ns()
        if guard.unread:
            self.recall()
        # A step that happens later is not confirmed.
        steps = guard.steps if steps is None else steps
        is_doubted = guard.doubt_seconds or not guard.wall_clock_is_trusted()
        if is_doubted and is_confirmed:
            guard.believe("most nodes of the cluster have the same time", steps=steps)
        if guard.doubt_seconds and guard.wall_clock_is_trusted():
            doubt = guard.doubt_seconds
            self.at_stake = [
                host.name for host in hosts if doubt > _shortest_life(host.settings) / _PARTS
            ]
            if doubt > self._checkpoint_seconds / _PARTS:
                self.at_stake.append(OFFSETS_STREAM)
            if not self.at_stake:
                guard.believe("it has lasted for an hour and changes ages little", steps=steps)
        elif not guard.doubt_seconds:
            self.at_stake = []
        found = {host.name: seconds_ahead(host.log.view.max_timestamp_ns, now_ns) for host in hosts}
        self._ahead = {name: seconds for name, seconds in found.items() if seconds}
        self._store_if_due()

    def _store_if_due(self) -> None:
        state, stored = self.guard.state(), self._stored
        if (
            stored is None
            or state.monotonic_ns - stored.monotonic_ns >= _STORE_NS
            or (state.ahead_ns, state.dispute, state.believed_ns)
            != (stored.ahead_ns, stored.dispute, stored.believed_ns)
        ):
            self.store()

    def store(self) -> None:
        """Store the time for the next start. Blocking."""
        if self.guard.unread:
            return
        state = self.guard.state()
        try:
            write_clock_state(self._fs, self._path, state)
        except OSError as error:  # if this write fails, the next start uses the wall clock
            logger.warning("clock-not-stored error=%s", error)
        else:
            self._stored = state

    def conditions(self) -> Iterator[Condition]:
        """Yield conditions about the clock and about timestamps, for `Conditions.add`."""
        if self.guard.unread:
            yield Condition.of(
                "clock",
                "the daemon deletes no records by age, because it cannot read whether the clock "
                f"stepped before this start: {self.guard.unread}",
            )
        elif doubt := self.guard.doubt_seconds:
            text = f"the clock stepped ahead by {span(doubt)}; ages are computed without this step"
            if self.at_stake:
                text += (
                    ". If the clock is wrong, accepting its time would make records expire early, "
                    "by more than a tenth of the time for which they are kept"
                )
            yield Condition.of("clock", text, streams=self.at_stake)
        elif not self.guard.wall_clock_is_trusted():
            yield Condition.of(
                "clock", "the clock was set; for an hour, the daemon deletes no records by age"
            )
        for name, seconds in self._ahead.items():
            yield Condition.of("stamps_ahead", ahead_in_words(seconds), name)


def _shortest_life(settings: StreamSettings) -> float:
    """Return the shortest time, in seconds, after which the stream deletes records by age."""
    compaction = compaction_of(settings)
    limits = [
        settings.retention.max_age_seconds,
        None if compaction is None else compaction.tombstone_retention_seconds,
    ]
    return min([one for one in limits if one is not None], default=math.inf)


def ahead_in_words(seconds: float) -> str:
    return (
        f"records are stamped up to {span(seconds)} ahead of the clock; their age counts from "
        "the first correct timestamp after them, or from the start of the daemon"
    )
