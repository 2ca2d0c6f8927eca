"""INFO and STREAM.*: streams described, created, changed and deleted."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import liftlog
from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.records.decode import decode_batch
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import ZERO_TIME, time_text
from liftlog.server.jetstream_api.methods import Answer, Request, answers
from liftlog.server.jetstream_api.presence import MARK
from liftlog.server.jetstream_api.stream_config import config_of

_NO_LIMITS = {
    "max_memory": 0,
    "max_storage": -1,
    "max_streams": -1,
    "max_consumers": -1,
    "max_ack_pending": -1,
    "memory_max_stream_bytes": -1,
    "storage_max_stream_bytes": -1,
    "max_bytes_required": False,
}


@answers("INFO", "account_info")
async def _info(request: Request) -> Answer:
    broker = request.broker
    names = [name for name in broker.stream_names() if request.may_read(name)]
    hosts = [broker.hosts[name] for name in names if name in broker.hosts]
    settings = broker.settings
    return {
        "memory": 0,
        "storage": sum(host.log.size_bytes for host in hosts),
        "reserved_memory": 0,
        "reserved_storage": 0,
        "streams": len(names),
        "consumers": 0,
        "limits": _NO_LIMITS,
        "api": {"level": 0, "total": 0, "errors": 0},
        MARK: settings.name if settings.cluster is None else settings.cluster.name,
        "liftlog_version": liftlog.__version__,
    }


@answers("STREAM.INFO", "stream_info", arguments=(1, 1), at_leader=True)
async def _stream_info(request: Request) -> Answer:
    request.authorize("read")
    request.body()
    return await described(request.led_stream())


async def described(host: StreamHost) -> dict[str, Any]:
    """What JetStream says of a stream."""
    own = host.settings.jetstream
    state = await asyncio.to_thread(_state, host)
    return {
        "config": config_of(host.name, host.settings),
        "created": own.created if own is not None and own.created else ZERO_TIME,
        "state": state,
        "ts": time_text(time.time_ns()),
    }


def _state(host: StreamHost) -> dict[str, Any]:
    """Sequences are offsets. Blocking."""
    log = host.log
    end, start = log.high_watermark, log.log_start_offset
    count = log.record_count
    is_new = end == start == 1
    last_ns = log.max_timestamp_ns
    return {
        "messages": count,
        "bytes": log.size_bytes if count else 0,
        "first_seq": 0 if is_new else start,
        "first_ts": time_text(_first_timestamp(log)) if count else ZERO_TIME,
        "last_seq": 0 if is_new else end - 1,
        "last_ts": time_text(last_ns) if last_ns > 0 else ZERO_TIME,
        "num_deleted": max(0, end - start - count),
        "consumer_count": 0,
    }


def _first_timestamp(log: Log) -> int:
    """Of the first record that can be read. Blocking."""
    try:
        piece = log.read(log.log_start_offset, 1, 1)
        if piece is None:
            return 0
        try:
            batch = decode_batch(piece.pread())
        finally:
            piece.release()
    except (LiftlogError, OSError):
        return 0  # damaged, or removed meanwhile: a description does not fail for it
    stamps = batch.trim(log.log_start_offset, batch.next_offset).timestamps_ns()
    return stamps[0] if stamps else 0
