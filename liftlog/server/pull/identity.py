"""Compares the history of a stream with the history that a client has read."""

from __future__ import annotations

from liftlog.errors import Diverged, StaleIncarnation
from liftlog.log import Log
from liftlog.protocol.messages import Fetch
from liftlog.server.streams.catalog import Catalog


def check_identity(fetch: Fetch, log: Log, catalog: Catalog) -> None:
    """Check that the client has read this stream, and that the stream still contains the records
    that the client has read. Raises StaleIncarnation, Diverged. Raises NotLeader if this node may
    not have received the newest history yet."""
    if fetch.incarnation is not None and fetch.incarnation != log.incarnation:
        catalog.check_incarnation(fetch.stream, log.incarnation, fetch.incarnation)
        raise StaleIncarnation(
            f"the stream {fetch.stream!r} was deleted and created again since",
            hint="describe the stream and start over",
            incarnation=log.incarnation,
        )
    if fetch.epoch is None or fetch.epoch == log.leader_epoch:
        return
    if fetch.epoch > log.leader_epoch:
        catalog.check_epoch(fetch.stream, fetch.epoch)
        raise Diverged(
            f"epoch {fetch.epoch} is newer than the stream's {log.leader_epoch}",
            leader_epoch=log.leader_epoch,
        )
    end = log.epoch_end(fetch.epoch)
    if type(fetch.start) is int and fetch.start > end:
        raise Diverged(
            f"epoch {fetch.epoch} ended at offset {end}, before {fetch.start}",
            hint=f"records read from offset {end} on are no longer in the stream",
            leader_epoch=log.leader_epoch,
            epoch_end_offset=end,
        )
