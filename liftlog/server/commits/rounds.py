"""Committing rounds: the groups of several streams are written, synced and answered together.

Each commit in a thread costs two handovers between threads and a write to NATS. In a round, many
streams share them:

1. The event loop appends the group of each stream to its own log.
2. Writer threads sync all these logs side by side.
3. The event loop ends each part by the result of its own sync, and sends all answers at once.

The streams share nothing else. An error of an append or a sync concerns one stream, and a group is
acked only after the sync of its own log. A stream is in one round at a time. Up to three rounds can
be in progress: while one syncs, the event loop fills the next. If the sync of a file takes too
long, the file leaves the round, so that the other streams do not wait for it. Its stream then
commits alone, in a thread, until its syncs are fast again (`GroupCommits.can_join`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Protocol

from liftlog.sequencing import CommitGroup
from liftlog.server.commits.committing import CommitResources
from liftlog.server.commits.host import StreamHost
from liftlog.server.commits.turns import call_loop
from liftlog.server.commits.writing import STALLED_SECONDS

logger = logging.getLogger("liftlog.server.stream")

_MOST_OUT = 3
_LOOK_AGAIN_SECONDS = 0.01


class RoundResources(CommitResources, Protocol):
    """Resources that the rounds of a daemon use."""

    def one_send(self) -> AbstractContextManager[object]:
        """Collect the commands of `send` until the context ends, and send them in one write."""
        ...


class Part:
    """The group of one stream in a round."""

    __slots__ = ("began", "error", "group", "has_left", "is_synced", "member")

    def __init__(self, member: StreamHost, group: CommitGroup) -> None:
        self.member = member
        self.group = group
        self.began = 0.0
        """Time, by the monotonic clock, at which the sync began; 0.0 if it has not begun."""
        self.error: Exception | None = None
        self.is_synced = False
        self.has_left = False


class Round:
    """The syncs of one round. Several threads sync its parts at the same time."""

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        synced: Callable[[Round], None],
        synced_late: Callable[[Part], None],
    ) -> None:
        """`synced` is called once, in the thread that ends the last sync. `synced_late` is called
        for each part that has left the round, in the thread that ends its sync."""
        self.parts = list(parts)
        """The parts that the event loop has not ended. Parts that have left the round are not
        included."""
        self.is_over = False
        self.timer: asyncio.TimerHandle | None = None
        self.calls = 0
        """Number of calls of `sync` that were given to threads."""
        self.begun_calls = 0
        self._synced = synced
        self._synced_late = synced_late
        self._waiting = deque(parts)
        self._lock = threading.Lock()
        self._unsynced = len(parts)

    def sync(self) -> None:
        """Sync one part after the other until no part waits. Several threads call this at the same
        time."""
        with self._lock:
            self.begun_calls += 1
        while True:
            try:
                part = self._waiting.popleft()
            except IndexError:
                return
            part.began = time.monotonic()
            part.error = part.member.commits.sync()
            with self._lock:
                part.is_synced = True
                has_left = part.has_left
                if not has_left:
                    self._unsynced -= 1
                is_last = not has_left and not self._unsynced
            if has_left:
                self._synced_late(part)
            elif is_last:
                self._synced(self)

    def take_synced(self) -> list[Part]:
        """Remove and return the parts that are synced."""
        synced: list[Part] = []
        others: list[Part] = []
        for part in self.parts:  # each part is asked only once, because threads end syncs meanwhile
            (synced if part.is_synced else others).append(part)
        self.parts = others
        return synced

    def leave_stalled(self) -> bool:
        """Remove the parts whose sync takes too long; return True if there are any."""
        latest = time.monotonic() - STALLED_SECONDS
        for part in self.parts:
            with self._lock:
                if not part.is_synced and 0 < part.began < latest:
                    part.has_left = True
                    self._unsynced -= 1
        before = len(self.parts)
        self.parts = [part for part in self.parts if not part.has_left]
        return len(self.parts) < before


class Rounds:
    """The committing rounds of a daemon. Belongs to the event loop."""

    def __init__(self, shared: RoundResources) -> None:
        self.begun = 0
        """Number of rounds since the start."""
        self.pause_seconds = 0.003
        """Pause between the beginnings of two rounds, in seconds. It applies if the next round is
        not full and the first round has not ended. A fast disk ends a round sooner, so that the
        next round begins earlier."""
        self.most_parts = 64
        """Maximum number of streams in a round. More streams would delay the first sync."""
        self.most_bytes = 4 * 1024 * 1024
        """Maximum size, in bytes, of the groups of a round. The event loop needs 3 ms to 8 ms to
        append this many bytes."""
        self.most_append_seconds = 2 * STALLED_SECONDS
        """Maximum time, in seconds, for which the event loop appends in one round. After it, the
        other streams of the round commit in threads, even if no single append has stalled. 64
        groups of 12 small messages take 3 ms."""
        self.most_wait_seconds = 0.5
        """A stream that has waited longer than this (in seconds) for a round commits alone. So even
        a stream that cannot commit always has a job, and other code can detect by this job that its
        disk stalls."""
        self._shared = shared
        self._out = 0
        self._begun_at = 0.0
        self._pause: asyncio.TimerHandle | None = None
        self._waiting: dict[StreamHost, float] = {}
        """The streams that wait because too many rounds are in progress, with the time at which
        each wait began."""

    @property
    def are_out(self) -> bool:
        """True if a round has begun and has not ended."""
        return self._out > 0

    def commit(self, members: Iterable[StreamHost]) -> None:
        """Begin the next job of each stream: its part of a round, or a job of its own. Never
        raises."""
        # With this setting nothing may be written in the event loop.
        is_allowed = self._shared.inline.max_messages > 0
        now = time.monotonic()
        for member in members:
            if is_allowed and member.can_join():
                self._waiting.setdefault(member, now)
            else:
                self._waiting.pop(member, None)
                member.kick()
        self._begin_due()

    def _begin_due(self) -> None:
        """Begin rounds with the streams that wait, as long as more rounds may be in progress."""
        waiting = self._waiting
        if len(waiting) == 1 and self._is_better_alone(next(iter(waiting))):
            waiting.popitem()[0].kick()
        try:
            while waiting and self._may_begin():
                members = self._take_waiting()
                self._begin(members)
                if len(members) < self.most_parts:
                    break  # the event loop does other work before the next one
        finally:  # also if sending the nacks fails: maybe no later round does this
            if waiting and self._out < _MOST_OUT and self._pause is None:
                loop = asyncio.get_running_loop()
                self._pause = loop.call_later(self.pause_seconds, self._paused)

    def _take_waiting(self) -> list[StreamHost]:
        """Remove and return the streams of the next round."""
        members: list[StreamHost] = []
        size_bytes = 0
        for member in islice(self._waiting, self.most_parts):
            size_bytes += member.commits.waiting_bytes
            if members and size_bytes > self.most_bytes:
                break
            members.append(member)
        for member in members:
            del self._waiting[member]
        return members

    def _is_better_alone(self, member: StreamHost) -> bool:
        return not self._out or member.commits.is_next_inline

    def _may_begin(self) -> bool:
        """Return True if one more round may be in progress."""
        if not self._out:
            return True
        is_full = len(self._waiting) >= self.most_parts
        is_due = is_full or time.monotonic() - self._begun_at >= self.pause_seconds
        return is_due and self._out < _MOST_OUT

    def _paused(self) -> None:
        self._pause = None
        self._begin_due()

    def _begin(self, members: Sequence[StreamHost]) -> None:
        parts: list[Part] = []
        alone: list[StreamHost] = []
        is_late = False
        began = time.perf_counter()
        try:
            with self._shared.one_send():
                for member in members:
                    # A slow disk must not delay the event loop with each append. A stream that has
                    # waited may have begun another job.
                    if is_late or not member.can_join():
                        alone.append(member)
                        continue
                    part = _begun(member)
                    if part is None:
                        alone.append(member)
                    else:
                        parts.append(part)
                    seconds = time.perf_counter() - began
                    is_late = member.commits.stalls or seconds > self.most_append_seconds
                if parts:
                    self._sync(parts)
        finally:
            if is_late:  # so that no other stream commits in the event loop in this turn
                self._shared.inline.spent(time.perf_counter() - began)
            for member in alone:
                member.kick()

    def _sync(self, parts: list[Part]) -> None:
        loop = asyncio.get_running_loop()
        begun = Round(
            parts,
            synced=partial(call_loop, loop, self._synced),
            synced_late=partial(call_loop, loop, self._synced_late),
        )
        self._out += 1
        self.begun += 1
        self._begun_at = time.monotonic()
        begun.timer = loop.call_later(STALLED_SECONDS, self.look, begun)
        begun.calls = min(len(parts), self._shared.pool.thread_count)
        self._shared.pool.run_on(begun.calls, begun.sync)

    # --- the end ---

    def _synced(self, one: Round) -> None:
        """End a round whose parts are all synced, except parts that have left."""
        if not one.is_over:
            self._end(one, one.take_synced())

    def _synced_late(self, part: Part) -> None:
        """End a part that has left its round."""
        _end_part(part)
        self.commit([part.member])

    def look(self, one: Round) -> None:
        """End the parts that are synced, even if other parts are not. Parts that stall leave the
        round."""
        one.timer = None
        if one.is_over:
            return
        synced = one.take_synced()
        if one.leave_stalled():
            self._shared.inline.stalled()
        if one.parts:
            loop = asyncio.get_running_loop()
            one.timer = loop.call_later(_LOOK_AGAIN_SECONDS, self.look, one)
            if not all(part.began for part in one.parts):
                self._call_again(one)
        self._end(one, synced)
        latest = time.monotonic() - self.most_wait_seconds
        for member in [member for member, since in self._waiting.items() if since < latest]:
            self._shared.inline.stalled()
            self._waiting.pop(member, None)
            member.kick()

    def _call_again(self, one: Round) -> None:
        """Give the threads one more call of a round. The threads that took the earlier calls may
        stall with a job that they had taken before. A thread holds at most one such call. If there
        are already as many calls as threads that have not begun, another call would not begin
        either."""
        if one.calls - one.begun_calls < self._shared.pool.thread_count:
            one.calls += 1
            self._shared.pool.run_on(1, one.sync)

    def _end(self, one: Round, parts: Sequence[Part]) -> None:
        """End these parts of a round. If the round has no other parts, end the round. Then begin
        the next round."""
        if not one.parts:
            one.is_over = True
            self._out -= 1
            if one.timer is not None:
                one.timer.cancel()
        try:
            with self._shared.one_send():
                for part in parts:
                    _end_part(part)
        finally:
            self.commit([part.member for part in parts])


def _begun(member: StreamHost) -> Part | None:
    """Append the next group of a stream. Returns None if no sync is needed."""
    try:
        group = member.commits.begin_part()
    except Exception as error:  # noqa: BLE001  # a supervisor: one stream must not end the others
        _fail(member, error)
        return None
    if group is None:
        return None
    member.turns.take()
    return Part(member, group)


def _end_part(part: Part) -> None:
    member = part.member
    member.turns.give_back()
    try:
        member.commits.end_part(part.group, part.error)
    except Exception as error:  # noqa: BLE001  # a supervisor, as above
        _fail(member, error)


def _fail(member: StreamHost, error: Exception) -> None:
    try:
        member.fail(f"internal error while committing: {error!r}")
    except Exception:  # a second defect of this stream: the other parts continue
        logger.exception("stream-failure-incomplete stream=%s", member.name)
