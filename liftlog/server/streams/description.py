"""What `describe` and `list` say of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from liftlog.protocol.stream_info import StreamInfo
from liftlog.server.commits.host import StreamHost


def describe(
    host: StreamHost, state: str, warnings: Sequence[str], compaction: dict[str, Any]
) -> StreamInfo:
    log = host.log
    return StreamInfo(
        name=host.name,
        subject=host.settings.subject,
        queue_group=host.settings.queue_group,
        state=state,
        origin=host.origin,
        incarnation=log.incarnation,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=log.log_end_offset,
        record_count=log.record_count,
        size_bytes=log.size_bytes,
        segment_count=log.segment_count,
        leader_epoch=log.leader_epoch,
        acks=host.settings.acks,
        durability=host.settings.durability,
        settings=host.shown_settings(),
        warnings=[host.failure, *warnings] if host.failure else list(warnings),
        possible_losses=host.possible_losses,
        quarantined=[asdict(entry) for entry in log.quarantined if entry.is_loss],
        compaction=compaction,
    )


def describe_broken(name: str, reason: str) -> StreamInfo:
    """A stream on disk that is not served."""
    return StreamInfo(name=name, subject="", state="failed", warnings=[reason])
