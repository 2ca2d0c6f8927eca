"""Describes streams, and yields the conditions of served streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import LiftlogError, NewerFormat
from liftlog.log import Log
from liftlog.protocol.described import StreamInfo
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.settings import origin_of
from liftlog.server.vitals.conditions import About, Condition
from liftlog.settings import StreamSettings
from liftlog.settings.checks import check_history

_MAX_RANGES = 3
_REFUSED_SECONDS = 300.0
"""Time, in seconds, for which a failed commit is reported, unless a later commit succeeds."""


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
        record_count=log.view.record_count,
        size_bytes=log.view.size_bytes,
        segment_count=log.segment_count,
        leader_epoch=log.leader_epoch,
        acks=host.settings.acks,
        durability=host.settings.durability,
        settings=host.shown_settings(),
        overrides={
            name: {"file": in_file, "value": value}
            for name, (in_file, value) in host.overrides.items()
        },
        warnings=[host.failure, *warnings] if host.failure else warnings,
        possible_losses=host.possible_losses,
        quarantined=[asdict(entry) for entry in log.view.manifest.quarantined if entry.is_loss],
        compaction=compaction,
    )


def history_warnings(settings: StreamSettings) -> list[str]:
    """Return a warning if compaction deletes records that clients should still see. The daemon
    refuses new settings of this kind."""
    return [f"{finding.dotted}: {finding.problem}" for finding in check_history(settings)]


def describe_broken(name: str, reason: str) -> StreamInfo:
    """Describe a stream on disk that is not served."""
    return StreamInfo(name=name, subject="", state="failed", warnings=[reason])


def describe_elsewhere(name: str, settings: StreamSettings, record: StreamMetadata) -> StreamInfo:
    """Describe a stream of the cluster that has no open copy on this node."""
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


# --- problems ---


class Newer(str):
    """The reason why a stream is not open: a newer version of liftlog has written it."""

    __slots__ = ()


def why_broken(error: LiftlogError) -> str:
    """Return the reason to show for a stream that could not be opened."""
    return Newer(error) if isinstance(error, NewerFormat) else str(error)


def stream_conditions(
    hosts: Mapping[str, StreamHost],
    broken: Mapping[str, str],
    cleaning: Mapping[str, str],
    jetstream: Callable[[StreamHost], list[str]],
) -> Iterator[Condition]:
    """Yield the conditions of single streams. `broken` contains the reasons why streams could not
    be opened, and `cleaning` contains the failed jobs. `jetstream` returns warnings about streams
    of JetStream that ack the same messages.

    Only a stream of a newer version makes the daemon "not ready", so that a rolling downgrade stops
    before streams become unavailable. With other problems the daemon stays ready. Another daemon
    could not recover lost records or repair compaction, and clients would lose access to all other
    streams of this daemon.
    """
    recently = time.monotonic() - _REFUSED_SECONDS
    for name, host in hosts.items():
        if host.failure:
            yield Condition.of("failed_streams", host.failure, name)
        elif host.observed.refusing and host.observed.refusing_since > recently:
            yield Condition.of("refusing", f"refuses messages: {host.observed.refusing}", name)
        if host.log.view.manifest.quarantined and (words := _lost(host.log)):
            yield Condition.of("lost_records", words, name)
        for words in jetstream(host):
            yield Condition.of("jetstream", words, name)
    for name, reason in broken.items():
        kind = "newer_version" if isinstance(reason, Newer) else "failed_streams"
        yield Condition.of(kind, reason, name)
    for name, words in cleaning.items():
        yield Condition.of("cleaning", words, name)


ALL_STREAMS = ""
_SHOWN_APART = ("lost_records", "cleaning")
"""Kinds of conditions that have their own fields in descriptions: `quarantined` and
`compaction`."""


def warnings_of_streams(found: Iterable[Condition]) -> dict[str, list[str]]:
    """Return, by stream, the conditions that descriptions of streams show as warnings. Conditions
    that concern every stream are under the key `ALL_STREAMS`."""
    warnings: dict[str, list[str]] = {}
    for one in found:
        if one.kind.concerns_streams:
            warnings.setdefault(ALL_STREAMS, []).append(one.words)
        elif one.kind.about is About.STREAM and one.kind.name not in _SHOWN_APART:
            warnings.setdefault(one.subject, []).append(one.words)
    return warnings


def _lost(log: Log) -> str:
    """Describe lost records at or above the log start."""
    start = log.log_start_offset
    ranges = sorted(
        (max(start, bad.first_offset), bad.next_offset, bad.reason)
        for bad in log.view.manifest.quarantined
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


def _joined(shown: Sequence[str], count: int) -> str:
    more = count - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
