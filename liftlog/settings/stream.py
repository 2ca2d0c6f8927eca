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
    # NATS would deliver a message twice if it matches two of them.
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
        description="Maximum number of message ids that the stream keeps. Beyond the limit, the "
        "daemon removes the oldest ids before `dedupe_window` ends.",
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
        description="Delete the oldest segments if at least this number of bytes remains after the "
        "deletion. `null`: no limit.",
    )
    max_messages: Count | None = Field(
        default=None,
        description="Keep exactly this number of the newest records readable. `null`: no limit.",
    )
    discard: Literal["old", "new"] = Field(
        default="old",
        description="Action at `max_bytes` and `max_messages`. `old`: delete the oldest records. "
        "`new`: refuse new messages (10077) until a purge or `max_age` has freed space. With "
        "`jetstream.max_msgs_per_subject` only the newest records of each subject count.",
    )


class SegmentSettings(SettingsModel):
    max_bytes: Annotated[Size, _at_most(MAX_SEGMENT_BYTES, "4 GiB - 1")] = Field(
        default=256 * 2**20,
        description="Seal a segment file at this size (below 4 GiB), and begin the next one.",
    )
    max_age_seconds: PositiveDuration | None = Field(
        default=86_400.0,
        alias="max_age",
        description="Seal a segment at this age, even if the stream is idle. `null`: no limit.",
    )


class BatchSettings(SettingsModel):
    max_records: Annotated[Count, _at_most(MAX_BATCH_RECORDS, "65535")] = Field(
        default=4096, description="Maximum number of records in one record batch (up to 65535)."
    )
    max_bytes: Annotated[Size, _at_most(MAX_BATCH_BYTES, "16MiB")] = Field(
        default=2**20,
        description="Maximum size of one record batch (up to 16MiB). One bad bit can destroy at "
        "most one batch. A larger message gets its own batch.",
    )


class CompactionSettings(SettingsModel):
    """Key compaction. Off if this section is missing. `compaction: {}` uses all defaults."""

    enabled: Flag = Field(
        default=True,
        description="Keep the newest record of each key, and every record without a key.",
    )
    min_dirty_ratio: Annotated[float, Field(strict=True, ge=0, le=1)] = Field(
        default=0.5,
        description="Compact when at least this fraction (0 to 1) of the sealed bytes was never "
        "compacted.",
    )
    min_lag_seconds: Duration = Field(
        default=0.0, alias="min_lag", description="Do not compact records younger than this."
    )
    max_lag_seconds: PositiveDuration | None = Field(
        default=None,
        alias="max_lag",
        description="Compact records at the latest after this time, even if `min_dirty_ratio` is "
        "not reached. `null`: no limit.",
    )
    tombstone_retention_seconds: Duration = Field(
        default=86_400.0,
        alias="tombstone_retention",
        description="Time after which compaction deletes a tombstone, counted from the first pass "
        "that kept the tombstone.",
    )
    max_rate_bytes: Size | None = Field(
        default=None,
        alias="max_rate",
        description="Bytes per second that compaction of this stream may read and write. The "
        "smaller of this limit and `cleaner.max_rate` applies. `null`: only `cleaner.max_rate`.",
    )


class SubjectSequencesSettings(SettingsModel):
    """The last offset of each subject, for `Nats-Expected-Last-Subject-Sequence`. Off if this
    section is missing. `subject_sequences: {}` uses the defaults."""

    max_subjects: Annotated[Count, _at_most(MAX_SUBJECTS, "10000000")] = Field(
        default=100_000,
        description="Maximum number of subjects that the stream keeps, with about 200 bytes each "
        "(up to 10000000). The daemon refuses a precondition on any other subject with 10163.",
    )


class JetStreamSettings(SettingsModel):
    """Fields of a JetStream configuration that clients set over `$JS.API`. Most of them do not
    affect the storage."""

    description: Annotated[str, Strict(), AfterValidator(_short_text)] = Field(
        default="", description="Description of the stream for people, at most 4 KiB."
    )
    metadata: Annotated[dict[str, str], AfterValidator(_short_texts)] = Field(
        default={},
        description="Texts by name, at most 128 KiB in total. In a cluster, all settings of a "
        "stream together may have at most 48 KiB.",
    )
    discard: Literal["old", "new"] = Field(
        default="old",
        description="Only shown to clients, for a stream without limits. It has no effect: "
        "`retention.discard` determines the behaviour of the stream.",
    )
    discard_new_per_subject: Flag = Field(
        default=False,
        description="`true`: refuse a message with 10077 if its subject already has a record. "
        "Needs `max_msgs_per_subject: 1` and `subject_sequences`.",
    )
    deny_delete: Flag = Field(
        default=False,
        description="`true`: refuse to delete single messages over NATS.",
    )
    deny_purge: Flag = Field(default=False, description="`true`: refuse to purge over NATS.")
    allow_direct: Flag = Field(default=True, description="`true`: answer direct gets.")
    max_msgs_per_subject: Annotated[Count, _at_most(MAX_HISTORY, "1000")] | None = Field(
        default=None,
        description="Number of the newest records of each subject that clients of JetStream "
        "receive (1 to 1000). With this setting, the stream can be a key-value bucket: "
        "`Nats-Rollup: sub` is accepted, and a record without a key has its subject as its key. So "
        "compaction keeps the newest record of each subject. If the value is above 1, compaction "
        "must be off. `null`: clients receive all records.",
    )
    allow_rollup_hdrs: Flag = Field(
        default=False,
        description="`true`: accept `Nats-Rollup: sub`, which erases the older records of the "
        "subject, and `Nats-Rollup: all`, which erases all older records of the stream. Needs "
        "`acks: on`, and is not possible in a cluster. With `max_msgs_per_subject`, `sub` is "
        "always accepted, and `all` never.",
    )
    max_consumers: Count | None = Field(
        default=None,
        description="Maximum number of consumers over NATS. `null`: only the daemon's own limit.",
    )
    created: Annotated[str, Strict(), AfterValidator(_short_text)] = Field(
        default="",
        description="Time at which the stream was created over `$JS.API`. Only shown to clients.",
    )


class RebatchSettings(SettingsModel):
    """The daemon rewrites sealed segments of small batches with larger batches, which can be read
    faster."""

    enabled: Flag = Field(default=True, description="`false`: do not rewrite batches.")
    min_age_seconds: Duration = Field(
        default=600.0, alias="min_age", description="Do not rewrite segments younger than this."
    )


class StreamSettings(SettingsModel):
    """One stream. Created by `parse_stream_settings`, which also makes the checks across fields."""

    subjects: Annotated[
        tuple[Annotated[str, Strict()], ...],
        BeforeValidator(_listed),
        AfterValidator(_some_subjects),
        PlainSerializer(_shortly),
    ] = Field(
        alias="subject",
        description="NATS subject to record, or a list of up to 256 subjects that do not overlap. "
        "The wildcards `*` and `>` are allowed.",
    )
    queue_group: Annotated[str, Strict(), AfterValidator(_queue_group)] | None = Field(
        default=None,
        description=(
            "NATS queue group of the stream's subscription. NATS sends each message to only one "
            "member of the group."
        ),
    )
    acks: Annotated[Acks, BeforeValidator(_on_or_off)] = Field(
        default="on",
        description="`on`: acks in JetStream's form to reply subjects. `envelope`: acks only to "
        "the ack subject inside an envelope. `off`: no acks; the stream only records.",
    )
    durability: Durability = Field(
        default="fsync",
        description="`fsync`: ack after fdatasync. `interval`: ack after the write, and fdatasync "
        "later, according to `flush`. `os`: ack after the write; the kernel writes the data to "
        "the disk later.",
    )
    flush: FlushSettings = FlushSettings()
    dedupe_window_seconds: Duration = Field(
        default=120.0,
        alias="dedupe_window",
        description="If a `Nats-Msg-Id` was already used within this time, the message is a "
        "duplicate. `0s`: no deduplication.",
    )
    dedupe: DedupeSettings = DedupeSettings()
    max_message_bytes: Annotated[Size, _at_most(MAX_MESSAGE_BYTES, "64MiB")] = Field(
        default=8 * 2**20, description="Refuse messages larger than this (up to 64MiB)."
    )
    max_pending_bytes: Size = Field(
        default=64 * 2**20,
        description="Maximum size of messages that are received but not committed. At the limit "
        "this stream refuses messages; other streams are not affected.",
    )
    retention: RetentionSettings = RetentionSettings()
    compaction: CompactionSettings | None = Field(
        default=None, description="Key compaction. `null`: off."
    )
    segment: SegmentSettings = SegmentSettings()
    batch: BatchSettings = BatchSettings()
    compression: Compression = Field(
        default="none",
        description="Compression of record batches on disk and on the wire. `lz4` and `zstd` need "
        "the extra `compression`, also for readers. Existing batches do not change.",
    )
    rebatch: RebatchSettings = RebatchSettings()
    subject_sequences: SubjectSequencesSettings | None = Field(
        default=None,
        description="Store the last offset of each subject, for "
        "`Nats-Expected-Last-Subject-Sequence`. `null`: off.",
    )
    jetstream: JetStreamSettings | None = Field(
        default=None,
        description="Settings from JetStream's clients. `null`: the defaults.",
    )
    initial_offset: Count = Field(
        default=1,
        description="Offset of the first record of a new stream.",
    )
    envelope: Flag = Field(
        default=True,
        description="Decode liftlog envelopes. `false`: store them as plain messages.",
    )
    liftbridge: Flag = Field(
        default=False,
        description="Also decode Liftbridge envelopes, and send Liftbridge's Ack to the ack inbox "
        "in the envelope.",
    )
    paused: Flag = Field(default=False, description="Refuse new messages temporarily.")
    read_only: Flag = Field(default=False, description="Refuse new messages permanently.")
    replicas: Replicas = Field(
        default=1,
        description="Number of nodes that have a copy of the stream. A value above 1 requires a "
        "cluster.",
    )
    min_isr: Replicas = Field(
        default_factory=lambda fields: (fields.get("replicas", 1) + 1) // 2,
        description="Minimum number of replicas in sync. If fewer replicas are in sync, the stream "
        "refuses messages that ask for an ack. Default: half of `replicas`, rounded up, for "
        "example 2 of 3.",
    )
    ack_policy: AckPolicy = Field(
        default="all",
        description="`all`: ack when every replica in sync, and at least `min_isr` replicas, have "
        "synced the message to disk. `leader`: ack when the leader has synced the message.",
    )

    @property
    def shown_subjects(self) -> str:
        """All subjects as one line of text."""
        return ", ".join(self.subjects)
