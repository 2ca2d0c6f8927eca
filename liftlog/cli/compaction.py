"""The compaction of a stream in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftlog.cli.text import plural, show_size, show_time


def describe_compaction(found: Mapping[str, Any]) -> list[str]:
    """Lines for `stream info`; none for a stream that is not compacted and never was."""
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
        lines.append(f"cleaned below offset {found.get('cleaned_below', 0)}")
    if removed_below:
        lines.append(f"tombstones removed below offset {removed_below}")
    if found.get("error"):
        lines.append(f"error: {found['error']}")
    return lines


def describe_pass(before: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """What a pass that was waited for did. `before` is the compaction before it was asked for."""
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
