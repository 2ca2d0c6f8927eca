"""The demo step by step: publish, ack, kill -9, restart, read back, check."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import nats
from nats.aio.client import Client as NatsClient

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.text import plural
from liftlog.client import Record, connect
from liftlog.demo.publishing import (
    MESSAGE_ID,
    SUBJECT,
    UNACKED,
    Burst,
    Expected,
    Introduction,
    acked_seconds,
    find_disorder,
    find_problems,
    find_repeats,
    introduce,
    show_ack,
)
from liftlog.demo.running import DemoDaemon, Story, conclude, run_in_directory
from liftlog.log.offline.files import find_streams
from liftlog.log.offline.verify import KNOWN, NOTE, verify_stream
from liftlog.server.life.embedded import EmbeddedNats

STREAM = "orders"
_SPEED = "speed"
_MANY = 20_000
_MANY_BYTES = 256
_KILL_DELAY_SECONDS = 0.004

_CONFIG = """\
data_dir: {data_dir}
nats: {{servers: ["{nats_url}"]}}
pull: {{listen: ["tcp://127.0.0.1:0"]}}       # any free port
http: {{listen: "127.0.0.1:0"}}
streams:
  orders: {{subject: "orders.>"}}             # durability: fsync is the default
"""


def run_demo(burst_size: int, *, keep: bool) -> ExitCode:
    """Run the demo. Raises Problem, ConfigError or another LiftlogError if it cannot continue."""
    return run_in_directory(lambda where, stack: _Demo(where, burst_size, stack).run(), keep=keep)


class _Demo:
    def __init__(self, directory: Path, burst_size: int, stack: contextlib.AsyncExitStack) -> None:
        self._directory = directory
        self._burst_size = burst_size
        self._stack = stack
        self._story = Story()
        self._problems: list[str] = []
        config = directory / "liftlog.yaml"
        self._data_dir = directory / "data"
        self._config = config
        self._daemon = DemoDaemon(config, self._data_dir)

    async def run(self) -> ExitCode:
        self._story.title("liftlog demo: publish on NATS, kill the daemon, lose nothing")
        nc = await self._start()
        introduction = await self._introduce(nc)
        burst = await self._burst(nc)
        await self._restart()
        await self._publish_again(nc, introduction, burst)
        await self._read_back(introduction, burst)
        await self._measure(nc)
        await self._finish()
        return self._verdict()

    # --- the chapters ---

    async def _start(self) -> NatsClient:
        story = self._story
        story.chapter("A NATS server, and the daemon beside it")
        server = EmbeddedNats(self._directory / "nats")
        self._stack.push_async_callback(server.stop)
        url = await server.start()
        story.tell(
            f"nats-server listens on {url}. liftlog connects to it as a plain client and records",
            "the subjects that its configuration names:",
        )
        text = _CONFIG.format(data_dir=self._data_dir, nats_url=url)
        self._config.write_text(text)
        story.show(text)
        self._stack.push_async_callback(self._daemon.stop)
        started = time.monotonic()
        await self._daemon.start()
        story.tell(
            f"The daemon (process {self._daemon.pid}) is ready after",
            f"{time.monotonic() - started:.1f} s; consumers reach it on",
            f"{self._daemon.pull_address}.",
        )
        nc = await nats.connect(url, name="demo publisher")
        self._stack.push_async_callback(nc.close)
        return nc

    async def _introduce(self, nc: NatsClient) -> Introduction:
        story = self._story
        story.chapter("Publishers change nothing")
        story.tell("Ordinary nats-py. A publisher that asks for a reply gets an ack, after fsync:")
        introduction = await introduce(nc)
        story.table(
            ("MESSAGE", "CALL", "ACK"),
            [(one.what, one.call, one.answer) for one in introduction.shown],
        )
        self._problems += introduction.problems
        return introduction

    async def _burst(self, nc: NatsClient) -> Burst:
        story = self._story
        story.chapter("kill -9 in the middle of it")
        kill_at = self._burst_size // 2
        story.tell(
            f"Now {self._burst_size:,} messages by js.publish(), many in flight at once. After",
            f"{kill_at:,} acks the daemon gets SIGKILL.",
        )
        burst = Burst(nc.jetstream(), self._burst_size)

        def on_ack(count: int) -> None:
            if count == kill_at:  # a moment later, so that the next messages are in flight
                asyncio.get_running_loop().call_later(_KILL_DELAY_SECONDS, self._daemon.kill)

        started = time.monotonic()
        await burst.run(on_ack)
        status = await self._daemon.wait()
        story.tell(
            f"The daemon is dead (status {status}). In {time.monotonic() - started:.1f} s",
            f"{plural(len(burst.acked), 'message was', 'messages were')} acked;",
            f"{plural(len(burst.unacked), 'publisher')} got no ack. Their messages may or may not",
            "be stored.",
        )
        return burst

    async def _restart(self) -> None:
        self._story.chapter("It starts again")
        started = time.monotonic()
        await self._daemon.start()
        self._story.tell(
            f"Process {self._daemon.pid} has recovered the log and is ready after",
            f"{time.monotonic() - started:.1f} s.",
        )

    async def _publish_again(
        self, nc: NatsClient, introduction: Introduction, burst: Burst
    ) -> None:
        story = self._story
        again = await nc.jetstream().publish(
            SUBJECT, b"8 cherries", headers={"Nats-Msg-Id": MESSAGE_ID}
        )
        if again.duplicate and again.seq == introduction.message_id_offset:
            story.good(
                f"Nats-Msg-Id {MESSAGE_ID}, published a third time: {show_ack(again)}. "
                "The daemon still recognises the id after the crash."
            )
        else:
            self._problems.append(
                f"Nats-Msg-Id {MESSAGE_ID} was answered {again} after the restart, not "
                f"duplicate with seq {introduction.message_id_offset}"
            )
        waiting = len(burst.unacked)
        await burst.publish_unacked_again()
        if burst.unacked:
            self._problems.append(f"{len(burst.unacked)} messages got no ack after the restart")
        story.tell(
            f"The {waiting:,} messages without an ack are published again with their ids:",
            f"{burst.duplicates:,} were stored before the crash and are answered as duplicates,",
            f"{waiting - burst.duplicates:,} are stored now.",
        )

    async def _read_back(self, introduction: Introduction, burst: Burst) -> None:
        story = self._story
        story.chapter("Everything is read back over the socket")
        started = time.monotonic()
        records = await self._read_all()
        seconds = time.monotonic() - started
        story.tell(
            f"{plural(len(records), 'record')} read from {self._daemon.pull_address} in",
            f"{seconds:.2f} s, every checksum verified by the client. The first ones:",
        )
        story.table(
            ("OFFSET", "SUBJECT", "KEY", "VALUE", "HEADERS"), [_row(r) for r in records[:4]]
        )
        promised = introduction.expected + burst.expected()
        self._check(promised, records)
        self._check_burst(burst, records)

    async def _read_all(self) -> list[Record]:
        client = await connect(self._daemon.pull_address)
        try:
            return [record async for record in client.read(STREAM, start="earliest", until="end")]
        finally:
            await client.close()

    def _check(self, promised: list[Expected], records: list[Record]) -> None:
        problems = find_problems(promised, records) + find_disorder(records)
        self._problems += problems
        if not problems:
            acked = len(promised) - UNACKED
            self._story.good(
                f"All {acked:,} acked messages are there, each at the offset that its ack named, "
                f"with its key, value and headers. The {UNACKED} messages without an ack are "
                "there, too."
            )

    def _check_burst(self, burst: Burst, records: list[Record]) -> None:
        sent = sorted(burst.acked)
        problems = find_repeats(map(burst.value, sent), records)
        self._problems += problems
        if not problems:
            self._story.good(
                f"Each of the {len(sent):,} messages around the crash was stored exactly once."
            )

    async def _measure(self, nc: NatsClient) -> None:
        """Measure in a separate stream, so that the numbers of the other streams stay unchanged."""
        async with connect(self._daemon.pull_address) as client:
            await client.create_stream(_SPEED, subject=_SPEED)
            seconds = await acked_seconds(nc, _SPEED, _MANY, bytes(_MANY_BYTES))
            if seconds is None:
                self._problems.append(f"{_MANY:,} messages in flight were not acked in time")
                return
            started = time.monotonic()
            count = 0
            async for batch in client.read_batches(_SPEED, start="earliest", until="end"):
                count += len(batch.records())
            reading = time.monotonic() - started
        if count != _MANY:
            self._problems.append(f"{count:,} of {_MANY:,} acked messages of {_SPEED} were read")
        self._story.tell(
            f"Speed here: one nats-py publisher, {_MANY:,} messages of {_MANY_BYTES} B in flight:",
            f"{_MANY / seconds:,.0f} acked after fsync and {count / reading:,.0f} read per second.",
        )

    async def _finish(self) -> None:
        story = self._story
        story.chapter("On disk")
        for stream in find_streams(self._data_dir):
            report = await asyncio.to_thread(verify_stream, stream)
            harmful = [one for one in report.findings if one.kind not in (NOTE, KNOWN)]
            self._problems += [f"{stream.name}: {one.text}" for one in harmful]
            if not harmful:
                story.good(
                    f"`liftlog log verify` finds {plural(report.batch_count, 'batch', 'batches')} "
                    f"with {plural(report.record_count, 'record')} in "
                    f"{plural(report.segment_count, 'segment file')} of {stream.name}, all intact."
                )
        started = time.monotonic()
        status = await self._daemon.stop()
        story.tell(
            f"SIGTERM: the daemon commits, acks and stops in {time.monotonic() - started:.1f} s."
        )
        if status != 0:
            self._problems.append(f"the daemon ended with status {status} on SIGTERM, not 0")

    def _verdict(self) -> ExitCode:
        return conclude(
            self._story,
            self._problems,
            "everything acked is there. Next: `liftlog docs first-stream`",
        )


def _row(record: Record) -> tuple[str, ...]:
    headers = ", ".join(f"{name}: {text}" for name, text in record.headers.items())
    return (
        str(record.offset),
        record.subject,
        (record.key or b"").decode(),
        (record.value or b"").decode(),
        headers,
    )
