"""Opens the checkpoints: creates the stream `_offsets` if it is missing, and loads the table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from liftlog.groups.quota import Limits
from liftlog.sequencing import Destinations
from liftlog.server.checkpoints.checkpoint import OFFSETS_STREAM, StreamBounds
from liftlog.server.checkpoints.over_nats import OVER_NATS_OWNER, CheckpointIntake
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.checkpoints.table import CheckpointTable, load_table
from liftlog.server.commits.host import StreamHost
from liftlog.server.ingest.subscriptions import RunHandler
from liftlog.settings import Settings, StreamSettings, parse_stream_settings

logger = logging.getLogger("liftlog.server.checkpoints")


class StreamsOfDaemon(Protocol):
    """The part of the broker that checkpoints need."""

    settings: Settings

    @property
    def destinations(self) -> Destinations: ...
    def stream(self, name: str) -> StreamHost: ...
    def now_ns(self) -> int: ...
    def send(self, commands: bytes) -> None: ...
    async def open_system_stream(self, name: str, settings: StreamSettings) -> StreamHost: ...
    def receive_for(self, name: str, receive: RunHandler, *, is_required: bool) -> None: ...


def subject_prefix(settings: Settings) -> str:
    """Return the subject prefix of checkpoints. All nodes of a cluster have the same prefix,
    because checkpoints belong to the cluster."""
    name = settings.name if settings.cluster is None else settings.cluster.name
    return f"liftlog.{name}.offsets"


def offsets_settings(settings: Settings, **more: object) -> StreamSettings:
    """Return the settings of `_offsets`. Segments are small, because compaction does not change the
    active segment, and a start has to read all records that compaction leaves."""
    return parse_stream_settings(
        {
            **more,
            "subject": f"{subject_prefix(settings)}.*.*",
            "acks": "off",  # `over_nats` sends the answers
            "durability": "fsync",
            "dedupe_window": 0,
            "envelope": False,
            "compaction": {"enabled": True, "tombstone_retention": "1d"},
            "segment": {"max_bytes": "16MiB", "max_age": "1d"},
        }
    )


def is_open_to_nats(settings: Settings) -> bool:
    """Return True if commits may arrive over NATS. Core NATS does not identify the publisher. So if
    an ACL is configured, the settings must explicitly allow such commits."""
    chosen = settings.checkpoints.over_nats
    return settings.acl.file is None if chosen is None else chosen


async def open_checkpoints(
    streams: StreamsOfDaemon, wall_clock: Callable[[], int] = time.time_ns
) -> Checkpoints:
    """Open the checkpoints. Raises StreamUnavailable, StorageError and DiskFull, without a change
    to the files."""
    settings = streams.settings
    host = await streams.open_system_stream(OFFSETS_STREAM, offsets_settings(settings))
    started = time.monotonic()
    table = await asyncio.to_thread(load_table, host.log)
    checkpoints = make_checkpoints(settings, streams.stream, host, table, wall_clock)
    receive_over_nats(streams, lambda: checkpoints)
    logger.info("checkpoints-opened count=%d seconds=%.2f", len(table), time.monotonic() - started)
    return checkpoints


def make_checkpoints(
    settings: Settings,
    find_stream: Callable[[str], StreamHost | StreamBounds],
    host: StreamHost,
    table: CheckpointTable,
    wall_clock: Callable[[], int],
    check_storable: Callable[[], None] = lambda: None,
) -> Checkpoints:
    """Create `Checkpoints`; its constructor describes the arguments."""
    return Checkpoints(
        find_stream,
        host,
        table,
        subject_prefix=subject_prefix(settings),
        max_count=settings.checkpoints.max_count,
        max_count_per_principal=settings.checkpoints.max_count_per_principal,
        group_limits=Limits(
            settings.checkpoints.max_groups,
            settings.checkpoints.max_groups_per_principal,
            settings.checkpoints.max_members,
            settings.checkpoints.max_members_per_principal,
        ),
        now_ns=wall_clock,
        check_storable=check_storable,
    )


def receive_over_nats(streams: StreamsOfDaemon, checkpoints: Callable[[], Checkpoints]) -> None:
    """Accept commits from NATS, if the settings allow such commits. Call the function before the
    link exists."""
    settings = streams.settings
    if not is_open_to_nats(settings):
        return
    intake = CheckpointIntake(
        checkpoints,
        subject_prefix(settings),
        streams.send,
        lambda: streams.destinations,
        owner="" if settings.acl.file is None else OVER_NATS_OWNER,
    )
    # The daemon's NATS user may lack the permission, so the daemon subscribes only if the settings
    # require it.
    streams.receive_for(
        OFFSETS_STREAM,
        intake.receive,
        is_required=settings.checkpoints.over_nats is True,
    )
