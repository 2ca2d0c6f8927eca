"""Measures how fast each kind of reader gets the records of a stream whose erased records still
have their bytes in the files, compared with the same stream without erased records. The records are
erased at random places. The readers run in this process, the daemon in its own; both streams are
read in turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import Filter, connect_sync
from liftlog.log import DataDir, EncodedBatch, Log, LogConfig, LogEnvironment, OsFileSystem
from liftlog.log.environment import SystemClock
from liftlog.records.encode import encode_batch
from liftlog.records.header import parse_header
from liftlog.server.commits.writing import compressed
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read

from .main import interrupt, scratch_directory
from .progress import Progress

MUST = 0.5
"""Minimum ratio of records per second for whole batches of 250 records or more, with 1 % erased
records and without erased records."""
_SUBJECTS = 10
_RANGES = 1000
_PATIENCE_SECONDS = 300.0
_HOUR_NS = 3600 * 10**9


@dataclass(frozen=True, slots=True)
class Shape:
    """Batches of one kind. With `varied`, the values differ in length, and the records have keys
    and several subjects."""

    per_batch: int
    value_bytes: int
    varied: bool = False
    compression: str = "none"


SHAPES = {
    "250x256": Shape(250, 256),
    "1000x256": Shape(1000, 256),
    "250x1024": Shape(250, 1024),
    "250x256-keys": Shape(250, 256, varied=True),
    "250x256-lz4": Shape(250, 256, varied=True, compression="lz4"),
    "250x256-zstd": Shape(250, 256, varied=True, compression="zstd"),
    "10x256": Shape(10, 256),
}


def _fill(data_dir: Path, shapes: Sequence[str], total_bytes: int) -> dict[str, int]:
    """Create two equal streams of each shape; return their numbers of records."""
    directory = DataDir(data_dir, LogEnvironment.create(OsFileSystem(), SystemClock()))
    directory.open()
    states, counts = {}, {}
    for name in shapes:
        shape = SHAPES[name]
        counts[name] = total_bytes // (shape.value_bytes * shape.per_batch) * shape.per_batch
        for suffix in ("none", "some"):
            stream = f"{name}-{suffix}"
            metadata = {
                # Within the window, the bytes of erased records stay.
                "settings": {
                    "subject": f"{stream}.>",
                    "dedupe_window": "6h",
                    "rebatch": {"enabled": False},
                },
                "origin": "api",
                "possible_losses": [],
            }
            config = LogConfig(64 << 20, segment_max_age_ns=None)
            log = directory.create_log(stream, config, initial_offset=1, metadata=metadata)
            _append(log, stream, shape, counts[name])
            log.writer.roll()
            states[stream] = log.close()
    directory.close({name: state for name, state in states.items() if state is not None})
    return counts


def _append(log: Log, stream: str, shape: Shape, count: int) -> None:
    chance = random.Random(1)
    text = chance.randbytes(64 * 1024).hex().encode()
    subjects = [f"{stream}.{n if shape.varied else 0}".encode() for n in range(_SUBJECTS)]
    stamp = time.time_ns() // 1000 * 1000 - _HOUR_NS
    for number, first in enumerate(range(0, count, shape.per_batch)):
        size = min(shape.per_batch, count - first)
        base, values = log.log_end_offset, []
        for _ in range(size):
            length = shape.value_bytes
            if shape.varied:
                length = chance.randrange(length // 2, length + length // 2)
            at = chance.randrange(len(text) - length)
            values.append(text[at : at + length])
        data = encode_batch(
            base_offset=base,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(stamp + 1000 * first, size)],
            subjects=chance.choices(subjects, k=size),
            values=values,
            keys=[b"key-%d" % chance.randrange(10**6) for _ in values] if shape.varied else None,
        )
        header = parse_header(data)
        encoded = EncodedBatch(
            data, base, base + size, size, header.base_timestamp_ns, header.max_timestamp_ns
        )
        log.append(compressed([encoded], shape.compression))
        if number % 500 == 0:
            log.sync()
    log.commit_up_to(log.sync())


def _erase(address: str, stream: str, count: int, share: float) -> int:
    wanted = random.Random(2).sample(range(1, count + 1), int(count * share))
    ranges = [(offset, offset + 1) for offset in sorted(wanted)]
    with connect_sync(address) as client:
        return sum(
            client.erase(stream, ranges[at : at + _RANGES]).count
            for at in range(0, len(ranges), _RANGES)
        )


# --- the readers: each returns the number of records ---


def _batches(address: str, stream: str, **options: Any) -> int:
    """Read the values of each batch. Each value is copied, as in the benchmark of reads."""
    records = 0
    with connect_sync(address) as client:
        for batch in client.read_batches(stream, "earliest", "end", **options):
            records += len(batch)
            if "columns" not in options:
                assert len(batch.values()) == len(batch)
    return records


def _by_record(address: str, stream: str) -> int:
    with connect_sync(address) as client:
        return sum(1 for _ in client.read(stream, "earliest", "end"))


def _spark(address: str, stream: str) -> int:
    """Run the tasks of a query in Spark's Python data source one after the other, without Spark."""
    options = parse_options({"stream": stream, "server": address.removeprefix("tcp://")})
    return sum(made.num_rows for part in plan(options) for made in read(options, part))


def _pull(port: int, stream: str, count: int, policy: str) -> int:
    """Read with a pull consumer over a raw socket. With acks, each message is acked at once."""
    with RawNats(port, timeout=_PATIENCE_SECONDS) as raw:
        body = {"stream_name": stream, "config": {"ack_policy": policy, "max_ack_pending": -1}}
        made = raw.request(f"$JS.API.CONSUMER.CREATE.{stream}", json.dumps(body)).json()
        inbox = "_INBOX.erased"
        raw.sub(inbox)
        got = 0
        while got < count:
            batch = min(1000, count - got)
            asks = json.dumps({"batch": batch, "expires": int(_PATIENCE_SECONDS * 10**9)})
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made['name']}", asks, reply=inbox)
            for _ in range(batch):
                message = raw.next_message()
                if policy != "none":
                    raw.pub(message.reply, b"+ACK")
            got += batch
        raw.request(f"$JS.API.CONSUMER.DELETE.{stream}.{made['name']}", b"")
    return got


async def _ordered(port: int, stream: str, count: int) -> int:
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    got, done = 0, asyncio.Event()

    async def take(_: Any) -> None:
        nonlocal got
        got += 1
        if got == count:
            done.set()

    try:
        js = client.jetstream(timeout=_PATIENCE_SECONDS)
        await js.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True, cb=take)
        await asyncio.wait_for(done.wait(), _PATIENCE_SECONDS)
    finally:
        await client.close()
    return count


def _readers(daemon: Daemon, port: int) -> dict[str, Callable[[str, int], int]]:
    address = daemon.pull_address
    return {
        "batches": lambda stream, _: _batches(address, stream),
        "records": lambda stream, _: _by_record(address, stream),
        "subject": lambda stream, _: _batches(
            address, stream, filter=Filter(subject=f"{stream}.0")
        ),
        "wildcard": lambda stream, _: _batches(
            address, stream, filter=Filter(subject=f"{stream}.*")
        ),
        "offsets": lambda stream, _: _batches(address, stream, columns=["offset"]),
        "keys": lambda stream, _: _batches(address, stream, columns=["offset", "key"]),
        "spark": lambda stream, _: _spark(address, stream),
        "ordered": lambda stream, count: asyncio.run(_ordered(port, stream, count)),
        "pull": lambda stream, count: _pull(port, stream, count, "none"),
        "acks": lambda stream, count: _pull(port, stream, count, "explicit"),
    }


READERS = (
    "batches", "records", "subject", "wildcard", "offsets", "keys", "spark", "ordered", "pull",
    "acks",
)  # fmt: skip
_OVER_NATS = {"ordered", "pull", "acks"}
_PART = {"subject"}
"""Readers that do not get all records."""


@contextmanager
def _system(directory: Path) -> Iterator[tuple[Daemon, int]]:
    with NatsServer(directory / "nats", leafnodes={"listen": "127.0.0.1:-1"}) as server:
        listener = re.search(r"for leafnode connections on (\S+)", server.log)
        assert listener is not None, server.log
        settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
        with Daemon(server.url, settings, directory=directory / "liftlog") as daemon:
            while "jetstream-api-answers" not in daemon.log or "nats-leaf-con" not in daemon.log:
                time.sleep(0.05)
            yield daemon, server.port


Figure = tuple[float, float]
"""Seconds per million records: elapsed time, and processor time of the daemon and the reader."""


Ratios = dict[tuple[str, str], list[Figure]]
"""The ratios of each round, by shape or reader: without erased records divided by with erased
records."""


def _measure(options: argparse.Namespace, directory: Path) -> Ratios:
    progress = Progress(quiet=options.quiet)
    data_dir = directory / "liftlog" / "data"
    counts = _fill(data_dir, options.shapes, options.megabytes << 20)
    found: Ratios = {}
    with _system(directory) as (daemon, port):
        readers = _readers(daemon, port)
        left = {}
        for name in options.shapes:
            erased = _erase(daemon.pull_address, f"{name}-some", counts[name], options.share)
            left[f"{name}-none"], left[f"{name}-some"] = counts[name], counts[name] - erased
        for number in range(options.rounds):
            for name in options.shapes:
                for reader in options.readers:
                    streams = [f"{name}-none", f"{name}-some"]
                    took = {}
                    for stream in streams[:: -1 if number % 2 else 1]:
                        took[stream] = _once(daemon, readers[reader], reader, stream, left[stream])
                    (none, none_cpu), (some, some_cpu) = took[streams[0]], took[streams[1]]
                    figure = none / some, none_cpu / some_cpu
                    found.setdefault((name, reader), []).append(figure)
                    progress.say(
                        f"round {number + 1}/{options.rounds} {name:<13} {reader:<9} "
                        f"{1 / none:6.3f} and {1 / some:6.3f} M/s, {figure[0]:.2f}x; "
                        f"{none_cpu:.2f} and {some_cpu:.2f} s of processors, {figure[1]:.2f}x"
                    )
    return found


def _once(
    daemon: Daemon, read: Callable[[str, int], int], reader: str, stream: str, count: int
) -> Figure:
    share = 0.1 if reader in _OVER_NATS else 1.0
    wanted = int(count * share)
    before, began = daemon.cpu_seconds + time.process_time(), time.perf_counter()
    got = read(stream, wanted)
    seconds = time.perf_counter() - began
    cpu = daemon.cpu_seconds + time.process_time() - before
    if reader in _PART:
        wanted = got
    if got != wanted:
        raise RuntimeError(f"{reader} got {got} of {wanted} records of {stream}")
    return seconds / got * 1e6, cpu / got * 1e6


def _show(found: Ratios) -> bool:
    """Print the table; return False if a figure is below its required minimum."""
    print(
        "| batches | reader | records per second | the same, by processor time |\n|---|---|---|---|"
    )
    short = False
    for (name, reader), ratios in found.items():
        by_clock, by_processor = zip(*ratios, strict=True)
        middle = statistics.median(by_clock)
        spread = f"{min(by_clock):.2f}x to {max(by_clock):.2f}x"
        cpu = statistics.median(by_processor)
        print(f"| {name} | {reader} | {middle:.2f}x ({spread}) | {cpu:.2f}x |")
        short |= reader == "batches" and SHAPES[name].per_batch >= 250 and middle < MUST
    return not short


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-erased", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=128, help="of values per stream")
    parser.add_argument("--share", type=float, default=0.01, help="erased (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--readers", nargs="+", choices=READERS, default=["batches"])
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            good = _show(_measure(options, directory))
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    return 0 if good else 1
