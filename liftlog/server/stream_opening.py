"""From files to a StreamHost: open the log, rebuild what judging needs. Blocking."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptBatch, CorruptMetadata, LiftlogError, StreamUnavailable
from liftlog.log import DataDir, Log, LogConfig, RecoveryReport
from liftlog.log.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.records import decode_batch, iter_batches, parse_header
from liftlog.records.codecs import codec_named
from liftlog.server.stream_settings import with_switches
from liftlog.settings import StreamSettings, parse_stream_settings
from liftlog.stream import AckSubjects, DedupeWindow, Sequencer, SequencerConfig
from liftlog.stream.dedupe import message_ids

logger = logging.getLogger("liftlog.server.stream")

_SNAPSHOT_NAME = "dedupe"
_SNAPSHOT_MAX_IDS = 200_000  # beyond it scanning the log costs less than writing the snapshot
_SCAN_BYTES = 4 * 1024 * 1024
_SECOND_NS = 1_000_000_000
_DEFAULTS = StreamSettings.model_construct()


@dataclass(frozen=True, slots=True)
class LoadedStream:
    """What `load_stream` found."""

    log: Log
    report: RecoveryReport
    settings: StreamSettings
    origin: str
    switches: dict[str, list[bool]]
    """See `stream_settings.with_switches`."""


def load_stream(data_dir: DataDir, name: str, configured: StreamSettings | None) -> LoadedStream:
    """Open the log of a stream and read what its manifest says beside; `configured` is what the
    configuration file says. Raises LiftlogError, and leaves the files as they are then:
    UnsupportedFormat when the package that its compression needs is not installed."""
    log, report = data_dir.open_log(name, log_config(configured or _DEFAULTS))
    try:
        switches: dict[str, list[bool]] = {}
        origin = str(log.metadata.get("origin", "api"))
        if configured is not None:
            settings, switches = with_switches(configured, log.metadata.get("switches"))
            origin = "config"
        else:
            settings = stored_settings(name, log)
            if origin == "config":
                origin = "api"  # no longer in the file: from now on the API may change it
        codec_named(settings.compression)
        log.config = log_config(settings)
    except Exception:
        log.close()
        raise
    return LoadedStream(log, report, settings, origin, switches)


def stored_settings(name: str, log: Log) -> StreamSettings:
    """Those in the manifest. Raises StreamUnavailable."""
    try:
        return parse_stream_settings(log.metadata["settings"], exists=True)
    except (KeyError, TypeError) as error:
        raise StreamUnavailable(f"the manifest of stream {name} holds no settings") from error


def log_config(settings: StreamSettings) -> LogConfig:
    age, compaction = settings.segment.max_age_seconds, settings.compaction
    if compaction is not None and compaction.enabled and compaction.max_lag_seconds is not None:
        # Only sealed segments are compacted, so on a quiet stream this has to roll as well.
        age = min(compaction.max_lag_seconds, age or compaction.max_lag_seconds)
    return LogConfig(
        segment_max_bytes=settings.segment.max_bytes,
        segment_max_age_ns=None if age is None else int(age * _SECOND_NS),
    )


def window_ns(settings: StreamSettings) -> int:
    """How long message ids are remembered."""
    return int(settings.dedupe_window_seconds * _SECOND_NS)


def sequencer_config(name: str, settings: StreamSettings) -> SequencerConfig:
    return SequencerConfig(
        stream=name,
        acks=settings.acks,
        durability=settings.durability,
        max_message_bytes=settings.max_message_bytes,
        recognise_envelopes=settings.envelope,
        recognise_liftbridge=settings.liftbridge,
        subject=settings.subject,
    )


def make_sequencer(
    name: str, settings: StreamSettings, log: Log, ack_subjects: AckSubjects, now_ns: int
) -> Sequencer:
    """A sequencer that goes on where the log ends."""
    dedupe = DedupeWindow(window_ns(settings), settings.dedupe.max_ids)
    if dedupe.window_ns:
        if not _restore_snapshot(log, dedupe):
            _rebuild(log, dedupe, now_ns - dedupe.window_ns)
        dedupe.expire(now_ns)
    return Sequencer(
        sequencer_config(name, settings),
        dedupe,
        ack_subjects,
        next_offset=log.log_end_offset,
        last_timestamp_ns=log.max_timestamp_ns,
        last_message_id=_last_message_id(log),
        commit_clock=log.environment.clock.now_ns,
    )


def _rebuild(log: Log, dedupe: DedupeWindow, since_ns: int) -> None:
    """Learn the message ids of the window from the log alone, also those that retention has put
    out of the readers' reach."""
    recent = [segment for segment in log.segments if segment.max_timestamp_ns >= since_ns]
    offset = recent[0].base_offset if recent else log.high_watermark
    while offset < log.high_watermark:
        try:
            found = log.read_stored(offset, _SCAN_BYTES)
        except LiftlogError as error:
            # Damage costs the ids that lie in it; what is behind it still counts.
            offset = int(error.details.get("next_offset", log.high_watermark))
            continue
        if found is None:
            return
        with found:
            reached = _learn(log.name, found.pread(), offset, dedupe, since_ns)
        if reached == offset:
            return  # it rotted since `read_stored` looked at it
        offset = reached


def _learn(name: str, raw: bytes, offset: int, dedupe: DedupeWindow, since_ns: int) -> int:
    """Add the ids of the batches in `raw` from `offset` on; returns the offset to read on at.

    A damaged body costs its batch. At a damaged header this stops: reading on from there tells
    how far the damage goes.
    """
    reached, position = offset, 0
    while position < len(raw):
        try:
            header = parse_header(raw, position)
        except CorruptBatch:
            break
        if header.max_timestamp_ns >= since_ns:
            try:
                dedupe.add_batch(decode_batch(raw, position).trim(offset))
            except CorruptBatch as error:
                logger.warning(
                    "dedupe-ids-lost stream=%s offset=%d error=%s", name, header.base_offset, error
                )
        position += header.length
        reached = header.next_offset
    return reached


def _last_message_id(log: Log) -> bytes:
    last = log.high_watermark - 1
    try:
        found = log.read_stored(last, 1)
    except LiftlogError:
        return b""
    if found is None:
        return b""
    with found:
        try:
            for batch in iter_batches(found.pread()):
                for offset, _, message_id in message_ids(batch):
                    if offset == last:
                        return message_id
        except CorruptBatch:
            pass  # as with the ids of the window: damage costs what lies in it
    return b""


# --- the snapshot of a clean stop ---


def write_dedupe_snapshot(log: Log, dedupe: DedupeWindow) -> None:
    """Save the window so that the next start need not scan for it. Raises OSError."""
    if not len(dedupe) or len(dedupe) > _SNAPSHOT_MAX_IDS:
        return
    # After a stop that could not drain, some ids belong to messages that were never stored.
    end = log.log_end_offset
    content: dict[str, Any] = {
        "lineage": log.lineage,
        "log_end_offset": end,
        "ids": [entry for entry in dedupe.snapshot() if entry[2] < end],
    }
    write_checkpoint_file(log.environment.fs, _snapshot_path(log), _SNAPSHOT_NAME, content)


def _restore_snapshot(log: Log, dedupe: DedupeWindow) -> bool:
    """True when there was a snapshot of exactly this state of the log."""
    try:
        content = read_checkpoint_file(log.environment.fs, _snapshot_path(log), _SNAPSHOT_NAME)
        if content is None or (content["lineage"], content["log_end_offset"]) != (
            log.lineage,
            log.log_end_offset,
        ):
            return False
        dedupe.restore(content["ids"])
    except (CorruptMetadata, KeyError, TypeError, ValueError, OSError) as error:
        logger.warning("dedupe-snapshot-ignored stream=%s error=%s", log.directory.name, error)
        return False
    return True


def _snapshot_path(log: Log) -> Path:
    return log.directory / _SNAPSHOT_NAME
