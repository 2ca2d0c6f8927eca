"""Measures erasures of a large stream: the time until records are hidden, and until their bytes are
gone.

The stream has `--records` records of `--value` bytes, on 100 subjects in turn, in batches of 250.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import Filter, SyncClient, connect_sync
from liftlog.log import DataDir, EncodedBatch, LogConfig, LogEnvironment, OsFileSystem, SystemClock
from liftlog.protocol.administration import Erased
from liftlog.records.encode import encode_batch

_PER_BATCH = 250
_SUBJECTS = 100
_SYNC_BYTES = 32 << 20
_HOUR_NS = 3600 * 1_000_000_000
_STREAM = "large"


def fill(data: Path, records: int, value_bytes: int) -> None:
    """Write the stream as a daemon would have stored it, and stop cleanly."""
    data_dir = DataDir(data, LogEnvironment.create(OsFileSystem(), SystemClock()))
    data_dir.open()
    settings = {"subject": "large.>", "dedupe_window": "0s"}
    metadata = {"settings": settings, "origin": "api", "possible_losses": []}
    config = LogConfig(256 << 20, segment_max_age_ns=None)
    log = data_dir.create_log(_STREAM, config, initial_offset=1, metadata=metadata)
    stamp, unsynced = time.time_ns() // 1000 * 1000 - _HOUR_NS, 0
    values = [bytes(value_bytes)] * _PER_BATCH
    for base in range(1, records + 1, _PER_BATCH):
        numbers = range(base, base + _PER_BATCH)
        raw = encode_batch(
            base_offset=base,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(stamp, _PER_BATCH)],
            subjects=[b"large.%d" % (one % _SUBJECTS) for one in numbers],
            values=values,
            keys=[b"k%09d" % one for one in numbers],
        )
        end = base + _PER_BATCH
        log.append([EncodedBatch(raw, base, end, _PER_BATCH, stamp, stamp)])
        unsynced += len(raw)
        if unsynced >= _SYNC_BYTES:
            log.sync()
            unsynced = 0
    log.commit_up_to(log.sync())
    state = log.close()
    assert state is not None
    data_dir.close({_STREAM: state})


def _indexed(directory: Path) -> None:
    """Wait until the cleaner has joined batches and made the indexes of subjects."""
    while len(list(directory.glob("*.subjects"))) < len(list(directory.glob("*.log"))) - 1:
        time.sleep(1)


def _timed(what: str, call: Callable[[], Erased]) -> Erased:
    began = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - began
    print(f"{what:<56} {seconds:8.3f} s  {found.count:>9,} records", flush=True)
    return found


def measure(client: SyncClient, records: int, *, removes: bool) -> None:
    half = records // 2

    def erase(*ranges: tuple[int, int], **options: object) -> Callable[[], Erased]:
        return lambda: client.erase(_STREAM, ranges, **options)  # type: ignore[arg-type]

    for n in range(5):
        at = half + 1001 * n + 17
        _timed("one record by offset, hidden", erase((at, at + 1)))
    for n in range(3):
        by_subject = Filter(subject=f"large.{n + 5}")
        _timed("one subject (1 %), dry run", erase(filter=by_subject, dry_run=True))
        _timed("one subject (1 %), hidden", erase(filter=by_subject))
    _timed("one key, hidden", erase(filter=Filter(key=b"k%09d" % (half + 3))))
    near = (half, half + 1000)
    _timed(
        "one key in 1,000 offsets, hidden", erase(near, filter=Filter(key=b"k%09d" % (half + 4)))
    )
    _timed(
        "pattern (10 %), hidden",
        erase(filter=Filter(subject=[f"large.{one}" for one in range(80, 90)])),
    )
    if removes:
        _removed(client, "one record by offset", erase((half + 21, half + 22), now=True))
        _removed(client, "one subject (1 %)", erase(filter=Filter(subject="large.71"), now=True))


def _removed(client: SyncClient, what: str, erase: Callable[[], Erased]) -> None:
    began = time.perf_counter()
    erased = erase()
    while True:
        (found,) = client.list_erasures(_STREAM, erased.erasure_id)
        if not found.left:
            break
        time.sleep(0.1)
    seconds = time.perf_counter() - began
    print(f"{what + ', bytes gone':<56} {seconds:8.3f} s  {erased.count:>9,} records", flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--value", type=int, default=32, help="bytes of a value")
    parser.add_argument("--directory", type=Path, help="where the stream is written")
    options = parser.parse_args(arguments)
    records = options.records // _PER_BATCH * _PER_BATCH
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="liftlog-erasing-") as place:
        directory = Path(place)
        began = time.perf_counter()
        fill(directory / "data", records, options.value)
        print(f"{records:,} records written in {time.perf_counter() - began:.0f} s", flush=True)
        with (
            NatsServer() as nats,
            Daemon(nats.url, directory=directory) as daemon,
            connect_sync(daemon.pull_address, request_timeout=600) as client,
        ):
            found = client.describe_stream(_STREAM)
            _indexed(daemon.data_dir / "streams" / _STREAM)
            print(f"{found.size_bytes / 1e6:,.0f} MB in {found.segment_count} segments", flush=True)
            measure(client, records, removes=hasattr(client, "list_erasures"))
    return 0
