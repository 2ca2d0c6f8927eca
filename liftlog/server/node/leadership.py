"""Decides which nodes should lead the streams of this node. An operator can name a node. If all
nodes are healthy, the first replica should lead. If this node stops, any other node should lead."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, LiftlogError, StreamNotFound
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.handing_over import Handovers
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.serving import ServedStream

logger = logging.getLogger("liftlog.server.replication")

_AT_ONCE = 8
_TURNS = 6
_MOST_AT_ONCE = 64
"""Limit of concurrent handovers. A handover spends most of its time waiting. So a stopping node
hands over many streams at once, and needs only a few seconds for all of them. Other nodes hold
messages during handovers; the memory for these messages does not grow with this limit."""
_TELL_SECONDS = 2.0
"""Interval, in seconds, at which a stopping node logs the number of streams that it still has to
hand over."""
_HEIRS_TRIED = 2
_AGAIN_SECONDS = 2.0
_REFUSES_SECONDS = 1.0
"""If all commits of a leader have failed for this time (in seconds), the leader hands over to
another node."""
_STOP_LOOK_SECONDS = 0.05
_ROUNDS = 2
"""Number of attempts per stream during a stop. The first attempts may fail because a candidate has
not been notified yet that it is in sync."""
_COMING_SECONDS = 5.0
"""Maximum time, in seconds, for which a stop waits for a stream that this node does not lead yet,
but should lead according to the metadata."""


class Leadership:
    """Hands streams over to other nodes. Belongs to the event loop. `led` returns the streams that
    this node leads. `is_coming` returns True if a handover in progress may make this node the
    leader of another stream."""

    def __init__(
        self,
        mirror: Mirror,
        handovers: Handovers,
        link_to: Callable[[str], PeerLink],
        led: Callable[[], Mapping[str, ServedStream]],
        is_coming: Callable[[], bool],
        refuses_seconds: Callable[[str], float] = lambda name: 0.0,
    ) -> None:
        """`refuses_seconds` returns the time, in seconds, for which all commits of a stream on this
        node have failed."""
        self._mirror = mirror
        self._handovers = handovers
        self._link_to = link_to
        self._led = led
        self._is_coming = is_coming
        self._refuses_seconds = refuses_seconds
        self._again_at: dict[str, float] = {}
        self._first_since: dict[str, float] = {}
        """The time at which the first replica of a stream, on another node, became able to lead; by
        stream."""
        self._moving: list[str] = []
        """A cache of the streams whose replicas are being moved away; normally empty. The cache is
        valid while `_mirror.changes` equals `_moving_as_of`."""
        self._moving_as_of = -1

    async def elect(self, name: str, to: str | None = None) -> str:
        """Make a node of the in-sync set the leader of a stream: `to`, or the first replica.
        Returns the node. Raises StreamNotFound, Conflict, StreamUnavailable; see
        `Handovers.hand_over`."""
        record = self._mirror.records.get(name)
        if record is None or record.deleted:
            raise StreamNotFound(f"there is no stream {name!r}")
        chosen = record.replicas[0] if to is None else to
        if chosen != self._handovers.node or record.leader != chosen:
            await self._handovers.hand_over(name, chosen)
        return chosen

    async def recover(self, name: str, to: str, lost: Collection[str]) -> str:
        """Make `to` the leader of a stream that no node can lead, because all complete copies were
        on the nodes `lost` and are permanently lost. Records that only the nodes `lost` had are
        abandoned. Returns `to`. Raises Conflict while a node leads or other copies are complete.
        Also raises StreamNotFound, MetadataUnavailable."""
        directory = self._mirror.directory

        def step(record: StreamMetadata) -> StreamMetadata | None:
            leader = record.leader or ""
            present = directory.nodes.get(leader) if leader in directory.live else None
            if leader != to and present is not None and record.leads(leader, present.start):
                raise Conflict(
                    f"node {leader} leads stream {name}, and is live",
                    hint="nothing is lost: without --lost the stream is handed over. A node that "
                    "was killed counts as live until its session ends",
                )
            if to not in directory.live:
                raise Conflict(f"node {to} is down", hint="start the node, or name another node")
            for node in lost:
                known = directory.nodes.get(node) if node in directory.live else None
                has_all = node in record.isr or node in record.eligible
                if has_all and known is not None and known.start == record.starts.get(node):
                    raise Conflict(
                        f"node {node} is live, and has a complete copy of stream {name}",
                        hint="this node is elected by itself; if its disk is lost, stop it first",
                    )
            return transitions.recover(record, to, lost=lost)

        record = await self._mirror.change(name, step)
        if record is None or record.deleted:
            raise StreamNotFound(f"there is no stream {name!r}")
        logger.warning(
            "unclean-recovery stream=%s node=%s epoch=%d lost=%s",
            name,
            to,
            record.leader_epoch,
            ",".join(sorted(lost)),
        )
        self._handovers.tell(record)
        return to

    async def give_up(self, name: str) -> None:
        """Hand over a stream that this node leads to any other node that can lead it. Does not
        raise."""
        try:
            for to in self._heirs(name)[:1]:
                await self._handovers.hand_over(name, to)
        except LiftlogError as error:
            logger.warning("not-handed-over stream=%s error=%s", name, error)

    async def hand_over_all(self) -> None:
        """Hand over all streams of this node before a planned stop. This includes streams that the
        node is just taking over. If a handover fails, an election chooses the next leader. Does not
        raise."""
        self._handovers.is_stopping = True
        loop = asyncio.get_running_loop()
        until = loop.time() + _COMING_SECONDS
        tried = Counter[tuple[str, int]]()
        while True:
            led = [(name, self._mirror.records[name].leader_epoch) for name in self._led()]
            due = [one for one in led if tried[one] < _ROUNDS]
            tried.update(due)
            await self._give_away([name for name, _ in due])
            if due or self._is_coming():
                until = loop.time() + _COMING_SECONDS
            elif not self._to_be_led() or loop.time() >= until:
                return
            await asyncio.sleep(_STOP_LOOK_SECONDS)

    def _to_be_led(self) -> bool:
        """Return True if this node should lead a stream according to the metadata, but does not
        lead it yet."""
        led, me = self._led(), self._handovers.node
        return any(
            one.leader == me and one.name not in led and bool(self._heirs(one.name))
            for one in self._mirror.records.values()
        )

    async def _give_away(self, names: Sequence[str]) -> None:
        gate = asyncio.Semaphore(max(_AT_ONCE, min(_MOST_AT_ONCE, len(names) // _TURNS)))
        leads = Counter(record.leader for record in self._mirror.records.values())
        loop, left = asyncio.get_running_loop(), len(names)
        tell_at = loop.time() + _TELL_SECONDS

        async def give_one(name: str) -> None:
            nonlocal left, tell_at
            await give(name)
            left -= 1
            if left and loop.time() >= tell_at:
                tell_at = loop.time() + _TELL_SECONDS
                logger.info("handing-over left=%d of=%d", left, len(names))

        async def give(name: str) -> None:
            async with gate:
                await self._handovers.finished(name)
                if self._mirror.records[name].leader != self._handovers.node:
                    return  # another handover of this stream was in progress
                heirs = sorted(self._heirs(name), key=lambda node: leads[node])
                for to in heirs[:_HEIRS_TRIED]:
                    leads[to] += 1
                    try:
                        await self._handovers.hand_over(name, to)
                        return
                    except LiftlogError as error:
                        logger.warning("not-handed-over stream=%s error=%s", name, error)

        await asyncio.gather(*map(give_one, names))

    async def hand_over_moved(self) -> None:
        """Hand over streams whose replica on this node is being moved away, if nothing else delays
        the move. Retries failed handovers a little later. Does not raise."""
        now, gate = asyncio.get_running_loop().time(), asyncio.Semaphore(_AT_ONCE)

        async def give(name: str) -> None:
            leaving = self._mirror.records[name].removing
            heirs = [node for node in self._heirs(name) if node not in leaving]
            async with gate:
                try:
                    if heirs:
                        await self._handovers.hand_over(name, heirs[0])
                except LiftlogError as error:
                    logger.warning("not-handed-over stream=%s error=%s", name, error)
                    self._again_at[name] = now + _AGAIN_SECONDS

        if self._moving_as_of != self._mirror.changes:
            self._moving_as_of = self._mirror.changes
            self._moving = [one.name for one in self._mirror.records.values() if one.removing]
        led = self._led()
        due = [
            name
            for name in self._moving
            if name in led
            and transitions.successor(led[name].leader.record) is not None
            and self._again_at.get(name, now) <= now
        ]
        if due and not self._handovers.is_stopping:
            await asyncio.gather(*map(give, due))

    async def hand_over_refusing(self) -> None:
        """Hand over streams that this node cannot write, for example because its disk is full, to a
        node that can write them. Retries failed handovers a little later. Does not raise."""
        now, gate = asyncio.get_running_loop().time(), asyncio.Semaphore(_AT_ONCE)

        async def give(name: str) -> None:
            async with gate:
                for to in self._heirs(name):
                    try:
                        await self._handovers.hand_over(name, to)
                        logger.warning("gave-up-lead stream=%s to=%s cause=not-stored", name, to)
                        return
                    except LiftlogError as error:
                        logger.warning("not-handed-over stream=%s error=%s", name, error)
            self._again_at[name] = now + _AGAIN_SECONDS

        due = [
            name
            for name in self._led()
            if self._refuses_seconds(name) >= _REFUSES_SECONDS
            and self._again_at.get(name, now) <= now
        ]
        if due and not self._handovers.is_stopping:
            await asyncio.gather(*map(give, due))

    async def balance(self, interval_seconds: float, settled_seconds: float) -> None:
        """Hand streams over to their first replicas, one stream at a time. The first replica must
        have been live and in sync for `settled_seconds`. Runs until cancelled or until the node
        stops."""
        while True:
            await asyncio.sleep(interval_seconds)
            for name in self._misplaced(settled_seconds):
                if self._handovers.is_stopping:
                    return  # when the node stops, all streams are handed over anyway
                try:
                    await self.elect(name)
                except LiftlogError as error:
                    logger.warning("not-balanced stream=%s error=%s", name, error)

    def _misplaced(self, settled_seconds: float) -> list[str]:
        """Return the streams that this node leads although their first replica should lead them."""
        now, since = asyncio.get_running_loop().time(), {}
        for name in self._led():
            if self._mirror.records[name].replicas[0] in self._heirs(name):
                since[name] = self._first_since.get(name, now)
        self._first_since = since
        return [name for name, at in since.items() if now - at >= settled_seconds]

    def _heirs(self, name: str) -> list[str]:
        """Return the nodes that could take over a stream of this node at once, in the order of its
        replicas."""
        directory = self._mirror.directory
        return [
            node
            for node in self._mirror.records[name].isr
            if node != self._handovers.node
            and node in directory.live
            and not directory.nodes[node].is_leaving
            and self._link_to(node).peer is not None
        ]
