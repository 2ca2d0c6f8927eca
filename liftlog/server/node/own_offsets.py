"""A node's own checkpoints and consumer groups. They come from the time before it was a node, or
from versions in which each node had its own checkpoints.

The first start renames their stream. Later they are added to the checkpoints of the cluster. If a
consumer has already committed in the cluster, its checkpoint in the cluster takes precedence. The
same applies to a group that has already begun in the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from liftlog.errors import CheckpointMoved, LiftlogError
from liftlog.groups.state import decode_key as decode_group_key
from liftlog.log import DataDir, LogConfig
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import read_manifest
from liftlog.protocol.checkpoints import CommitCheckpoint
from liftlog.server.checkpoints import OFFSETS_STREAM, Checkpoints
from liftlog.server.checkpoints.service import complete
from liftlog.server.checkpoints.table import CheckpointTable, load_table
from liftlog.server.commits.host import StreamHost
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.checkpoints")

_SET_ASIDE = "_offsets_before"
_PAUSE_SECONDS = 1.0


def set_aside(data_dir: DataDir) -> None:
    """Rename a stream `_offsets` that is not a replica, so that the node can have a replica of the
    cluster's `_offsets`. Blocking; durable on return. Raises StorageError."""
    fs = data_dir.environment.fs
    path, aside = data_dir.stream_path(OFFSETS_STREAM), data_dir.stream_path(_SET_ASIDE)
    with storage_errors(f"reading the manifest of {OFFSETS_STREAM}"):
        if not fs.exists(path) or fs.exists(aside):
            return
        manifest = read_manifest(fs, path)
    if manifest is not None and not manifest.replicated:
        data_dir.rename_log(OFFSETS_STREAM, _SET_ASIDE)
        logger.info("own-checkpoints-set-aside directory=%s", aside)


class OwnCheckpoints:
    """The checkpoints that were set aside on this node. Belongs to the event loop."""

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir
        self._table: CheckpointTable | None = None
        self._is_loaded = False
        self._loading = asyncio.Lock()
        self._groups_stored = asyncio.Event()

    async def store_groups(self, offsets: StreamHost, table: CheckpointTable, prefix: str) -> None:
        """Store the groups in `offsets`, the stream of checkpoints that this node leads, and add
        them to its `table`. No group is used until all groups are stored. Raises the errors of the
        write; the next call starts from the beginning."""
        await self._load()
        own = {} if self._table is None else self._table.groups
        new = {key: value for key, value in own.items() if key not in table.groups}
        if new:
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            subjects = [_subject_of_group(prefix, key) for key in new]
            offsets.store(subjects, list(new), list(new.values()), partial(complete, stored))
            await stored
            table.groups.update(new)
            logger.info("own-groups-taken-over count=%d", len(new))
        self._groups_stored.set()

    async def store_at(self, checkpoints: Checkpoints) -> None:
        """Store the checkpoints on this node, because it begins to lead the checkpoints of the
        cluster. Call this before any consumer gets an answer, because without these checkpoints a
        consumer could get the answer that it has no position. Raises errors that can be retried.
        The next attempt finds the checkpoints that were stored."""
        for request, owner in await self._requests():
            try:
                await _commit_here(checkpoints, request, owner)
            except LiftlogError as error:
                if error.retriable:
                    raise

    async def take_over(self, broker: Broker, streams: ReplicatedStreams) -> None:
        """Store the checkpoints on the node that leads the checkpoints of the cluster, and then
        remove the renamed stream. If the process stops in between, the next start continues the
        work."""
        try:
            requests = await self._requests()
            if self._table is None:
                return
            if self._table.groups:  # only the leader of the checkpoints can store their records
                await self._groups_stored.wait()
            for request, owner in requests:
                await _store(broker, streams, request, owner)
            self._table = None
            await asyncio.to_thread(self._data_dir.delete_log, _SET_ASIDE)
            logger.info("own-checkpoints-taken-over count=%d", len(requests))
        except LiftlogError as error:
            logger.error("own-checkpoints-left directory=%s error=%s", _SET_ASIDE, error)  # noqa: TRY400

    async def _load(self) -> None:
        async with self._loading:
            if not self._is_loaded:
                self._table = await asyncio.to_thread(_load, self._data_dir)
                self._is_loaded = True

    async def _requests(self) -> list[tuple[CommitCheckpoint, str]]:
        """Return the requests that store the checkpoints, each with the owner of the checkpoint."""
        await self._load()
        return [
            (
                CommitCheckpoint(
                    stream,
                    consumer,
                    stored.offset,
                    expected=0,
                    metadata=stored.metadata,
                    incarnation=stored.incarnation,
                    epoch=stored.epoch,
                ),
                stored.owner,
            )
            for (consumer, stream), stored in (self._table or {}).items()
        ]


def _subject_of_group(prefix: str, key: bytes) -> bytes:
    group, stream = decode_group_key(key)
    return f"{prefix}.{stream}.{group}".encode("ascii")


def _load(data_dir: DataDir) -> CheckpointTable | None:
    if not data_dir.environment.fs.exists(data_dir.stream_path(_SET_ASIDE)):
        return None
    log, _ = data_dir.open_log(_SET_ASIDE, LogConfig())
    try:
        return load_table(log)
    finally:
        log.close()


async def _store(
    broker: Broker, streams: ReplicatedStreams, request: CommitCheckpoint, owner: str
) -> None:
    """Store the checkpoint at the leader of the checkpoints, as soon as a leader exists."""
    while True:
        try:
            await _commit(broker, streams, request, owner)
        except CheckpointMoved:
            return  # the consumer has already committed in the cluster
        except LiftlogError as error:
            if not error.retriable:
                logger.warning(
                    "own-checkpoint-dropped consumer=%s stream=%s offset=%d error=%s",
                    request.consumer,
                    request.stream,
                    request.offset,
                    error,
                )
                return
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return


async def _commit(
    broker: Broker, streams: ReplicatedStreams, request: CommitCheckpoint, owner: str
) -> None:
    node = streams.view.answerer(OFFSETS_STREAM)
    if node is not None:
        await streams.forwarding.ask(node, OFFSETS_STREAM, request, owner or None)
        return
    await _commit_here(broker.checkpoints, request, owner)


async def _commit_here(checkpoints: Checkpoints, request: CommitCheckpoint, owner: str) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    checkpoints.commit(
        request.consumer,
        request.stream,
        request.offset,
        partial(complete, future),
        expected=request.expected,
        metadata=request.metadata,
        incarnation=request.incarnation,
        epoch=request.epoch,
        owner=owner,
    )
    await future
