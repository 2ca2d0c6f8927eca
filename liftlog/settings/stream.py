"""The settings of one stream: the same keys in the YAML file and over the API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict

from acl.subjects import first_overlap, why_invalid

from .keys import SettingsModel
from .units import Count, Duration, Flag, PositiveDuration, Size

MAX_SEGMENT_BYTES = 2**32 - 1
MAX_BATCH_RECORDS = 65_535
MAX_BATCH_BYTES = 16 * 2**20
MAX_SUBJECTS = 10_000_000
MAX_FILTERS = 256
_MAX_SHOWN = 80
# nats-server refuses a larger max_payload.
MAX_MESSAGE_BYTES = 64 * 2**20
MAX_REPLICAS = 7
# In a key-value bucket, as in JetStream.
MAX_HISTORY = 1000
# As in JetStream.
MAX_DESCRIPTION_BYTES = 4 * 1024
MAX_METADATA_BYTES = 128 * 1024

Acks = Literal["on", "off", "envelope"]
AckPolicy = Literal["all", "leader"]
Durability = Literal["fsync", "interval", "os"]
Compression = Literal["none", "lz4", "zstd"]


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return value
    if not isinstance(value, str):
        raise ValueError("expected text (put it in quotes), or a list of texts")
    return (value,)


def _some_subjects(subjects: tuple[str, ...]) -> tuple[str, ...]:
    if not 1 <= len(subjects) <= MAX_FILTERS:
        raise ValueError(f"expected 1 to {MAX_FILTERS} subjects")
    for one in subjects:
        problem = why_invalid(one)
        if problem is not None:
            what = "" if len(subjects) == 1 else f"{one[:_MAX_SHOWN]!r} is "
            raise ValueError(f"{what}not a NATS subject: {problem}")
    # NATS would deliver a message twice that matches two of them.
    both = first_overlap(subjects)
    if both is not None:
        shown = f"{both[0][:_MAX_SHOWN]!r} and {both[1][:_MAX_SHOWN]!r}"
        raise ValueError(f"{shown} overlap: one message could match both")
    return subjects


def _shortly(subjects: tuple[str, ...]) -> str | list[str]:
    return subjects[0] if len(subjects) == 1 else list(subjects)


def _queue_group(text: str) -> str:
    if not text or len(text) > 255 or any(c.isspace() or not c.isprintable() for c in text):
        raise ValueError("expected a queue group name without white space")
    return text


def _short_text(text: str) -> str:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_DESCRIPTION_BYTES:
        raise ValueError(f"expected at most {MAX_DESCRIPTION_BYTES} bytes")
    return text


def _short_texts(texts: dict[str, str]) -> dict[str, str]:
    parts = (*texts, *texts.values())
    size = sum(len(part.encode("utf-8", "surrogatepass")) for part in parts)
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"expected at most {MAX_METADATA_BYTES} bytes in all")
    return texts


def _on_or_off(value: Any) -> Any:
    # YAML 1.1 reads the words on and off as booleans.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _some_replicas(value: int) -> int:
    if not 1 <= value <= MAX_REPLICAS:
        raise ValueError(f"expected 1 to {MAX_REPLICAS}")
    return value


def _at_most(limit: int, text: str) -> AfterValidator:
    def check(value: int) -> int:
        if value > limit:
            raise ValueError(f"expected at most {text}")
        return value

    return AfterValidator(check)


Replicas = Annotated[int, Strict(), AfterValidator(_some_replicas)]


class FlushSettings(SettingsModel):
    messages: Count = Field(
        default=1000, description="With `durability: interval`, sync after this many messages."
    )
    interval_seconds: PositiveDuration = Field(
        default=1.0,
        alias="interval",
        description="With `durability: interval`, sync after this time.",
    )


class DedupeSettings(SettingsModel):
    max_ids: Count = Field(
        default=1_000_000,
        description="Maximum number of message ids remembered. Above it, the oldest ids are "
        "dropped before `dedupe_window` ends.",
    )


class RetentionSettings(SettingsModel):
    max_age_seconds: PositiveDuration | None = Field(
        default=None,
        alias="max_age",
        description="Delete sealed segments whose newest record is older than this. `null`: no "
        "limit.",
    )
    max_bytes: Size | None = Field(
        default=None,
        description="Delete the oldest segments as long as at least this many bytes remain. "
        "`null`: no limit.",
    )
    max_messages: Count | None = Field(
        default=None,
        description="Keep exactly this many of the newest records readable. `null`: no limit.",
    )
    discard: Literal["old", "new"] = Field(
        default="old",
        description="What happens at `max_bytes` and `max_messages`. `old`: the oldest records "
        "are deleted. `new`: messages are refused (10077) until a purge or `max_age` has freed "
        "space. With `jetstream.max_msgs_per_subject` only the newest records of each subject "
        "count.",
    )


class SegmentSettings(SettingsModel):
    max_bytes: Annotated[Size, _at_most(MAX_SEGMENT_BYTES, "4 GiB - 1")] = Field(
        default=256 * 2**20, description="Roll a segment file at this size (below 4 GiB)."
    )
    max_age_seconds: PositiveDuration | None = Field(
        default=86_400.0,
        alias="max_age",
        description="Roll a segment at this age, even when the stream is idle. `null`: no limit.",
    )


class BatchSettings(SettingsModel):
    max_records: Annotated[Count, _at_most(MAX_BATCH_RECORDS, "65535")] = Field(
        default=4096, description="Maximum number of records in one record batch (up to 65535)."
    )
    max_bytes: Annotated[Size, _at_most(MAX_BATCH_BYTES, "16MiB")] = Field(
        default=2**20,
        description="Maximum size of one record batch, which is the largest loss that one bad bit "
        "can cause (up to 16MiB; a larger message gets a batch of its own).",
    )


class CompactionSettings(SettingsModel):
    """Key compaction. Off unless this section exists; `compaction: {}` takes all defaults."""

    enabled: Flag = Field(
        default=True,
        description="Keep the newest record of each key, and every record without a key.",
    )
    min_dirty_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = Field(
        default=0.5,
        description="Compact when this fraction (0 to 1) of the sealed bytes was never compacted.",
    )
    min_lag_seconds: Duration = Field(
        default=0.0, alias="min_lag", description="Do not compact records younger than this."
    )
    max_lag_seconds: PositiveDuration | None = Field(
        default=None,
        alias="max_lag",
        description="Compact after this time at the latest, whatever the dirty ratio. `null`: no "
        "limit.",
    )
    tombstone_retention_seconds: Duration = Field(
        default=86_400.0,
        alias="tombstone_retention",
        description="Time after which a tombstone is deleted, counted from the first pass that "
        "kept it.",
    )
    max_rate_bytes: Size | None = Field(
        default=None,
        alias="max_rate",
        description="Bytes per second that passes over this stream may read and write. The "
        "smaller of this and `cleaner.max_rate` applies. `null`: only `cleaner.max_rate`.",
    )


class SubjectSequencesSettings(SettingsModel):
    """The last offset of each subject, for `Nats-Expected-Last-Subject-Sequence`. Off unless this
    section exists; `subject_sequences: {}` takes the defaults."""

    max_subjects: Annotated[Count, _at_most(MAX_SUBJECTS, "10000000")] = Field(
        default=100_000,
        description="Maximum number of subjects remembered, about 200 bytes each (up to "
        "10000000). A precondition on any other subject is refused with 10163.",
    )


class JetStreamSettings(SettingsModel):
    """Fields of a JetStream configuration that clients set over `$JS.API`, and that the log itself
    does not use."""

    description: Annotated[str, Strict(), AfterValidator(_short_text)] = Field(
        default="", description="Description of the stream for people, at most 4 KiB."
    )
    metadata: Annotated[dict[str, str], AfterValidator(_short_texts)] = Field(
        default={},
        description="Texts by name, at most 128 KiB in total; in a cluster, all settings of a "
        "stream together may take at most 48 KiB.",
    )
    discard: Literal["old", "new"] = Field(
        default="old",
        description="Shown to clients for a stream without limits. `retention.discard` decides.",
    )
    discard_new_per_subject: Flag = Field(
        default=False,
        description="`true`: a message whose subject has a record is refused with 10077. Needs "
        "`max_msgs_per_subject: 1` and `subject_sequences`.",
    )
    deny_delete: Flag = Field(
        default=False,
        description="Shown to clients. Single messages are never deleted, whatever the value.",
    )
    deny_purge: Flag = Field(default=False, description="`true`: refuse to purge over NATS.")
    allow_direct: Flag = Field(default=True, description="`true`: answer direct gets.")
    max_msgs_per_subject: Annotated[Count, _at_most(MAX_HISTORY, "1000")] | None = Field(
        default=None,
        description="Number of the newest records of each subject that clients of JetStream see "
        "(1 to 1000). With this setting, the stream can hold a key-value bucket: `Nats-Rollup: "
        "sub` is accepted, and the key of a record without a key is its subject, so compaction "
        "keeps the newest record of each subject. Above 1, compaction must be off. `null`: all "
        "records.",
    )
    max_consumers: Count | None = Field(
        default=None,
        description="Maximum number of consumers over NATS. `null`: only the daemon's own limit.",
    )
    created: Annotated[str, Strict(), AfterValidator(_short_text)] = Field(
        default="", description="Time at which the stream was created over `$JS.API`; only shown."
    )


class RebatchSettings(SettingsModel):
    """Sealed segments of small batches are rewritten with larger batches, which read faster."""

    enabled: Flag = Field(default=True, description="`false`: leave batches as they were written.")
    min_age_seconds: Duration = Field(
        default=600.0, alias="min_age", description="Do not rewrite segments younger than this."
    )


class StreamSettings(SettingsModel):
    """One stream. Build it with `parse_stream_settings`, which also does the cross checks."""

    subjects: Annotated[
        tuple[Annotated[str, Strict()], ...],
        BeforeValidator(_listed),
        AfterValidator(_some_subjects),
        PlainSerializer(_shortly),
    ] = Field(
        alias="subject",
        description="NATS subject to record, or a list of up to 256 that do not overlap; the "
        "wildcards `*` and `>` are allowed.",
    )
    queue_group: Annotated[str, Strict(), AfterValidator(_queue_group)] | None = Field(
        default=None,
        description="Share the messages with the other members of this group.",
    )
    acks: Annotated[Acks, BeforeValidator(_on_or_off)] = Field(
        default="on",
        description="`on`: JetStream-style acks to reply subjects. `envelope`: only to the ack "
        "subject inside an envelope. `off`: no acks; the stream only records.",
    )
    durability: Durability = Field(
        default="fsync",
        description="`fsync`: ack after fdatasync. `interval`: ack after the write, fdatasync as "
        "`flush` says. `os`: ack after the write, leave syncing to the kernel.",
    )
    flush: FlushSettings = FlushSettings()
    dedupe_window_seconds: Duration = Field(
        default=120.0,
        alias="dedupe_window",
        description="A `Nats-Msg-Id` seen within this time marks a duplicate. `0s`: no "
        "deduplication.",
    )
    dedupe: DedupeSettings = DedupeSettings()
    max_message_bytes: Annotated[Size, _at_most(MAX_MESSAGE_BYTES, "64MiB")] = Field(
        default=8 * 2**20, description="Refuse messages larger than this (up to 64MiB)."
    )
    max_pending_bytes: Size = Field(
        default=64 * 2**20,
        description="Maximum size of messages received but not yet committed. At the limit this "
        "stream, and no other, refuses messages.",
    )
    retention: RetentionSettings = RetentionSettings()
    compaction: CompactionSettings | None = Field(
        default=None, description="Key compaction. `null`: off."
    )
    segment: SegmentSettings = SegmentSettings()
    batch: BatchSettings = BatchSettings()
    compression: Compression = Field(
        default="none",
        description="Compress record batches on disk and on the wire: `lz4` or `zstd` (needs the "
        "extra `compression`, for readers too). Existing batches stay as they are.",
    )
    rebatch: RebatchSettings = RebatchSettings()
    subject_sequences: SubjectSequencesSettings | None = Field(
        default=None,
        description="Keep the last offset of each subject, for "
        "`Nats-Expected-Last-Subject-Sequence`. `null`: off.",
    )
    jetstream: JetStreamSettings | None = Field(
        default=None,
        description="Settings that JetStream's clients gave to the stream. `null`: the defaults.",
    )
    initial_offset: Count = Field(
        default=1,
        description="Offset of the first record of a new stream.",
    )
    envelope: Flag = Field(
        default=True,
        description="Recognise liftlog envelopes. `false`: store them as plain messages.",
    )
    liftbridge: Flag = Field(
        default=False,
        description="Also recognise Liftbridge envelopes, and answer with Liftbridge's Ack to "
        "their ack inbox.",
    )
    paused: Flag = Field(default=False, description="Refuse new messages temporarily.")
    read_only: Flag = Field(default=False, description="Refuse new messages permanently.")
    replicas: Replicas = Field(
        default=1, description="Number of nodes that hold a copy. More than 1 needs a cluster."
    )
    min_isr: Replicas = Field(
        default_factory=lambda fields: (fields.get("replicas", 1) + 1) // 2,
        description="Number of replicas in sync below which messages that want an ack are refused. "
        "Default: half of `replicas`, rounded up: 2 of 3.",
    )
    ack_policy: AckPolicy = Field(
        default="all",
        description="`all`: ack when every replica in sync has synced the message to disk, and at "
        "least `min_isr` replicas have. `leader`: ack when the leader has synced it.",
    )

    @property
    def shown_subjects(self) -> str:
        """All subjects as one line of text."""
        return ", ".join(self.subjects)
