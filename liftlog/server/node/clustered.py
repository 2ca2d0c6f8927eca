"""Starts and stops this daemon as a node of a cluster: its store, its session, its connections to
other nodes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from liftlog.client.connecting.target import Address, Target
from liftlog.cluster.election import Patience
from liftlog.cluster.store import CLUSTER_KEY, MetaStore, MetaStoreError, NodeSession
from liftlog.errors import ConfigError, MetadataUnavailable
from liftlog.log import DataDir
from liftlog.log.data_dir import make_durable_directory
from liftlog.log.files.filesystem import FileSystem, OsFileSystem, storage_errors
from liftlog.protocol.replication import Peer
from liftlog.server.cleaning.mending import Mender
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.holders import Holder, take_name
from liftlog.server.metadata.kv_setup import NoBucket
from liftlog.server.metadata.kv_store import NatsKvMetaStore, make_store
from liftlog.server.metadata.membership import (
    Member,
    NodeFile,
    another_cluster,
    cluster_of,
    create_cluster,
    identify,
    read_node_file,
    register,
    take_back,
    value_of,
)
from liftlog.server.metadata.one_cluster import OneClusterStore
from liftlog.server.node import own_offsets
from liftlog.server.node.cluster_catalog import ClusterCatalog
from liftlog.server.node.offsets import ReplicatedOffsets
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.streams.broker import Broker
from liftlog.settings import Settings
from liftlog.settings.cluster import FILE_STORE, NATS_STORE, ClusterSettings

logger = logging.getLogger("liftlog.server.replication")

_RECORDS_NAME = "records"
_JOIN_PAUSE_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_PURGE_SECONDS = 3600.0
_REQUEST_SECONDS = 30.0
_MAX_TOKEN_BYTES = 4096


class ClusterNode:
    """This daemon as a node. It joins the cluster before the streams are opened, and leaves it
    after they are drained."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterSettings,
        data_dir: DataDir,
        *,
        was_displaced: bool = False,
        on_displaced: Callable[[], None],
    ) -> None:
        """`on_displaced` is called when another process has become this node, possibly with another
        data directory. If `was_displaced` is true, another process became this node earlier, and
        this process then waits until the other process has ended."""
        self._was_displaced = was_displaced
        self._on_displaced = on_displaced
        self._settings = settings
        self._cluster = cluster
        self._data_dir = data_dir
        self._fs = data_dir.environment.fs
        self._close_store: Callable[[], Awaitable[None]] | None = None
        self._session: NodeSession | None = None
        self._links: dict[str, PeerLink] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._member: Member | None = None
        self._streams: ReplicatedStreams | None = None
        self._token: str | None = None

    async def join(self, broker: Broker) -> None:
        """Register this start of the node; from then on, the metadata records define the broker's
        streams. Raises ConfigError, StorageError."""
        cluster = self._cluster
        if cluster.token_file is not None:
            self._token = await asyncio.to_thread(_read_token, cluster.token_file)
        store, self._close_store = await open_store(self._settings, cluster, self._fs)
        member, self._session = await self._register(store)
        self._member = member
        logger.info(
            "joined cluster=%s node=%s start=%d same_directory=%s",
            member.cluster_id,
            member.name,
            member.start,
            member.is_same,
        )
        self._streams = streams = ReplicatedStreams(
            member,
            store,
            broker.hosted,
            self._data_dir,
            link_to=self._link_to,
            lag_max_seconds=cluster.lag_max_seconds,
            catch_up_bytes_per_second=cluster.catch_up_rate_bytes,
            clock_guard=broker.clock_guard,
        )
        streams.store_problem = lambda: store.problem
        await streams.opening.remember()
        await streams.opening.find_copies()
        broker.catalog = ClusterCatalog(streams, broker.own)
        broker.hosted.mender = Mender(broker.hosts, streams.donors, self._settings.cleaner)
        broker.conditions.add(streams.clocks.conditions)
        broker.clock_keeper.is_confirmed = lambda: streams.clocks.verdict().confirmed
        broker.conditions.add(streams.conditions)
        await asyncio.to_thread(own_offsets.set_aside, self._data_dir)
        interval = cluster.balance_interval_seconds
        for work in (
            streams.mirror.run,
            streams.upkeep.keep_in_sync,
            streams.upkeep.keep_placed,
            streams.candidacy.guard.run,
            *([streams.candidacy.unclean.run] if cluster.unclean == "balanced" else ()),
            partial(streams.upkeep.purge_deleted, _PURGE_SECONDS),
            streams.hearing.run,
            streams.ids.run,
            partial(streams.leadership.balance, interval, 2 * interval),
            partial(
                streams.upkeep.let_tombstones_go,
                self._settings.cleaner.interval_seconds,
                cluster.forget_after_seconds,
            ),
        ):
            self._spawn(kept_up(work))
        streams.candidacy.stand(
            self._session,
            Patience(session=cluster.session_seconds, silence=cluster.suspect_after_seconds),
        )
        self._spawn(kept_up(streams.candidacy.run))
        self._spawn(kept_up(partial(self._watch_name, store, self._session, streams)))

    async def _watch_name(
        self, store: MetaStore, session: NodeSession, streams: ReplicatedStreams
    ) -> None:
        """Wait until another process has become this node. Then stop acting as the node, and call
        `on_displaced`."""
        signs = [
            asyncio.ensure_future(one())
            for one in (session.taken_over, streams.own_record.displaced)
        ]
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for sign in signs:
                sign.cancel()
        streams.stand_aside()
        holder = None
        with contextlib.suppress(MetaStoreError):
            entry = await store.get(f"live.{self._cluster.node}")
            holder = None if entry is None else Holder.of(entry)
        logger.error(
            "node-displaced node=%s by=%s action=%s",
            self._cluster.node,
            holder or "another process",
            "this daemon stops what it serves, and starts again when that process has ended",
        )
        self._on_displaced()

    async def _register(self, store: OneClusterStore) -> tuple[Member, NodeSession]:
        """Take the name of the node, then register this start. With JetStream as the store, failed
        attempts are retried, because JetStream may have no leader for some seconds. With a file as
        the store there is only one attempt. Raises ConfigError, StorageError."""
        while True:
            try:
                return await self._try_to_register(store)
            except MetaStoreError as error:
                if self._cluster.store != NATS_STORE:
                    raise ConfigError(
                        f"the metadata store {self._cluster.store} cannot be used: {error}"
                    ) from error
                logger.warning("not-joined-yet error=%s", error)
                await asyncio.sleep(_JOIN_PAUSE_SECONDS)

    async def _try_to_register(self, store: OneClusterStore) -> tuple[Member, NodeSession]:
        cluster, path = self._cluster, self._data_dir.path
        identity = await asyncio.to_thread(self._data_dir.identity)
        file = await identify(
            store, self._fs, path, node=cluster.node, may_create=cluster.store != NATS_STORE
        )
        store.expect(file.cluster_id)
        lock = None if self._data_dir.lock is None else self._data_dir.lock.taken
        here = await asyncio.to_thread(Holder.here, file.data_id, path, lock)
        session = await take_name(
            store,
            cluster.node,
            here,
            int(cluster.session_seconds),
            same_directory=file.start > 0,
            was_displaced=self._was_displaced,
        )
        try:
            member = await register(
                store,
                self._fs,
                path,
                file,
                address=cluster.advertise,
                zone=cluster.zone,
                web=cluster.web,
                identity=identity,
            )
        except BaseException:
            await session.close()
            raise
        self._data_dir.start = member.start
        return member, session

    def start(self) -> None:
        """Create the streams of the configuration that do not exist yet."""
        assert self._streams is not None
        self._spawn(self._streams.new_streams.create_configured(self._settings.streams))

    def serve_checkpoints(self, broker: Broker, wall_clock: Callable[[], int]) -> None:
        """Serve the cluster's checkpoints. Call this before the broker has a link to NATS.
        `wall_clock` returns nanoseconds."""
        assert self._streams is not None
        own = own_offsets.OwnCheckpoints(self._data_dir)
        self._spawn(ReplicatedOffsets(broker, self._streams, wall_clock, own).run())
        self._spawn(own.take_over(broker, self._streams))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def close(self) -> None:
        """End the session and the connections. Does not raise."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._streams is not None:
            await self._streams.close()
        if self._session is not None:
            await self._session.close()
        if self._close_store is not None:
            await self._close_store()

    # --- other nodes ---

    def _link_to(self, node: str) -> PeerLink:
        link = self._links.get(node)
        if link is None:
            assert self._streams is not None
            streams = self._streams
            link = PeerLink(
                node,
                lambda: self._target_of(node),
                self._introduction,
                lambda: streams.peers.connected(node),
                streams.hearing,
                streams.clocks,
            )
            self._links[node] = link
            self._spawn(kept_up(link.run))
        return link

    def _target_of(self, node: str) -> Target | None:
        assert self._streams is not None
        info = self._streams.mirror.directory.nodes.get(node)
        if info is None:
            return None
        address = Address.parse(info.address)
        return Target.of(
            info.address,
            self._token,
            self._cluster.nkey,
            self._cluster.tls_ca if address.tls else None,
            _CONNECT_SECONDS,
            _REQUEST_SECONDS,
            None,
        )

    def _introduction(self) -> Peer:
        assert self._member is not None
        return Peer(self._member.name, self._member.start, self._member.cluster_id)


async def kept_up(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a task of the node until it returns. If it fails because of a defect, log the defect and
    start the task again. Otherwise the node would keep its session although it no longer does this
    work."""
    while True:
        try:
            return await work()
        except Exception:  # a supervisor
            logger.exception("task-failed action=begun-again")
        await asyncio.sleep(_AGAIN_SECONDS)


async def open_store(
    settings: Settings, cluster: ClusterSettings, fs: FileSystem
) -> tuple[OneClusterStore, Callable[[], Awaitable[None]]]:
    """Return the metadata store, and the function that closes it. Raises ConfigError,
    StorageError."""
    if cluster.store == NATS_STORE:
        bucket = NatsKvMetaStore(settings.nats, settings.nats.servers, cluster.name, cluster.node)
        try:
            await bucket.open()
        except BaseException:
            await bucket.close()
            raise
        store = OneClusterStore(bucket, bucket.close)
        return store, store.close
    directory = Path("/" + cluster.store.removeprefix(FILE_STORE))
    await asyncio.to_thread(make_durable_directory, fs, directory)
    file = FileMetaStore(directory / _RECORDS_NAME, shared=True, fs=fs)
    store = OneClusterStore(file, partial(asyncio.to_thread, file.close))
    return store, store.close


async def make_bucket(settings: Settings, cluster: ClusterSettings, replicas: int) -> bool:
    """Create the bucket of a new cluster. Returns False if the bucket exists. Raises ConfigError if
    the bucket of this node's cluster is lost. A new bucket would belong to another cluster, and no
    node with a data directory could join that cluster. Also raises MetadataUnavailable,
    StorageError."""
    fs, path = OsFileSystem(), Path(settings.data_dir)
    with storage_errors("reading the node file"):
        file = await asyncio.to_thread(read_node_file, fs, path)
    if file is None:
        return await make_store(settings.nats, cluster.name, replicas)
    try:
        store, close = await open_store(settings, cluster, fs)
    except NoBucket as error:
        raise _lost(file, path) from error
    try:
        entry = await store.get_newest(CLUSTER_KEY)
    except MetaStoreError as error:
        raise MetadataUnavailable(str(error)) from error
    finally:
        await close()
    if entry is None:
        raise _lost(file, path)
    found = str(value_of(entry).get("cluster_id"))
    if found != file.cluster_id:
        raise another_cluster(found, file.cluster_id)
    return False


def _lost(file: NodeFile, data_dir: Path) -> ConfigError:
    return ConfigError(
        f"the data directory {data_dir} belongs to node {file.node} of cluster {file.cluster_id}, "
        "whose metadata store is gone",
        hint="restore the store from a backup; without a backup, `liftlog cluster init -c FILE "
        "--again` creates a store for the same cluster. For another cluster, use an empty data_dir",
    )


async def make_again(settings: Settings, cluster: ClusterSettings, replicas: int) -> bool:
    """Create a new metadata store for the cluster of this node's data directory. If a store for a
    new cluster was created by mistake, assign this store to the node's cluster.

    Returns False, without a change, if the cluster already has its store. Raises ConfigError,
    MetadataUnavailable, StorageError.
    """
    fs, path = OsFileSystem(), Path(settings.data_dir)
    cluster_id = await asyncio.to_thread(cluster_of, fs, path, cluster.node)
    made = False
    if cluster.store == NATS_STORE:
        made = await make_store(settings.nats, cluster.name, replicas, cluster_id)
    store, close = await open_store(settings, cluster, fs)
    try:
        if cluster.store != NATS_STORE:
            made = await create_cluster(store, cluster_id)
        entry = await store.get_newest(CLUSTER_KEY)
        if entry is not None and value_of(entry).get("cluster_id") != cluster_id:
            await take_back(store, fs, path, cluster_id, entry)
            made = True
    except MetaStoreError as error:
        raise MetadataUnavailable(str(error), hint="run the command again") from error
    finally:
        await close()
    return made


def _read_token(path: Path) -> str:
    """Return the token in the file. Raises ConfigError. The error never contains the content of the
    file."""
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a token"
        raise ConfigError(f"cluster.token_file: cannot read {path}: {reason}") from None
    if not token:
        raise ConfigError(f"cluster.token_file: {path} is empty")
    return token
