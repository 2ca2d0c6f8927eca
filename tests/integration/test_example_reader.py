"""docs/examples/reader.js, a client that was written from the reference pages alone.

It must find what the Python client finds. Without node these tests skip.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of
from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

import envelope
from acl.tokens import hash_token, new_secret
from liftlog.client import connect_sync
from liftlog.records import decode_batch
from liftlog.records.decode import Record, RecordBatch

NODE = shutil.which("node")
READER = REPOSITORY / "docs" / "examples" / "reader.js"
GOLDEN = REPOSITORY / "tests" / "golden"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(NODE is None, reason="node is not installed: the reader in JavaScript"),
]


def node(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(NODE), *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "LIFTLOG_TOKEN"}
    return subprocess.run(
        command, env={**inherited, **environ}, capture_output=True, text=True, timeout=60
    )


def script(code: str, *arguments: str) -> Any:
    """What a piece of JavaScript beside `reader` and `argv` prints, as JSON."""
    prelude = f"const reader = require({json.dumps(str(READER))}); const argv = process.argv;\n"
    done = node("-e", prelude + code, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def read(daemon: Daemon, *arguments: str, **environ: str) -> list[dict[str, Any]]:
    done = node(str(READER), "--address", daemon.pull_address, *arguments, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def readable(raw: bytes | None) -> Any:
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def as_printed(record: Record) -> dict[str, Any]:
    return {
        "offset": str(record.offset),
        "timestamp_ns": str(record.timestamp_ns),
        "subject": record.subject,
        "key": readable(record.key),
        "headers": readable(record.headers.raw),
        "value": readable(record.value),
    }


# --- golden files: no daemon is needed ---


DECODE = """
const line = (batch) => ({...batch, records: batch.records.map((r) => ({
  offset: r.offset, timestamp_ns: r.timestampNs, subject: r.subject,
  key: r.key && r.key.toString('hex'), headers: r.headers.toString('hex'),
  value: r.value && r.value.toString('hex')}))});
const cases = JSON.parse(require('fs').readFileSync(argv[1]));
console.log(JSON.stringify(
  cases.map((c) => [...reader.decodeBatches(Buffer.from(c.batch.hex, 'hex'))].map(line)),
  (_, item) => (typeof item === 'bigint' ? item.toString() : item)));
"""


def in_hex(batch: RecordBatch) -> dict[str, Any]:
    return {
        "baseOffset": str(batch.header.base_offset),
        "nextOffset": str(batch.next_offset),
        "sizeBytes": batch.size_bytes,
        "records": [
            {
                "offset": str(record.offset),
                "timestamp_ns": str(record.timestamp_ns),
                "subject": record.subject,
                "key": None if record.key is None else record.key.hex(),
                "headers": record.headers.raw.hex(),
                "value": None if record.value is None else record.value.hex(),
            }
            for record in batch.records()
        ],
    }


def test_every_column_of_the_golden_batches() -> None:
    path = GOLDEN / "records" / "batches.json"
    cases = json.loads(path.read_text())
    found = script(DECODE, str(path))
    batches = [decode_batch(bytes.fromhex(case["batch"]["hex"])) for case in cases]
    assert found == [[in_hex(batch)] for batch in batches]
    assert len(found) >= 11


def test_the_golden_batches_that_are_compressed() -> None:
    path = GOLDEN / "records" / "compressed.json"
    for case in json.loads(path.read_text()):
        found = script(
            """
            const [good, codec] = [Buffer.from(argv[1], 'hex'), argv[2]];
            try {
              const [batch] = [...reader.decodeBatches(good)];
              const hex = (record) => record.value && record.value.toString('hex');
              console.log(JSON.stringify(batch.records.map(hex)));
            } catch (error) {
              console.log(JSON.stringify(error.message));
            }
            """,
            case["batch"]["hex"],
            case["codec"],
        )
        values = decode_batch(bytes.fromhex(case["plain"]["hex"])).values()
        expected = [None if value is None else value.hex() for value in values]
        if case["codec"] == "lz4" or isinstance(found, list):
            assert found == expected
        else:
            assert "needs Node 22.15" in found


def test_no_damaged_byte_passes() -> None:
    cases = json.loads((GOLDEN / "records" / "batches.json").read_text())
    [raw] = [case["batch"]["hex"] for case in cases if case["name"] == "everything"]
    passed = script(
        """
        const good = Buffer.from(argv[1], 'hex');
        const decode = (bytes) => {
          try { [...reader.decodeBatches(bytes)]; return true; }
          catch (error) { if (error instanceof reader.CorruptBatch) return false; throw error; }
        };
        const passed = decode(good) ? ['good'] : [];
        for (let at = 0; at < good.length; at++) {
          const bad = Buffer.from(good);
          bad[at] ^= 0x10;
          if (decode(bad)) passed.push(at);
          if (at > 0 && decode(good.subarray(0, at))) passed.push(-at);
        }
        console.log(JSON.stringify(passed));
        """,
        raw,
    )
    assert passed == ["good"]


FRAMES = sorted(path for path in (GOLDEN / "protocol").glob("*.bin") if "body" not in path.name)


def test_the_golden_frames() -> None:
    maps = [path.read_bytes()[4:] for path in FRAMES]
    assert len(maps) >= 9
    found = script(
        """
        const maps = argv.slice(1).map((hex) => reader.unpack(Buffer.from(hex, 'hex')));
        const again = maps.map((map) => reader.unpack(reader.pack(map)));
        const packed = maps.map((map) => reader.pack(map).toString('hex'));
        const large = (key, value) => (typeof value === 'bigint' ? `${value}n` : value);
        console.log(JSON.stringify([maps, again, packed], large));
        """,
        *[raw.hex() for raw in maps],
    )

    def as_json(item: Any) -> Any:
        if isinstance(item, bytes):
            return {"type": "Buffer", "data": list(item)}
        if isinstance(item, dict):
            return {key: as_json(value) for key, value in item.items()}
        if isinstance(item, list):
            return [as_json(value) for value in item]
        if isinstance(item, int) and item >= 2**53:
            return f"{item}n"
        return item

    expected = [msgpack.unpackb(raw) for raw in maps]
    assert found[0] == found[1] == as_json(expected)
    assert [msgpack.unpackb(bytes.fromhex(raw)) for raw in found[2]] == expected


# --- against the daemon ---

STREAMS: dict[str, Any] = {
    "all": {"subject": "all.>"},
    "users": {"subject": "users", "compaction": {}, "dedupe_window": "0s"},
    "large": {"subject": "large"},
    "tail": {"subject": "tail"},
    "damaged": {"subject": "damaged"},
    "empty": {"subject": "empty"},
    "address": {"subject": "address.>"},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def test_the_address_is_given_as_to_liftlog(raw: RawNats, daemon: Daemon) -> None:
    publish(raw, "address.a", b"x")
    there, name = daemon.pull_address, "address"
    expected = read(daemon, name)
    assert len(expected) == 1
    nowhere = "tcp://127.0.0.1:1"
    for arguments, environ in (
        (["--server", there], {}),
        ([], {"LIFTLOG_SERVER": there}),
        (["--server", there], {"LIFTLOG_SERVER": nowhere}),
    ):
        done = node(str(READER), *arguments, name, **environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert [json.loads(line) for line in done.stdout.splitlines()] == expected


def test_every_kind_of_record(raw: RawNats, daemon: Daemon) -> None:
    wrapped = envelope.encode(None, key=b"k\xff", correlation_id="c1")
    block = header_block({"Trace": "t9", "X": "ü"})
    reply = raw.new_reply()
    frames = [
        pub_frame("all.a", b"first"),
        pub_frame("all.b", b""),
        pub_frame(b"all.\xff\\x", b"\x00\xff"),
        pub_frame("all.caf\u00e9", b"value \xe2\x82\xac"),
        hpub_frame("all.a", block, b"with headers"),
        hpub_frame("all.a", b"NATS/1.0 \xff\xfe\r\n\r\n", b"odd headers"),
        hpub_frame("all.a", header_block({"Liftlog-Key": ""}), b"empty key"),
        hpub_frame("all.a", header_block({"Liftlog-Key": "k1"}), b"keyed"),
        pub_frame("all.b", wrapped, reply=reply),
    ]
    raw.send(b"".join(frames))
    assert raw.next_message().json()["seq"] == 9
    publish(raw, "all.c", b"in a batch of its own")
    expected = [as_printed(record) for record in records_of(daemon, "all")]
    assert len(expected) == 10
    assert read(daemon, "all") == expected
    assert read(daemon, "all", "--from", "4", "--count", "3") == expected[3:6]
    stamp = expected[9]["timestamp_ns"]
    assert read(daemon, "all", "--from", f"time:{stamp}") == expected[9:]
    assert read(daemon, "all", "--from", "latest") == []
    assert read(daemon, "empty") == []


def test_describe(daemon: Daemon) -> None:
    [found] = read(daemon, "large", "--describe")
    assert found == describe(daemon, "large").to_wire()


def test_what_compaction_left(raw: RawNats, daemon: Daemon) -> None:
    for number in range(40):
        block = header_block({"Liftlog-Key": f"k{number % 7}"})
        raw.hpub("users", block, b"%d" % number)
    publish(raw, "users", b"", Liftlog_Key="k0", Liftlog_Tombstone="true")
    with connect_sync(daemon.pull_address) as client:
        client.compact_stream("users", wait=True)
    expected = [as_printed(record) for record in records_of(daemon, "users")]
    assert len(expected) == 7
    assert expected[-1]["value"] is None
    assert read(daemon, "users") == expected
    assert read(daemon, "users", "--from", "1", "--count", "2") == expected[:2]


@pytest.fixture(scope="module")
def long_stream(server: NatsServer, daemon: Daemon) -> None:
    """More than a fetch holds, so that ranges are asked for ahead."""
    with RawNats(server.port) as raw:
        for start in range(0, 24_000, 1000):
            numbers = range(start, start + 1000)
            raw.send(b"".join([pub_frame("large", b"%06d" % i + b"x" * 250) for i in numbers]))
        publish(raw, "large", b"end")


@pytest.mark.usefixtures("long_stream")
def test_a_long_stream_in_many_answers(daemon: Daemon) -> None:
    expected = [as_printed(record) for record in records_of(daemon, "large")]
    assert len(expected) == 24_001
    found = read(daemon, "large")
    assert found == expected


@pytest.mark.usefixtures("long_stream")
def test_a_slow_application_holds_little(daemon: Daemon) -> None:
    """Two answers at most, however long it takes for its first record."""
    found = script(
        """
        (async () => {
          const connection = await reader.Connection.open(argv[1]);
          let count = 0;
          for await (const record of connection.read('large')) {
            if (count++ === 0) await connection.describe('tail'); // answered after what was asked
          }
          console.log(JSON.stringify([count, connection.most]));
          connection.close();
        })();
        const settle = reader.Connection.prototype.settle;
        reader.Connection.prototype.settle = function (head, body) {
          if (head.k === 'data') this.held = (this.held ?? 0) + 1;
          if (head.k === 'stream') this.most = this.held;
          settle.call(this, head, body);
        };
        """,
        daemon.pull_address,
    )
    assert found[0] == 24_001
    assert found[1] <= 2


FOLLOW = """
(async () => {
  const connection = await reader.Connection.open(argv[1]);
  let count = 0;
  console.log('ready');
  for await (const record of connection.read('tail', { until: null })) {
    console.log(JSON.stringify([record.value.toString(), connection.lastId]));
    if (++count === 5) break;
  }
  connection.close();
})();
"""


def test_records_as_they_come(raw: RawNats, daemon: Daemon) -> None:
    """By long poll: hello, auth, and one request for each record that came alone."""
    prelude = f"const reader = require({json.dumps(str(READER))}); const argv = process.argv;\n"
    command = [str(NODE), "-e", prelude + FOLLOW, daemon.pull_address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for number in range(5):
            publish(raw, "tail", b"%d" % number)
            value, requests = json.loads(process.stdout.readline())
            assert value == str(number)
            assert requests <= 2 + 2 + number
        assert process.wait(timeout=20) == 0


def test_damage_is_told_and_can_be_passed_by(raw: RawNats, daemon: Daemon) -> None:
    for number in range(5):  # each is acked before the next one goes: five batches
        publish(raw, "damaged", b"value %d" % number)
    [path] = (daemon.data_dir / "streams" / "damaged").glob("*.log")
    content = path.read_bytes()
    at = content.index(b"value 2")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"V")
    done = node(str(READER), "--address", daemon.pull_address, "damaged")
    assert done.returncode == 1
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == [
        "value 0",
        "value 1",
    ]
    assert "[3, 4)" in done.stderr
    # Who follows has a fetch waiting behind the damage, and must not wait for it to time out.
    for more in ((), ("--follow", "--count", "4")):
        started = time.monotonic()
        arguments = ("--address", daemon.pull_address, "damaged", "--skip-corrupt", *more)
        done = node(str(READER), *arguments)
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1)
        offsets = [json.loads(line)["offset"] for line in done.stdout.splitlines()]
        assert offsets == ["1", "2", "4", "5"]
        assert time.monotonic() - started < 9


def test_errors_end_it_with_a_word(daemon: Daemon) -> None:
    done = node(str(READER), "--address", daemon.pull_address, "nobody")
    assert (done.returncode, done.stdout) == (1, "")
    assert "STREAM_NOT_FOUND" in done.stderr
    done = node(str(READER), "--address", daemon.pull_address, "all", "--from", "1000000")
    assert (done.returncode, done.stdout) == (1, "")
    assert "OFFSET_OUT_OF_RANGE" in done.stderr
    done = node(str(READER), "--address", "tcp://127.0.0.1:1", "all")
    assert done.returncode == 1
    assert "ECONNREFUSED" in done.stderr


def test_tokens_and_a_unix_socket(server: NatsServer, tmp_path: Path) -> None:
    secret = new_secret()
    rules = "reading: [{allow: [read], streams: [orders]}]"
    principals = f'{{reader: {{token_hash: "{hash_token(secret)}"}}}}'
    text = f"principals: {principals}\nroles: {{{rules}}}\nbindings: {{reader: [reading]}}\n"
    (tmp_path / "acl.yaml").write_text(text)
    settings = {
        "acl": {"file": str(tmp_path / "acl.yaml")},
        "pull": {"listen": [f"unix://{tmp_path}/pull.sock"]},
        "streams": {"orders": {"subject": "acl.orders"}, "other": {"subject": "acl.other"}},
    }
    with (
        Daemon(server.url, settings, directory=tmp_path) as daemon,
        RawNats(server.port) as raw,
    ):
        publish(raw, "acl.orders", b"seen")
        token = f"reader.{secret}"
        [record] = read(daemon, "orders", LIFTLOG_TOKEN=token)
        assert record["value"] == "seen"
        for stream, given in (("orders", "reader.wrong"), ("other", token), ("orders", "")):
            arguments = (str(READER), "--address", daemon.pull_address, stream)
            done = node(*arguments, LIFTLOG_TOKEN=given)
            assert (done.returncode, done.stdout) == (1, "")
            assert token not in done.stderr
