"""Measures compaction, re-batching and recovery: their speed, and their effect on publishers."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import SyncClient, connect_sync

from .figures import Measurements
from .processes import WorkerFailed, run_worker, settle_disk
from .progress import Progress
from .publisher import PAYLOAD_BYTES
from .systems import LIFTLOG

RECORD_BYTES = 100
_KEY_BYTES = 11
_PER_BATCH = 4096
_MEMORY_BYTES = 64 << 20  # the default of cleaner.memory
_TINY = 65_536
_WAIT_SECONDS = 120.0
HEADER_BLOCK = (
    "NATS/1.0\r\nLiftlog-Key: k0123456789\r\nNats-Msg-Id: 0123456789ab-0123456789\r\n\r\n"
)
_SUBJECT = "bench.beside"
_NEVER = {"interval": "1d", "scrub_interval": None}


def _stream(
    name: str,
    count: int,
    *,
    keys: int,
    per_batch: int = _PER_BATCH,
    first_is_clean: bool = False,
) -> dict[str, Any]:
    """Return a stream of records of 100 bytes with keys. With a clean first segment, the dirty
    ratio is below 1, so that the daemon does not compact it before the request."""
    settings = {
        "subject": f"stored.{name}",
        "dedupe_window": "0s",
        "compaction": {"min_dirty_ratio": 1.0},
        "rebatch": {"enabled": False},
    }
    return {
        "name": name,
        "settings": settings,
        "count": count,
        "per_batch": per_batch,
        "value_bytes": RECORD_BYTES - (_KEY_BYTES if keys else 0),
        "keys": keys,
        "first_is_clean": first_is_clean,
    }


def compaction(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, share: float
) -> None:
    """Compact 10 million records of 100 bytes with 1 million keys, unthrottled, in one process."""
    count, keys = int(10_000_000 * share), int(1_000_000 * share)
    for number in range(rounds):
        data_dir = directory / "compaction"
        shutil.rmtree(data_dir, ignore_errors=True)
        spec = {"data_dir": str(data_dir), "stream": "compacted"}
        streams = [_stream("compacted", count, keys=keys)]
        run_worker("stored", {"mode": "fill", **spec, "streams": streams})
        settle_disk()
        told = run_worker("stored", {"mode": "compact", **spec, "memory_bytes": _MEMORY_BYTES})
        if not told["complete"] or told["records_in"] != count:
            raise WorkerFailed(f"compaction did not take all at once: {told}")
        if told["records_out"] != told["keys"]:
            raise WorkerFailed(f"{told['records_out']} records stay for {told['keys']} keys")
        speed = told["bytes_in"] / told["seconds"] / 1e6
        measured.add(LIFTLOG, "compaction", speed)
        # On a busy machine, the processor time says more than the elapsed time.
        measured.add(LIFTLOG, "compaction-cpu", speed / told["cpu"])
        progress.say(
            f"round {number + 1}/{rounds} compaction {speed:,.0f} MB/s "
            f"({told['bytes_in'] / 1e6:,.0f} MB, {told['cpu']:.0%} of a core)"
        )
        shutil.rmtree(data_dir, ignore_errors=True)


def compaction_of_headers(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, share: float
) -> None:
    """Compact 2 million records of 100 bytes with 200,000 keys, with and without a header block of
    the size of a key and an id."""
    count, keys = int(2_000_000 * share), int(200_000 * share)
    blocks = {"keyed-input": "", "headers-input": HEADER_BLOCK}
    for number in range(rounds):
        for series, block in list(blocks.items())[:: -1 if number % 2 else 1]:
            data_dir = directory / series
            spec = {"data_dir": str(data_dir), "stream": "compacted"}
            stream = _stream("compacted", count, keys=keys) | {"header_block": block}
            run_worker("stored", {"mode": "fill", **spec, "streams": [stream]})
            settle_disk()
            told = run_worker("stored", {"mode": "compact", **spec, "memory_bytes": _MEMORY_BYTES})
            if not told["complete"] or told["records_in"] != count:
                raise WorkerFailed(f"compaction did not take all at once: {told}")
            speed = count / told["seconds"]
            measured.add(LIFTLOG, series, speed)
            progress.say(
                f"round {number + 1}/{rounds} compaction, {len(block)} B of headers, "
                f"{speed:,.0f} records/s ({told['cpu']:.0%} of a core)"
            )
            shutil.rmtree(data_dir)


def memory_per_key(measured: Measurements, progress: Progress, *, rounds: int) -> None:
    keys = 1_000_000
    for _ in range(rounds):
        told = run_worker("stored", {"mode": "keys", "keys": keys})
        measured.add(LIFTLOG, "key-memory", told["peak_bytes"] / keys)
        measured.add(LIFTLOG, "key-memory-map", told["map_bytes"] / keys)
        progress.say(
            f"keys: {told['peak_bytes'] / keys:.1f} B at the peak, "
            f"{told['map_bytes'] / keys:.1f} B the map itself, "
            f"{keys / told['seconds'] / 1e6:.1f} M keys/s"
        )


def recovery(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, share: float
) -> None:
    """Recover an active segment of 1 GB without a recovery point, from the page cache."""
    count = int(10_000_000 * share)
    for number in range(rounds):
        data_dir = directory / "recovery"
        shutil.rmtree(data_dir, ignore_errors=True)
        spec = {"data_dir": str(data_dir), "stream": "cut", "segment_max_bytes": 3 << 30}
        streams = [_stream("cut", count, keys=0)]
        run_worker("stored", {"mode": "fill", **spec, "streams": streams, "unclean": True})
        settle_disk()
        told = run_worker("stored", {"mode": "recover", **spec})
        if told["log_end_offset"] != count + 1:
            raise WorkerFailed(f"recovery found {told['log_end_offset'] - 1} of {count} records")
        speed = told["scanned_bytes"] / told["seconds"] / 1e6
        bare = told["scanned_bytes"] / told["crc_seconds"] / 1e6
        measured.add(LIFTLOG, "recovery", speed)
        measured.add(LIFTLOG, "recovery-crc", bare)
        progress.say(
            f"round {number + 1}/{rounds} recovery {speed:,.0f} MB/s, "
            f"reading and CRC alone {bare:,.0f} MB/s"
        )
        shutil.rmtree(data_dir, ignore_errors=True)


@contextmanager
def _daemon(directory: Path, settings: dict[str, Any]) -> Iterator[tuple[Daemon, SyncClient, int]]:
    with NatsServer(directory / "nats") as nats:
        with Daemon(nats.url, settings, directory=directory) as daemon:
            client = connect_sync(daemon.pull_address)
            try:
                yield daemon, client, nats.port
            finally:
                client.close()


def rebatching(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, share: float
) -> None:
    """Read one log of one-record batches twice: as it was written, and re-batched by the daemon."""
    count = int(_TINY * share)
    place = directory / "rebatching"
    before = _stream("tiny", count, keys=0, per_batch=1)
    after = _stream("rebatched", count, keys=0, per_batch=1)
    for stream in (before, after):
        stream["value_bytes"] = PAYLOAD_BYTES
        stream["settings"].pop("compaction")
    after["settings"]["rebatch"] = {"min_age": "0s"}
    spec = {"data_dir": str(place / "data"), "streams": [before, after]}
    run_worker("stored", {"mode": "fill", **spec})
    settings = {"cleaner": {"interval": "100ms", "max_rate": "1GiB", "scrub_interval": None}}
    with _daemon(place, settings) as (daemon, client, _):
        deadline = time.monotonic() + _WAIT_SECONDS
        original = client.describe_stream("tiny").size_bytes
        while client.describe_stream("rebatched").size_bytes > 0.9 * original:
            if time.monotonic() > deadline:
                raise WorkerFailed("the daemon did not re-batch the stream")
            time.sleep(0.1)
        for number in range(rounds):
            speeds = {}
            for name, series in (("tiny", "rebatch-before"), ("rebatched", "rebatch-after")):
                speeds[name] = _read(daemon, name, count)
                measured.add(LIFTLOG, series, speeds[name])
            progress.say(
                f"round {number + 1}/{rounds} tiny batches {speeds['tiny']:,.0f} records/s, "
                f"re-batched {speeds['rebatched']:,.0f}"
            )


def _read(daemon: Daemon, stream: str, count: int) -> float:
    """Return the records per second of the best of three passes."""
    spec = {
        "mode": "liftlog",
        "address": daemon.pull_address,
        "stream": stream,
        "passes": 3,
        "value_bytes": PAYLOAD_BYTES,
    }
    passes = run_worker("readers", spec)["passes"]
    if any(records != count for records, _, _ in passes):
        raise WorkerFailed(f"{passes} were read of {count} records")
    return max(records / seconds for records, _, seconds in passes)


def beside_publishers(
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: int,
    seconds: float,
) -> None:
    """Publish at half of the peak load, with and without a compaction at its default rate."""
    place = directory / "beside"
    # The pass must take longer than the run. It reads each byte twice: without a limit until the
    # publishers have started, and then at 32 MiB/s.
    count = int((seconds + 6) * 24e6 / RECORD_BYTES)
    names = [f"dirty-{number}" for number in range(rounds)]
    streams = [_stream(name, count, keys=count // 10, first_is_clean=True) for name in names]
    spec = {"data_dir": str(place / "data"), "segment_max_bytes": 16 << 20, "streams": streams}
    run_worker("stored", {"mode": "fill", **spec})
    with _daemon(place, {"cleaner": _NEVER}) as (_, client, port):
        client.create_stream("beside", subject=_SUBJECT)
        peak = _peak(port)
        progress.say(f"peak {peak:,.0f}/s, half of it is offered")
        for number, name in enumerate(names):
            for what in ("alone", "beside") if number % 2 else ("beside", "alone"):
                settle_disk()
                if what == "beside":
                    client.compact_stream(name)
                told = _pace(port, peak / 2, seconds)
                if what == "beside":
                    _check_running(client, name)
                    client.compact_stream(name, wait=True)
                measured.add(LIFTLOG, f"{what}-kept", told["acked_in_time"] / told["offered"])
                measured.add(LIFTLOG, f"{what}-p99", told["p99_us"])
                progress.say(
                    f"round {number + 1}/{rounds} {what:<7} acked in time "
                    f"{told['acked_in_time'] / told['offered']:.2%}, p50 {told['p50_us']:,.0f} us, "
                    f"p99 {told['p99_us']:,.0f} us"
                )


def _peak(port: int) -> float:
    """Return the peak rate of a publisher that always has 800 messages in flight."""
    spec = {"port": port, "subject": _SUBJECT, "connections": 8, "in_flight": 100, "seconds": 2.0}
    return float(run_worker("publisher", spec)["rate"])


def _pace(port: int, rate: float, seconds: float) -> dict[str, Any]:
    spec = {
        "port": port,
        "subject": _SUBJECT,
        "rate": rate,
        "seconds": seconds,
        "payload_bytes": PAYLOAD_BYTES,
    }
    told = run_worker("pacer", spec)
    if told["errors"] or told["acked"] != told["offered"]:
        raise WorkerFailed(f"not every message was acked: {told}")
    return told


def _check_running(client: SyncClient, name: str) -> None:
    compaction = client.describe_stream(name).compaction
    if not compaction or compaction.get("state") != "running":
        raise WorkerFailed(f"the compaction of {name} ended before the run did: {compaction}")
