"""Descriptions of streams, and what is wrong with those that are served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from liftlog.cluster.record import StreamRecord
from liftlog.log import Log
from liftlog.protocol.described import StreamInfo
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.settings import origin_of
from liftlog.settings import StreamSettings
from liftlog.settings.checks import check_history

_MAX_STREAMS = 20
_MAX_RANGES = 3


def describe(
    host: StreamHost, state: str, warnings: Sequence[str], compaction: dict[str, Any]
) -> StreamInfo:
    log = host.log
    warnings = [*history_warnings(host.settings), *warnings]
    return StreamInfo(
        name=host.name,
        subject=host.settings.shown_subjects,
        subjects=list(host.settings.subjects),
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
        warnings=[host.failure, *warnings] if host.failure else warnings,
        possible_losses=host.possible_losses,
        quarantined=[asdict(entry) for entry in log.quarantined if entry.is_loss],
        compaction=compaction,
    )


def history_warnings(settings: StreamSettings) -> list[str]:
    """A warning if compaction deletes what clients are to see. New settings are refused for it."""
    return [f"{finding.dotted}: {finding.problem}" for finding in check_history(settings)]


def describe_broken(name: str, reason: str) -> StreamInfo:
    """A stream on disk that is not served."""
    return StreamInfo(name=name, subject="", state="failed", warnings=[reason])


def describe_elsewhere(name: str, settings: StreamSettings, record: StreamRecord) -> StreamInfo:
    """A stream of the cluster without an open copy on this node."""
    return StreamInfo(
        name=name,
        subject=settings.shown_subjects,
        subjects=list(settings.subjects),
        queue_group=settings.queue_group,
        state="elsewhere",
        origin=origin_of(record),
        incarnation=record.incarnation,
        leader_epoch=record.leader_epoch,
        acks=settings.acks,
        durability=settings.durability,
        settings=settings.to_yaml_dict(),
    )


# --- what is wrong ---


def stream_troubles(
    hosts: Mapping[str, StreamHost],
    failures: Mapping[str, str],
    failed: Sequence[str],
    may_read: Callable[[str], bool] = lambda name: True,
) -> dict[str, str]:
    """By kind, `failed_streams`, `lost_records` and `cleaning`: for `/readyz`, `health` and the web
    page. Only of the streams for which `may_read` is true. `failures` are those of the cleaner, by
    stream; `failed` the streams that cannot be written, or could not be opened.

    These are warnings, and do not make the daemon "not ready". Sending clients to another daemon
    would neither bring lost records back nor repair compaction, and it would cost them all other
    streams of this one.
    """
    lost = {
        name: words
        for name, host in hosts.items()
        if may_read(name) and host.log.quarantined and (words := _lost(host.log))
    }
    failing = {name: words for name, words in failures.items() if may_read(name)}
    names = sorted(filter(may_read, failed))
    found = {
        "failed_streams": _joined(names[:_MAX_STREAMS], len(names)),
        "lost_records": _listed(lost),
        "cleaning": _listed(failing),
    }
    return {kind: text for kind, text in found.items() if text}


def _lost(log: Log) -> str:
    """Lost records at or above the log start, in words."""
    start = log.log_start_offset
    ranges = sorted(
        (max(start, bad.first_offset), bad.next_offset, bad.reason)
        for bad in log.quarantined
        if bad.is_loss and bad.next_offset > start
    )
    if not ranges:
        return ""
    count = sum(following - first for first, following, _ in ranges)
    places = [
        f"[{first:,}, {following:,}) {reason}" for first, following, reason in ranges[:_MAX_RANGES]
    ]
    what = "1 offset" if count == 1 else f"{count:,} offsets"
    return f"{what} cannot be read: {_joined(places, len(ranges))}"


def _listed(by_stream: Mapping[str, str]) -> str:
    names = sorted(by_stream)
    shown = [f"{name}: {by_stream[name]}" for name in names[:_MAX_STREAMS]]
    return _joined(shown, len(names))


def _joined(shown: Sequence[str], count: int) -> str:
    more = count - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
