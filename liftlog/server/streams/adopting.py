"""A daemon on its own becomes the first node of a new cluster, with all that it has.

Its streams get records with this node as their only replica, and their logs become copies that
others can follow. Nothing is copied: offsets, incarnations and epochs stay, so readers,
leases and checkpoints go on. Each step can be repeated, so a stop in between is made good by doing
it again; until the last step of a stream the node leaves it alone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from liftlog.cluster import transitions
from liftlog.cluster.store import MetaStore
from liftlog.errors import ConfigError, Conflict, CorruptMetadata, LiftlogError, StorageError
from liftlog.log import DataDir, LogEnvironment, OsFileSystem, SystemClock
from liftlog.log.filesystem import storage_errors
from liftlog.log.manifest import Manifest, read_manifest
from liftlog.log.recovery import ActiveState
from liftlog.names import is_stream_name
from liftlog.server.replication.membership import Member, join
from liftlog.server.replication.mirror import Mirror
from liftlog.server.streams.clustered import open_store
from liftlog.server.streams.making import load_stream
from liftlog.server.streams.settings import record_settings
from liftlog.settings import Settings, StreamSettings
from liftlog.settings.cluster import ClusterSettings

logger = logging.getLogger("liftlog.server.replication")


@dataclass(frozen=True, slots=True)
class Adopted:
    """What `adopt` found in a stream's directory."""

    stream: str
    log_start_offset: int
    log_end_offset: int
    is_new: bool
    """False if it belonged to the cluster already."""


async def adopt(settings: Settings, cluster: ClusterSettings) -> list[Adopted]:
    """Make the data directory of a daemon that is stopped the first node's. The metadata store is
    ready. Durable on return.

    Raises ConfigError when the cluster has other nodes, Conflict when a stream cannot be adopted,
    DataDirLocked while a daemon runs, StorageError, MetadataUnavailable.
    """
    environment = LogEnvironment.create(OsFileSystem(), SystemClock())
    data_dir = DataDir(Path(settings.data_dir), environment)
    await asyncio.to_thread(data_dir.open)
    states: dict[str, ActiveState] = {}
    try:
        store, close_store = await open_store(settings, cluster, environment.fs)
        try:
            return await _adopt(settings, cluster, store, data_dir, states)
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
) -> list[Adopted]:
    others = {key.removeprefix("node.") for key in await store.scan("node.")} - {cluster.node}
    if others:
        raise ConfigError(
            f"cluster {cluster.name} has nodes already: {', '.join(sorted(others))}",
            hint="only the first node brings its streams. Start this one with an empty data_dir",
        )
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
    names = await asyncio.to_thread(data_dir.stream_names)
    return [
        await _adopt_stream(name, settings.streams.get(name), mirror, member, data_dir, states)
        for name in filter(is_stream_name, names)
    ]


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
    if manifest is not None and manifest.replicated:
        end = manifest.high_watermark
        return Adopted(name, manifest.log_start_offset, end, is_new=False)
    # As the daemon opens it: what a power cut has left is settled before others copy it.
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
        raise StorageError(f"stream {name} could not be closed: the log above says why")
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
    stored = await mirror.create(record, has_log=True)
    if (stored.incarnation, stored.replicas) != (record.incarnation, record.replicas):
        raise Conflict(
            f"the cluster has another stream {name}",
            hint="delete it there, or move the directory of this one away",
        )
    await asyncio.to_thread(_make_copy, data_dir, name, end)
    logger.info("stream-adopted stream=%s log_end=%d", name, end)
    return Adopted(name, log.log_start_offset, end, is_new=True)


def _make_copy(data_dir: DataDir, name: str, end: int) -> None:
    """All that the log has is committed. With this write the directory belongs to the cluster."""
    fs, path = data_dir.environment.fs, data_dir.stream_path(name)
    with storage_errors(f"writing the manifest of {name}"):
        manifest: Manifest | None = read_manifest(fs, path)
        if manifest is None:
            raise CorruptMetadata(f"stream {name} has no manifest any more")
        manifest.with_changes(replicated=True, high_watermark=end).write(fs, path)
