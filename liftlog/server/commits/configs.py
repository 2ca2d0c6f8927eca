"""The settings of a stream in the terms of its log and its sequencer."""

from __future__ import annotations

from liftlog.log import Log, LogConfig
from liftlog.settings import StreamSettings
from liftlog.stream import SequencerConfig
from liftlog.stream.room import Room, Stored

_SECOND_NS = 1_000_000_000


def log_config(settings: StreamSettings, *, replicated: bool = False) -> LogConfig:
    """`replicated`: the log is one of the copies that a cluster keeps, be it the only one."""
    age, compaction = settings.segment.max_age_seconds, settings.compaction
    if compaction is not None and compaction.enabled and compaction.max_lag_seconds is not None:
        # Only sealed segments are compacted, so a quiet stream must roll for max_lag, too.
        age = min(compaction.max_lag_seconds, age or compaction.max_lag_seconds)
    return LogConfig(
        segment_max_bytes=settings.segment.max_bytes,
        segment_max_age_ns=None if age is None else int(age * _SECOND_NS),
        replicated=replicated,
    )


def room_of(settings: StreamSettings, log: Log) -> Room | None:
    """None if old records give way to new ones, or nothing limits them."""
    limits = settings.retention
    if limits.discard == "old" or (limits.max_messages is None and limits.max_bytes is None):
        return None
    return Room(
        limits.max_messages,
        limits.max_bytes,
        lambda: Stored(log.log_start_offset, log.log_end_offset, log.size_bytes),
    )


def window_ns(settings: StreamSettings) -> int:
    """How long message ids are remembered."""
    return int(settings.dedupe_window_seconds * _SECOND_NS)


def sequencer_config(name: str, settings: StreamSettings, leader_epoch: int) -> SequencerConfig:
    own = settings.jetstream
    return SequencerConfig(
        stream=name,
        acks=settings.acks,
        durability=settings.durability,
        max_message_bytes=settings.max_message_bytes,
        recognise_envelopes=settings.envelope,
        recognise_liftbridge=settings.liftbridge,
        subjects=settings.subjects,
        is_replicated=settings.replicas > 1,
        ack_policy=settings.ack_policy,
        leader_epoch=leader_epoch,
        is_bucket=own is not None and own.max_msgs_per_subject is not None,
        one_per_subject=own is not None and own.discard_new_per_subject,
    )
