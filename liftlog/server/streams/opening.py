"""From the files of a stream to what a StreamHost is made of: the log, and a sequencer that goes on
where it ends. Blocking."""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.log import DataDir, Log, RecoveryReport
from liftlog.records.codecs import codec_named
from liftlog.server.commits.configs import log_config, sequencer_config, window_ns
from liftlog.server.commits.subjects import new_table, restore_subjects
from liftlog.server.streams.dedupe_restoring import last_message_id, restore_dedupe
from liftlog.server.streams.metadata import stored_settings
from liftlog.server.streams.settings import with_switches
from liftlog.settings import StreamSettings
from liftlog.stream import AckSubjects, DedupeWindow, Sequencer

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


def make_sequencer(
    name: str, settings: StreamSettings, log: Log, ack_subjects: AckSubjects, now_ns: int
) -> Sequencer:
    """A sequencer that goes on where the log ends."""
    dedupe = DedupeWindow(window_ns(settings), settings.dedupe.max_ids)
    restore_dedupe(log, dedupe, now_ns)
    sequencer = Sequencer(
        sequencer_config(name, settings),
        dedupe,
        ack_subjects,
        next_offset=log.log_end_offset,
        last_timestamp_ns=log.max_timestamp_ns,
        last_message_id=last_message_id(log),
        commit_clock=log.environment.clock.now_ns,
    )
    sequencer.subjects = new_table(settings, log, log.log_end_offset)
    if sequencer.subjects is not None:
        restore_subjects(log, sequencer.subjects)
    return sequencer
