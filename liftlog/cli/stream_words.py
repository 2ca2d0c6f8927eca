"""Describes a stream: rows of a table, facts, its compaction, and its size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from liftlog.cli.lib.options import quiet, wide_wanted
from liftlog.cli.lib.output import print_table, say, terminal_width
from liftlog.cli.lib.text import plural, printable, show_size, show_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from liftlog.client import Removal, StreamInfo, StreamUpdate

_HEADINGS = ("NAME", "SUBJECT", "STATE", "RECORDS", "START", "END", "SIZE", "SEGMENTS", "ACKS")
_LEFT_OUT = (7, 4, 5, 8)
"""Columns to leave out on a narrow terminal, in this order."""
_BETWEEN = 2
_WIDE_HEADINGS = ("ORIGIN", "QUEUE GROUP", "EPOCH", "LOG END", "RETENTION", "COMPACTED", "WARNINGS")


def print_streams(infos: Sequence[StreamInfo]) -> None:
    """Print a table of streams. --output wide adds columns that help to compare streams."""
    wide = wide_wanted()
    headings = (*_HEADINGS, *(_WIDE_HEADINGS if wide else ()))
    rows = [(*row_of(info), *(_more_of(info) if wide else ())) for info in infos]
    right = (3, 4, 5, 6, 7, *((11, 12) if wide else ()))
    width = terminal_width()
    if width is not None and not wide:
        shown = _fitting([headings, *rows], width)
        rows = [tuple(row[at] for at in shown) for row in rows]
        headings = tuple(headings[at] for at in shown)
        right = tuple(number for number, at in enumerate(shown) if at in right)
    print_table(headings, rows, right=right)


def _fitting(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the indexes of the columns that fit into `width`."""
    widths = [max(map(len, column)) + _BETWEEN for column in zip(*lines, strict=True)]
    shown = list(range(len(widths)))
    for at in _LEFT_OUT:
        if sum(widths[one] for one in shown) - _BETWEEN > width:
            shown.remove(at)
    return shown


def _more_of(found: StreamInfo) -> tuple[str, ...]:
    retention = found.settings.get("retention") or {}
    limits = [f"{key}={value}" for key, value in retention.items() if value is not None]
    compaction = found.settings.get("compaction") or {}
    return (
        printable(found.origin),
        printable(found.queue_group or ""),
        str(found.leader_epoch),
        f"{found.log_end_offset:,}",
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
        f"{found.log_start_offset:,}",
        f"{found.high_watermark:,}",
        show_size(found.size_bytes),
        f"{found.segment_count:,}",
        printable(f"{found.acks}, {found.durability}" if found.durability else found.acks),
    )


def facts_of(found: StreamInfo) -> list[tuple[str, str]]:
    records = count_of(found)
    if found.high_watermark > found.log_start_offset:
        records += f" at offsets {found.log_start_offset:,} to {found.high_watermark - 1:,}"
    facts = [
        ("name", found.name),
        ("subject", found.subject),
        ("queue group", found.queue_group or ""),
        ("state", found.state),
        ("origin", found.origin),
        ("records", records),
        ("damaged", "\n".join(map(_range, found.quarantined))),
        ("possible losses", "\n".join(map(_loss, found.possible_losses))),
        ("log start offset", f"{found.log_start_offset:,}"),
        ("high watermark", f"{found.high_watermark:,}"),
        ("log end offset", f"{found.log_end_offset:,}"),
        ("size", f"{show_size(found.size_bytes)} in {plural(found.segment_count, 'segment')}"),
        ("leader epoch", str(found.leader_epoch)),
        ("incarnation", found.incarnation),
        ("compaction", "\n".join(describe_compaction(found.compaction))),
        ("overrides", "\n".join(overrides_of(found))),
        ("settings", "\n".join(f"{key}: {value}" for key, value in _flat(found.settings))),
    ]
    return [(label, printable(text, keep_newlines=True)) for label, text in facts if text]


def overrides_of(found: StreamInfo) -> list[str]:
    """Describe the overrides of the configuration file, one line each."""
    return [
        f"{name}: {_shown(one.get('value'))}, in the configuration file {_shown(one.get('file'))}"
        for name, one in sorted(found.overrides.items())
        if isinstance(one, Mapping)
    ]


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


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
    return f"at offset {_number(event.get('offset'))}, {when}: {event.get('reason', '?')}"


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _range(bad: dict[str, Any]) -> str:
    first, following = bad.get("first_offset"), bad.get("next_offset")
    last = following - 1 if isinstance(following, int) else None
    where = f"offset {_number(first)}"
    if first != last:
        where = f"offsets {_number(first)} to {_number(last)}"
    return f"{where}: {bad.get('reason', '?')}"


def describe_compaction(found: Mapping[str, Any]) -> list[str]:
    """Return the lines for `stream info`; empty for a stream that was never compacted and has no
    compaction in its settings."""
    state = found.get("state", "off")
    removed_below = found.get("tombstones_removed_below", 0)
    lines = []
    if state != "off":
        ratio = 100 * found.get("dirty_ratio", 0.0)
        lines.append(f"{state}, {ratio:.0f} % dirty ({show_size(found.get('dirty_bytes', 0))})")
        if found.get("reason"):
            lines[-1] += f": {found['reason']}"
    progress = found.get("progress")
    if progress:
        done, total = progress.get("done_bytes", 0), progress.get("total_bytes", 0)
        phase = progress.get("phase", "?")
        lines.append(f"phase {phase}: {show_size(done)} of {show_size(total)}")
    if found.get("last_pass"):
        lines.append(f"last pass: {describe_last_pass(found)}")
    if state != "off" or found.get("cleaned_below"):
        lines.append(f"cleaned below offset {found.get('cleaned_below', 0):,}")
    if removed_below:
        lines.append(f"tombstones removed below offset {removed_below:,}")
    if found.get("error"):
        lines.append(f"error: {found['error']}")
    return lines


def describe_pass(before: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Describe the result of a finished compaction pass. `before` is the state of the compaction
    before the request."""
    if found.get("passes", 0) > before.get("passes", 0):
        return f"compacted: {describe_last_pass(found)}"
    reason = found.get("reason") or "no record that may be compacted is dirty"
    earlier = f"; the last pass: {describe_last_pass(found)}" if found.get("last_pass") else ""
    return f"was not compacted: {reason}{earlier}"


def describe_last_pass(found: Mapping[str, Any]) -> str:
    last = found.get("last_pass")
    if not last:
        return "there was nothing to do"
    removed = last.get("records_in", 0) - last.get("records_out", 0)
    return (
        f"{plural(removed, 'record')} of {last.get('records_in', 0):,} removed, "
        f"{show_size(last.get('bytes_in', 0))} became {show_size(last.get('bytes_out', 0))} "
        f"({show_time(last.get('time_ns', 0))}, {last.get('seconds', 0)} s)"
    )


def is_troubled(info: StreamInfo) -> bool:
    return bool(
        info.warnings
        or info.quarantined
        or info.possible_losses
        or info.state in ("failed", "detached")
    )


def show_update(found: StreamUpdate) -> None:
    name = printable(found.info.name)
    if not found.differences:
        say(f"{name} already has these settings")
        return
    if quiet() and not found.dry_run:
        return
    say(f"{name} would change:" if found.dry_run else f"{name} updated:")
    rows = [
        (
            printable(str(one.get("setting"))),
            _value(one.get("existing")),
            _value(one.get("requested")),
        )
        for one in found.differences
    ]
    print_table(("SETTING", "OLD", "NEW"), rows)
    if found.removal is not None and found.removal.records:
        say(_removal_words(found.removal))


def _value(value: Any) -> str:
    if value is None:
        return "null"
    return printable(str(value).lower() if isinstance(value, bool) else str(value))


def _removal_words(removal: Removal) -> str:
    """Describe what the next run of retention deletes."""
    room = f"{plural(removal.segments, 'segment')}, {show_size(removal.size_bytes)}"
    if not removal.segments:
        room = "their segment also has later records, so no room is freed yet"
    return (
        f"retention deletes up to {plural(removal.records, 'record')} below offset "
        f"{removal.log_start_offset:,}: {room}"
    )


def update_object(found: StreamUpdate) -> dict[str, Any]:
    return {
        "name": found.info.name,
        "dry_run": found.dry_run,
        "differences": found.differences,
        "removal": None if found.removal is None else found.removal.to_wire(),
        "stream": found.info.to_wire(),
    }
