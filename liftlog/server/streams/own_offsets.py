"""The checkpoints that a node has of its own: from before it was a node, or of versions in which
each node had its own. At the first start they are set aside, and then stored among the checkpoints
of the cluster. One that a consumer has committed there since is left as it is.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from liftlog.errors import CheckpointMoved, LiftlogError
from liftlog.log import DataDir, LogConfig
from liftlog.log.filesystem import storage_errors
from liftlog.log.manifest import read_manifest
from liftlog.protocol.checkpoints import CommitCheckpoint
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.checkpoints.service import complete
from liftlog.server.checkpoints.table import CheckpointTable, load_table
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.replicated import ReplicatedStreams

logger = logging.getLogger("liftlog.server.checkpoints")

_SET_ASIDE = "_offsets_before"
_PAUSE_SECONDS = 1.0


def set_aside(data_dir: DataDir) -> None:
    """Give a stream `_offsets` that is no replica another name, so that the node can have a replica
    of the cluster's. Blocking; durable on return. Raises StorageError."""
    fs = data_dir.environment.fs
    path, aside = data_dir.stream_path(OFFSETS_STREAM), data_dir.stream_path(_SET_ASIDE)
    with storage_errors(f"reading the manifest of {OFFSETS_STREAM}"):
        if not fs.exists(path) or fs.exists(aside):
            return
        manifest = read_manifest(fs, path)
    if manifest is not None and not manifest.replicated:
        data_dir.rename_log(OFFSETS_STREAM, _SET_ASIDE)
        logger.info("own-checkpoints-set-aside directory=%s", aside)


async def take_over(broker: Broker, streams: ReplicatedStreams, data_dir: DataDir) -> None:
    """Store what was set aside among the checkpoints of the cluster, then remove it. A stop in
    between is made up for by the next start."""
    try:
        table = await asyncio.to_thread(_load, data_dir)
        if table is None:
            return
        for (consumer, stream), stored in table.items():
            request = CommitCheckpoint(
                stream,
                consumer,
                stored.offset,
                expected=0,
                metadata=stored.metadata,
                incarnation=stored.incarnation,
                epoch=stored.epoch,
            )
            await _store(broker, streams, request, stored.owner)
        await asyncio.to_thread(data_dir.delete_log, _SET_ASIDE)
        logger.info("own-checkpoints-taken-over count=%d", len(table))
    except LiftlogError as error:
        logger.error("own-checkpoints-left directory=%s error=%s", _SET_ASIDE, error)  # noqa: TRY400


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
    """At the leader of the checkpoints, as soon as there is one."""
    while True:
        try:
            await _commit(broker, streams, request, owner)
        except CheckpointMoved:
            return  # the consumer has gone on
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
    node = streams.answerer(OFFSETS_STREAM)
    if node is not None:
        await streams.forwarding.ask(node, OFFSETS_STREAM, request, owner or None)
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    broker.checkpoints.commit(
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
