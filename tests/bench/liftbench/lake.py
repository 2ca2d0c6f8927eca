"""Makes the data of the Spark benchmark, and measures parts without Spark, in separate processes.

    python -m bench.liftbench.lake '{"mode": "fill", "data_dir": ..., "stream": ..., "count": ...}'

All print one JSON line.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.daemons.processes import status_bytes

from liftlog.log import DataDir, EncodedBatch, LogConfig, LogEnvironment, OsFileSystem
from liftlog.log.environment import SystemClock
from liftlog.records.decode import iter_batches
from liftlog.records.encode import encode_batch
from liftlog.spark.columns import DEFAULT
from liftlog.spark.decoder import RowDecoder
from liftlog.spark.options import DEFAULT_ROWS_PER_BATCH, parse_options
from liftlog.spark.scan import open_transport, plan, read

PER_BATCH = 500
RECORD_BYTES = 200
_SUBJECTS, _KEYS = 100, 200_000
SUBJECT = "lake.orders.%d.new"
_KEYLESS, _DELETED, _WITH_HEADERS = 0.05, 0.02, 0.25
_BLOCK = b"NATS/1.0\r\nTrace: 0123456789abcdef\r\n\r\n"
_SYNC_EVERY = 500
_HOUR_NS = 3600 * 1_000_000_000


def fill(spec: dict[str, Any]) -> dict[str, Any]:
    """Fill streams of orders, with batches like the group commits of busy publishers. Nearly all
    segments are sealed."""
    environment = LogEnvironment.create(OsFileSystem(), SystemClock())
    data_dir = DataDir(Path(spec["data_dir"]), environment)
    data_dir.open()
    states, sizes = {}, {}
    for name, count in spec["streams"].items():
        settings = {"subject": f"lake.{name}.>", "dedupe_window": "0s"}
        log = data_dir.create_log(
            name,
            LogConfig(64 << 20, segment_max_age_ns=None),
            initial_offset=1,
            metadata={"settings": settings, "origin": "api", "possible_losses": []},
        )
        make = _Orders()
        begin = time.time_ns() // 1000 * 1000 - 25 * _HOUR_NS
        for number, first in enumerate(range(0, count, PER_BATCH)):
            size = min(PER_BATCH, count - first)
            base = log.log_end_offset
            stamp = begin + 24 * _HOUR_NS * first // count // 1000 * 1000
            data = make.batch(base, size, stamp, log.leader_epoch, log.writer.commit_group)
            log.append([EncodedBatch(data, base, base + size, size, stamp, stamp)])
            if number % _SYNC_EVERY == 0:
                log.sync()
        log.commit_up_to(log.sync())
        log.writer.roll()
        sizes[name] = log.view.size_bytes
        states[name] = log.close()
    data_dir.close({name: state for name, state in states.items() if state is not None})
    return {"bytes": sizes}


class _Orders:
    """Batches with different content; the same batches in every run."""

    def __init__(self) -> None:
        self._random = chance = random.Random(1)
        self._subjects = [(SUBJECT % n).encode() for n in range(_SUBJECTS)]
        self._texts = [chance.randbytes(45).hex().encode() for _ in range(4096)]

    def batch(self, base: int, count: int, stamp: int, epoch: int, group: int) -> bytearray:
        chance = self._random.random
        numbers = [int(chance() * _KEYS) for _ in range(count)]
        texts = [self._texts[int(chance() * 4096)] for _ in range(count)]
        values: list[bytes | None] = [
            None
            if chance() < _DELETED
            else b'{"order": %d, "customer": %d, "total": %d, "note": "%s"}'
            % (base + i, number, number * 7 % 1000, texts[i])
            for i, number in enumerate(numbers)
        ]
        return encode_batch(
            base_offset=base,
            leader_epoch=epoch,
            commit_group=group,
            stamps=[(stamp, count)],
            subjects=[self._subjects[int(chance() * _SUBJECTS)] for _ in range(count)],
            values=values,
            keys=[None if chance() < _KEYLESS else b"customer-%08d" % n for n in numbers],
            headers=[_BLOCK if chance() < _WITH_HEADERS else b"" for _ in range(count)],
            has_tombstones=None in values,
        )


# --- the decoder alone ---


def decode(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure the CPU seconds for the same bytes in memory, including checksums, in turns."""
    from .tuples import tuples_of

    path = sorted((Path(spec["data_dir"]) / "streams" / spec["stream"]).glob("*.log"))[0]
    data = path.read_bytes()

    def arrow() -> int:
        decoder = RowDecoder(DEFAULT, stream="orders", rows_per_batch=DEFAULT_ROWS_PER_BATCH)
        return sum(made.num_rows for made in decoder.rows(iter_batches(data)))

    def tuples() -> int:
        return sum(1 for _ in tuples_of(iter_batches(data)))

    def bare() -> int:
        """Read timestamps as plain numbers."""
        total = 0
        for batch in iter_batches(data):
            columns = (batch.offsets(), batch.timestamps_ns(), batch.subjects(), batch.keys())
            total += sum(1 for _ in zip(*columns, batch.values(), strict=True))
        return total

    ways: dict[str, Callable[[], int]] = {"arrow": arrow, "tuples": tuples, "bare": bare}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    records = {way() for way in ways.values()}
    assert len(records) == 1, records
    for _ in range(spec["rounds"]):
        for name, way in ways.items():
            started = time.process_time()
            way()
            seconds[name].append(time.process_time() - started)
    return {"records": records.pop(), "seconds": seconds}


# --- memory of a task ---


def memory(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure the growth of a process's peak memory while it reads one range of a stream like a
    task."""
    options = parse_options(spec["options"])
    ranges = plan(options)
    with open_transport(options) as transport:
        transport.state()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = status_bytes(os.getpid(), "VmHWM")
    rows = sum(made.num_rows for made in read(options, ranges[0]))
    first = ranges[0]
    return {
        "peak_bytes": status_bytes(os.getpid(), "VmHWM") - before,
        "rows": rows,
        "ranges": len(ranges),
        "offsets": first.end_offset - first.first_offset,
    }


MODES = {"fill": fill, "decode": decode, "memory": memory}


def main(argument: str) -> None:
    spec: dict[str, Any] = json.loads(argument)
    print(json.dumps(MODES[spec["mode"]](spec)))


if __name__ == "__main__":
    main(sys.argv[1])
