"""The tables, as Markdown that also reads well in a terminal, and the same as JSON."""

from __future__ import annotations

import os
import platform
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from liftlog.server.life.embedded import find_nats_server

from .figures import (
    FILES,
    FLOODS,
    JAR,
    JAR_FILES,
    KIND_LOADS,
    KINDS,
    LOADS,
    PARQUET,
    READ_KINDS,
    ROWS,
    SENDFILE,
    SPARK_ROWS,
    SPREAD,
    TUPLES,
    UNIX,
    WAYS,
    WINDOW,
    Measurements,
    Row,
    Series,
    kind_series,
    spread,
)
from .processes import fdatasync_us, file_system_of
from .reading import CONTENTS
from .replicated import R3_ALWAYS, R3_DEFAULT, RF1, RF3
from .replicating import ROWS as CLUSTER_ROWS
from .systems import ALWAYS, CEILING, DEFAULT, LIFTLOG

DURABILITY = {
    CEILING: "ceiling: nothing stored",
    DEFAULT: "JetStream default: no fsync before the ack",
    ALWAYS: "JetStream always: fsync of each message",
    LIFTLOG: "liftlog fsync: group commit before the ack",
    R3_DEFAULT: "JetStream R3 default: two of three wrote it",
    R3_ALWAYS: "JetStream R3 always: two of three fsynced it",
    RF3: "liftlog, three replicas: all in sync fsynced it",
    RF1: "liftlog, one replica",
}


def interpreter_build() -> str:
    """Return how the interpreter was built. Without optimisations it is 10 to 37 % slower."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS"))
    found = [one for one in ("--enable-optimizations", "--with-lto") if one in arguments]
    compiler = platform.python_compiler()
    return f"{compiler}, {' '.join(found) if found else 'built without optimisations'}"


def environment(directory: Path) -> dict[str, Any]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    version = subprocess.run(
        [find_nats_server(), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "build": interpreter_build(),
        "nats_server": version.stdout.strip(),
        "file_system": file_system_of(directory),
        "fdatasync_us": round(fdatasync_us(directory), 1),
        "load_average": os.getloadavg()[0],
    }


def ratios(measured: Measurements, rows: Sequence[Row] = ROWS) -> list[dict[str, Any]]:
    """Return one entry for each row that was measured completely."""
    found = []
    for row in rows:
        if measured.has(*row.needs):
            value = row.value(measured)
            found.append(
                {
                    "key": row.key,
                    "figure": row.title,
                    "value": value,
                    "must": row.must,
                    "reach": row.reach,
                    "verdict": row.verdict(value),
                    "ceiling": row.ceiling_value(measured),
                }
            )
    return found


def where(about: dict[str, Any], rounds: int) -> str:
    return (
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, {about['file_system']} "
        f"(fdatasync {about['fdatasync_us']:.0f} us), Python {about['python']} ({about['build']}), "
        f"{about['nats_server']}; load average before {about['load_average']:.1f}; "
        f"medians of {rounds} rounds"
    )


def render_spark(measured: Measurements, about: dict[str, Any], rounds: int) -> str:
    parts = [where(about, rounds)]
    for title, content in (
        ("Ratios", _ratio_table(measured, SPARK_ROWS)),
        ("Spark", _medians(measured, _SPARK)),
    ):
        parts += [f"{title}:", content]
    return "\n\n".join(parts)


def render_cluster(measured: Measurements, about: dict[str, Any], rounds: int) -> str:
    parts = [where(about, rounds)]
    for title, content in (
        ("Ratios", _ratio_table(measured, CLUSTER_ROWS)),
        ("Publishing, 256 B, acks per second [fsyncs per 1,000 acks]", _rates(measured)),
        ("Messages with headers, acks per second", _kinds(measured)),
        ("Round trip of a message, p50 / p99", _latencies(measured)),
        ("A new replica", _medians(measured, _NEW_REPLICA)),
    ):
        if content:
            parts += [f"{title}:", content]
    return "\n\n".join(parts)


def render(measured: Measurements, about: dict[str, Any], rounds: int) -> str:
    parts = [where(about, rounds)]
    for title, content in (
        ("Ratios", _ratio_table(measured)),
        ("Musts that the ceiling, which stores nothing, misses here too", _too_high(measured)),
        ("Publishing, 256 B, acks per second [fsyncs per 1,000 acks]", _rates(measured)),
        ("Messages with headers, in envelopes, acks per second", _kinds(measured)),
        ("128 in flight spread on connections, acks per second", _spread(measured)),
        ("Round trip of a message, p50 / p99", _latencies(measured)),
        ("Reading, MiB of values per second", _reading(measured)),
        ("Reading records of 256 B, per second", _read_kinds(measured)),
        ("Flood without acks, 128 B", _floods(measured)),
        ("Compaction, re-batching, recovery", _medians(measured, _CLEANING)),
        ("Consumers", _medians(measured, _CONSUMERS)),
        ("Idle daemon", _idle(measured)),
    ):
        if content:
            parts += [f"{title}:", content]
    return "\n\n".join(parts)


def _ratio_table(measured: Measurements, rows: Sequence[Row] = ROWS) -> str:
    by_key = {row.key: row for row in rows}
    lines = [("figure", "measured", "must", "reach", "verdict")]
    for entry in ratios(measured, rows):
        row = by_key[entry["key"]]
        bound = "<= " if row.lower_is_better else ""
        lines.append(
            (
                row.title,
                _number(entry["value"]) + row.unit,
                bound + _number(row.must),
                bound + _number(row.reach),
                entry["verdict"],
            )
        )
    return table(lines) if len(lines) > 1 else ""


def _too_high(measured: Measurements) -> str:
    lines = []
    for row in ROWS:
        top = row.ceiling_value(measured)
        if top is not None and row.verdict(top) == "SHORT":
            must = ("<= " if row.lower_is_better else "") + _number(row.must)
            lines.append(
                f"- {row.title}: a responder behind nats-server that stores nothing and acks at "
                f"once reaches {_number(top)}{row.unit}, the must is {must}{row.unit}."
            )
    return "\n".join(lines)


def _rates(measured: Measurements) -> str:
    names = _measured_by(measured, (*LOADS,))
    lines = [("connections x in flight", *(DURABILITY[name] for name in names))]
    for load in LOADS:
        cells = [_rate(measured, name, load) for name in names]
        if any(cells):
            lines.append((load, *cells))
    return table(lines) if names else ""


def _kinds(measured: Measurements) -> str:
    loads = ("64x100", "8x100", "8x1")
    names = _measured_by(measured, (*KIND_LOADS,))
    lines = [("messages", *(f"{load}, {DURABILITY[name]}" for load in loads for name in names))]
    for kind in (*KINDS, "duplicates"):
        cells = [_rate(measured, name, f"{load}-{kind}") for load in loads for name in names]
        if any(cells):
            lines.append((kind, *cells))
    return table(lines) if names else ""


def _spread(measured: Measurements) -> str:
    names = _measured_by(measured, (*SPREAD,))
    compared = {CEILING, LIFTLOG} <= set(names)
    more = ["liftlog / ceiling"] if compared else []
    lines = [["connections x in flight", *(DURABILITY[name] for name in names), *more]]
    for load in SPREAD:
        line = [load, *(_rate(measured, name, load) for name in names)]
        if compared:
            both = measured.has((LIFTLOG, load), (CEILING, load))
            line.append(_over_ceiling(measured, load) if both else "")
        lines.append(line)
    worst = [
        _number(spread(measured, name)) if measured.has(*((name, load) for load in SPREAD)) else ""
        for name in names
    ]
    lines.append(["worst / best", *worst, *([""] if compared else [])])
    return table(lines) if names else ""


def _over_ceiling(measured: Measurements, load: str) -> str:
    return _number(measured.median((LIFTLOG, load)) / measured.median((CEILING, load))) + "x"


def _rate(measured: Measurements, name: str, load: str) -> str:
    if not measured.has((name, load)):
        return ""
    samples = measured.samples[name, load]
    text = f"{measured.median((name, load)):,.0f} ({min(samples):,.0f}-{max(samples):,.0f})"
    if measured.has((name, f"{load}-fsyncs")):
        text += f" [{measured.median((name, f'{load}-fsyncs')):,.1f}]"
    return text


def _latencies(measured: Measurements) -> str:
    names = _measured_by(measured, ("1x1-p50", "8x1-p50"))
    lines = [("connections x in flight", *(DURABILITY[name] for name in names))]
    for load in ("1x1", "8x1"):
        cells = [
            f"{measured.median((name, f'{load}-p50')):,.0f} / "
            f"{measured.median((name, f'{load}-p99')):,.0f} us"
            if measured.has((name, f"{load}-p50"))
            else ""
            for name in names
        ]
        if any(cells):
            lines.append((load, *cells))
    return table(lines) if names else ""


def _reading(measured: Measurements) -> str:
    readers = {
        SENDFILE: "bare sendfile (file bytes)",
        LIFTLOG: "liftlog client, CRC verified",
        DEFAULT: "JetStream ordered consumer",
    }
    lines = [("records", *readers.values(), "liftlog records/s", "bytes on disk per record")]
    for what, content in CONTENTS.items():
        cells = [
            f"{measured.median((name, what)):,.0f}" if measured.has((name, what)) else ""
            for name in readers
        ]
        if not any(cells):
            continue
        per_second = size = ""
        if cells[1]:
            speed = measured.median((LIFTLOG, what)) * 2**20 / content.payload_bytes
            per_second = f"{speed:,.0f}"
            size = f"{measured.median((LIFTLOG, f'{what}-bytes-per-record')):,.0f}"
        how = f"{content.connections}x{content.in_flight}"
        lines.append((f"{content.payload_bytes} B written {how}", *cells, per_second, size))
    return table(lines) if len(lines) > 1 else ""


def _read_kinds(measured: Measurements) -> str:
    lines = [("read", *READ_KINDS)]
    for way, how in WAYS.items():
        series = [(LIFTLOG, kind_series(kind, way)) for kind in READ_KINDS]
        cells = [f"{measured.median(one):,.0f}" if measured.has(one) else "" for one in series]
        if any(cells):
            lines.append((how, *cells))
    return table(lines) if len(lines) > 1 else ""


def _floods(measured: Measurements) -> str:
    header = ("messages", "published/s", "liftlog stored", "peak memory", "JetStream kept")
    lines: list[tuple[str, ...]] = [header]
    for count in FLOODS:
        series = f"flood-{count}"
        if not measured.has((LIFTLOG, series)) and not measured.has((DEFAULT, series)):
            continue
        ours = [""] * 3
        if measured.has((LIFTLOG, series)):
            peak = max(measured.samples[LIFTLOG, f"{series}-peak-rss"]) / 2**20
            share = max(measured.samples[LIFTLOG, f"{series}-memory-share"])
            ours = [
                f"{measured.median((LIFTLOG, f'{series}-rate')):,.0f}",
                f"{min(measured.samples[LIFTLOG, series]):,.0f}",
                f"{peak:,.0f} MiB, growth {share:.0%} of the bound",
            ]
        kept = ""
        if measured.has((DEFAULT, series)):
            kept = f"{min(measured.samples[DEFAULT, series]):,.0f}"
        lines.append((f"{count:,}", *ours, kept))
    return table(lines) if len(lines) > 1 else ""


def _idle(measured: Measurements) -> str:
    if not measured.has((LIFTLOG, "idle")):
        return ""
    cpu, rss = (measured.median((LIFTLOG, what)) for what in ("idle", "idle-rss"))
    return table(
        [("streams", "CPU", "memory"), ("100", f"{cpu:.2f} % of a core", f"{rss / 2**20:.0f} MiB")]
    )


_CLEANING = {
    "compaction": ("compaction, MB/s of input", 0),
    "compaction-cpu": ("the same for each second of CPU time", 0),
    "keyed-input": ("compaction of keyed records, records/s", 0),
    "headers-input": ("the same with headers, records/s", 0),
    "key-memory": ("bytes per distinct key, peak of the process", 1),
    "key-memory-map": ("bytes per distinct key, the map itself", 1),
    "alone-p99": ("p99 of an ack at half of peak load, us", 0),
    "beside-p99": ("the same beside a compaction, us", 0),
    "alone-kept": ("acked in time at half of peak load", 4),
    "beside-kept": ("the same beside a compaction", 4),
    "rebatch-before": ("one-record batches read as written, records/s", 0),
    "rebatch-after": ("the same re-batched, records/s", 0),
    "recovery": ("recovery scan, MB/s", 0),
    "recovery-crc": ("reading and CRC of the same bytes, MB/s", 0),
}


_NEW_REPLICA = {
    (RF3, "grown-p99"): ("p99 of an ack at half of peak load, us", 0),
    (RF3, "growing-p99"): ("the same while a new replica fetches the stream, us", 0),
    (RF3, "growing-seconds"): ("until it was in sync, s", 1),
}


_CONSUMERS = {
    "cold": ("read from files that are not in memory, MiB/s", 0),
    "tailing-p50": ("64 consumers tail 10,000 msg/s: delivered after, p50, ms", 1),
    "tailing-p99": ("the same, p99, ms", 1),
    "ingest-alone": ("peak of 8 publishers, msg/s", 0),
    "ingest-tailed": ("the same with 64 consumers tailing, msg/s", 0),
    "tailed-delivered": ("part of it that the slowest consumer had at the end", 3),
    "filtered": ("bytes sent for a filter of 1 %, %", 2),
    "filtered-scan": ("scanned for it, MiB/s", 0),
    "checkpoints": ("durable checkpoint commits of 100 consumers, per second", 0),
    "acl-decision": ("a decision of the ACL, us", 1),
}


_SCANS = {
    LIFTLOG: "scan from the daemon",
    UNIX: "scan from the daemon, Unix socket",
    FILES: "scan of the stream's files",
    PARQUET: "scan of zstd Parquet",
    TUPLES: "scan from the daemon, by tuples",
}
_SPARK = {
    **{(who, "scan"): (f"{title}, M records/s", 2) for who, title in _SCANS.items()},
    **{(who, "scan-cpu"): (f"{title}, CPU seconds", 2) for who, title in _SCANS.items()},
    **{
        (who, "scan-default"): (f"{title}, M records/s, Spark's own settings", 2)
        for who, title in _SCANS.items()
    },
    **{
        (who, "scan-cpu-default"): (f"{title}, CPU seconds, Spark's own settings", 2)
        for who, title in _SCANS.items()
    },
    **{
        (who, f"long-{what}{kind}" if what else f"long{kind}"): (f"{title}, {way}, {unit}", 2)
        for what, title in (
            ("", "all of 4 times as many rows"),
            ("subject", "of them one subject"),
            ("hour", "of them one hour"),
            ("key", "of them one key"),
        )
        for who, way in ((JAR_FILES, "jar from files"), (JAR, "jar over TCP"))
        for kind, unit in (("", "M records/s passed or skipped"), ("-cpu", "CPU seconds of Spark"))
    },
    (JAR, "streaming"): ("streaming by the jar, records/s", 0),
    (JAR, "streaming-lag-p50"): ("lag at 50,000 records/s, p50, s", 2),
    (JAR, "streaming-lag-p99"): ("the same, p99", 2),
    (JAR, "streaming-acked"): ("acked in time while it lagged so, records/s", 0),
    (LIFTLOG, "export"): ("compacted export, M records/s of input", 2),
    (WINDOW, "export"): ("the same with a plain window plan", 2),
    (LIFTLOG, "incremental"): ("1 % changed keys, bytes written / table, merged on read", 3),
    (LIFTLOG, "incremental-series"): ("the same, mean of 30 runs with a fold", 3),
    (LIFTLOG, "incremental-rewriting"): ("the same with copy on write", 3),
    (LIFTLOG, "decoder"): ("decoder, M records per second of CPU time", 2),
    (TUPLES, "decoder"): ("decoding to tuples", 2),
    (TUPLES, "decoder-bare"): ("the same with numbers for timestamps", 2),
    (LIFTLOG, "memory-small"): ("memory of a task, MiB", 0),
    (LIFTLOG, "memory"): ("the same, stream 4 times as long", 0),
    (LIFTLOG, "memory-compact-small"): ("memory of a task with compact, MiB", 0),
    (LIFTLOG, "memory-compact"): ("the same, stream 4 times as long", 0),
}


def _medians(
    measured: Measurements, titles: Mapping[str, tuple[str, int]] | Mapping[Series, tuple[str, int]]
) -> str:
    lines: list[tuple[str, ...]] = [("", "median", "range")]
    for what, (title, digits) in titles.items():
        series = (LIFTLOG, what) if isinstance(what, str) else what
        if measured.has(series):
            samples = measured.samples[series]
            median = f"{measured.median(series):,.{digits}f}"
            lines.append((title, median, f"{min(samples):,.{digits}f}-{max(samples):,.{digits}f}"))
    return table(lines) if len(lines) > 1 else ""


def _measured_by(measured: Measurements, series: Sequence[str]) -> list[str]:
    return [n for n in DURABILITY if any(measured.has((n, what)) for what in series)]


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def table(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rendered = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rendered.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rendered)


def shortfalls(measured: Measurements, rows: Sequence[Row] = ROWS) -> list[str]:
    return [entry["key"] for entry in ratios(measured, rows) if entry["verdict"] == "SHORT"]


def row_keys() -> list[str]:
    return [row.key for row in ROWS]


def rows(keys: Sequence[str]) -> list[Row]:
    return [row for row in ROWS if not keys or row.key in keys]
