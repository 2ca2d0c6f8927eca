"""Where a fetch begins, and whether it means the stream that is there. Pure."""

from __future__ import annotations

from liftlog.errors import BadRequest, Diverged, StaleIncarnation
from liftlog.protocol.messages import EARLIEST, LATEST, Fetch
from liftlog.server.pull.seams import ReadableLog


def check_identity(fetch: Fetch, log: ReadableLog) -> None:
    """Whether the client means this stream, and has read nothing that is not in it. Raises
    StaleIncarnation, Diverged."""
    if fetch.incarnation is not None and fetch.incarnation != log.incarnation:
        raise StaleIncarnation(
            f"the stream {fetch.stream!r} was created anew since",
            hint="describe the stream and start over",
            incarnation=log.incarnation,
        )
    if fetch.epoch is None or fetch.epoch == log.leader_epoch:
        return
    if fetch.epoch > log.leader_epoch:
        raise Diverged(
            f"epoch {fetch.epoch} is newer than the stream's {log.leader_epoch}",
            leader_epoch=log.leader_epoch,
        )
    end = log.epoch_end(fetch.epoch)
    if type(fetch.start) is int and fetch.start > end:
        raise Diverged(
            f"epoch {fetch.epoch} ended at offset {end}, before {fetch.start}",
            hint=f"what was read from offset {end} on is not in the stream any more",
            leader_epoch=log.leader_epoch,
            epoch_end_offset=end,
        )


def known_offset(fetch: Fetch, log: ReadableLog) -> int | None:
    """The asked position as an offset; None when it has to be looked up by time. Raises
    BadRequest."""
    start = fetch.start
    if (start is None) == (fetch.timestamp_ns is None):
        raise BadRequest("a fetch states either a start `o` or a timestamp `t`")
    if start is None:
        return None
    if type(start) is int:
        return start
    if start == EARLIEST:
        return log.log_start_offset
    if start == LATEST:
        return log.high_watermark
    raise BadRequest(f"the start must be an offset, {EARLIEST!r} or {LATEST!r}")
