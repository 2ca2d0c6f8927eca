"""A stream in words: rows of a table, facts, and how much of it there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from liftlog.cli.compaction import describe_compaction
from liftlog.cli.options import wide_wanted
from liftlog.cli.output import print_table
from liftlog.cli.text import plural, printable, show_size, show_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftlog.client import StreamInfo

_HEADINGS = ("NAME", "SUBJECT", "STATE", "RECORDS", "START", "END", "SIZE", "SEGMENTS", "ACKS")
_WIDE_HEADINGS = ("ORIGIN", "QUEUE GROUP", "EPOCH", "LOG END", "RETENTION", "COMPACTED", "WARNINGS")


def print_streams(infos: Sequence[StreamInfo]) -> None:
    """With --output wide also what else one asks when comparing streams."""
    wide = wide_wanted()
    headings = (*_HEADINGS, *(_WIDE_HEADINGS if wide else ()))
    rows = [(*row_of(info), *(_more_of(info) if wide else ())) for info in infos]
    print_table(headings, rows, right=(3, 4, 5, 6, 7, *((11, 12) if wide else ())))


def _more_of(found: StreamInfo) -> tuple[str, ...]:
    retention = found.settings.get("retention") or {}
    limits = [f"{key}={value}" for key, value in retention.items() if value is not None]
    compaction = found.settings.get("compaction") or {}
    return (
        printable(found.origin),
        printable(found.queue_group or ""),
        str(found.leader_epoch),
        str(found.log_end_offset),
        printable(" ".join(limits)),
        "yes" if compaction.get("enabled") else "no",
        printable("; ".join(found.warnings)),
    )


def count_of(found: StreamInfo) -> str:
    return plural(found.records, "record")


def row_of(found: StreamInfo) -> tuple[str, ...]:
    return (
        printable(found.name),
        printable(found.subject),
        printable(found.state) + (" !" if found.warnings or found.quarantined else ""),
        f"{found.records:,}",
        str(found.log_start_offset),
        str(found.high_watermark),
        show_size(found.size_bytes),
        str(found.segment_count),
        printable(f"{found.acks}, {found.durability}" if found.durability else found.acks),
    )


def facts_of(found: StreamInfo) -> list[tuple[str, str]]:
    records = count_of(found)
    if found.high_watermark > found.log_start_offset:
        records += f" at offsets {found.log_start_offset} to {found.high_watermark - 1}"
    facts = [
        ("name", found.name),
        ("subject", found.subject),
        ("queue group", found.queue_group or ""),
        ("state", found.state),
        ("origin", found.origin),
        ("records", records),
        ("log start offset", str(found.log_start_offset)),
        ("high watermark", str(found.high_watermark)),
        ("log end offset", str(found.log_end_offset)),
        ("size", f"{show_size(found.size_bytes)} in {plural(found.segment_count, 'segment')}"),
        ("leader epoch", str(found.leader_epoch)),
        ("incarnation", found.incarnation),
        ("compaction", "\n".join(describe_compaction(found.compaction))),
        ("settings", "\n".join(f"{key}: {value}" for key, value in _flat(found.settings))),
        ("possible losses", "\n".join(map(_loss, found.possible_losses))),
        ("damaged", "\n".join(map(_range, found.quarantined))),
    ]
    return [(label, printable(text, keep_newlines=True)) for label, text in facts if text]


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            found.append((f"{prefix}{key}", text))
    return found


def _loss(event: dict[str, Any]) -> str:
    moment = event.get("time_ns")
    when = show_time(moment) if isinstance(moment, int) else "?"
    return f"at offset {event.get('offset', '?')}, {when}: {event.get('reason', '?')}"


def _range(bad: dict[str, Any]) -> str:
    first, following = bad.get("first_offset"), bad.get("next_offset")
    last = following - 1 if isinstance(following, int) else "?"
    return f"offsets {first} to {last}: {bad.get('reason', '?')}"
