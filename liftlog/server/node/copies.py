"""The directories of replicated streams on this node: opens and creates them. Removes a directory
if the metadata show that its stream was deleted. A directory of a stream without metadata is kept,
and reported.

The functions block, so call them in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, LiftlogError, StorageError
from liftlog.log import DataDir, Log
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import read_manifest
from liftlog.names import is_stream_name
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.host import new_metadata
from liftlog.server.streams.settings import origin_of, settings_of

GIVEN_UP = "it was written under metadata that were given up"
"""Mark of an incomplete copy that must be dropped as soon as acks do not need it."""

logger = logging.getLogger("liftlog.server.replication")


def open_copy(data_dir: DataDir, record: StreamMetadata) -> tuple[Log, bool]:
    """Return the log of a stream's copy, and True if this call has created the log.

    The directory may have a copy of an earlier stream of the same name. If the metadata show that
    the earlier stream was deleted, this copy is removed; otherwise raises Conflict. Also raises
    StorageError, and the errors of opening a log.
    """
    name, settings = record.name, settings_of(record)
    config = log_config(settings, replicated=True)
    data_dir.remove_unfinished(name)  # an earlier attempt failed because the disk was full
    found = _incarnation_of_copy(data_dir, name)
    if found == record.incarnation:
        log, report = data_dir.open_log(name, config)
        logger.info(
            "replica-opened stream=%s clean=%s log_end=%d high_watermark=%d incomplete=%s",
            name,
            report.clean,
            log.log_end_offset,
            log.high_watermark,
            log.view.manifest.incomplete or "no",
        )
        return log, False
    if found is not None:
        _remove(data_dir, record, found)
    log = data_dir.create_log(
        name,
        config,
        initial_offset=settings.initial_offset,
        metadata=new_metadata(settings, origin_of(record)),
        incarnation=record.incarnation,
    )
    logger.info("replica-created stream=%s", name)
    return log, True


def check_is_there(data_dir: DataDir, record: StreamMetadata) -> None:
    """Raise StorageError if the copy existed earlier in this start of the node and is now missing.
    The missing copy may have been the only copy of some acked records."""
    if _incarnation_of_copy(data_dir, record.name) is None:
        raise StorageError(
            f"the directory {data_dir.stream_path(record.name)} has disappeared while the daemon "
            "runs",
            hint="put the directory back and restart the daemon. Otherwise a restart fetches the "
            "stream from other nodes; a stream without other replicas stays without a leader",
        )


def remove_copy(data_dir: DataDir, record: StreamMetadata) -> None:
    """Remove the copy of a stream that was deleted, or that has moved to other nodes. Durable on
    return. Does nothing if there is no copy. Raises Conflict, StorageError."""
    found = _incarnation_of_copy(data_dir, record.name)
    if found is not None:
        _remove(data_dir, record, found)


def _remove(data_dir: DataDir, record: StreamMetadata, incarnation: str) -> None:
    if incarnation not in (record.incarnation, *record.former):
        raise Conflict(
            f"the directory {data_dir.stream_path(record.name)} holds another stream of this name, "
            "of which the metadata do not say that it was deleted",
            hint="the metadata may have been set back. Move the directory away if it is not needed",
        )
    data_dir.delete_log(record.name)
    logger.info("replica-removed stream=%s incarnation=%s", record.name, incarnation)


def unknown_streams(
    data_dir: DataDir, names: Iterable[str], records: Mapping[str, StreamMetadata], node: str
) -> dict[str, str]:
    """Find copies on disk that do not match the metadata: streams of `names` without a record, and
    streams whose record does not concern `node` and is not deleted. Return, for each of these
    streams, the reason why it is not served."""
    found = {}
    for name in filter(is_stream_name, names):
        record = records.get(name)
        is_accounted_for = record is not None and (record.concerns(node) or record.deleted)
        if not is_accounted_for and (reason := _why_unknown(data_dir, name)):
            found[name] = reason
            logger.warning("stream-unknown stream=%s reason=%s", name, reason)
    return found


def _why_unknown(data_dir: DataDir, name: str) -> str:
    """Return the reason why a stream on disk is not served; empty if the stream was removed in the
    meantime."""
    try:
        if _incarnation_of_copy(data_dir, name) is None:
            return ""
    except LiftlogError as error:
        return str(error)
    return (
        "by the metadata this node has no copy of it: they were set back, or the data directory "
        "was. `liftlog stream delete` removes the copy"
    )


def _incarnation_of_copy(data_dir: DataDir, name: str) -> str | None:
    """Return the incarnation of the copy on disk; None if there is no directory. Raises Conflict
    for a stream that is not a replica. Such a stream was never in the metadata, so the metadata
    cannot show whether it was deleted."""
    path, fs = data_dir.stream_path(name), data_dir.environment.fs
    with storage_errors(f"reading the manifest of {name}"):
        if not fs.exists(path):
            return None
        manifest = read_manifest(fs, path)
    if manifest is None:
        raise Conflict(
            f"the directory {path} has no manifest",
            hint="try `liftlog log repair`, or move the directory away",
        )
    if not manifest.replicated:
        raise Conflict(
            f"the directory {path} holds a stream that belonged to no cluster",
            hint="`liftlog cluster adopt` adds the stream to the cluster. Or move the directory "
            "away: a single daemon with another data_dir can read it",
        )
    return manifest.incarnation
