"""The golden files of the storage format, their content, and the code that makes them.

`python tests/support/disks/golden_log.py` rewrites the files. Run it only for a new format version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.disks.logs import BASE_NS, FakeClock, encode, environment, set_manifest
from support.disks.simfs import SimFileSystem

from liftlog.log import DataDir, Log, LogConfig
from liftlog.log.data_dir import CLEAN_NAME, write_states
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.records import encode_batch, parse_header
from liftlog.records.codecs import codec_named, compress_batch

GOLDEN = Path(__file__).parents[2] / "golden" / "records"
DATA_DIR = Path("/data")
STREAM = DATA_DIR / "streams" / "orders"
INCARNATION = "0123456789abcdef0123456789abcdef"
BOOT_ID = "00000000-0000-4000-8000-000000000001"
FILES = (
    "recovery-points",
    "clean",
    "streams/orders/manifest",
    "streams/orders/manifest.copy",
    "streams/orders/acked",
    "streams/orders/00000000000000000001.log",
    "streams/orders/00000000000000000001.index",
    "streams/orders/00000000000000000060.log",
    "streams/orders/00000000000000000060.index",
)

Case = dict[str, Any]


def _case(name: str, **arguments: Any) -> Case:
    rows = len(arguments["values"])
    given: Case = {
        "base_offset": 42,
        "leader_epoch": 3,
        "commit_group": 7,
        "stamps": [(BASE_NS, rows)] if rows else [],
        "subjects": [b"orders.eu"] * rows,
    }
    return {"name": name, "arguments": given | arguments}


BATCHES = [
    _case("one record", values=[b"hi"]),
    _case("several records", values=[b"one", b"", b"three"]),
    _case("stamps", values=[b"a", b"b"], stamps=[(BASE_NS, 1), (BASE_NS + 1_500_000, 1)]),
    _case("subjects", values=[b"a", b"b", b"c"], subjects=[b"x", b"y.z", b"x"]),
    _case("escaped subject", values=[b"a", b"b"], subjects=[b"x\xff\\", b"plain"]),
    _case("keys", values=[b"a", b"b", b"c"], keys=[b"k", None, b""]),
    _case("headers", values=[b"a", b"b"], headers=[b"", b"NATS/1.0\r\nA: 1\r\n\r\n"]),
    _case("tombstones", values=[b"a", None], keys=[b"k", b"l"], has_tombstones=True),
    _case("compacted", values=[b"a", b"b"], offsets=[43, 47], last_offset=50),
    _case("empty", values=[], last_offset=51),
    _case(
        "everything",
        values=[b"a", None, b"ccc"],
        keys=[b"k", b"l", None],
        headers=[b"NATS/1.0\r\nA: 1\r\n\r\n", b"", b""],
        stamps=[(BASE_NS, 2), (BASE_NS + 1000, 1)],
        subjects=[b"x", b"\xff", b"x"],
        offsets=[42, 44, 49],
        last_offset=49,
        has_tombstones=True,
    ),
]


def to_json(value: Any) -> Any:
    """Convert a value to JSON, with bytes as {"hex": ...}."""
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {name: to_json(item) for name, item in value.items()}
    return value


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"hex"}:
            return bytes.fromhex(value["hex"])
        return {name: from_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return value


def batches() -> list[Case]:
    return [
        to_json({**case, "batch": bytes(encode_batch(**case["arguments"]))}) for case in BATCHES
    ]


def compressed_batches() -> list[Case]:
    """Return compressed batches, each with the batch from which it was made. Another release of a
    codec's package may compress differently; the tests only require that these bytes can be
    read."""
    values = [b'{"id": %d, "customer": "c%d", "state": "paid"}' % (i, i % 7) for i in range(200)]
    plain = encode_batch(
        base_offset=42,
        leader_epoch=3,
        commit_group=7,
        stamps=[(BASE_NS, 100), (BASE_NS + 5000, 100)],
        subjects=[b"orders.eu", b"orders.us"] * 100,
        values=[None, *values[1:]],
        keys=[b"c%d" % (i % 7) for i in range(200)],
        has_tombstones=True,
    )
    repeated = encode_batch(
        base_offset=242,
        leader_epoch=3,
        commit_group=7,
        stamps=[(BASE_NS, 1)],
        subjects=[b"orders.eu"],
        values=[b"x" * 5000],
    )
    return [
        to_json(
            {"codec": name, "plain": bytes(batch), "batch": bytes(compress_batch(batch, codec))}
        )
        for name in ("lz4", "zstd")
        if (codec := codec_named(name)) is not None
        for batch in (plain, repeated)
    ]


def files() -> dict[str, bytes]:
    """Return the files of a stream with two segments after a checkpoint and a clean stop."""
    fs = SimFileSystem()
    fs.make_directory(STREAM.parent)
    data_dir = DataDir(DATA_DIR, environment(fs, FakeClock()))
    with mock.patch("uuid.UUID.hex", INCARNATION):
        log = Log.create(
            STREAM,
            data_dir.environment,
            LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=1000),
            metadata={"subject": "orders.>"},
            boot_id=BOOT_ID,
        )
    for i in range(60):
        if log.log_end_offset == 60:
            data_dir.environment.clock.now += 1000  # type: ignore[attr-defined]
            log.writer.roll_if_due()
        values = [b"value %d" % i * 20] if i % 2 else [b"v%d" % i, b""]
        if log.log_end_offset == 59:
            values = values[:1]
        log.append([encode(log, values, stamp=BASE_NS + 1000 * i)])
        log.commit_up_to(log.sync())
    path = log.segments[0].path
    start = parse_header(fs.read(path)).length
    end = start + parse_header(fs.read(path), start).length
    bad = QuarantinedRange(3, 4, path.name, start, end, "an example")
    set_manifest(log, quarantined=(bad,))
    log.structure.remove_before(2, 0)
    data_dir.write_recovery_points({"orders": log.checkpoint()})
    state = log.close()
    assert state is not None
    write_states(fs, DATA_DIR, CLEAN_NAME, {"orders": state})
    after = fs.kill()
    return {name: after.read(DATA_DIR / name) for name in FILES}


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    (GOLDEN / "batches.json").write_text(json.dumps(batches(), indent=1) + "\n")
    (GOLDEN / "compressed.json").write_text(json.dumps(compressed_batches(), indent=1) + "\n")
    for name, raw in files().items():
        path = GOLDEN / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


if __name__ == "__main__":
    main()
