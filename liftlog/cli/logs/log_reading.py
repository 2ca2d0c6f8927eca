"""The work of `liftlog log verify` and `dump`, which only read the files of a log."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import output_format
from liftlog.cli.lib.output import object_array, terminal_width, write_lines
from liftlog.cli.lib.problems import note, warn
from liftlog.cli.lib.progress import byte_progress
from liftlog.cli.lib.record_lines import RecordLines
from liftlog.cli.lib.text import plural, shorten, show_size, show_time
from liftlog.log.files.manifest import Manifest
from liftlog.log.offline.dump import (
    DumpedBatch,
    DumpedGap,
    DumpItem,
    SegmentStart,
    dump_stream,
)
from liftlog.log.offline.files import (
    StreamFiles,
    find_streams,
    read_facts,
    stored_bytes,
)
from liftlog.log.offline.verify import DAMAGE, KNOWN, Finding, StreamReport, verify_stream
from liftlog.records.json_form import record_object

Item = TypeVar("Item")

_LABELS = {"damage": "DAMAGED", "known": "lost", "note": "note"}


def verify(directory: Path, allow_known: bool) -> ExitCode:
    style = output_format()
    streams = find_streams(directory)
    reports = []
    objects = object_array(style)
    total = stored_bytes(stream.path for stream in streams)
    with objects or nullcontext(), byte_progress(total) as advance:
        for stream in streams:
            reports.append(verify_stream(stream, advance))
            if objects is not None:
                objects.add([asdict(reports[-1])])
            else:
                write_lines(_report_lines(reports[-1]))
    if not reports:
        note(f"There are no streams in {directory}.")
    bad = [KNOWN, DAMAGE] if not allow_known else [DAMAGE]
    damaged = any(report.of_kind(kind) for report in reports for kind in bad)
    return ExitCode.DAMAGED if damaged else ExitCode.OK


def _report_lines(report: StreamReport) -> list[str]:
    damage, known = len(report.of_kind("damage")), len(report.of_kind("known"))
    verdict = "ok"
    if damage:
        verdict = plural(damage, "damage")
    elif known:
        verdict = f"ok except for {plural(known, 'known loss', 'known losses')}"
    span = ""
    if report.first_offset is not None and report.end_offset is not None:
        empty = report.end_offset <= report.first_offset
        last = report.end_offset - 1
        span = ", no offsets" if empty else f", offsets {report.first_offset}..{last}"
    summary = (
        f"{report.name}: {verdict}  ({plural(report.segment_count, 'segment')}, "
        f"{plural(report.batch_count, 'batch', 'batches')}, "
        f"{plural(report.record_count, 'record')}, {show_size(report.size_bytes)}{span})"
    )
    return [summary, *map(_finding_line, report.findings)]


def _finding_line(finding: Finding) -> str:
    where = finding.segment
    if finding.position is not None:
        where += f" at {finding.position}"
    offsets = ""
    if finding.first_offset is not None:
        offsets = f"offset {finding.first_offset}"
        if finding.next_offset is not None and finding.next_offset > finding.first_offset + 1:
            offsets = f"offsets {finding.first_offset}..{finding.next_offset - 1}"
    parts = [part for part in (where, offsets, finding.text) if part]
    return f"  {_LABELS[finding.kind]:<8} {': '.join(parts)}"


def dump(directory: Path, values: bool, first_offset: int, limit: int | None) -> ExitCode:
    style = output_format()
    printer = _Printer(style, values, limit)
    with printer:
        for stream in find_streams(directory):
            if style == "table":
                write_lines([_stream_line(stream, read_facts(stream).manifest)])
            for item in dump_stream(stream, first_offset):
                printer.show(item)
                if printer.is_full:
                    return printer.code
    return printer.code


class _Printer:
    """Prints items of a dump in one of the formats, up to a limit."""

    def __init__(self, style: str, values: bool, limit: int | None) -> None:
        self.code = ExitCode.OK
        self._values = values
        self._left = limit
        self._array = object_array(style)

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def __enter__(self) -> _Printer:
        if self._array is not None:
            self._array.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._array is not None:
            self._array.__exit__(kind, *rest)

    def show(self, item: DumpItem) -> None:

        if isinstance(item, SegmentStart):
            if self._array is None:
                write_lines([_segment_line(item)])
        elif isinstance(item, DumpedGap):
            warn(_gap_line(item))
            if not item.is_tail:
                self.code = ExitCode.DAMAGED
        elif self._array is None:
            write_lines([_batch_line(item)])
            if self._values:
                write_lines(self._take(_record_lines(item)))
            else:
                self._take([""])
        else:
            whole = _record_objects(item) if self._values else [_batch_object(item)]
            self._array.add(self._take(whole))

    def _take(self, items: list[Item]) -> list[Item]:
        if self._left is None:
            return items
        taken = items[: self._left]
        self._left -= len(taken)
        return taken


def _record_lines(item: DumpedBatch) -> list[str]:
    width = terminal_width()
    lines = RecordLines(None).lines(item.batch.records())[1:]
    return [shorten(f"    {line}", width) for line in lines]


def _batch_object(dumped: DumpedBatch) -> dict[str, Any]:
    header = dumped.batch.header
    return {
        "stream": dumped.stream,
        "segment": dumped.segment,
        "position": dumped.position,
        "length": header.length,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "base_timestamp_ns": header.base_timestamp_ns,
        "max_timestamp_ns": header.max_timestamp_ns,
        "leader_epoch": header.leader_epoch,
        "commit_group": header.commit_group,
        "attributes": dumped.attribute_names(),
        "body_crc32c": f"{header.body_crc32c:08x}",
    }


def _record_objects(dumped: DumpedBatch) -> list[dict[str, Any]]:
    return [{"stream": dumped.stream, **record_object(record)} for record in dumped.batch.records()]


def _stream_line(stream: StreamFiles, manifest: Manifest | None) -> str:
    if manifest is None:
        return f"stream {stream.name}  (no readable manifest)"
    return (
        f"stream {stream.name}  incarnation {manifest.incarnation}  "
        f"epoch {manifest.leader_epoch}  log start {manifest.log_start_offset}  "
        f"{plural(len(manifest.segments), 'segment')}"
    )


def _segment_line(start: SegmentStart) -> str:
    kind = "active" if start.is_active else "sealed"
    return f"segment {start.entry.file_name}  {show_size(start.size_bytes)}  {kind}"


def _batch_line(dumped: DumpedBatch) -> str:
    header = dumped.batch.header
    names = ",".join(dumped.attribute_names())
    return (
        f"  batch at {dumped.position:<10} offsets {header.base_offset}..{header.last_offset}  "
        f"{plural(header.record_count, 'record')}  {header.length:,} bytes  "
        f"{show_time(header.base_timestamp_ns)}  epoch {header.leader_epoch}  "
        f"group {header.commit_group}  {names}"
    ).rstrip()


def _gap_line(dumped: DumpedGap) -> str:
    gap = dumped.gap
    if dumped.is_tail:
        return (
            f"{dumped.segment} at {gap.position}: {plural(gap.size_bytes, 'byte')} that are "
            f"not a whole batch yet ({gap.reason}); `liftlog log verify` checks it for damage"
        )
    offsets = f"offsets from {gap.first_offset}"
    if gap.next_offset is not None:
        offsets = f"offsets {gap.first_offset}..{gap.next_offset - 1}"
    return f"{dumped.segment} at {gap.position}: {offsets} damaged: {gap.reason}"
