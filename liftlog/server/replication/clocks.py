"""Measures the clocks of the other nodes by the pings between nodes.

The answer to a ping contains the wall clock of the other node. The other node has read its clock
after the ping was sent and before the answer arrived. So the error is at most half of the
round-trip time. The result comes from the recent answer with the smallest error.

Each answer is stored as a difference from this node's monotonic clock, which never jumps. So a jump
of this node's wall clock changes all results at once, before the next answers arrive. After a jump
of the other node's wall clock, earlier answers are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from liftlog.cluster.clocks import MAX_SKEW_SECONDS, Offset, Verdict, judge_clock
from liftlog.log import Clock
from liftlog.log.read.ages import span
from liftlog.server.vitals.clock_guard import ClockGuard
from liftlog.server.vitals.conditions import Condition

_SAMPLES = 8
_STALE_NS = 10 * 1_000_000_000
_MEASURING_NS = 60 * 1_000_000_000
"""Time, in ns, for which a node waits for measurements. Some measurements may never arrive, because
older versions do not send their clocks, and nodes can be down."""
_MAX_SKEW_NS = int(MAX_SKEW_SECONDS * 1e9)
_JUMP_NS = 1_000_000_000
"""A change of the difference between two clocks counts as a jump if it is at least this large (in
ns). While an answer is kept, two clocks drift apart by less than this value."""
SHOWN_SECONDS = 5.0
"""Differences above this number of seconds are shown to users, because with a working time service
clocks differ less."""


class _Sample(NamedTuple):
    """An answer that arrived at `at_ns` by the monotonic clock. `ahead_ns` is the other wall clock
    minus the monotonic clock, within `error_ns`."""

    at_ns: int
    ahead_ns: float
    error_ns: float
    is_doubted: bool

    def agrees(self, other: _Sample) -> bool:
        """Return False if the other wall clock has jumped between these two answers."""
        allowed_ns = self.error_ns + other.error_ns + _JUMP_NS
        return abs(self.ahead_ns - other.ahead_ns) <= allowed_ns


class NodeClocks:
    """The differences of clocks. Belongs to one event loop.

    `others` returns the names of all other nodes of the cluster. If the clock of this node was
    found wrong, `guard` stores this doubt. So the doubt remains while other nodes are silent, and
    after a restart.
    """

    def __init__(
        self,
        clock: Clock,
        others: Callable[[], Iterable[str]],
        guard: ClockGuard | None = None,
    ) -> None:
        self._clock = clock
        self._guard = guard or ClockGuard(clock)
        self._started_ns = clock.monotonic_ns()
        self._others = others
        self._samples: dict[str, deque[_Sample]] = {}
        self._right_ns: int | None = None

    def asked(self) -> int:
        """Return the time of the monotonic clock. Pass it to `answered`."""
        return self._clock.monotonic_ns()

    def answered(self, node: str, asked_ns: int, their_ns: int, *, is_doubted: bool) -> None:
        """Note the wall clock of `node`, to which a ping was sent at `asked_ns`."""
        now_ns = self._clock.monotonic_ns()
        half_ns = (now_ns - asked_ns) / 2
        sample = _Sample(now_ns, their_ns - asked_ns - half_ns, half_ns, is_doubted)
        samples = self._samples.setdefault(node, deque(maxlen=_SAMPLES))
        if samples and not sample.agrees(samples[-1]):
            samples.clear()
        samples.append(sample)
        self.verdict()

    def offset(self, node: str) -> Offset | None:
        """Return the difference between the clocks of `node` and of this node; None if the node has
        not answered recently, or if its version does not send its clock."""
        samples = self._samples.get(node)
        monotonic_ns = self._clock.monotonic_ns()
        if not samples or monotonic_ns - samples[-1].at_ns > _STALE_NS:
            return None
        best = min(samples, key=lambda sample: sample.error_ns)
        own_ns = self._clock.now_ns() - monotonic_ns
        return Offset((best.ahead_ns - own_ns) / 1e9, best.error_ns / 1e9, samples[-1].is_doubted)

    def known(self) -> dict[str, Offset]:
        found = {node: self.offset(node) for node in self._others()}
        return {node: offset for node, offset in found.items() if offset is not None}

    def verdict(self) -> Verdict:
        """Judge this node's clock. If the clock was found wrong, it stays in doubt until a
        measurement shows that it is right."""
        own_ns = self._clock.now_ns() - self._clock.monotonic_ns()
        offsets = {node: self.offset(node) for node in self._others()}
        found = judge_clock(offsets)
        if found.reason or (found.is_measured and offsets):
            self._guard.dispute = found.reason
            self._right_ns = None if found.reason else own_ns
        elif found.is_measured:
            return found  # there are no other nodes, or their names are not known yet
        elif self._right_ns is not None and own_ns - self._right_ns > _MAX_SKEW_NS:
            self._guard.dispute = "it has jumped ahead since it was last confirmed"
        if self._guard.dispute and not (found.reason or found.is_measured):
            reason = f"{self._guard.dispute}. Most nodes have not answered since"
            return Verdict(reason, is_measured=False)
        return found

    def may_decide(self) -> bool:
        """Return True if this node may use its clock to delete old records. In the first minute
        after the start, this requires that the clocks of most nodes have been measured."""
        verdict = self.verdict()
        waited_ns = self._clock.monotonic_ns() - self._started_ns
        return not verdict.reason and (verdict.is_measured or waited_ns > _MEASURING_NS)

    def shown_seconds(self, node: str) -> float:
        """Return the difference of `node`'s clock to this node's clock, in seconds; 0.0 if it is
        too small to be shown."""
        offset = self.offset(node)
        if offset is None or abs(offset.seconds) <= SHOWN_SECONDS + offset.error:
            return 0.0
        return round(offset.seconds, 1)

    def conditions(self) -> Iterator[Condition]:
        for node in sorted(self._others()):
            if seconds := self.shown_seconds(node):
                which = "ahead of" if seconds > 0 else "behind"
                text = f"its clock is {span(abs(seconds))} {which} that of this node"
                yield Condition.of("clock_skew", text, node)
        if reason := self.verdict().reason:
            yield Condition.of("clock", f"this node deletes no records by age: {reason}")
