"""Work on a log's files without a daemon. Each mode runs in its own process.

    python -m bench.liftbench.stored '{"mode": "compact", "data_dir": ..., "stream": ...}'

All print one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from support.daemons.processes import status_bytes

from compaction.keymap import KeyMap
from compaction.keys import KeyColumn
from compaction.planning import CompactionPolicy, plan_compaction
from liftlog.log import DataDir, EncodedBatch, Log, LogConfig, LogEnvironment, OsFileSystem
from liftlog.log.environment import SystemClock
from liftlog.log.rewrite import CompactJob, apply_compaction, compact
from liftlog.records.encode import encode_batch

KEY_BYTES = 11
_KEY_CHUNK = 16_384
_SYNC_BYTES = 32 << 20
_READ_BYTES = 4 << 20
_HOUR_NS = 3600 * 1_000_000_000


def _data_dir(spec: dict[str, Any]) -> DataDir:
    data_dir = DataDir(Path(spec["data_dir"]), LogEnvironment.create(OsFileSystem(), SystemClock()))
    data_dir.open()
    return data_dir


def _config(spec: dict[str, Any]) -> LogConfig:
    return LogConfig(spec.get("segment_max_bytes", 256 << 20), segment_max_age_ns=None)


# --- filling ---


def fill(spec: dict[str, Any]) -> dict[str, Any]:
    """Streams as a daemon would have stored them, without the publishing.

    `streams`: name, settings, count, per_batch, value_bytes, keys (0: none), the header block that
    all records have, and whether the first segment passes for compacted. With `unclean` the process
    ends as if it were killed, else cleanly and with an empty active segment.
    """
    data_dir = _data_dir(spec)
    states = {}
    for stream in spec["streams"]:
        metadata = {"settings": stream["settings"], "origin": "api", "possible_losses": []}
        config = _config(spec)
        log = data_dir.create_log(stream["name"], config, initial_offset=1, metadata=metadata)
        _append(log, stream)
        if spec.get("unclean"):
            print(json.dumps({"bytes": log.view.size_bytes}), flush=True)
            os._exit(0)
        log.writer.roll()
        if stream["first_is_clean"]:
            log.structure.replace_segments([], [], cleaned_below=log.segments[1].base_offset)
        states[stream["name"]] = log.close()
    data_dir.close({name: state for name, state in states.items() if state is not None})
    return {}


def _append(log: Log, stream: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    names = [b"k%010d" % n for n in range(stream["keys"])]
    value, per_batch = bytes(stream["value_bytes"]), stream["per_batch"]
    block = stream.get("header_block", "").encode()
    subject = stream["settings"]["subject"].encode()
    stamp = time.time_ns() // 1000 * 1000 - _HOUR_NS
    unsynced = 0
    for first in range(0, stream["count"], per_batch):
        count = min(per_batch, stream["count"] - first)
        keys = None
        if names:
            keys = [names[n] for n in rng.integers(0, len(names), count).tolist()]
        base = log.log_end_offset
        data = encode_batch(
            base_offset=base,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(stamp, count)],
            subjects=[subject] * count,
            values=[value] * count,
            keys=keys,
            headers=[block] * count if block else None,
        )
        log.append([EncodedBatch(data, base, base + count, count, stamp, stamp)])
        unsynced += len(data)
        if unsynced >= _SYNC_BYTES:
            log.sync()
            unsynced = 0
    log.commit_up_to(log.sync())


# --- compaction ---


def compact_all(spec: dict[str, Any]) -> dict[str, Any]:
    """Run one pass over all sealed segments at full speed, and make its result durable."""
    data_dir = _data_dir(spec)
    log, _ = data_dir.open_log(spec["stream"], _config(spec))
    policy = CompactionPolicy(
        min_dirty_ratio=0.0,
        min_lag_ns=0,
        max_lag_ns=None,
        tombstone_retention_ns=24 * _HOUR_NS,
        protect_newer_than_ns=0,
    )
    plan = plan_compaction(
        log.segments,
        policy,
        cleaned_below=log.view.manifest.cleaned_below,
        log_start_offset=log.log_start_offset,
        bound_offset=log.high_watermark,
        segment_max_bytes=log.config.segment_max_bytes,
        now_ns=time.time_ns(),
        on_demand=True,
    )
    assert plan is not None
    job = CompactJob(
        str(log.directory),
        plan,
        tuple(segment.entry() for segment in log.segments[: plan.sources]),
        log_start_offset=log.log_start_offset,
        memory_bytes=spec["memory_bytes"],
    )
    started, cpu = time.perf_counter(), time.process_time()
    result = compact(job, OsFileSystem())
    apply_compaction(log, result)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    records = sum(segment.record_count for segment in log.segments)
    data_dir.close({spec["stream"]: state} if (state := log.close()) is not None else None)
    return {
        "seconds": seconds,
        "cpu": cpu / seconds,
        "bytes_in": result.bytes_in,
        "records_in": result.records_in,
        "records_out": records,
        "keys": result.distinct_keys,
        "map_bytes": result.map_bytes,
        "complete": result.complete,
    }


def map_keys(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure the peak memory for distinct keys, including the memory that adding them needs."""
    count = spec["keys"]
    order = np.random.default_rng(1).permutation(count)
    warm = KeyMap(1 << 20)
    warm.add(_key_column(order[:1000]), np.arange(1000))
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = status_bytes(os.getpid(), "VmHWM")
    keymap = KeyMap(1 << 30)
    started = time.perf_counter()
    for first in range(0, count, _KEY_CHUNK):
        numbers = order[first : first + _KEY_CHUNK]
        added = keymap.add(_key_column(numbers), np.arange(first, first + len(numbers)))
        assert added == len(numbers)
    seconds = time.perf_counter() - started
    assert len(keymap) == count
    return {
        "peak_bytes": status_bytes(os.getpid(), "VmHWM") - before,
        "map_bytes": keymap.memory_used_bytes,
        "seconds": seconds,
    }


def _key_column(numbers: Any) -> KeyColumn:
    data = b"".join([b"k%010d" % n for n in numbers.tolist()])
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * KEY_BYTES
    return KeyColumn(ends, np.frombuffer(data, np.uint8), np.ones(len(numbers), np.bool_))


# --- recovery ---


def recover(spec: dict[str, Any]) -> dict[str, Any]:
    """Open the log after an unclean stop. For comparison, only read the same bytes and compute
    their checksums."""
    from crc32c import crc32c

    path = sorted((Path(spec["data_dir"]) / "streams" / spec["stream"]).glob("*.log"))[-1]
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            crc32c(piece)
    crc_seconds = time.perf_counter() - started
    data_dir = _data_dir(spec)
    started = time.perf_counter()
    log, report = data_dir.open_log(spec["stream"], _config(spec))
    seconds = time.perf_counter() - started
    end = log.log_end_offset
    log.close()
    data_dir.close(None)
    return {
        "seconds": seconds,
        "crc_seconds": crc_seconds,
        "scanned_bytes": report.scanned_bytes,
        "log_end_offset": end,
    }


MODES = {"fill": fill, "compact": compact_all, "keys": map_keys, "recover": recover}


def main(argument: str) -> None:
    spec: dict[str, Any] = json.loads(argument)
    print(json.dumps(MODES[spec["mode"]](spec)))


if __name__ == "__main__":
    main(sys.argv[1])
