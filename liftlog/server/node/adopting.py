"""Adds existing streams to a cluster, with all their state.

There are two cases. A daemon without a cluster becomes the first node of a new cluster, and brings
its streams. Or streams were restored from a backup into the data directory of a node.

The streams get metadata records with this node as their only replica, and their logs become copies
that other nodes can follow. No data are copied: offsets, incarnations and epochs stay, so readers,
leases and checkpoints continue. Each step can be repeated, so after an interruption the operator
runs the command again. The node ignores a stream until the last step for it is done.

Only the record of a stream shows that the stream belongs to the cluster. A manifest that marks its
log as a replica is no proof: the replica may come from another cluster, or its record may have been
deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.store import MetaStore
from liftlog.errors import (
    ConfigError,
    Conflict,
    CorruptMetadata,
    LiftlogError,
    StorageError,
    StreamNotFound,
)
from liftlog.log import DataDir, LogEnvironment, OsFileSystem, SystemClock
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import Manifest, read_manifest
from liftlog.log.segment.tail import ActiveState
from liftlog.names import is_stream_name
from liftlog.server.metadata.known_records import KNOWN_RECORDS_NAME
from liftlog.server.metadata.membership import Member, join, read_node_file
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.node.clustered import open_store
from liftlog.server.streams.making import load_stream
from liftlog.server.streams.settings import record_settings
from liftlog.settings import Settings, StreamSettings
from liftlog.settings.cluster import ClusterSettings

logger = logging.getLogger("liftlog.server.replication")


@dataclass(frozen=True, slots=True)
class Adopted:
    """The result of `adopt` for one stream's directory."""

    stream: str
    log_start_offset: int
    log_end_offset: int
    is_new: bool
    """False if the stream already belonged to the cluster."""


async def adopt(settings: Settings, cluster: ClusterSettings) -> list[Adopted]:
    """Make the data directory of a stopped daemon the directory of the first node. The metadata
    store must already exist. Durable on return.

    Raises ConfigError if the cluster has other nodes, Conflict if a stream cannot be adopted, and
    DataDirLocked while a daemon runs. Also raises StorageError and MetadataUnavailable.
    """

    async def work(
        store: MetaStore, data_dir: DataDir, states: dict[str, ActiveState]
    ) -> list[Adopted]:
        others = {key.removeprefix("node.") for key in await store.scan("node.")} - {cluster.node}
        if others:
            raise ConfigError(
                f"cluster {cluster.name} has nodes already: {', '.join(sorted(others))}",
                hint="only the first node brings all its streams. Start this node with an empty "
                "data_dir; `liftlog cluster adopt` adds single streams of a backup",
            )
        return await _adopt(settings, cluster, store, data_dir, states, None)

    return await _with_store(settings, cluster, work)


async def adopt_more(
    settings: Settings, cluster: ClusterSettings, names: Collection[str]
) -> list[Adopted]:
    """Add streams in the data directory of a stopped node to the node's cluster. Adds the streams
    in `names`. If `names` is empty, adds all streams that belonged to no cluster. Durable on
    return.

    Raises ConfigError if the directory belongs to no node, and the errors of `adopt`.
    """

    async def work(
        store: MetaStore, data_dir: DataDir, states: dict[str, ActiveState]
    ) -> list[Adopted]:
        if read_node_file(data_dir.environment.fs, data_dir.path) is None:
            raise ConfigError(
                f"the data directory {data_dir.path} belongs to no node of a cluster yet",
                hint="start the node once with this directory; the first node of a new cluster "
                "brings all its streams with `liftlog cluster init -c FILE --adopt`",
            )
        return await _adopt(settings, cluster, store, data_dir, states, names)

    return await _with_store(settings, cluster, work)


_Work = Callable[[MetaStore, DataDir, dict[str, ActiveState]], Awaitable[list[Adopted]]]


async def _with_store(settings: Settings, cluster: ClusterSettings, work: _Work) -> list[Adopted]:
    environment = LogEnvironment.create(OsFileSystem(), SystemClock())
    data_dir = DataDir(Path(settings.data_dir), environment)
    await asyncio.to_thread(data_dir.open)
    states: dict[str, ActiveState] = {}
    try:
        store, close_store = await open_store(settings, cluster, environment.fs)
        try:
            return await work(store, data_dir, states)
        finally:
            await close_store()
    finally:
        await asyncio.to_thread(data_dir.close, states)


async def _adopt(
    settings: Settings,
    cluster: ClusterSettings,
    store: MetaStore,
    data_dir: DataDir,
    states: dict[str, ActiveState],
    names: Collection[str] | None,
) -> list[Adopted]:
    """Adopt streams of the directory. `names` contains the streams to adopt. If it is None, all
    streams are adopted; if it is empty, the streams that belonged to no cluster."""
    member = await join(
        store,
        data_dir.environment.fs,
        data_dir.path,
        node=cluster.node,
        address=cluster.advertise,
        zone=cluster.zone,
        may_bring_streams=True,
    )
    mirror = Mirror(store, on_record=lambda record: None, on_nodes=lambda: None)
    there = list(filter(is_stream_name, await asyncio.to_thread(data_dir.stream_names)))
    if names is not None:
        if missing := sorted(set(names) - set(there)):
            raise StreamNotFound(
                f"the data directory {data_dir.path} has no stream {missing[0]}",
                hint="`liftlog backup restore BACKUP DATA_DIR --stream NAME --add` adds a stream",
            )
        free = [one for one in there if not await asyncio.to_thread(_is_replica, data_dir, one)]
        there = [one for one in there if one in names] if names else free
    return [
        await _adopt_stream(name, settings.streams.get(name), mirror, member, data_dir, states)
        for name in there
    ]


def _is_replica(data_dir: DataDir, name: str) -> bool:
    with storage_errors(f"reading the manifest of {name}"):
        manifest = read_manifest(data_dir.environment.fs, data_dir.stream_path(name))
    return manifest is not None and manifest.replicated


def _check_free(
    name: str, manifest: Manifest, record: StreamMetadata | None, member: Member, data_dir: DataDir
) -> bool:
    """Return True if the stream must be adopted. Return False if the cluster already has it. Raises
    Conflict."""
    is_known = record is not None and not record.deleted
    is_same = record is not None and record.incarnation == manifest.incarnation
    if record is not None and is_known:
        if is_same and manifest.replicated and member.name in record.members:
            return False
        # Either an earlier attempt has stored the record, or the disk was lost and restored from a
        # backup.
        if not (is_same and record.members == (member.name,)):
            raise Conflict(
                f"the cluster has a stream {name} on {', '.join(record.replicas)}",
                hint="to replace that stream by the local one, run `liftlog stream delete` first; "
                "or move the local directory away",
            )
    if record is not None and manifest.incarnation in record.former:
        raise Conflict(
            f"the cluster has deleted this stream {name}, and had another one of the name since",
            hint="try again an hour after the other stream was deleted on every node",
        )
    if manifest.replicated and data_dir.environment.fs.exists(data_dir.path / KNOWN_RECORDS_NAME):
        raise Conflict(
            f"the directory of {name} is a replica that this node has had in the cluster, which "
            "does not know the stream any more",
            hint="if the metadata store was lost or set back, `liftlog cluster restore-metadata` "
            "restores the stream; if it was deleted, move the directory away",
        )
    return True


async def _adopt_stream(
    name: str,
    configured: StreamSettings | None,
    mirror: Mirror,
    member: Member,
    data_dir: DataDir,
    states: dict[str, ActiveState],
) -> Adopted:
    fs, path = data_dir.environment.fs, data_dir.stream_path(name)
    with storage_errors(f"reading the manifest of {name}"):
        manifest = await asyncio.to_thread(read_manifest, fs, path)
    if manifest is None:
        raise Conflict(
            f"the directory {path} has no manifest",
            hint="try `liftlog log repair`, or move the directory away",
        )
    present = await mirror.read(name)
    if not _check_free(name, manifest, present, member, data_dir):
        end = manifest.high_watermark
        return Adopted(name, manifest.log_start_offset, end, is_new=False)
    if manifest.erased:
        raise Conflict(
            f"stream {name} has erased records whose bytes are still on the disk; other nodes "
            "would copy and show them",
            hint="run the daemon alone until it has rewritten their segments, about a day after "
            "they were sealed",
        )
    # Open the log in the same way as the daemon. If recovery after a power cut is needed, it must
    # end before other nodes copy the log.
    try:
        loaded = await asyncio.to_thread(load_stream, data_dir, name, configured)
    except LiftlogError as error:
        raise Conflict(
            f"stream {name} cannot be opened: {error.message}",
            hint=error.hint or "repair it, or move its directory away; then run the command again",
        ) from error
    log = loaded.log
    end = log.log_end_offset
    state = await asyncio.to_thread(log.close)
    if state is None:
        raise StorageError(f"stream {name} could not be closed: the log above has the reason")
    if log.config.rolls_up and manifest.rolled_up_below != end > log.log_start_offset:
        raise Conflict(
            f"stream {name} may have records that a roll-up has erased: its daemon was killed",
            hint="run the daemon alone and stop it; then run the command again",
        )
    states[name] = state
    alone = loaded.settings.model_copy(update={"replicas": 1, "min_isr": 1})
    record = transitions.create(
        name,
        log.incarnation,
        record_settings(alone, loaded.origin),
        [member.name],
        starts={member.name: member.start},
        leader_epoch=log.leader_epoch,
        log_start=log.log_start_offset,
    )
    await _store(mirror, record)
    await asyncio.to_thread(_make_copy, data_dir, name, end)
    logger.info("stream-adopted stream=%s log_end=%d", name, end)
    return Adopted(name, log.log_start_offset, end, is_new=True)


async def _store(mirror: Mirror, copy: StreamMetadata) -> StreamMetadata:
    """Store the record of an adopted stream, or the next version of an existing record. Raises
    Conflict, MetadataUnavailable."""

    def step(present: StreamMetadata) -> StreamMetadata | None:
        is_same = present.incarnation == copy.incarnation
        is_free = present.deleted or present.members == copy.replicas
        return transitions.continued(present, copy) if is_same and is_free else None

    stored = await mirror.change(copy.name, step)
    if stored is None or (stored.deleted and stored.incarnation != copy.incarnation):
        stored = await mirror.create(copy, has_log=True)
    if (stored.incarnation, stored.members) != (copy.incarnation, copy.replicas):
        raise Conflict(
            f"the cluster has another stream {copy.name}",
            hint="delete the stream of the cluster, or move the local directory away",
        )
    return stored


def _make_copy(data_dir: DataDir, name: str, end: int) -> None:
    """Mark all records of the log as committed. After this write the stream's directory belongs to
    the cluster."""
    fs, path = data_dir.environment.fs, data_dir.stream_path(name)
    with storage_errors(f"writing the manifest of {name}"):
        manifest: Manifest | None = read_manifest(fs, path)
        if manifest is None:
            raise CorruptMetadata(f"stream {name} has no manifest any more")
        manifest = manifest.with_changes(replicated=True, high_watermark=end, incomplete="")
        manifest.write(fs, path)
