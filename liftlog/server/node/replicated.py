"""The replicated streams of this node: their records, and the requests of other nodes for them.

A record changes in the metadata store; each stream's `Replica` then takes the role that the record
gives it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from liftlog.cluster.election import Elections, Patience
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.store import MetaStore, NodeSession
from liftlog.errors import LiftlogError
from liftlog.log import DataDir
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.known_records import KnownRecords
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node import copies
from liftlog.server.node.cluster_view import ClusterView
from liftlog.server.node.election_copies import ElectionCopies
from liftlog.server.node.handing_over import Handovers
from liftlog.server.node.leadership import Leadership
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.moves import Moves
from liftlog.server.node.peer_service import PeerService
from liftlog.server.node.placing import NewStreams
from liftlog.server.node.replica import Replica
from liftlog.server.node.successors import Successors
from liftlog.server.node.upkeep import Upkeep
from liftlog.server.replication.clocks import NodeClocks
from liftlog.server.replication.fetching import FollowedStream
from liftlog.server.replication.forwarding import Forwarding
from liftlog.server.replication.guarding import Guard
from liftlog.server.replication.hearing import ENDED_SECONDS, HUNG_SECONDS, Hearing
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.repair import ReplicaDonors
from liftlog.server.replication.serving import CatchUpPace, ServedStream
from liftlog.server.replication.succession import Succession
from liftlog.server.replication.unclean import UncleanRecovery
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.ids_ahead import IdsAhead
from liftlog.server.streams.settings import settings_of
from liftlog.server.vitals.clock_guard import ClockGuard
from liftlog.server.vitals.conditions import Condition
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")

_CHANGES_AT_ONCE = 64
_RECONNECT_SECONDS = 1.0
_TELL_SECONDS = 2.0
_SET_BACK = (
    "the metadata store has lost the newest record of it. The nodes restore that record once they "
    "are in contact; otherwise `liftlog cluster restore-metadata` does"
)


class ReplicatedStreams:
    """Belongs to the event loop. `link_to` returns the connection to another node."""

    def __init__(
        self,
        member: Member,
        store: MetaStore,
        hosts: HostedStreams,
        data_dir: DataDir,
        *,
        link_to: Callable[[str], PeerLink],
        lag_max_seconds: float,
        catch_up_bytes_per_second: float,
        clock_guard: ClockGuard | None = None,
    ) -> None:
        self.member = member
        self._tasks: set[asyncio.Task[None]] = set()
        self._known = KnownRecords(
            data_dir.environment.fs,
            data_dir.path,
            on_late=lambda records: self.mirror.remember(records),
        )
        self._on_disk: list[str] = []
        self.mirror = Mirror(
            store,
            on_record=self.record_changed,
            on_nodes=self.nodes_changed,
            kept=self._known,
        )
        self.hearing = Hearing(asyncio.get_running_loop().time)
        self.view = ClusterView(member, self.mirror, self.hearing)
        self.clocks = NodeClocks(data_dir.environment.clock, self.view.other_nodes, clock_guard)
        self.ids = IdsAhead(self._followed_hosts, hosts.steady_ns)
        self.handovers = Handovers(member.name, self.mirror, hosts, self.ids, link_to, self._spawn)
        self.leadership = self._new_leadership(link_to)
        self._node = local = LocalNode(
            member,
            self.mirror,
            self.hearing,
            hosts,
            self.handovers,
            self.ids,
            data_dir,
            CatchUpPace(catch_up_bytes_per_second),
            link_to,
            lag_max_seconds,
            self._spawn,
        )
        self._replicas: dict[str, Replica] = {}
        self.copies = ElectionCopies(local, self._replicas)
        self.peers = PeerService(local, self.view, self._replicas, lambda: self._succession)
        self.hearing.watch(self.peers.lost, silent=HUNG_SECONDS, refusing=ENDED_SECONDS)
        self.session: NodeSession | None = None
        self.store_problem: Callable[[], str] = lambda: ""
        """Returns the reason why the metadata store is not used; empty if it is."""
        self.forwarding = Forwarding(link_to, self.view.not_leader)
        self.donors = ReplicaDonors(self.mirror, member.name, link_to, self._copy_again)
        self.moves = Moves(self.mirror)
        self.upkeep = Upkeep(local, self._replicas, self.moves, self.leadership)
        self.new_streams = NewStreams(self.mirror)
        self.successors = Successors(self.mirror, self._spawn)
        self.guard = self._new_guard(link_to)
        self.unclean = self._new_unclean_recovery(link_to)
        self._succession: Succession | None = None
        self.recorded: dict[str, StreamSettings] = {}
        """Settings of all streams, from their records."""
        self._settings: dict[str, Mapping[str, Any]] = {}  # the raw settings of these
        self._is_stopping = False
        self._is_displaced = asyncio.Event()
        self._is_listed = False
        """True once the metadata store was seen to have a record of this node."""
        self._restoring: asyncio.Task[None] | None = None

    def _new_leadership(self, link_to: Callable[[str], PeerLink]) -> Leadership:
        return Leadership(
            self.mirror,
            self.handovers,
            link_to,
            lambda: self.led,
            self._is_lead_coming,
            self._refuses_seconds,
        )

    def _new_guard(self, link_to: Callable[[str], PeerLink]) -> Guard:
        return Guard(
            self.mirror,
            self.member.name,
            link_to=link_to,
            log_end=self.copies.log_end,
            stand_aside=self.copies.stand_aside,
            give_up=self._give_up,
        )

    def _new_unclean_recovery(self, link_to: Callable[[str], PeerLink]) -> UncleanRecovery:
        return UncleanRecovery(
            self.mirror,
            self.member.name,
            self.member.start,
            link_to=link_to,
            answer=self.guard.answer,
            may_lead=self._may_recover,
            on_recovered=self.handovers.tell,
        )

    # --- records ---

    def record_changed(self, record: StreamMetadata) -> None:
        """Called with a newer record of a stream."""
        self._note_settings(record)
        replica = self._replicas.get(record.name)
        if replica is None:
            # This node may have been down when the stream was deleted, or moved.
            if self._is_stopping or not record.concerns(self.member.name):
                return
            replica = self._replicas[record.name] = Replica(record.name, self._node)
            self._spawn(self._follow(replica))
        replica.record_changed(record)

    def _note_settings(self, record: StreamMetadata) -> None:
        """The settings of a stream, wherever it is, concern the streams of this node."""
        name = record.name
        if record.deleted:
            if self._settings.pop(name, None) is not None:
                self.recorded.pop(name, None)
                self._node.hosts.streams_change()
        elif self._settings.get(name) != record.settings:
            self._settings[name] = record.settings
            try:
                self.recorded[name] = settings_of(record)
            except LiftlogError as error:  # written by a newer version: the previous settings stay
                logger.warning("settings-not-read stream=%s error=%s", name, error)
            self._node.hosts.streams_change()

    async def _follow(self, replica: Replica) -> None:
        if await replica.run():
            del self._replicas[replica.name]
            # The stream may have been created again meanwhile.
            record = self.mirror.records.get(replica.name)
            if record is not None:
                self.record_changed(record)
            replica.opened.set()

    def nodes_changed(self) -> None:
        """Called when a node was added or removed: a stream may wait for that. All nodes are
        connected with each other, so that each receives the heartbeats of all others."""
        nodes, me = self.mirror.directory.nodes, self.member
        own = nodes.get(me.name)
        self._is_listed = self._is_listed or own is not None
        if own is not None and own.start > me.start:
            self._is_displaced.set()
        if self._is_listed and (own is None or own.start < me.start):
            self._restore_own_node()
        for node in nodes:
            if node != me.name:
                self.hearing.expect(node)
                self._node.link_to(node)
        for replica in self._replicas.values():
            replica.wake()

    async def displaced(self) -> None:
        """Return when another process has registered itself as this node."""
        await self._is_displaced.wait()

    def stand_aside(self) -> None:
        """Another process is this node now: accept no more messages, and change no record. The
        records that name this node refer to that process."""
        self._is_displaced.set()
        self._is_stopping = self.handovers.is_stopping = True
        for name in list(self.led):
            self.copies.stop_leading(name, "another process runs as this node")

    def _restore_own_node(self) -> None:
        """Store this node's record again: the metadata store was set back, so other nodes have no
        address of it."""
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.get_running_loop().create_task(self._restore_node())
            self._tasks.add(self._restoring)
            self._restoring.add_done_callback(self._tasks.discard)

    async def _restore_node(self) -> None:
        while True:
            try:
                return await self.mirror.restore_node(self.member.name, self.member.record)
            except LiftlogError as error:
                logger.warning("node-not-restored error=%s", error)
            await asyncio.sleep(_RECONNECT_SECONDS)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _copy_again(self, name: str) -> None:
        """Fetch the copy here again as a whole: it is damaged where no other replica may repair it.
        If this node leads, it hands over first."""
        replica = self._replicas.get(name)
        if replica is not None:
            replica.copy_again()
            if replica.role.led is not None:
                self._spawn(self.leadership.give_up(name))

    def _refuses_seconds(self, name: str) -> float:
        host = self._node.hosts.hosts.get(name)
        return 0.0 if host is None else host.observed.refuses_seconds()

    # --- elections ---

    def stand(self, session: NodeSession, patience: Patience) -> None:
        """From now on, take over streams that have lost their leader, and resign from the streams
        led here if this node has lost its `session`."""
        self.session = session
        elections = Elections(
            self.member.name,
            self.member.start,
            now=asyncio.get_running_loop().time(),
            patience=patience,
        )
        self._succession = Succession(
            elections,
            self.mirror,
            self.hearing,
            session,
            self.copies,
            link_to=self._node.link_to,
            spawn=self._spawn,
            is_attached=lambda: self._node.hosts.attachments.connected,
        )

    async def keep_led(self) -> None:
        """Take part in elections, after `stand`, until cancelled."""
        assert self._succession is not None
        await self._succession.run()

    def _may_recover(self, name: str) -> bool:
        """See `ElectionCopies.may_recover`; a node that stops takes no lead."""
        is_stopping = self._is_stopping or self.handovers.is_stopping
        return not is_stopping and self.copies.may_recover(name)

    def _give_up(self, name: str, stored: StreamMetadata) -> None:
        """Discard this node's record of the stream, and adopt the successors of `stored`."""
        replica = self._replicas.get(name)
        if replica is None and not self.mirror.known[name].concerns(self.member.name):
            self._spawn(self._go_over(name, stored))
            return
        if replica is None:
            replica = self._replicas[name] = Replica(name, self._node)
            self._spawn(self._follow(replica))
        replica.give_up(stored)

    async def _go_over(self, name: str, stored: StreamMetadata) -> None:
        with contextlib.suppress(LiftlogError):  # the guard retries it
            await self.mirror.go_over(name, self.member.name, stored)

    # --- the start ---

    async def remember(self) -> None:
        """Load the records that this node has seen in earlier starts. Call it before anything is
        read from the metadata store."""
        self.mirror.remember(await asyncio.to_thread(self._known.read))
        self._spawn(self._known.run())

    async def find_copies(self) -> None:
        """Find the copies on the disk. Call it before anything is read from the metadata store: it
        removes copies whose creation was not completed, and later such a copy may just be being
        created. Its files would be lost, and the records that it confirms with them."""
        self._on_disk = await asyncio.to_thread(self._node.data_dir.stream_names)

    async def open_streams(self) -> None:
        """Read the records, and open the streams that this node has a copy of."""
        await self.mirror.load()
        unknown = await asyncio.to_thread(
            copies.unknown_streams,
            self._node.data_dir,
            self._on_disk,
            self.mirror.records,
            self.member.name,
        )
        unknown |= dict.fromkeys(self.mirror.doubtful & unknown.keys(), _SET_BACK)
        self._node.hosts.broken.update(unknown)
        opening = [one.opened for one in self._replicas.values()]
        await asyncio.gather(*(one.wait() for one in opening))
        if not (self.mirror.doubtful or self.mirror.newer):
            me, records = self.member.name, self.mirror.records.values()
            self._known.all_held(one for one in records if me in one.members and not one.deleted)

    async def opened(self, name: str) -> None:
        """Return when the copy of a stream was opened, or could not be opened; at once if there is
        none here."""
        replica = self._replicas.get(name)
        while replica is not None:
            await replica.opened.wait()
            # It may have been removed, and replaced by that of a stream created again.
            before, replica = replica, self._replicas.get(name)
            if replica is before:
                return

    # --- what this node leads ---

    def conditions(self) -> Iterable[Condition]:
        """Yield the conditions of all streams of the cluster."""
        for record in self.view.without_leader():
            why, todo = self.view.why_without_leader(record)
            yield Condition.of("no_leader", f"no node leads it: {why}. {todo}", record.name)
        if self._known.problem:
            yield Condition.of("known_records", self._known.problem)

    def link_to(self, node: str) -> PeerLink:
        """Return the connection to another node."""
        return self._node.link_to(node)

    def may_answer(self, name: str) -> bool:
        """Return True if this node leads the stream, and no other one can have been elected
        meanwhile, based on sessions. A newer record that names another leader may be on its way."""
        led = self.led.get(name)
        if led is None or led.leader.resigned:
            return False
        return self._succession is None or self._succession.may_lead(led.leader)

    # --- facts for clients ---

    def has_failed(self, name: str) -> bool:
        """True if the copy of a stream here cannot be served or written."""
        host = self._node.hosts.hosts.get(name)
        return name in self._node.hosts.broken or (host is not None and bool(host.failure))

    @property
    def elections(self) -> Mapping[str, int]:
        """Elections that this node has won, by reason."""
        if self._succession is None:
            return {}
        return {**self._succession.elections, "unclean": self.unclean.recovered}

    @property
    def isr_changes(self) -> dict[str, int]:
        """Changes of the in-sync set of each stream while this node led it."""
        return {name: one.role.isr_changes for name, one in self._replicas.items()}

    def not_in_sync(self) -> list[str]:
        """Return the streams whose replica on this node is not in sync."""
        me, records = self.member.name, map(self.view.known, self._replicas)
        return [one.name for one in records if one and me in {*one.replicas} - {*one.isr}]

    @property
    def led(self) -> Mapping[str, ServedStream]:
        """The present roles; the mapping changes when a role does."""
        return self._node.led

    @property
    def followed(self) -> Mapping[str, FollowedStream]:
        """The present roles; the mapping changes when a role does."""
        return self._node.followed

    def _followed_hosts(self, names: Collection[str] | None) -> list[StreamHost]:
        """Return the hosts of followed streams, including those between two roles; with `names`
        only those of these streams."""
        hosts = self._node.hosts.hosts
        some = hosts.values() if names is None else filter(None, map(hosts.get, names))
        return [host for host in some if not host.is_leading]

    # --- the end ---

    def _is_lead_coming(self) -> bool:
        is_electing = self._succession is not None and self._succession.is_electing
        return is_electing or self.handovers.is_taking

    async def prepare_to_stop(self) -> None:
        """Hand over all streams, and notify the other nodes that they must not hand over any to
        this one. Does not raise."""
        if self._succession is not None:
            self._succession.stand_down()
        if self._is_displaced.is_set():
            return
        self._spawn(self._tell_that_it_stops())
        await self.leadership.hand_over_all()

    async def _tell_that_it_stops(self) -> None:
        def step(value: Mapping[str, Any]) -> dict[str, Any] | None:
            is_told = value["start"] != self.member.start or value.get("stopping")
            return None if is_told else {**value, "stopping": True}

        # Otherwise they detect it when they ask.
        with contextlib.suppress(LiftlogError, TimeoutError):
            async with asyncio.timeout(_TELL_SECONDS):
                await self.mirror.change_node(self.member.name, step)

    async def leave(self) -> None:
        """Before a planned stop: no leader waits for this node any more, and streams that it led
        get another leader."""
        self._is_stopping = self.handovers.is_stopping = True
        if self._is_displaced.is_set():
            return
        await self._tell_that_it_stops()  # so that no later request adds it again
        gate = asyncio.Semaphore(_CHANGES_AT_ONCE)

        async def leave(one: Replica) -> None:
            async with gate:  # so that the slowest stream does not delay the others
                await one.leave()

        await asyncio.gather(*map(leave, list(self._replicas.values())))

    async def close(self) -> None:
        """Stop following records; the logs stay open, the broker closes them."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self._replicas.values():
            replica.role.stop()
