"""Erases records of a stream: which streams can, which offsets, and the list of erasures."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from liftlog.errors import Conflict, InvalidArgument
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.erasing import Chosen, Selection, joined
from liftlog.log.files.erasures import Erasure, append_erasure
from liftlog.log.files.filesystem import storage_errors
from liftlog.server.commits.host import StreamHost

logger = logging.getLogger("liftlog.server")


def wanted_offsets(host: StreamHost, borders: Sequence[int]) -> ErasedSet:
    """Return the requested offsets that the stream may have. Raises Conflict if the stream cannot
    erase records, InvalidArgument for wrong ranges."""
    log, own = host.log, host.settings.jetstream
    if log.config.replicated:
        raise Conflict(
            f"stream {host.name} belongs to a cluster, and its replicas do not exchange erased "
            "records yet",
            hint="truncate the stream, or delete its keys with compaction",
        )
    if own is not None and own.max_msgs_per_subject is not None:
        raise Conflict(
            f"stream {host.name} keeps a number of messages per subject, and records of such a "
            "stream cannot be erased by offset yet",
            hint="delete or purge the key of the bucket",
        )
    if len(borders) % 2 or not borders:
        raise InvalidArgument(
            "the offsets to erase are ranges, each with a first offset and an end"
        )
    view = log.view
    start, end = view.manifest.log_start_offset, view.committed.offset
    ranges = []
    for first, following in zip(borders[::2], borders[1::2], strict=True):
        if first >= following:
            raise InvalidArgument(f"the range from {first} to {following} is empty")
        ranges.append((max(first, start), min(following, end)))
    return ErasedSet.of_ranges(joined(ranges))


def erase_listed(log: Log, wanted: ErasedSet, chosen: Chosen, one: Erasure) -> Selection:
    """Add the erasure to the stream's list, then hide the records. Blocking; durable on return.
    Raises the errors of `LogStructure.erase`; the list may then contain an erasure that did not
    happen."""
    with storage_errors(f"listing an erasure of {log.name}"):
        append_erasure(log.environment.fs, log.directory, one)
    found = log.structure.erase(wanted, chosen)
    logger.info(
        "records-erased stream=%s id=%s records=%d principal=%s reason=%r",
        log.name,
        one.erasure_id,
        len(found.offsets),
        one.principal or "-",
        one.reason,
    )
    return found
