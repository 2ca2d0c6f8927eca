"""An ack means fsynced: seen from outside, with the system calls slowed down or failing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from support.clients.ingesting import (
    AckedPublisher,
    assert_all_stored,
    assert_no_traceback,
    describe,
    number_of,
    publish,
    records_of,
    until,
    values_of,
)
from support.clients.raw_nats import RawNats, header_block, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.strace]

STREAMS = {"in": {"subject": "in.>"}}
DELAY_SECONDS = 0.2


@pytest.fixture(scope="module")
def strace() -> str:
    path = shutil.which("strace")
    if path is None:
        pytest.skip("strace is not installed")
    tried = subprocess.run([path, "-f", "-e", "trace=none", "true"], capture_output=True)
    if tried.returncode != 0:
        pytest.skip(f"strace may not trace here: {tried.stderr.decode(errors='replace').strip()}")
    return path


def wrapped(strace: str, trace: Path, *options: str) -> list[str]:
    calls = "trace=fdatasync,fsync"
    return [strace, "-f", "-q", "-y", "-o", str(trace), "-e", calls, *options]


def syncs(trace: Path) -> list[str]:
    """The finished fdatasync calls on segment files."""
    return [line for line in trace.read_text().splitlines() if ".log>" in line]


def test_no_ack_before_the_disk(strace: str, server: NatsServer, tmp_path: Path) -> None:
    slow = f"inject=fdatasync,fsync:delay_enter={int(DELAY_SECONDS * 1e6)}"
    wrapper = wrapped(strace, tmp_path / "trace", "-e", slow)
    with Daemon(server.url, {"streams": STREAMS}, wrapper=wrapper) as daemon:
        with RawNats(server.port) as raw:
            waited = []
            for i in range(5):
                started = time.monotonic()
                assert publish(raw, "in.a", b"%d" % i)["seq"] == i + 1
                waited.append(time.monotonic() - started)
            assert min(waited) >= DELAY_SECONDS
            # A duplicate and a refusal that depend on it wait for the same sync.
            for block, code in (
                (header_block({"Nats-Msg-Id": "a"}), None),
                (header_block({"Nats-Expected-Last-Sequence": "99"}), 10071),
            ):
                started = time.monotonic()
                replies = [raw.new_reply() for _ in range(2)]
                first = header_block({"Nats-Msg-Id": "a"}) if code is None else b""
                for reply, headers in zip(replies, (first, block), strict=True):
                    if headers:
                        raw.hpub("in.a", headers, b"x", reply=reply)
                    else:
                        raw.pub("in.a", b"x", reply=reply)
                answers = [raw.next_message().json() for _ in range(2)]
                assert time.monotonic() - started >= DELAY_SECONDS
                assert [a.get("error", {}).get("err_code") for a in answers][1] == code
        # One group: a hundred waiting publishers need one or two syncs, not a hundred.
        before = len(syncs(tmp_path / "trace"))
        with RawNats(server.port) as raw:
            inbox = raw.new_reply().rpartition(b".")[0]
            raw.send(
                b"".join(pub_frame("in.b", b"x", reply=inbox + b".%d" % i) for i in range(100))
            )
            started = time.monotonic()
            for _ in range(100):
                raw.next_message()
            assert DELAY_SECONDS <= time.monotonic() - started < 5 * DELAY_SECONDS
        assert 1 <= len(syncs(tmp_path / "trace")) - before <= 4
        assert_no_traceback(daemon)


@pytest.mark.long
def test_the_loop_stays_awake_while_the_disk_is_slow(
    strace: str, server: NatsServer, tmp_path: Path
) -> None:
    """Readers and the HTTP port are served between two syncs, and other streams commit."""
    slow = f"inject=fdatasync:delay_enter={int(DELAY_SECONDS * 1e6)}"
    wrapper = wrapped(strace, tmp_path / "trace", "-e", slow)
    with Daemon(server.url, {"streams": STREAMS}, wrapper=wrapper) as daemon:
        publisher = AckedPublisher(server.port, "in.x", in_flight=10)
        publisher.start()
        until(lambda: len(publisher.acked) > 30)
        answered = []
        for _ in range(20):
            started = time.monotonic()
            assert daemon.get("/livez")[0] == 200
            answered.append(time.monotonic() - started)
        publisher.finish()
        # Some may meet an inline sync; were all of them inline, every one would wait.
        assert sorted(answered)[10] < DELAY_SECONDS / 2


@pytest.mark.parametrize("durability", ["fsync", "interval"])
def test_a_failed_sync_is_never_an_ack(
    durability: str, strace: str, server: NatsServer, tmp_path: Path
) -> None:
    """The 30th fdatasync of the first segment by a thread fails. Its waiters are nacked, the stream
    goes on in a new segment, and nothing acked is lost, now or after a crash."""
    # Of that file only: strace counts by thread, and what another thread does to go on would fail
    # as well if it happened to be its 30th.
    segment = tmp_path / "data" / "streams" / "in" / f"{1:020}.log"
    fail = "inject=fdatasync:error=EIO:when=30"
    wrapper = wrapped(strace, tmp_path / "trace", "-P", str(segment), "-e", fail)
    streams = {
        "in": {
            "subject": f"{durability}.>",
            "durability": durability,
            "flush": {"messages": 1, "interval": "1s"},
        }
    }
    with Daemon(server.url, {"streams": streams}, directory=tmp_path, wrapper=wrapper) as daemon:
        publisher = AckedPublisher(server.port, f"{durability}.x", in_flight=8)
        publisher.start()
        until(lambda: publisher.nacked)
        seen = len(publisher.acked)
        until(lambda: len(publisher.acked) > seen + 200)
        publisher.finish()
        assert any("EIO" in line for line in syncs(tmp_path / "trace"))
        assert set(publisher.nacked.values()) == {10077}
        info = describe(daemon, "in")
        assert info.state == "attached"
        assert info.segment_count >= 2
        # Below `fsync` the offsets of the failed group count as given out: readers are told.
        records = assert_all_stored(daemon, "in", publisher, on_corrupt="skip")
        stored = {number_of(record.value) for record in records}
        assert not stored & set(publisher.nacked), "what was nacked is not there"
        daemon.kill()
        daemon.wrapper = []
        daemon.start()
        assert_all_stored(daemon, "in", publisher, on_corrupt="skip")
        with RawNats(server.port) as raw:
            assert "error" not in publish(raw, f"{durability}.x", b"0")
        assert_no_traceback(daemon)


def test_acked_before_the_sync_failed(strace: str, server: NatsServer, tmp_path: Path) -> None:
    """`durability: interval` may lose what was acked, but says exactly what, and never gives an
    offset out twice."""
    segment = tmp_path / "data" / "streams" / "in" / f"{1:020}.log"
    fail = "inject=fdatasync:error=EIO:when=1"
    wrapper = wrapped(strace, tmp_path / "trace", "-P", str(segment), "-e", fail)
    streams = {
        "in": {
            "subject": "lost.>",
            "durability": "interval",
            "flush": {"messages": 1000, "interval": "1s"},
        }
    }
    with Daemon(server.url, {"streams": streams}, directory=tmp_path, wrapper=wrapper) as daemon:
        with RawNats(server.port) as raw:
            acked = [publish(raw, "lost.x", b"%d" % i)["seq"] for i in range(10)]
            until(lambda: describe(daemon, "in").quarantined)
            quarantined = describe(daemon, "in").quarantined
            assert [(q["first_offset"], q["next_offset"]) for q in quarantined] == [(1, 11)]
            assert "fdatasync" in quarantined[0]["reason"]
            seq = publish(raw, "lost.x", b"kept")["seq"]
            assert (acked, seq) == (list(range(1, 11)), 11)
            until(lambda: describe(daemon, "in").high_watermark == 12)
        daemon.kill()
        daemon.wrapper = []
        daemon.start()
        assert describe(daemon, "in").quarantined == quarantined
        found = {record.offset: record.value for record in records_of(daemon, "in", seq)}
        assert found == {seq: b"kept"}
        assert_no_traceback(daemon)


def test_storage_that_fails_for_good_stops_that_stream_alone(
    strace: str, server: NatsServer, tmp_path: Path
) -> None:
    fail = "inject=fdatasync,fsync:error=EIO:when=40+"
    streams = {"in": {"subject": "bad.>"}, "os": {"subject": "fine.>", "durability": "os"}}
    wrapper = wrapped(strace, tmp_path / "trace", "-e", fail)
    with Daemon(server.url, {"streams": streams}, wrapper=wrapper) as daemon:
        with RawNats(server.port) as raw:
            # The first early ack of a stream must be noted on disk before it leaves.
            assert publish(raw, "fine.x", b"0")["seq"] == 1
            acked = []
            answer = publish(raw, "bad.x", b"0")
            while "error" not in answer:
                acked.append(answer["seq"])
                answer = publish(raw, "bad.x", b"%d" % len(acked))
            while describe(daemon, "in").state != "failed":
                publish(raw, "bad.x", b"x")
            for _ in range(3):
                assert publish(raw, "bad.x", b"x")["error"]["err_code"] == 10077
            assert publish(raw, "fine.x", b"1")["seq"] == 2
        assert describe(daemon, "in").state == "failed"
        assert describe(daemon, "os").state == "attached"
        assert daemon.metric("liftlog_failed", stream="in") == 1
        # On a busy machine the list of conditions is up to a second old.
        (words,) = until(lambda: json.loads(daemon.get("/readyz")[1])["warnings"]).values()
        assert daemon.get("/readyz")[0] == 200, "the others are served"
        assert words.startswith("in: storage failed")
        daemon.kill()
        daemon.wrapper = []
        daemon.start()
        assert values_of(daemon, "in")[: len(acked)] == [b"%d" % i for i in range(len(acked))]
        assert_no_traceback(daemon)


MANY = 64


def publish_to_all(raw: RawNats, inbox: bytes) -> None:
    """One message for each stream, in one write; the answer of `m5` comes to `inbox`.5."""
    raw.send(b"".join(pub_frame(f"many.{n}", b"x", reply=inbox + b".%d" % n) for n in range(MANY)))


def answers_by_stream(raw: RawNats) -> dict[int, int]:
    """The codes of the answers, 0 for an ack, by stream in the order in which they came."""
    found = {}
    for _ in range(MANY):
        message = raw.next_message()
        number = int(message.subject.rpartition(b".")[2])
        found[number] = message.json().get("error", {}).get("err_code", 0)
    return found


def many_streams() -> dict[str, dict[str, str]]:
    return {f"m{n}": {"subject": f"many.{n}"} for n in range(MANY)}


def test_no_ack_before_the_sync_of_its_own_stream(
    strace: str, server: NatsServer, tmp_path: Path
) -> None:
    """Many streams commit in one round, and threads sync their files side by side."""
    trace = tmp_path / "trace"
    calls = "trace=fdatasync,write,writev,sendto,sendmsg"
    slow = "inject=fdatasync:delay_enter=10000"
    wrapper = [strace, "-f", "-q", "-y", "-s", "100000", "-o", str(trace), "-e", calls, "-e", slow]
    with Daemon(server.url, {"streams": many_streams()}, wrapper=wrapper) as daemon:
        with RawNats(server.port) as raw:
            inbox = raw.new_reply().rpartition(b".")[0]
            for _ in range(3):
                publish_to_all(raw, inbox)
                assert set(answers_by_stream(raw).values()) == {0}
        assert_no_traceback(daemon)
    begun: dict[str, int] = {}
    synced, acked = [0] * MANY, [0] * MANY
    sends = 0
    for line in trace.read_text().splitlines():
        thread = line.split(maxsplit=1)[0]
        segment = re.search(r"fdatasync\(\d+<[^>]*/streams/m(\d+)/\d+\.log>", line)
        if segment is not None:
            begun[thread] = int(segment[1])
        if "fdatasync" in line and thread in begun and re.search(r"\) += 0", line):
            synced[begun.pop(thread)] += 1
        acks = re.findall(rf"PUB {re.escape(inbox.decode())}\.(\d+) ", line)
        sends += bool(acks)
        for number in map(int, acks):
            acked[number] += 1
            assert acked[number] <= synced[number], f"m{number} was acked before its sync"
    assert acked == [3] * MANY
    assert sends < 2 * MANY, "the acks of a round leave together"


def test_a_sync_that_fails_concerns_one_stream_of_a_round(
    strace: str, server: NatsServer, tmp_path: Path
) -> None:
    segment = tmp_path / "data" / "streams" / "m7" / f"{1:020}.log"
    fail = "inject=fdatasync:error=EIO:when=1"
    wrapper = wrapped(strace, tmp_path / "trace", "-P", str(segment), "-e", fail)
    settings = {"streams": many_streams()}
    with Daemon(server.url, settings, directory=tmp_path, wrapper=wrapper) as daemon:
        with RawNats(server.port) as raw:
            inbox = raw.new_reply().rpartition(b".")[0]
            answers = []
            while len(answers) < 20 and not any(answers[-1].values() if answers else ()):
                publish_to_all(raw, inbox)
                answers.append(answers_by_stream(raw))
            assert answers[-1] == {n: 10077 if n == 7 else 0 for n in range(MANY)}
            publish_to_all(raw, inbox)
            assert set(answers_by_stream(raw).values()) == {0}
        daemon.kill()
        daemon.wrapper = []
        daemon.start()
        for n in (0, 7, 63):
            expected = len(answers) + (n != 7)
            assert len(values_of(daemon, f"m{n}")) == expected
        assert_no_traceback(daemon)


def test_a_sync_that_stalls_concerns_one_stream_of_a_round(
    strace: str, server: NatsServer, tmp_path: Path
) -> None:
    segment = tmp_path / "data" / "streams" / "m7" / f"{1:020}.log"
    stall = "inject=fdatasync:delay_enter=2000000"
    wrapper = wrapped(strace, tmp_path / "trace", "-P", str(segment), "-e", stall)
    settings = {"streams": many_streams()}
    with Daemon(server.url, settings, directory=tmp_path, wrapper=wrapper) as daemon:
        with RawNats(server.port) as raw:
            inbox = raw.new_reply().rpartition(b".")[0]
            for _ in range(3):
                started = time.monotonic()
                publish_to_all(raw, inbox)
                others = {}
                while len(others) < MANY - 1:
                    message = raw.next_message()
                    number = int(message.subject.rpartition(b".")[2])
                    others.setdefault(number, time.monotonic() - started)
                assert 7 not in others
                assert max(others.values()) < 1.0
                late = raw.next_message()
                assert late.subject.endswith(b".7")
                assert time.monotonic() - started >= 2.0
        assert_no_traceback(daemon)


@pytest.mark.long
def test_stopping_while_the_disk_is_slow(strace: str, server: NatsServer, tmp_path: Path) -> None:
    slow = f"inject=fdatasync:delay_enter={int(DELAY_SECONDS * 1e6)}"
    wrapper = wrapped(strace, tmp_path / "trace", "-e", slow)
    with Daemon(server.url, {"streams": STREAMS}, wrapper=wrapper) as daemon:
        publisher = AckedPublisher(server.port, "in.x", in_flight=100)
        publisher.start()
        until(lambda: len(publisher.acked) > 200)
        stopper = threading.Thread(target=daemon.stop)
        stopper.start()
        stopper.join(10)
        publisher.finish()
        daemon.wrapper = []
        daemon.start()
        assert_all_stored(daemon, "in", publisher)
        assert_no_traceback(daemon)
