"""Storage defects of JetStream, Liftbridge, Kafka and laminarmq, which must not occur here.

There is one test for each defect; its docstring names the system. Their other defects are covered
where the subject belongs: hostile input in `integration/test_bad_input`, floods in `test_flood`,
group commit in `test_fsync`, retention on every tick and idle rolls in `test_retention`, signals in
`test_outages`, compaction in `unit/log/test_compact` and `integration/test_compaction`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import describe, publish, until
from support.clients.raw_nats import RawNats
from support.clients.readback import read_back
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import (
    FIRST_SEGMENT,
    STAMP_NS,
    StoredLog,
    batch_positions,
    flip,
)

from liftlog.client import connect_sync
from liftlog.errors import CorruptBatch, CorruptRange, InvalidArgument, OffsetOutOfRange
from liftlog.records import decode_batch

pytestmark = pytest.mark.integration

PAYLOAD = 100  # inside the body of a batch of one small message


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def stream_directory(daemon: Daemon) -> Path:
    return daemon.data_dir / "streams" / "in"


def daemon_for(server: NatsServer, subject: str, **stream: object) -> Daemon:
    quick = {"retention_interval": "50ms", "recovery_checkpoint_interval": "50ms"}
    return Daemon(server.url, {"streams": {"in": {"subject": subject, **stream}}, "log": quick})


def publish_many(server: NatsServer, subject: str, count: int, pad: int = 0) -> list[int]:
    """Publish one message per batch. Returns the acked offsets."""
    with RawNats(server.port) as raw:
        return [publish(raw, subject, (b"%d" % i).ljust(pad))["seq"] for i in range(count)]


# --- JetStream ---


def test_a_flipped_payload_bit_and_an_unclean_stop(server: NatsServer) -> None:
    """JetStream cut half of the acked messages, logged nothing, and assigned their numbers
    again."""
    with daemon_for(server, "flip") as daemon:
        acked = publish_many(server, "flip", 200)
        daemon.kill()
        path = stream_directory(daemon) / FIRST_SEGMENT
        position, header = batch_positions(path)[100]
        flip(path, position + PAYLOAD)
        daemon.start()
        found = read_back(daemon, "in")
        lost = [header.base_offset]
        assert [record.offset for record in found.records] == [o for o in acked if o not in lost]
        assert found.damaged == [(header.base_offset, header.next_offset)]
        assert publish_many(server, "flip", 1) == [acked[-1] + 1]
        assert "the body checksum does not match" in daemon.log


def test_message_ids_outlive_their_messages(server: NatsServer) -> None:
    """JetStream forgets the ids of purged messages at a restart: the retry is stored again."""
    stream = {"retention": {"max_messages": 1}, "dedupe_window": "10m"}
    with daemon_for(server, "ids", **stream) as daemon:
        with RawNats(server.port) as raw:
            assert publish(raw, "ids", b"1", Nats_Msg_Id="first")["seq"] == 1
            assert publish(raw, "ids", b"2", Nats_Msg_Id="second")["seq"] == 2
        until(lambda: describe(daemon, "in").log_start_offset == 2)
        daemon.kill()
        daemon.start()
        with RawNats(server.port) as raw:
            answer = publish(raw, "ids", b"1", Nats_Msg_Id="first")
            assert (answer["seq"], answer.get("duplicate")) == (1, True)


# --- Liftbridge ---


@pytest.mark.parametrize("keep", [3, 40, 90])
def test_a_torn_tail_stops_no_reader(tmp_path: Path, keep: int) -> None:
    """Liftbridge: after a short write every later reader panicked."""
    stored = StoredLog(tmp_path)
    for _ in range(10):
        stored.append([b"x" * 30])
    position, _ = stored.positions()[-1]
    stored.crash()
    with (stored.directory / FIRST_SEGMENT).open("r+b") as file:
        file.truncate(position + keep)
    again = StoredLog(tmp_path)
    # According to the slot it was acked. It is lost, but reported, and its offset is not used
    # again.
    assert offsets_of(again) == list(range(1, 10))
    assert [(bad.first_offset, bad.next_offset) for bad in again.log.view.manifest.quarantined] == [
        (10, 11)
    ]
    again.append([b"next"])
    assert offsets_of(again) == [*range(1, 10), 11]
    again.close()


def test_a_log_that_is_shorter_than_its_index(tmp_path: Path) -> None:
    """Liftbridge panicked at it."""
    stored = StoredLog(tmp_path, segment_max_bytes=64_000)
    while stored.log.segment_count < 2:
        stored.append([b"x" * 1000])
    stored.close()
    path = stored.directory / FIRST_SEGMENT
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    again = StoredLog(tmp_path, segment_max_bytes=64_000)
    [lost] = again.log.view.manifest.quarantined
    assert offsets_of(again) == [*range(1, lost.first_offset), lost.next_offset]
    assert again.log.log_end_offset == stored.log.log_end_offset
    again.close()


def test_a_lost_index_entry_gives_no_offset_away(tmp_path: Path) -> None:
    """Liftbridge took the end of the log from its index, and assigned acked offsets again."""
    for harm in (lambda raw: raw[:-32], lambda raw: raw[:-1], lambda raw: b""):
        data_dir = tmp_path / str(len(harm(bytes(64))))
        stored = StoredLog(data_dir, segment_max_bytes=64_000)
        while stored.log.segment_count < 2:
            stored.append([b"x" * 1000])
        end = stored.log.log_end_offset
        stored.crash()
        for path in stored.directory.glob("*.index"):
            path.write_bytes(harm(path.read_bytes()))
        again = StoredLog(data_dir, segment_max_bytes=64_000)
        assert again.log.log_end_offset == end
        assert offsets_of(again) == list(range(1, end))
        again.close()


def test_a_flipped_offset_bit_is_never_delivered(tmp_path: Path) -> None:
    """Liftbridge's checksum does not cover its record header: it delivered the wrong offset."""
    for bit_of in range(8, 20):
        stored = StoredLog(tmp_path / str(bit_of))
        for i in range(1, 10):
            stored.append([b"%d" % i])
        position, _ = stored.positions()[4]
        stored.close()
        flip(stored.directory / FIRST_SEGMENT, position + bit_of)
        again = StoredLog(tmp_path / str(bit_of))
        with pytest.raises(CorruptRange) as caught:
            again.log.read(5, 1)
        assert (caught.value.first_offset, caught.value.next_offset) == (5, 6)
        again.close()


def test_leftovers_of_a_killed_rewriting(tmp_path: Path) -> None:
    """Liftbridge read a leftover `.cleaned` file as records, without end. A half-finished swap made
    it read at wrong places."""
    stored = StoredLog(tmp_path, segment_max_bytes=8_000)
    while stored.log.segment_count < 4:
        stored.append([b"x" * 1000])
    end = stored.log.log_end_offset
    stored.crash()
    segment = stored.directory / FIRST_SEGMENT
    for name in (f"{1:020d}.1.log", f"{1:020d}.log.cleaned", f"{3:020d}.log", "manifest.tmp"):
        shutil.copy(segment, stored.directory / name)
    again = StoredLog(tmp_path, segment_max_bytes=8_000)
    assert offsets_of(again) == list(range(1, end))
    assert not (stored.directory / f"{1:020d}.1.log").exists()
    again.close()


def test_by_time_with_an_empty_active_segment(tmp_path: Path) -> None:
    """Liftbridge skipped the whole log."""
    stored = StoredLog(tmp_path)
    stored.append([b"1", b"2"])
    stored.log.writer.roll()
    assert stored.log.offset_for_timestamp(STAMP_NS) == 1
    assert stored.log.offset_for_timestamp(STAMP_NS + 10**15) == 3
    stored.close()


def test_names_and_offsets_of_strangers(server: NatsServer) -> None:
    """Liftbridge did not validate names, and replaced an offset beyond the end by the end."""
    with daemon_for(server, "names") as daemon, connect_sync(daemon.pull_address) as client:
        publish_many(server, "names", 3)
        with pytest.raises(OffsetOutOfRange) as caught:
            list(client.read("in", start=99, until="end"))
        assert caught.value.details["log_start_offset"] == 1
        assert caught.value.details["log_end_offset"] == 4
        for name in ("../evil", "a/b", "", "x" * 200, ".", "..", "a\0b", "a\nb", "_own"):
            with pytest.raises(InvalidArgument):
                client.create_stream(name, subject="names.too")
        assert sorted(path.name for path in (daemon.data_dir / "streams").iterdir()) == [
            "_offsets",
            "in",
        ]


# --- Kafka ---


def test_rot_below_the_recovery_point_is_noticed(tmp_path: Path) -> None:
    """Kafka recovers from there and never examines earlier bytes. Here a reader finds the
    damage."""
    stored = StoredLog(tmp_path)
    for i in range(1, 10):
        stored.append([b"%d" % i])
    stored.save_recovery_point()
    stored.append([b"behind it"])
    position, _ = stored.positions()[4]
    stored.crash()
    flip(stored.directory / FIRST_SEGMENT, position + PAYLOAD)
    again = StoredLog(tmp_path)
    assert not again.report.clean
    with again.log.read(5, 1) as piece:  # type: ignore[union-attr]
        with pytest.raises(CorruptBatch):
            decode_batch(piece.pread())
        assert piece.next_offset == 6
    again.close()


# --- laminarmq ---


def test_truncating_to_the_base_of_a_segment_and_appending(tmp_path: Path) -> None:
    """laminarmq's index was corrupt afterwards."""
    stored = StoredLog(tmp_path, segment_max_bytes=8_000)
    while stored.log.segment_count < 4:
        stored.append([b"x" * 1000])
    base = stored.log.segments[2].base_offset
    assert stored.log.truncate_suffix(base) == base
    for _ in range(10):
        stored.append([b"y" * 1000])
    stored.close()
    again = StoredLog(tmp_path, segment_max_bytes=8_000)
    assert offsets_of(again) == list(range(1, base + 10))
    for offset in offsets_of(again):
        with again.log.read(offset, 1) as piece:  # type: ignore[union-attr]
            assert piece.first_offset == offset
    again.close()


def offsets_of(stored: StoredLog) -> list[int]:
    """Read batch by batch, and continue after known losses."""
    found: list[int] = []
    offset = stored.log.log_start_offset
    gone = {bad.first_offset: bad.next_offset for bad in stored.log.view.manifest.quarantined}
    while offset < stored.log.high_watermark:
        if offset in gone:
            offset = gone[offset]
            continue
        with stored.log.read(offset, 1) as piece:  # type: ignore[union-attr]
            found += [record.offset for record in decode_batch(piece.pread())]
            offset = piece.next_offset
    return found
