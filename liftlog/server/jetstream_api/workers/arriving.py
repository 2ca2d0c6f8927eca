"""Pulls of one consumer between their arrival and its next turn. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.inboxes import SilentInboxes
from liftlog.deliveries.pull import PullRequest
from liftlog.deliveries.settings import MAX_WAITING
from liftlog.deliveries.state import ConsumerState
from liftlog.server.jetstream_api.consumers.budget import Part
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.workers.local_work import is_local

_GRACE_NS = 2_000_000_000
"""Time, in ns, for which a pull waits for the report that its inbox has a subscriber. The report
takes another path through NATS, so it can arrive after the pull."""

_CLOCKS_NS = 1_000_000_000
"""Maximum difference, in ns, between the times that two nodes give for the same pull. It contains
the difference of their clocks, and the time that the pull needs to reach the nodes."""


class ArrivingPulls:
    """The pulls that have arrived since the last turn. `queue` has the pulls that no turn has
    examined yet."""

    def __init__(self, part: Part) -> None:
        """`part` is this consumer's part of the limit on the waiting pulls of all consumers."""
        self.queue: deque[PullRequest] = deque()
        self.silent = SilentInboxes()
        self._part = part
        self._earlier: list[tuple[bytes, int]] = []
        self._delivered_ns = 0
        self._young: dict[bytes, int] = {}
        """Pulls that arrived a short time ago, while their inbox had no subscriber. The values are
        the times of arrival."""

    def take_over(self, state: ConsumerState) -> None:
        """Note which pulls the former leader has read; see `was_read`. `state` is its state."""
        self._earlier = [(one.reply, one.expires_at_ns) for one in state.pulls.values()]
        self._delivered_ns = state.delivered_ns
        self.silent.take_over(state.inboxes)

    def was_read(self, reply: bytes, expires_ns: int, began_ns: int) -> bool:
        """Return True if the former leader has read a pull. The pull was published at `began_ns`,
        and expires `expires_ns` later (0: never). A pull that the former leader has read is
        finished: the former leader has served it, or this node has ended it with a status when it
        became the leader."""
        if self._delivered_ns >= began_ns:
            return True  # the former leader was not frozen
        expires_at_ns = began_ns + expires_ns if expires_ns else 0
        for one in self._earlier:
            if one[0] == reply and abs(one[1] - expires_at_ns) < _CLOCKS_NS:
                self._earlier.remove(one)  # a client can send several pulls with one reply
                return True
        return False

    def add(self, request: PullRequest, waiting: int, now_ns: int) -> bool:
        """Add a pull. Returns False if this consumer has too many pulls, or if all consumers
        together have too many. `waiting` is the number of pulls from earlier turns that still wait.
        The limit on waiting pulls is applied later, when a turn examines the new pull."""
        is_full = len(self.queue) >= MAX_WAITING
        if is_full or not self._part.resize(waiting + len(self.queue) + 1):
            return False
        self.queue.append(request)
        self.silent.pulled(request.reply, now_ns)
        return True

    def has_no_subscriber(self, reply: bytes, now_ns: int) -> None:
        """Keep this pull for a short time, although its inbox has no subscriber yet."""
        self._young[reply] = now_ns

    def is_young(self, reply: bytes) -> bool:
        return reply in self._young

    def grow_older(self, now_ns: int) -> None:
        if self._young:
            oldest = now_ns - _GRACE_NS
            self._young = {one: at for one, at in self._young.items() if at > oldest}

    def drop_dead(
        self, machine: Consumer, has_interest: Callable[[bytes], bool], *, is_connected: bool
    ) -> bool:
        """Drop the pulls whose clients are gone. Returns False if this is not certain for some
        pull, because NATS has not yet reported a subscriber of its inbox. Without a connection to
        NATS, all pulls over NATS are dropped. Otherwise workers on the pull socket would wait
        behind these pulls."""
        over_nats = [one for one in machine.waiting if not is_local(one)]
        missing = [one for one in over_nats if not is_connected or not has_interest(one)]
        dead = [one for one in missing if not is_connected or not self.is_young(one)]
        if dead:
            machine.drop_pulls(dead)
        return len(dead) == len(missing)

    def end_lost(self, machine: Consumer, leaf: LeafLink, now_ns: int, acked_ns: int) -> None:
        """End the pulls that the former leader has not read, if their clients seem to be idle.
        `acked_ns` is the time of the newest ack."""
        if not leaf.connected:
            self.silent.begin_again()
        elif self.silent:
            pending = machine.state.pending
            held = pending.total - pending.queued
            waiting, has_interest = machine.waiting, leaf.has_interest
            for status in self.silent.end(now_ns, acked_ns, held, waiting, has_interest):
                machine.send(status)

    def due_ns(self) -> int | None:
        """Return the next time at which the wait of a pull without a subscriber is over, or at
        which a lost pull may be ended."""
        due_ns = self.silent.due_ns()
        if not self._young:
            return due_ns
        grown_ns = min(self._young.values()) + _GRACE_NS
        return grown_ns if due_ns is None else min(grown_ns, due_ns)

    def pass_on(self, machine: Consumer, left: int, now_ns: int) -> None:
        """Pass on all pulls that no turn has examined. `left` is the number of records that
        match."""
        while self.queue:
            machine.pull(self.queue.popleft(), left, now_ns)

    def turn_ended(self, waiting: int) -> None:
        """Note the end of a turn. `waiting` is the number of pulls that still wait."""
        self._part.resize(waiting + len(self.queue))

    def close(self) -> None:
        self.queue.clear()
        self._young.clear()
        self._part.close()
