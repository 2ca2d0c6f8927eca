"""The rows of the table: the compared figures, the required values, and the verdict."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from .systems import ALWAYS, CEILING, DEFAULT, LIFTLOG

SENDFILE = "sendfile"
CAT = "cat"
PARQUET = "parquet"
UNIX, FILES = "liftlog, unix socket", "liftlog, files"
JAR, JAR_FILES = "liftlog, jar", "liftlog, jar, files"
TUPLES = "tuples"
WINDOW = "window plan"
FLOODS = (500_000, 1_000_000)
"""Messages of each."""

Series = tuple[str, str]
"""A system and what was measured: ("liftlog", "64x100")."""


class Measurements:
    """Samples of each series, one per round."""

    def __init__(self) -> None:
        self.samples: dict[Series, list[float]] = defaultdict(list)

    def add(self, who: str, what: str, value: float) -> None:
        self.samples[who, what].append(value)

    def has(self, *series: Series) -> bool:
        return all(self.samples.get(one) for one in series)

    def median(self, series: Series) -> float:
        return statistics.median(self.samples[series])


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    title: str
    needs: tuple[Series, ...]
    value: Callable[[Measurements], float]
    must: float
    reach: float
    lower_is_better: bool = False
    unit: str = "x"
    beside: tuple[Series, ...] = ()
    """Figures measured in addition, for explanation. They do not affect the verdict."""
    ceiling: Callable[[Measurements], float] | None = None
    """The value that the ceiling reaches instead of liftlog."""

    def ceiling_value(self, measured: Measurements) -> float | None:
        theirs = [series for series in self.beside if series[0] == CEILING]
        if self.ceiling is None or not measured.has(*self.needs, *theirs):
            return None
        return self.ceiling(measured)

    def verdict(self, value: float) -> str:
        if self._meets(value, self.reach):
            return "reached"
        return "met" if self._meets(value, self.must) else "SHORT"

    def _meets(self, value: float, bound: float) -> bool:
        return value <= bound if self.lower_is_better else value >= bound


SPREAD = {"1x128": (1, 128), "4x32": (4, 32), "16x8": (16, 8), "64x2": (64, 2), "128x1": (128, 1)}
LOADS = {"1x1": (1, 1), "8x1": (8, 1), "1x100": (1, 100), "8x100": (8, 100), "64x100": (64, 100)}

KINDS = ("header", "key", "id", "key+id", "envelope", "liftbridge")
KIND_LOADS = {
    f"{load}-{kind}": (kind, *LOADS[load]) for load in ("64x100", "8x100", "8x1") for kind in KINDS
} | {"64x100-duplicates": ("duplicates", 64, 100)}
"""Tuples (kind of the messages, connections, number in flight on each connection)."""
STREAM_LOADS = {f"64x12-over-{streams}": (streams, 64, 12) for streams in (1, 4, 16, 64)}
"""Tuples (streams, connections, number in flight on each connection)."""


def _ratio(
    key: str,
    title: str,
    over: Series,
    under: Series,
    must: float,
    reach: float,
    *,
    lower_is_better: bool = False,
) -> Row:
    def value(measured: Measurements) -> float:
        return measured.median(over) / measured.median(under)

    row = Row(key, title, (over, under), value, must, reach, lower_is_better)
    if over[1].removesuffix("-p50") not in LOADS:
        return row
    top: Series = (CEILING, over[1])

    def ceiling(measured: Measurements) -> float:
        return measured.median(top) / measured.median(under)

    return replace(row, beside=(top,), ceiling=ceiling)


_BESIDE_PLAIN = {
    "header": ("one foreign header", 0.75, 0.9),
    "key": ("`Liftlog-Key`", 0.65, 0.8),
    "id": ("`Nats-Msg-Id`, all new", 0.55, 0.75),
    "key+id": ("key and id", 0.5, 0.7),
    "envelope": ("our envelope with a key", 0.45, 0.6),
    "liftbridge": ("Liftbridge's envelope", 0.35, 0.5),
}
"""Maps each kind of message to (title, must, reach) of the row that compares it with plain
messages."""


def _stream_rows() -> tuple[Row, ...]:
    bounds = zip(
        STREAM_LOADS.items(), ((1.0, 1.2), (0.8, 1.0), (0.75, 1.0), (0.5, 0.8)), strict=True
    )
    return tuple(
        _ratio(
            f"{load}-vs-default",
            f"durable 64x12 over {streams} streams / JetStream that does not fsync",
            (LIFTLOG, load),
            (DEFAULT, load),
            must,
            reach,
        )
        for (load, (streams, _, _)), (must, reach) in bounds
    )


def _kind_rows() -> tuple[Row, ...]:
    rows = []
    for kind, (title, must, reach) in _BESIDE_PLAIN.items():
        over = (LIFTLOG, f"64x100-{kind}")
        key = f"{kind}-vs-plain"
        rows.append(_ratio(key, f"{title} / plain", over, (LIFTLOG, "64x100"), must, reach))
    over, under = (LIFTLOG, "64x100-duplicates"), (LIFTLOG, "64x100-id")
    rows.append(_ratio("duplicates-vs-new", "half duplicates by id / all new", over, under, 1, 1.3))
    for load, must, reach in (("64x100", 0.8, 1.1), ("8x100", 0.6, 0.8)):
        for kind, (title, _, _) in _BESIDE_PLAIN.items():
            if kind in ("envelope", "liftbridge"):
                continue  # JetStream does not open envelopes, so it stores plain messages
            name = f"{load}-{kind}"
            title = f"{title}, {load} / JetStream that does not fsync, with the same"
            row = _ratio(f"{name}-vs-default", title, (LIFTLOG, name), (DEFAULT, name), must, reach)
            small = f"8x1-{kind}"
            rows.append(replace(row, beside=((LIFTLOG, small), (DEFAULT, small))))
    return tuple(rows)


WAYS = {
    "values": "values by batch",
    "columns": "values, keys and header blocks by batch",
    "records": "one record at a time",
    "fields": "one record at a time, all fields and a header",
    "arrow": "as Arrow",
}
"""Ways to read."""
READ_KINDS = ("plain", "key", "key+id")


def kind_series(kind: str, way: str) -> str:
    """Records per second."""
    return f"read-{way}-{kind}"


def _read_rows() -> tuple[Row, ...]:
    rows = []
    for kind, (must, reach) in {"key": (0.6, 0.8), "key+id": (0.5, 0.7)}.items():
        for way, how in WAYS.items():
            over, under = (LIFTLOG, kind_series(kind, way)), (LIFTLOG, kind_series("plain", way))
            title = f"read 256 B with {_BESIDE_PLAIN[kind][0]}, {how} / plain"
            less = 0.2 if way == "fields" else 0.0  # a plain record has no header
            bounds = round(must - less, 1), round(reach - less, 1)
            rows.append(_ratio(f"read-{way}-{kind}-vs-plain", title, over, under, *bounds))
    return tuple(rows)


def spread(measured: Measurements, who: str) -> float:
    """Worst / best."""
    medians = [measured.median((who, load)) for load in SPREAD]
    return min(medians) / max(medians)


def _flood_value(measured: Measurements) -> float:
    """Return the largest flood that was stored completely within the memory limit."""
    passed = [
        count
        for count in FLOODS
        if measured.has((LIFTLOG, f"flood-{count}"))
        and min(measured.samples[LIFTLOG, f"flood-{count}"]) >= count
        and max(measured.samples[LIFTLOG, f"flood-{count}-memory-share"]) <= 1
    ]
    return max(passed, default=0)


ROWS = (
    _ratio(
        "64x100-vs-default",
        "durable 64x100 / JetStream that does not fsync",
        (LIFTLOG, "64x100"),
        (DEFAULT, "64x100"),
        0.8,
        1.2,
    ),
    _ratio(
        "8x100-vs-default",
        "durable 8x100 / JetStream that does not fsync",
        (LIFTLOG, "8x100"),
        (DEFAULT, "8x100"),
        0.6,
        1.0,
    ),
    _ratio(
        "64x100-vs-always",
        "durable 64x100 / JetStream always",
        (LIFTLOG, "64x100"),
        (ALWAYS, "64x100"),
        25,
        50,
    ),
    _ratio(
        "8x1-vs-always",
        "8 synchronous publishers / JetStream always",
        (LIFTLOG, "8x1"),
        (ALWAYS, "8x1"),
        1.3,
        2,
    ),
    _ratio(
        "lone-p50-vs-always",
        "lone publisher's p50 / JetStream always",
        (LIFTLOG, "1x1-p50"),
        (ALWAYS, "1x1-p50"),
        1.3,
        1.0,
        lower_is_better=True,
    ),
    *_kind_rows(),
    *_stream_rows(),
    Row(
        "spread",
        "128 in flight on 1, 4, 16, 64, 128 connections, worst / best",
        tuple((LIFTLOG, load) for load in SPREAD),
        lambda measured: spread(measured, LIFTLOG),
        0.6,
        0.8,
        beside=tuple((who, load) for who in (CEILING, DEFAULT) for load in SPREAD),
        ceiling=lambda measured: spread(measured, CEILING),
    ),
    _ratio(
        "read-2k-vs-sendfile",
        "read 2 KiB in batches / bare sendfile",
        (LIFTLOG, "read-2k"),
        (SENDFILE, "read-2k"),
        0.35,
        0.7,
    ),
    _ratio(
        "read-2k-vs-ordered",
        "read 2 KiB in batches / JetStream ordered consumer",
        (LIFTLOG, "read-2k"),
        (DEFAULT, "read-2k"),
        5,
        10,
    ),
    _ratio(
        "read-256-vs-ordered",
        "read 256 B in batches / JetStream ordered consumer",
        (LIFTLOG, "read-256"),
        (DEFAULT, "read-256"),
        15,
        30,
    ),
    _ratio(
        "read-tiny-vs-ordered",
        "the same from a log of 8 synchronous publishers",
        (LIFTLOG, "read-tiny"),
        (DEFAULT, "read-tiny"),
        2,
        5,
    ),
    *_read_rows(),
    Row(
        "flood",
        "un-acked flood of 128 B, nothing lost, memory within the bound",
        ((LIFTLOG, "flood-500000"),),
        _flood_value,
        500_000,
        1_000_000,
        unit=" messages",
    ),
    Row(
        "idle",
        "idle daemon with 100 streams",
        ((LIFTLOG, "idle"),),
        lambda measured: measured.median((LIFTLOG, "idle")),
        2,
        0.5,
        lower_is_better=True,
        unit=" % of a core",
    ),
    Row(
        "compaction",
        "compaction of 10 million 100 B records, 1 million keys, unthrottled",
        ((LIFTLOG, "compaction"),),
        lambda measured: measured.median((LIFTLOG, "compaction")),
        60,
        150,
        unit=" MB/s",
    ),
    _ratio(
        "compaction-headers",
        "compaction of records with headers / with keys only, records",
        (LIFTLOG, "headers-input"),
        (LIFTLOG, "keyed-input"),
        0.6,
        0.8,
    ),
    Row(
        "key-memory",
        "memory for each distinct key, at the peak",
        ((LIFTLOG, "key-memory"),),
        lambda measured: measured.median((LIFTLOG, "key-memory")),
        60,
        32,
        lower_is_better=True,
        unit=" B",
        beside=((LIFTLOG, "key-memory-map"),),
    ),
    _ratio(
        "beside-kept",
        "half of peak load beside a compaction, acked in time / without one",
        (LIFTLOG, "beside-kept"),
        (LIFTLOG, "alone-kept"),
        0.95,
        0.99,
    ),
    _ratio(
        "beside-p99",
        "p99 of an ack beside a compaction / without one",
        (LIFTLOG, "beside-p99"),
        (LIFTLOG, "alone-p99"),
        3,
        1.5,
        lower_is_better=True,
    ),
    _ratio(
        "rebatched",
        "read a log of one-record batches, re-batched / as written",
        (LIFTLOG, "rebatch-after"),
        (LIFTLOG, "rebatch-before"),
        4,
        8,
    ),
    Row(
        "recovery",
        "recovery scan of an unclean tail",
        ((LIFTLOG, "recovery"),),
        lambda measured: measured.median((LIFTLOG, "recovery")),
        300,
        300,
        unit=" MB/s",
    ),
    _ratio(
        "recovery-vs-crc",
        "the same / only reading and checksumming those bytes",
        (LIFTLOG, "recovery"),
        (LIFTLOG, "recovery-crc"),
        0,
        0.9,
    ),
    _ratio(
        "cold-vs-cat",
        "read 2 KiB from files that are not in memory / cat of them",
        (LIFTLOG, "cold"),
        (CAT, "cold"),
        0.5,
        0.9,
    ),
    Row(
        "tailing-p99",
        "64 consumers tail 10,000 msg/s, every message, p99 from the stamp to the consumer",
        ((LIFTLOG, "tailing-p99"),),
        lambda measured: measured.median((LIFTLOG, "tailing-p99")),
        250,
        50,
        lower_is_better=True,
        unit=" ms",
        beside=((LIFTLOG, "tailing-p50"),),
    ),
    _ratio(
        "ingest-tailed",
        "peak of 8 publishers, 64 consumers tailing / none",
        (LIFTLOG, "ingest-tailed"),
        (LIFTLOG, "ingest-alone"),
        0.5,
        0.8,
    ),
    Row(
        "filtered-bytes",
        "bytes sent to a consumer whose filter matches 1 %",
        ((LIFTLOG, "filtered"),),
        lambda measured: measured.median((LIFTLOG, "filtered")),
        5,
        2,
        lower_is_better=True,
        unit=" %",
        beside=((LIFTLOG, "filtered-scan"),),
    ),
    Row(
        "checkpoints",
        "durable checkpoint commits of 100 consumers",
        ((LIFTLOG, "checkpoints"),),
        lambda measured: measured.median((LIFTLOG, "checkpoints")),
        5_000,
        20_000,
        unit="/s",
    ),
    Row(
        "group-members",
        "16 members of a group beside one plain reader, each on a core of its own, 256 B",
        ((LIFTLOG, "grouped"), (LIFTLOG, "grouped-plain")),
        lambda measured: (
            measured.median((LIFTLOG, "grouped")) / measured.median((LIFTLOG, "grouped-plain"))
        ),
        1.0,
        4.0,
    ),
    Row(
        "group-members-by-batch",
        "the same, lists of records on both sides",
        ((LIFTLOG, "grouped-by-batch"), (LIFTLOG, "grouped-plain-by-batch")),
        lambda measured: (
            measured.median((LIFTLOG, "grouped-by-batch"))
            / measured.median((LIFTLOG, "grouped-plain-by-batch"))
        ),
        1.0,
        4.0,
    ),
    Row(
        "group-members-wall",
        "16 members beside one plain reader, by the clock, all on this machine's cores, 256 B",
        ((LIFTLOG, "grouped-wall"), (LIFTLOG, "grouped-plain-wall")),
        lambda measured: (
            measured.median((LIFTLOG, "grouped-wall"))
            / measured.median((LIFTLOG, "grouped-plain-wall"))
        ),
        1.0,
        1.0,
    ),
    Row(
        "group-members-wall-by-batch",
        "the same, lists of records on both sides",
        ((LIFTLOG, "grouped-wall-by-batch"), (LIFTLOG, "grouped-plain-wall-by-batch")),
        lambda measured: (
            measured.median((LIFTLOG, "grouped-wall-by-batch"))
            / measured.median((LIFTLOG, "grouped-plain-wall-by-batch"))
        ),
        1.0,
        1.0,
    ),
    Row(
        "group-live",
        "16 members while 100,000 records of 256 B are published each second",
        ((LIFTLOG, "grouped-live"),),
        lambda measured: measured.median((LIFTLOG, "grouped-live")),
        95_000,
        95_000,
        unit="/s",
        beside=((LIFTLOG, "grouped-live-plain"),),
    ),
    Row(
        "group-live-vs-plain",
        "16 members on 100,000 records/s of 256 B beside one plain reader of such a stream",
        ((LIFTLOG, "grouped-live"), (LIFTLOG, "grouped-live-plain")),
        # No reader can read more than is published. Differences below half a percent come from
        # messages in flight at the beginning and the end of the time.
        lambda measured: round(
            measured.median((LIFTLOG, "grouped-live"))
            / measured.median((LIFTLOG, "grouped-live-plain")),
            2,
        ),
        1.0,
        1.0,
    ),
    Row(
        "group-takeover",
        "from a member's kill until others read all of its slots, beyond its session",
        ((LIFTLOG, "group-takeover"),),
        lambda measured: measured.median((LIFTLOG, "group-takeover")),
        1.0,
        0.2,
        lower_is_better=True,
        unit=" s",
    ),
    Row(
        "group-pause",
        "p99 delay of records of slots that stay, while others move, to that while plain readers "
        "are killed and start",
        ((LIFTLOG, "group-delay-near"), (LIFTLOG, "group-delay-beside")),
        lambda measured: statistics.median(
            [
                near / beside
                for near, beside in zip(
                    measured.samples[LIFTLOG, "group-delay-near"],
                    measured.samples[LIFTLOG, "group-delay-beside"],
                    strict=True,
                )
            ]
        ),
        1.2,
        1.0,
        lower_is_better=True,
    ),
    Row(
        "group-commits",
        "durable commits of 100 groups, 64 slots each",
        ((LIFTLOG, "group-commits"),),
        lambda measured: measured.median((LIFTLOG, "group-commits")),
        5_000,
        20_000,
        unit="/s",
    ),
    Row(
        "acl-decision",
        "a decision of the ACL, 100 principals with three roles",
        ((LIFTLOG, "acl-decision"),),
        lambda measured: measured.median((LIFTLOG, "acl-decision")),
        20,
        10,
        lower_is_better=True,
        unit=" us",
    ),
    Row(
        "scrape",
        "scrape of a daemon with 500 streams, the slowest of ten",
        ((LIFTLOG, "scrape"),),
        lambda measured: measured.median((LIFTLOG, "scrape")),
        250,
        100,
        lower_is_better=True,
        unit=" ms",
    ),
    Row(
        "scrape-ping",
        "p99 of a ping while it is scraped without a pause",
        ((LIFTLOG, "scrape-ping-p99"),),
        lambda measured: measured.median((LIFTLOG, "scrape-ping-p99")),
        50,
        10,
        lower_is_better=True,
        unit=" ms",
    ),
    Row(
        "reload",
        "messages and answers that reloads under load cost",
        ((LIFTLOG, "reload-dropped"),),
        lambda measured: max(measured.samples[LIFTLOG, "reload-dropped"]),
        0,
        0,
        lower_is_better=True,
    ),
    Row(
        "term",
        "kill -TERM under full load until it has ended with 0",
        ((LIFTLOG, "term"),),
        lambda measured: max(measured.samples[LIFTLOG, "term"]),
        5,
        2,
        lower_is_better=True,
        unit=" s",
    ),
)


SPARK_ROWS = (
    _ratio(
        "spark-scan-vs-parquet",
        "Spark scans all rows / the same rows in zstd Parquet",
        (LIFTLOG, "scan"),
        (PARQUET, "scan"),
        0.7,
        1.0,
    ),
    _ratio(
        "spark-unix-vs-parquet",
        "the same over a Unix socket",
        (UNIX, "scan"),
        (PARQUET, "scan"),
        0.7,
        1.0,
    ),
    _ratio(
        "spark-files-vs-parquet",
        "the same from the stream's files, without a daemon",
        (FILES, "scan"),
        (PARQUET, "scan"),
        0.7,
        1.0,
    ),
    *(
        _ratio(
            f"spark-{key}-vs-parquet-default",
            f"the same {way}, with Spark's own settings",
            (who, "scan-default"),
            (PARQUET, "scan-default"),
            0.0,  # no must: shown in addition to the fast ones
            1.0,
        )
        for key, way, who in (
            ("scan", "over TCP", LIFTLOG),
            ("unix", "over a Unix socket", UNIX),
            ("files", "from files", FILES),
        )
    ),
    *(
        _ratio(
            f"spark-jar-{key}",
            f"the jar {way} / zstd Parquet",
            (who, what),
            (PARQUET, what),
            must,
            reach,
        )
        for key, way, who, what, must, reach in (
            ("files-vs-parquet", "scans all rows from files", JAR_FILES, "scan", 1.3, 2.0),
            ("scan-vs-parquet", "scans all rows over TCP", JAR, "scan", 1.0, 1.5),
            ("files-count", "counts rows from files", JAR_FILES, "count", 0.7, 1.0),
            ("count", "counts rows over TCP", JAR, "count", 0.7, 1.0),
            ("files-column", "sums one column from files", JAR_FILES, "column", 0.7, 1.0),
            ("column", "sums one column over TCP", JAR, "column", 0.7, 1.0),
        )
    ),
    *(
        _ratio(
            f"spark-jar-{key}-{what}",
            f"the jar reads {title} / all rows, {way}",
            (who, f"long-{what}"),
            (who, "long"),
            5,
            20,
        )
        for key, way, who in (("files", "from files", JAR_FILES), ("tcp", "over TCP", JAR))
        for what, title in (
            ("subject", "one subject of 100, which every batch has"),
            ("hour", "one hour of 24"),
            ("key", "one key"),
        )
    ),
    Row(
        "spark-jar-streaming",
        "the jar over TCP in micro-batches of 500,000, records",
        ((JAR, "streaming"),),
        lambda measured: measured.median((JAR, "streaming")),
        500_000,
        1_000_000,
        unit="/s",
    ),
    Row(
        "spark-jar-lag",
        "p99 from the stamp of a record to the commit of its micro-batch, 50,000 records/s",
        ((JAR, "streaming-lag-p99"),),
        lambda measured: measured.median((JAR, "streaming-lag-p99")),
        3,
        1.5,
        lower_is_better=True,
        unit=" s",
        beside=((JAR, "streaming-lag-p50"),),
    ),
    _ratio(
        "spark-scan-vs-tuples",
        "Spark scans all rows / a source that yields tuples",
        (LIFTLOG, "scan"),
        (TUPLES, "scan"),
        2.5,
        4,
    ),
    _ratio(
        "spark-export-vs-window",
        "compacted export / plain window plan",
        (LIFTLOG, "export"),
        (WINDOW, "export"),
        4,
        6,
    ),
    Row(
        "spark-export-incremental",
        "incremental export, 1 % changed keys, merged on read: bytes written / table",
        ((LIFTLOG, "incremental"),),
        lambda measured: measured.median((LIFTLOG, "incremental")),
        0.15,
        0.05,
        lower_is_better=True,
        unit="",
        beside=((LIFTLOG, "incremental-rewriting"), (LIFTLOG, "incremental-series")),
    ),
    _ratio(
        "spark-decoder-vs-tuples",
        "decoder alone, CPU time / decoding to tuples",
        (LIFTLOG, "decoder"),
        (TUPLES, "decoder"),
        4,
        8,
    ),
    _ratio(
        "spark-memory",
        "memory of a task, stream 4 times as long",
        (LIFTLOG, "memory"),
        (LIFTLOG, "memory-small"),
        1.25,
        1.1,
        lower_is_better=True,
    ),
    _ratio(
        "spark-memory-compact",
        "the same with compact",
        (LIFTLOG, "memory-compact"),
        (LIFTLOG, "memory-compact-small"),
        1.25,
        1.1,
        lower_is_better=True,
    ),
)
