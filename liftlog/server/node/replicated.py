"""This daemon as a node of a cluster: creates the parts of a node, connects them, and stops them.

A record changes in the metadata store; each stream's `Replica` then takes the role that the record
gives it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any

from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.store import MetaStore, NodeSession
from liftlog.log import DataDir
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.known_records import KnownRecords
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.candidacy import Candidacy
from liftlog.server.node.cluster_view import ClusterView
from liftlog.server.node.handing_over import Handovers
from liftlog.server.node.leadership import Leadership
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.moves import Moves
from liftlog.server.node.opening import Opening
from liftlog.server.node.own_record import OwnRecord
from liftlog.server.node.peer_service import PeerService
from liftlog.server.node.placing import NewStreams
from liftlog.server.node.replicas import Replicas
from liftlog.server.node.stream_settings import RecordedSettings
from liftlog.server.node.successors import Successors
from liftlog.server.node.upkeep import Upkeep
from liftlog.server.replication.clocks import NodeClocks
from liftlog.server.replication.fetching import FollowedStream
from liftlog.server.replication.forwarding import Forwarding
from liftlog.server.replication.hearing import ENDED_SECONDS, HUNG_SECONDS, Hearing
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.repair import ReplicaDonors
from liftlog.server.replication.serving import CatchUpPace, ServedStream
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.ids_ahead import IdsAhead
from liftlog.server.vitals.clock_guard import ClockGuard
from liftlog.server.vitals.conditions import Condition


class ReplicatedStreams:
    """This daemon as a node of its cluster. Belongs to the event loop. `link_to` returns the
    connection to another node."""

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
        known = KnownRecords(
            data_dir.environment.fs,
            data_dir.path,
            on_late=lambda records: self.mirror.remember(records),
        )
        self.mirror = Mirror(
            store,
            on_record=self.record_changed,
            on_nodes=self.nodes_changed,
            kept=known,
        )
        self.hearing = Hearing(asyncio.get_running_loop().time)
        self.view = ClusterView(member, self.mirror, self.hearing)
        self.clocks = NodeClocks(data_dir.environment.clock, self.view.other_nodes, clock_guard)
        self.ids = IdsAhead(self._followed_hosts, hosts.steady_ns)
        self.handovers = Handovers(member.name, self.mirror, hosts, self.ids, link_to, self._spawn)
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
        self.own_record = OwnRecord(member, self.mirror, self._spawn)
        self.settings = RecordedSettings(hosts.streams_change)
        self.replicas = Replicas(local)
        self.opening = Opening(local, self.replicas, known)
        self.candidacy = Candidacy(local, self.replicas, link_to)
        self.peers = PeerService(
            local, self.view, self.replicas.by_name, lambda: self.candidacy.succession
        )
        self.hearing.watch(self.peers.lost, silent=HUNG_SECONDS, refusing=ENDED_SECONDS)
        self.leadership = self._new_leadership(link_to)
        self.moves = Moves(self.mirror)
        self.upkeep = Upkeep(local, self.replicas.by_name, self.moves, self.leadership)
        self.new_streams = NewStreams(self.mirror)
        self.successors = Successors(self.mirror, self._spawn)
        self.forwarding = Forwarding(link_to, self.view.not_leader)
        self.donors = ReplicaDonors(self.mirror, member.name, link_to, self._copy_again)
        self.store_problem: Callable[[], str] = lambda: ""
        """Function that returns the reason why the metadata store is not used; empty if the store
        is used."""

    def _new_leadership(self, link_to: Callable[[str], PeerLink]) -> Leadership:
        return Leadership(
            self.mirror,
            self.handovers,
            link_to,
            lambda: self.led,
            self._is_lead_coming,
            self._refuses_seconds,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- changes ---

    def record_changed(self, record: StreamMetadata) -> None:
        """Called with a newer record of a stream."""
        self.settings.note(record)
        self.replicas.record_changed(record)

    def nodes_changed(self) -> None:
        """Called when a node was added or removed. All nodes are connected with each other, so that
        each node receives the heartbeats of all other nodes."""
        self.own_record.check()
        for node in self.view.other_nodes():
            self.hearing.expect(node)
            self._node.link_to(node)
        self.replicas.wake()

    def _copy_again(self, name: str) -> None:
        """Like `Replicas.copy_again`. If this node leads the stream, it hands the stream over
        first."""
        if self.replicas.copy_again(name):
            self._spawn(self.leadership.give_up(name))

    def _refuses_seconds(self, name: str) -> float:
        host = self._node.hosts.hosts.get(name)
        return 0.0 if host is None else host.observed.refuses_seconds()

    def _is_lead_coming(self) -> bool:
        return self.candidacy.is_electing or self.handovers.is_taking

    def _followed_hosts(self, names: Collection[str] | None) -> list[StreamHost]:
        """Return the hosts of followed streams, including hosts between two roles. If `names` is
        given, return only the hosts of these streams."""
        hosts = self._node.hosts.hosts
        some = hosts.values() if names is None else filter(None, map(hosts.get, names))
        return [host for host in some if not host.is_leading]

    def link_to(self, node: str) -> PeerLink:
        """Return the connection to another node."""
        return self._node.link_to(node)

    # --- facts for clients ---

    @property
    def session(self) -> NodeSession | None:
        """The session of this node in the metadata store; None before the session begins."""
        return self.candidacy.session

    @property
    def led(self) -> Mapping[str, ServedStream]:
        """The streams that this node leads now. The mapping changes when a role changes."""
        return self._node.led

    @property
    def followed(self) -> Mapping[str, FollowedStream]:
        """The streams that this node follows now. The mapping changes when a role changes."""
        return self._node.followed

    def conditions(self) -> Iterable[Condition]:
        """Yield the conditions of all streams of the cluster."""
        for record in self.view.without_leader():
            why, todo = self.view.why_without_leader(record)
            yield Condition.of("no_leader", f"no node leads it: {why}. {todo}", record.name)
        if self.opening.known.problem:
            yield Condition.of("known_records", self.opening.known.problem)

    def has_failed(self, name: str) -> bool:
        """True if this node cannot serve or write its copy of a stream."""
        host = self._node.hosts.hosts.get(name)
        return name in self._node.hosts.broken or (host is not None and bool(host.failure))

    @property
    def isr_changes(self) -> dict[str, int]:
        """Maps each stream to the number of changes of the in-sync set while this node led the
        stream."""
        return {name: one.role.isr_changes for name, one in self.replicas.by_name.items()}

    def not_in_sync(self) -> list[str]:
        """Return the streams whose replica on this node is not in sync."""
        me, records = self.member.name, map(self.view.known, self.replicas.by_name)
        return [one.name for one in records if one and me in {*one.replicas} - {*one.isr}]

    # --- the end ---

    def stand_aside(self) -> None:
        """Accept no more messages, and change no record, because another process now runs as this
        node. Records that name this node mean that process."""
        self.own_record.yield_to_other()
        self._add_nothing()
        self.replicas.stand_aside()
        self.candidacy.stop_leading("another process runs as this node")

    def _add_nothing(self) -> None:
        """From now on, begin no replica, and take over no stream."""
        self.replicas.is_stopping = self.handovers.is_stopping = True

    async def prepare_to_stop(self) -> None:
        """Hand over all streams, and notify the other nodes that they must not hand over streams to
        this node. Does not raise."""
        self.candidacy.stand_down()
        if self.own_record.is_displaced:
            return
        self._spawn(self.own_record.tell_that_it_stops())
        await self.leadership.hand_over_all()

    async def leave(self) -> None:
        """Leave the in-sync sets before a planned stop. After that no leader waits for this node,
        and the streams that it led get other leaders."""
        self._add_nothing()
        if self.own_record.is_displaced:
            return
        await self.own_record.tell_that_it_stops()  # so that no later request adds this node again
        await self.replicas.leave()

    async def close(self) -> None:
        """Stop following records. The logs stay open; the broker closes them."""
        self.replicas.is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.replicas.stop()
