"""The worked example step by step: publish, compact, export, publish more, export again, query."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import nats
from nats.aio.client import Client as NatsClient

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.text import plural, show_size
from liftlog.cli.stream_words import describe_last_pass
from liftlog.client import connect
from liftlog.client.publisher import Published, Publisher
from liftlog.demo.running import DemoDaemon, Story, conclude, until_signal
from liftlog.server.life.embedded import EmbeddedNats
from orders_into_a_lake.queries import (
    BY_STATE,
    ORDERS,
    REVENUE_BY_DAY,
    Findings,
    ask,
    draw_chart,
    find_differences,
    show_money,
)
from orders_into_a_lake.shop import (
    CANCELLED,
    FIRST_EXPORT,
    STATES,
    Change,
    books,
    changes,
    split_at,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from liftlog.spark.export.snapshot import Snapshot

STREAM = "orders"
_ACK_SECONDS = 60.0

_CONFIG = """\
data_dir: {data_dir}
nats: {{servers: ["{nats_url}"]}}
pull: {{listen: ["tcp://127.0.0.1:0"]}}       # any free port
http: {{listen: "127.0.0.1:0"}}
streams:
  orders:
    subject: "orders.>"
    compaction: {{min_lag: 0s}}               # keep the newest record of each key
    dedupe_window: 0s                       # compaction would wait for it
"""


def run_demo(
    orders: int, *, chart: Path | None, keep: bool, spark: SparkSession | None = None
) -> ExitCode:
    """Run the demo. The chart is written to `chart`. `spark` is the session of this process, if it
    has one; it stays open. Raises LiftlogError, PublishFailed."""
    directory = Path(tempfile.mkdtemp(prefix="liftlog-orders-into-a-lake-"))
    try:
        return asyncio.run(
            until_signal(lambda stack: _Demo(directory, orders, chart, spark, stack).run())
        )
    finally:
        if keep:
            Story().tell(f"The files are kept in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


class _Demo:
    """The demo. Everything runs in one thread, even blocking work, because nothing else has to run
    at the same time. Spark finds its session, and the sinks registered with it, by the calling
    thread."""

    def __init__(
        self,
        directory: Path,
        orders: int,
        chart: Path | None,
        spark: SparkSession | None,
        stack: contextlib.AsyncExitStack,
    ) -> None:
        self._directory = directory
        self._spark = spark
        self._chart = chart or directory / "orders.png"
        self._stack = stack
        self._story = Story()
        self._problems: list[str] = []
        self._lake = directory / "lake" / "orders"
        self._daemon = DemoDaemon(directory / "liftlog.yaml", directory / "data")
        self._changes = changes(orders)
        self._before, self._after = split_at(self._changes, FIRST_EXPORT)

    async def run(self) -> ExitCode:
        self._story.title("Orders from NATS into a lake, queried with Spark SQL")
        nc = await self._start()
        last = await self._publish(nc, self._before, 0)
        await self._compact()
        spark = self._start_spark()
        first = self._first_export(spark, last)
        last = await self._third_week(nc, last)
        second = self._second_export(spark, last)
        self._full_export(spark)
        self._query(first, second)
        await self._daemon.stop()
        return conclude(
            self._story,
            self._problems,
            "the lake holds what the shop's books say. Next: `liftlog docs tutorial/spark`",
        )

    # --- the chapters ---

    async def _start(self) -> NatsClient:
        story = self._story
        story.chapter("A shop publishes its orders on NATS")
        server = EmbeddedNats(self._directory / "nats")
        self._stack.push_async_callback(server.stop)
        url = await server.start()
        text = _CONFIG.format(data_dir=self._directory / "data", nats_url=url)
        (self._directory / "liftlog.yaml").write_text(text)
        self._stack.push_async_callback(self._daemon.stop)
        await self._daemon.start()
        story.tell(
            f"nats-server listens on {url}. Next to it, liftlog records all that is published on",
            "orders.> in a compacted stream:",
        )
        story.show(text)
        nc = await nats.connect(url, name="demo shop")
        self._stack.push_async_callback(nc.close)
        return nc

    async def _publish(self, nc: NatsClient, part: list[Change], last: int) -> int:
        story = self._story
        story.tell(
            "At each change the shop publishes the whole order, with its number as the key. Here "
            "is",
            "an order that was paid, became cheaper and was delivered, and one that was cancelled",
            "(a tombstone: a key without a value):",
        )
        rows = [*_life_of(part, 4), *_life_of(part, cancelled=True)]
        story.table(("SUBJECT", "KEY", "VALUE"), rows)
        started = time.monotonic()
        last = await publish(nc, part, last)
        story.good(
            f"Two weeks: {len(part):,} changes of {_orders(part):,} orders published and acked in "
            f"{time.monotonic() - started:.1f} s."
        )
        return last

    async def _compact(self) -> None:
        story = self._story
        story.chapter("Compaction keeps the newest record of each key")
        story.command("liftlog stream compact orders")
        client = await connect(self._daemon.pull_address)
        try:
            info = await client.compact_stream(STREAM, wait=True)
        finally:
            await client.close()
        story.tell(
            f"{describe_last_pass(info.compaction)}. A tombstone stays for a day, so that exports",
            "learn of the deletion.",
        )
        kept = info.compaction["last_pass"]["records_out"]
        if kept != _orders(self._before):
            self._problems.append(
                f"compaction kept {kept} records of {_orders(self._before)} orders"
            )

    def _start_spark(self) -> SparkSession:
        from liftlog.spark.export.session import open_session

        story = self._story
        story.chapter("The first export")
        started = time.monotonic()
        _interrupt_at_once()
        spark = self._spark
        if spark is None:
            spark = open_session(None)
            self._stack.callback(spark.stop)
            spark.sparkContext.setLogLevel("ERROR")
        story.tell(
            f"Spark {spark.version} is up after {time.monotonic() - started:.1f} s, on all cores",
            "of this machine. It could be a cluster: nothing else would change.",
        )
        return spark

    def _first_export(self, spark: SparkSession, last: int) -> Findings:
        story = self._story
        snapshot = self._export(self._lake)
        if (snapshot.from_offset, snapshot.to_offset) != (1, last + 1):
            self._problems.append(
                f"the first export covered [{snapshot.from_offset}, {snapshot.to_offset}), not "
                f"[1, {last + 1})"
            )
        found = self._compare(spark, self._before)
        gone = _orders(self._before) - snapshot.rows
        story.good(
            f"The lake holds {snapshot.rows:,} orders in their newest state, as the shop's books "
            f"say. {gone:,} were cancelled and are gone."
        )
        return found

    async def _third_week(self, nc: NatsClient, last: int) -> int:
        story = self._story
        story.chapter("A week later: changes, and an incremental export")
        last = await publish(nc, self._after, last)
        known, cancelled = books(self._before), _cancelled(self._after)
        old = len({change.key for change in self._after} & known.keys())
        story.tell(
            f"{plural(len(self._after), 'more change', 'more changes')}: {old:,} of the orders in "
            f"the lake",
            f"changed, {len(cancelled & known.keys()):,} of them were cancelled, and new ones "
            f"came in.",
        )
        return last

    def _second_export(self, spark: SparkSession, last: int) -> Findings:
        story = self._story
        begun = last + 1 - len(self._after)
        snapshot = self._export(self._lake)
        if (snapshot.from_offset, snapshot.to_offset) != (begun, last + 1):
            self._problems.append(
                f"the second export covered [{snapshot.from_offset}, {snapshot.to_offset}), not "
                f"[{begun}, {last + 1})"
            )
        found = self._compare(spark, self._changes)
        story.good(
            f"It read only from offset {snapshot.from_offset:,} on, where the first export ended. "
            f"The lake now holds {snapshot.rows:,} orders, as the books say."
        )
        return found

    def _full_export(self, spark: SparkSession) -> None:
        story = self._story
        story.tell("Would a single export of everything have given the same result?")
        other = self._lake.with_name("orders-at-once")
        self._export(other)
        if _rows_of(self._lake) == _rows_of(other):
            story.good("Yes, row by row. (Compared with pyarrow: the lake is Parquet files.)")
        else:
            self._problems.append("a full export differs from the two incremental ones")

    def _query(self, first: Findings, second: Findings) -> None:
        story = self._story
        story.chapter("Spark SQL")
        story.tell("The lake as a table of orders, and the questions that the shop asks:")
        story.show(
            "lake = liftlog.spark.export.read(spark, directory)\n"
            'lake.createOrReplaceTempView("lake")\n\n'
            f"{ORDERS}\n{REVENUE_BY_DAY}\n{BY_STATE}"
        )
        totals: dict[str, int] = {}
        for sale in second.sales:
            totals[sale.country] = totals.get(sale.country, 0) + sale.cents
        ranking = sorted(totals.items(), key=lambda item: -item[1])
        story.table(("COUNTRY", "REVENUE"), [(name, show_money(cents)) for name, cents in ranking])
        rows = [
            (state, f"{first.states[state].orders:,}", f"{second.states[state].orders:,}")
            for state in STATES
        ]
        story.table(("STATE", "FIRST EXPORT", "SECOND EXPORT"), rows)
        self._chart.parent.mkdir(parents=True, exist_ok=True)
        draw_chart(self._chart, first, second)
        size = self._chart.stat().st_size
        story.good(f"The chart: {self._chart} ({show_size(size)})")

    # --- steps of the chapters ---

    def _export(self, lake: Path) -> Snapshot:
        """Run the command itself, which uses the existing session."""
        from liftlog.cli.exports.export import export
        from liftlog.spark.export import newest

        arguments = [STREAM, "--to", str(lake), "--server", self._daemon.pull_address]
        self._story.command(f"liftlog export {STREAM} --to {lake.relative_to(self._directory)}")
        export.main(arguments, prog_name="liftlog export", standalone_mode=False)
        self._story.tell("")
        snapshot = newest(str(lake))
        assert snapshot is not None
        return snapshot

    def _compare(self, spark: SparkSession, published: Sequence[Change]) -> Findings:
        from liftlog.spark.export import read

        found = ask(spark, read(spark, str(self._lake)))
        self._problems += find_differences(books(published), found)
        return found


async def publish(nc: NatsClient, changes: Sequence[Change], last_offset: int) -> int:
    """Publish the changes in this order; returns the offset of the last one.

    Uses the library's publisher, with the order's number as the key and one ack per message.
    `last_offset` is the offset of the last message before. Raises PublishFailed.
    """
    publisher = Publisher(
        nc,
        expect=[STREAM],
        order="sequence",
        last_sequence=last_offset,
        ack_timeout=_ACK_SECONDS,
        retry_for=0,
    )
    settled: list[asyncio.Future[Published]] = []
    try:
        async with publisher:
            for change in changes:
                settled.append(  # noqa: PERF401  # must hold what was sent even if this fails
                    await publisher.submit(change.subject, change.value, key=change.key)
                )
            for one in settled:
                last_offset = (await one).offset
    finally:
        for one in settled:  # the first failure is representative
            if one.done() and not one.cancelled():
                one.exception()
    return last_offset


def _interrupt_at_once() -> None:
    """Let signals interrupt blocking calls from now on."""
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise py4j logs a traceback

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def _orders(part: Sequence[Change]) -> int:
    return len({change.key for change in part})


def _cancelled(part: Sequence[Change]) -> set[str]:
    return {change.key for change in part if change.order.state == CANCELLED}


def _life_of(
    part: Sequence[Change], length: int = 2, *, cancelled: bool = False
) -> list[tuple[str, str, str]]:
    """Return the messages of the first order that was cancelled, or that changed more than `length`
    times."""
    lives: dict[str, list[Change]] = {}
    for change in part:
        lives.setdefault(change.key, []).append(change)
    for life in lives.values():
        ends = life[-1].order.state == CANCELLED
        amounts = {change.order.cents for change in life}
        if ends if cancelled else len(life) > length and len(amounts) > 1:
            return [
                (change.subject, change.key, (change.value or b"-").decode()) for change in life
            ]
    return []


def _rows_of(lake: Path) -> object:
    """Return all rows of a lake, in the order of their offsets."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from liftlog.spark.export import paths

    tables = [pq.read_table(path) for path in paths(str(lake))]
    return pa.concat_tables(tables).sort_by("offset")
