"""The replicated streams of this node: for each, what its record makes of the node.

A record changes in the metadata store; here the stream's role follows it. One task per stream does
so, one record at a time, the newest. A role ends by closing the stream's log, and the next one
begins by opening it: so whatever a role had in memory ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from liftlog.cluster import transitions
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamRecord
from liftlog.cluster.roles import Follow, Lead, Leave, Register, role_of
from liftlog.errors import (
    Conflict,
    LiftlogError,
    MetadataUnavailable,
    NotLeader,
    NotReady,
    StreamNotFound,
)
from liftlog.log import DataDir, Log
from liftlog.protocol.replication import ClusterInfo, ClusterNode, ClusterStream, Peer, Replicate
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.host import StreamHost, new_metadata
from liftlog.server.replication.fetching import FollowedStream
from liftlog.server.replication.membership import Member
from liftlog.server.replication.mirror import Mirror
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.serving import CatchUpPace, Reply, ServedStream
from liftlog.settings import StreamSettings, parse_stream_settings

logger = logging.getLogger("liftlog.server.replication")

_PROPOSE_SECONDS = 0.1
_RECONNECT_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_DRAIN_SECONDS = 10.0


class StreamHosts(Protocol):
    """What makes and ends the hosts of streams: the broker."""

    hosts: dict[str, StreamHost]
    broken: dict[str, str]

    async def host_replica(
        self,
        name: str,
        settings: StreamSettings,
        log: Log,
        *,
        origin: str,
        led: ServedStream | None,
    ) -> StreamHost:
        """Serve an open log; `led` is its gate if this node leads, None if it follows."""
        ...

    def streams_changed(self) -> None:
        """Settings of a stream have changed."""
        ...

    async def end_replica(self, host: StreamHost, *, seconds: float) -> None:
        """Stop serving: detach it, wait for what is under way, close its log."""
        ...


class ReplicatedStreams:
    """Belongs to the event loop. `link_to` gives the connection to another node."""

    def __init__(
        self,
        member: Member,
        hosts: StreamHosts,
        data_dir: DataDir,
        *,
        link_to: Callable[[str], PeerLink],
        lag_max_seconds: float,
        catch_up_bytes_per_second: float,
    ) -> None:
        self.member = member
        self.mirror: Mirror
        """Set before `start`."""
        self._hosts = hosts
        self._data_dir = data_dir
        self._link_to = link_to
        self._lag_max_seconds = lag_max_seconds
        self.pace = CatchUpPace(catch_up_bytes_per_second)
        self._streams: dict[str, _ReplicatedStream] = {}
        self._peers: dict[str, int] = {}
        """Connections of each node that are open now."""
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    # --- records ---

    def record_changed(self, record: StreamRecord) -> None:
        """There is a newer record of a stream."""
        stream = self._streams.get(record.name)
        if stream is None:
            if self._is_stopping or record.deleted or self.member.name not in record.members:
                return
            stream = self._streams[record.name] = _ReplicatedStream(record.name, self)
            self._spawn(stream.run())
        stream.wake()

    def left(self, stream: _ReplicatedStream) -> None:
        """The copy of a stream is removed. Meanwhile it may have been created again."""
        del self._streams[stream.name]
        self.record_changed(self.mirror.records[stream.name])

    def nodes_changed(self) -> None:
        """A node came or went: a stream may wait for that."""
        for stream in self._streams.values():
            stream.wake()

    def connected(self, node: str) -> None:
        """This node's connection to `node` is there again."""
        for stream in self._streams.values():
            if stream.followed is not None:
                stream.followed.connected(node)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def keep_in_sync(self) -> None:
        """Commit the changes of in-sync sets that are due, until cancelled."""
        while True:
            await asyncio.sleep(_PROPOSE_SECONDS)
            for stream in list(self._streams.values()):
                await stream.propose()

    # --- the start ---

    async def open_streams(self) -> None:
        """Read the records, and open the streams that this node has a copy of."""
        await self.mirror.load()
        opening = [one.opened for one in self._streams.values()]
        await asyncio.gather(*(one.wait() for one in opening))

    async def opened(self, name: str) -> None:
        """Return when the copy of a stream was opened, or could not be; at once if there is none
        here."""
        stream = self._streams.get(name)
        if stream is not None:
            await stream.opened.wait()

    def known(self, name: str) -> StreamRecord | None:
        """The record of a stream; None if there is no such stream in the cluster."""
        record = self.mirror.records.get(name)
        return None if record is None or record.deleted else record

    def knows(self, name: str) -> bool:
        """Whether there is such a stream in the cluster."""
        return self.known(name) is not None

    async def update(self, name: str, settings: StreamSettings) -> None:
        """Store other settings; each node with a copy adopts them. Raises MetadataUnavailable."""

        def step(record: StreamRecord) -> StreamRecord | None:
            origin = {"origin": origin_of(record)}
            return transitions.update(record, settings.to_yaml_dict() | origin)

        await self.mirror.change(name, step)

    async def truncate(self, name: str, offset: int) -> None:
        """Delete what is below `offset` on every node. Raises MetadataUnavailable."""
        await self.mirror.change(name, lambda record: transitions.truncate(record, offset))

    async def delete(self, name: str) -> None:
        """Delete a stream on every node. Raises StreamNotFound, MetadataUnavailable."""
        if await self.mirror.change(name, transitions.delete) is None:
            raise StreamNotFound(f"there is no stream {name!r}")
        logger.info("stream-deleted stream=%s", name)

    # --- creation ---

    async def create(self, name: str, settings: StreamSettings, *, origin: str) -> StreamRecord:
        """The record of a new stream, on nodes that are live; the one that exists if there is one.
        Raises Conflict when there are too few nodes, MetadataUnavailable."""
        directory = self.mirror.directory
        counts = dict.fromkeys(sorted(directory.live & directory.nodes.keys()), 0)
        for record in self.mirror.records.values():
            for node in record.replicas:
                if node in counts and not record.deleted:
                    counts[node] += 1
        chosen = sorted(counts, key=lambda node: (counts[node], node != self.member.name, node))
        if len(chosen) < settings.replicas:
            raise Conflict(
                f"stream {name} is to have {settings.replicas} replicas, and there are "
                f"{len(chosen)} live nodes: {', '.join(chosen)}",
                hint="start the other nodes; `liftlog cluster status` shows them",
            )
        replicas = chosen[: settings.replicas]
        record = transitions.create(
            name,
            secrets.token_hex(16),
            {**settings.to_yaml_dict(), "origin": origin},
            replicas,
            starts={node: directory.nodes[node].start for node in replicas},
        )
        return await self.mirror.create(record)

    async def create_configured(self, streams: Mapping[str, StreamSettings]) -> None:
        """Create the streams of the configuration file that do not exist, as soon as there are
        enough nodes. Each node does so; the first one is right."""
        missing = dict(streams)
        told: set[str] = set()
        while missing:
            for name, settings in list(missing.items()):
                record = self.mirror.records.get(name)
                if record is not None and not record.deleted:
                    del missing[name]
                    continue
                try:
                    await self.create(name, settings, origin="config")
                    del missing[name]
                except (Conflict, MetadataUnavailable) as error:
                    if name not in told:
                        logger.warning("stream-waits stream=%s reason=%s", name, error)
                        told.add(name)
            await asyncio.sleep(_FIRST_PAUSE_SECONDS)

    # --- followers of streams that this node leads ---

    def replicate(self, peer: Peer, request: Replicate, reply: Reply) -> None:
        """A node asks for what it lacks of a stream. Raises NotLeader."""
        stream = self._streams.get(request.stream)
        led = None if stream is None else stream.led
        if led is None:
            raise self.not_leader(request.stream)
        led.fetch(peer.node, peer.start, request, reply)

    def peer_came(self, node: str) -> None:
        """A connection of another node has introduced itself."""
        self._peers[node] = self._peers.get(node, 0) + 1

    def peer_went(self, node: str) -> None:
        """It has ended. A node that does not come back soon is not waited for."""
        self._peers[node] -= 1
        asyncio.get_running_loop().call_later(_RECONNECT_SECONDS, self._lost, node)

    def _lost(self, node: str) -> None:
        if not self._peers.get(node):
            for stream in self._streams.values():
                if stream.led is not None:
                    stream.led.lost(node)

    def not_leader(self, name: str) -> LiftlogError:
        """The error for a request that only the leader of `name` can answer."""
        record = self.mirror.records.get(name)
        if record is None or record.deleted:
            return StreamNotFound(f"there is no stream {name!r}")
        leader = record.leader or ""
        info = self.mirror.directory.nodes.get(leader)
        address = "" if info is None else info.address
        return NotLeader(
            f"stream {name} is led by node {leader}, not by {self.member.name}"
            if leader
            else f"stream {name} has no leader at the moment",
            hint=f"connect to {address}" if address else "try again",
            leader=leader,
            address=address,
            replicas=list(record.replicas),
            epoch=record.leader_epoch,
        )

    def check_leads(self, name: str) -> None:
        """Raises NotLeader unless this node leads the stream, and NotReady while its high watermark
        may lag behind what clients have seen: until the followers have asked once."""
        stream = self._streams.get(name)
        led = None if stream is None else stream.led
        if led is None:
            raise self.not_leader(name)
        if not led.leader.is_ready:
            raise NotReady(
                f"node {self.member.name} begins to lead stream {name}",
                hint="try again; `liftlog cluster status` shows whether enough replicas are there",
            )

    def check_is_here(self, node: str) -> None:
        """Raises NotLeader unless `node` is this one."""
        if node != self.member.name:
            info = self.mirror.directory.nodes.get(node)
            raise NotLeader(
                f"this is node {self.member.name}, not {node}",
                hint=f"connect to {info.address}" if info else "there is no such node",
                address=info.address if info else "",
            )

    # --- what one sees ---

    def describe(self, may_read: Callable[[str], bool]) -> ClusterInfo:
        """The cluster, with the streams that the caller may read."""
        directory = self.mirror.directory
        nodes = [
            ClusterNode(name, name in directory.live, one.address, one.version, one.draining)
            for name, one in sorted(directory.nodes.items())
        ]
        streams = []
        for name, record in sorted(self.mirror.records.items()):
            if record.deleted or not may_read(name):
                continue
            host = self._hosts.hosts.get(name)
            streams.append(
                ClusterStream(
                    name,
                    record.leader,
                    record.leader_epoch,
                    list(record.replicas),
                    list(record.isr),
                    list(record.eligible),
                    None if host is None else host.log.high_watermark,
                    None if host is None else host.log.log_end_offset,
                )
            )
        return ClusterInfo(
            self.member.cluster_id,
            [one.to_wire() for one in nodes],
            [one.to_wire() for one in streams],
        )

    @property
    def led(self) -> dict[str, ServedStream]:
        return {name: one.led for name, one in self._streams.items() if one.led is not None}

    @property
    def followed(self) -> dict[str, FollowedStream]:
        return {
            name: one.followed for name, one in self._streams.items() if one.followed is not None
        }

    # --- the end ---

    async def leave(self) -> None:
        """Before a planned stop: no leader waits for this node any more, and streams that it led
        get another leader."""
        self._is_stopping = True
        await asyncio.gather(*(one.leave() for one in list(self._streams.values())))

    async def close(self) -> None:
        """Follow no record any more; the logs stay open, the broker closes them."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams.values():
            stream.stop()

    # --- for each stream ---

    @property
    def is_stopping(self) -> bool:
        return self._is_stopping

    @property
    def lag_max_seconds(self) -> float:
        return self._lag_max_seconds

    @property
    def data_dir(self) -> DataDir:
        return self._data_dir

    @property
    def hosts(self) -> StreamHosts:
        return self._hosts

    def link_to(self, node: str) -> PeerLink:
        return self._link_to(node)


class _ReplicatedStream:
    """One stream: its newest record is followed by one task."""

    def __init__(self, name: str, owner: ReplicatedStreams) -> None:
        self.name = name
        self.led: ServedStream | None = None
        self.followed: FollowedStream | None = None
        self._owner = owner
        self._me = owner.member.name
        self._log: Log | None = None
        """Open and without a role."""
        self._resigned_epoch = 0
        self._is_whole = False
        """Whether the log, as it was opened, can have all that this node confirmed."""
        self._wake = asyncio.Event()
        self.opened = asyncio.Event()
        """Set once its log was opened, or could not be."""

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Follow the record until the stream leaves this node."""
        pause = _FIRST_PAUSE_SECONDS
        while not self._owner.is_stopping:
            self._wake.clear()
            try:
                if await self._follow_record():
                    self.opened.set()
                    self._owner.left(self)
                    return
                pause = _FIRST_PAUSE_SECONDS
            except LiftlogError as error:
                logger.error("role-not-taken stream=%s error=%s", self.name, error)  # noqa: TRY400
                self.opened.set()
                if not isinstance(error, MetadataUnavailable):
                    self._owner.hosts.broken[self.name] = str(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                continue
            except Exception as error:  # a supervisor: the other streams continue
                logger.exception("role-failed stream=%s", self.name)
                self._owner.hosts.broken[self.name] = f"internal error: {error!r}"
                self.opened.set()
                return
            if self.led is not None or self.followed is not None:
                self.opened.set()
            await self._wake.wait()

    async def _follow_record(self) -> bool:
        """One look at the record; True when the stream has left this node."""
        record = self._owner.mirror.records[self.name]
        host = self._owner.hosts.hosts.get(self.name)
        if host is not None and host.log.incarnation != record.incarnation:
            await self._end_role()  # deleted and created again
        role = role_of(
            record, self._me, self._owner.member.start, resigned_epoch=self._resigned_epoch
        )
        if isinstance(role, Leave):
            await self._leave_node()
            return True
        if isinstance(role, Register):
            await self._register(record)
        elif isinstance(role, Lead):
            if self.led is not None and self.led.leader.epoch == role.epoch:
                self.led.adopt(record)
            else:
                await self._lead(record)
        elif self.followed is not None:
            self.followed.assigned(record)
        else:
            await self._follow(record)
        if not isinstance(role, Follow | Lead) and record.leader is None:
            await self._stand_for_leader(record)
        await self._adopt_settings(record)
        return False

    async def _adopt_settings(self, record: StreamRecord) -> None:
        """What an operator has changed in the record, here or through another node."""
        host = self._owner.hosts.hosts.get(self.name)
        if host is None or host.failure:
            return
        wanted = settings_of(record)
        if wanted != host.settings:
            await host.exclusively(
                lambda: host.log.set_metadata(host.metadata(wanted)), lambda: host.adopt(wanted)
            )
            self._owner.hosts.streams_changed()
        start = min(record.log_start, host.log.high_watermark)
        if self.led is not None and start > host.log.log_start_offset:
            await host.exclusively(lambda: host.log.truncate_prefix(start))

    async def _stand_for_leader(self, record: StreamRecord) -> None:
        """The first live member of the in-sync set leads; of those eligible when it is empty."""
        live = self._owner.mirror.directory.live
        candidates = [node for node in record.isr or record.eligible if node in live]
        if candidates[:1] == [self._me] and record.starts.get(self._me) == self._owner.member.start:
            await self._owner.mirror.change(
                self.name, lambda present: transitions.failover(present, (), self._me)
            )

    # --- the log ---

    async def _register(self, record: StreamRecord) -> None:
        await self._end_role()
        log, is_whole = await self._open(record)
        member = self._owner.member
        await self._owner.mirror.change(
            self.name,
            lambda present: transitions.register(
                present, self._me, member.start, clean=is_whole and not log.incomplete
            ),
        )
        if log.incomplete:
            await asyncio.to_thread(log.note_complete)

    async def _open(self, record: StreamRecord) -> tuple[Log, bool]:
        """The log, opened or created; and whether it can have all that this node confirmed."""
        if self._log is not None:
            return self._log, self._is_whole
        log, self._is_whole = await self._open_or_create(record)
        self._log = log
        return log, self._is_whole

    async def _open_or_create(self, record: StreamRecord) -> tuple[Log, bool]:
        data_dir, name = self._owner.data_dir, self.name
        settings = settings_of(record)
        config = log_config(settings, replicated=True)
        if await asyncio.to_thread(data_dir.stream_path(name).exists):
            log, report = await asyncio.to_thread(data_dir.open_log, name, config)
            if log.incarnation == record.incarnation:
                logger.info(
                    "replica-opened stream=%s clean=%s log_end=%d high_watermark=%d incomplete=%s",
                    name,
                    report.clean,
                    log.log_end_offset,
                    log.high_watermark,
                    log.incomplete or "no",
                )
                return log, self._owner.member.is_same
            await asyncio.to_thread(log.close)
            await asyncio.to_thread(data_dir.delete_log, name)
        log = await asyncio.to_thread(
            partial(
                data_dir.create_log,
                name,
                config,
                initial_offset=settings.initial_offset,
                metadata=new_metadata(settings, origin_of(record)),
                incarnation=record.incarnation,
            )
        )
        is_new = record.starts.get(self._me) == self._owner.member.start
        logger.info("replica-created stream=%s", name)
        return log, is_new

    # --- roles ---

    async def _lead(self, record: StreamRecord) -> None:
        await self._end_role()
        log, _ = await self._open(record)
        await asyncio.to_thread(log.begin_epoch, record.leader_epoch)
        leader = Leader(
            record,
            self._me,
            log.epochs,
            log_end=log.log_end_offset,
            durable_end=log.durable_end_offset,
            high_watermark=log.high_watermark,
            now=asyncio.get_running_loop().time(),
            lag_max=self._owner.lag_max_seconds,
        )
        led = ServedStream(
            leader, log, pace=self._owner.pace, ended=partial(self._ended, record.leader_epoch)
        )
        settings, origin = settings_of(record), origin_of(record)
        host = await self._owner.hosts.host_replica(
            self.name, settings, log, origin=origin, led=led
        )
        self._log, self.led = None, led
        host.commit_up_to(leader.local(log.durable_end_offset))
        logger.info("leading stream=%s epoch=%d", self.name, record.leader_epoch)

    def _ended(self, epoch: int, reason: str) -> None:
        """This node no longer leads in this epoch, and will not again, whatever the record says."""
        self._resigned_epoch = max(self._resigned_epoch, epoch)
        record = self._owner.mirror.records[self.name]
        if (record.leader, record.leader_epoch) == (self._me, epoch):
            logger.warning("resigning stream=%s epoch=%d reason=%s", self.name, epoch, reason)
            self._owner._spawn(self._resign(epoch))
        self.wake()

    async def _resign(self, epoch: int) -> None:
        """Tell the others, who may lead in another epoch."""

        def step(present: StreamRecord) -> StreamRecord | None:
            if present.leader_epoch != epoch:
                return None
            return transitions.resign(present, self._me)

        try:
            await self._owner.mirror.change(self.name, step)
        except (MetadataUnavailable, Conflict) as error:
            logger.warning("not-resigned stream=%s error=%s", self.name, error)

    async def _follow(self, record: StreamRecord) -> None:
        await self._end_role()
        log, _ = await self._open(record)
        host = await self._owner.hosts.host_replica(
            self.name, settings_of(record), log, origin=origin_of(record), led=None
        )
        self._log = None
        self.followed = FollowedStream(
            host,
            record,
            self._me,
            link_to=self._owner.link_to,
            tell_record_is_old=self._look_again,
        )
        self.followed.start()
        logger.info(
            "following stream=%s leader=%s epoch=%d",
            self.name,
            record.leader or "none",
            record.leader_epoch,
        )

    def _look_again(self) -> None:
        self._owner._spawn(self._read_record())

    async def _read_record(self) -> None:
        with contextlib.suppress(MetadataUnavailable):
            await self._owner.mirror.change(self.name, lambda present: None)

    async def _end_role(self) -> None:
        """Close the log of the role that has ended."""
        self.stop()
        host = self._owner.hosts.hosts.get(self.name)
        if host is not None:
            if host.is_leading:
                host.step_down("the lead has ended")
            await self._owner.hosts.end_replica(host, seconds=_DRAIN_SECONDS)
        self._owner.hosts.broken.pop(self.name, None)

    def stop(self) -> None:
        if self.led is not None:
            self.led.close()
        if self.followed is not None:
            self.followed.close()
        self.led = self.followed = None

    async def _leave_node(self) -> None:
        """The stream was deleted, or its copy has moved to another node."""
        await self._end_role()
        if self._log is not None:
            log, self._log = self._log, None
            await asyncio.to_thread(log.close)
        if await asyncio.to_thread(self._owner.data_dir.stream_path(self.name).exists):
            await asyncio.to_thread(self._owner.data_dir.delete_log, self.name)
        logger.info("replica-removed stream=%s", self.name)

    # --- the in-sync set ---

    async def propose(self) -> None:
        """Commit a change of the in-sync set that is due."""
        led = self.led
        if led is not None:
            try:
                change = led.propose()
                if change is not None:
                    await self._owner.mirror.commit(change)
            except LiftlogError as error:  # one stream must not end the task of all
                logger.warning("in-sync-set-unchanged stream=%s error=%s", self.name, error)

    async def leave(self) -> None:
        """Leave the in-sync set, and the lead with it."""
        try:
            await self._owner.mirror.change(
                self.name,
                lambda present: (
                    transitions.fence(present, {self._me})
                    if len(present.members) > 1 and not present.deleted
                    else None
                ),
            )
        except (MetadataUnavailable, Conflict) as error:
            logger.warning("in-sync-set-not-left stream=%s error=%s", self.name, error)


def settings_of(record: StreamRecord) -> StreamSettings:
    """The settings in the record. Raises InvalidArgument."""
    settings = {name: value for name, value in record.settings.items() if name != "origin"}
    return parse_stream_settings(settings, exists=True)


def origin_of(record: StreamRecord) -> str:
    """Who created the stream: `config` or `api`."""
    return str(record.settings.get("origin", "api"))
