"""Converts the settings of a stream for its log and its sequencer."""

from __future__ import annotations

from liftlog.log import Log, LogConfig
from liftlog.sequencing import SequencerConfig
from liftlog.sequencing.refusals import PAUSED, READ_ONLY, RefusalReason
from liftlog.sequencing.room import Room, Stored
from liftlog.settings import StreamSettings

_SECOND_NS = 1_000_000_000


def log_config(settings: StreamSettings, *, replicated: bool = False) -> LogConfig:
    """Return the configuration of the log. `replicated` means that the log is a copy of a stream of
    a cluster, even if it is the only copy."""
    age, compaction = settings.segment.max_age_seconds, settings.compaction
    if compaction is not None and compaction.enabled and compaction.max_lag_seconds is not None:
        # Only sealed segments are compacted, so the log must also roll after max_lag if the stream
        # is quiet.
        age = min(compaction.max_lag_seconds, age or compaction.max_lag_seconds)
    return LogConfig(
        segment_max_bytes=settings.segment.max_bytes,
        segment_max_age_ns=None if age is None else int(age * _SECOND_NS),
        replicated=replicated,
        rolls_up=_rolls_up(settings) and not replicated,
    )


def _rolls_up(settings: StreamSettings) -> bool:
    """Return True if roll-ups erase records. In a bucket they only hide them, like newer values."""
    own = settings.jetstream
    return own is not None and own.allow_rollup_hdrs and own.max_msgs_per_subject is None


class NewestBytes:
    """The size of a log without the records that newer records of the same subject supersede.

    The size is only as exact as the last count. If no count is possible, the size includes all
    records.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._counted: int | None = None
        self._counted_at = 0
        self._seen = log.view.size_bytes
        self._grown = 0

    @property
    def grown_bytes(self) -> int:
        """Return the number of bytes by which the log has grown. Bytes that were freed are not
        subtracted, unless the log grew and shrank between two reads of this property."""
        size_bytes = self._log.view.size_bytes
        self._grown += max(0, size_bytes - self._seen)
        self._seen = size_bytes
        return self._grown

    def expect_count(self) -> None:
        """Expect a call of `count` soon. Until then the size consists of new records only, so that
        no message is refused because of superseded records."""
        self.count(0, self.grown_bytes)

    def count(self, size_bytes: int | None, grown_bytes: int = 0) -> None:
        """Set the counted size of the newest records, or None for an unknown size. `grown_bytes` is
        the value of the property `grown_bytes` at the beginning of the count."""
        self._counted, self._counted_at = size_bytes, grown_bytes

    @property
    def size_bytes(self) -> int:
        """Return the size. It includes all records that were written after the count, as if they
        had new subjects."""
        if self._counted is None:
            return self._log.view.size_bytes
        return self._counted + self.grown_bytes - self._counted_at


def counts_newest(settings: StreamSettings) -> bool:
    """Return True if a limit of bytes applies to the newest records of each subject."""
    own, limits = settings.jetstream, settings.retention
    is_bucket = own is not None and own.max_msgs_per_subject is not None
    return is_bucket and limits.discard == "new" and limits.max_bytes is not None


def room_of(settings: StreamSettings, log: Log, newest: NewestBytes) -> Room | None:
    """Return the limits that make a full stream refuse new records; None if there are no limits, or
    if a full stream deletes old records instead."""
    limits = settings.retention
    if limits.discard == "old" or (limits.max_messages is None and limits.max_bytes is None):
        return None
    is_bucket = counts_newest(settings)

    def stored() -> Stored:
        view, end = log.view, log.log_end_offset
        erased = 0 if view.erased is None else view.erased.count_in(log.log_start_offset, end)
        size_bytes = newest.size_bytes if is_bucket else view.left_bytes
        return Stored(log.log_start_offset + erased, end, size_bytes)

    return Room(limits.max_messages, limits.max_bytes, stored)


def window_ns(settings: StreamSettings) -> int:
    """Return the time, in ns, for which message ids are remembered."""
    return int(settings.dedupe_window_seconds * _SECOND_NS)


def sequencer_config(name: str, settings: StreamSettings, log: Log) -> SequencerConfig:
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
        leader_epoch=log.leader_epoch,
        is_bucket=own is not None and own.max_msgs_per_subject is not None,
        one_per_subject=own is not None and own.discard_new_per_subject,
        rolls_up=_rolls_up(settings) and not log.config.replicated,
    )


def standing_refusal(settings: StreamSettings) -> RefusalReason | None:
    """Return why the settings refuse all messages; None if they accept messages."""
    if settings.read_only:
        return READ_ONLY
    return PAUSED if settings.paused else None
