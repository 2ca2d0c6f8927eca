"""The settings of a stream in the terms of its log and its sequencer."""

from __future__ import annotations

from liftlog.log import LogConfig
from liftlog.settings import StreamSettings
from liftlog.stream import SequencerConfig

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
    )
