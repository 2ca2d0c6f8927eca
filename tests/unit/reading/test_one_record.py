"""One record out of a log: found, compacted away, not there yet, damaged."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog.errors import (
    CorruptRange,
    OffsetOutOfRange,
    StorageError,
    StreamUnavailable,
    UnsupportedFormat,
)
from liftlog.log.files.filesystem import OsFile
from liftlog.log.read.slices import LogSlice
from liftlog.records.encode import encode_batch
from liftlog.server.http.failures import failure
from liftlog.server.reading import one_record
from liftlog.server.reading.one_record import NoRecord, read_record


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    """Offsets 1 to 30 in batches of ten."""
    broker = LogBroker(tmp_path)
    stream = broker.add("orders", subject="orders.>")
    for first in (1, 11, 21):
        stream.append([b"value %d" % offset for offset in range(first, first + 10)])
    yield broker
    assert broker.unreleased == 0
    broker.close()


def test_every_record(broker: LogBroker) -> None:
    log = broker.streams["orders"].log
    for offset in range(1, 31):
        record, block = read_record(log, offset)
        assert (record.offset, record.value, block) == (offset, b"value %d" % offset, b"")


def test_what_is_not_there(broker: LogBroker) -> None:
    log = broker.streams["orders"].log
    with pytest.raises(NoRecord) as caught:
        read_record(log, 31)
    assert caught.value.details == {"high_watermark": 31}
    for offset in (0, 32):
        with pytest.raises(OffsetOutOfRange):
            read_record(log, offset)


def test_a_record_that_was_compacted_away(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    log = stream.real_log
    whole = bytearray(
        encode_batch(
            base_offset=31,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(1, 2)],
            subjects=[b"orders.new"] * 2,
            values=[b"31", b"34"],
            offsets=[31, 34],
            last_offset=35,
        )
    )
    log.writer.append_raw(whole)
    log.sync()
    stream.commit()
    stream.append([b"36"])
    assert read_record(stream.log, 34)[0].value == b"34"
    for offset in (32, 33, 35):
        with pytest.raises(NoRecord) as caught:
            read_record(stream.log, offset)
        assert caught.value.details == {"next_offset": 36}


def test_a_damaged_record(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    (path,) = stream.real_log.directory.glob("*.log")
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(data.index(b"value 15"))
        file.write(b"VALUE")
    with pytest.raises(CorruptRange) as caught:
        read_record(stream.log, 15)
    assert (caught.value.first_offset, caught.value.next_offset) == (11, 21)
    assert read_record(stream.log, 21)[0].value == b"value 21"


def test_a_file_that_ends_too_early(broker: LogBroker) -> None:
    """It was cut after the daemon looked at it."""
    log = broker.streams["orders"].real_log
    os.truncate(log.segments[-1].path, 100)
    with pytest.raises(CorruptRange) as caught:
        read_record(broker.streams["orders"].log, 5)
    assert failure(caught.value).status == 410
    assert caught.value.first_offset <= 5 < caught.value.next_offset
    assert log.is_quarantined(5, caught.value.next_offset)


def test_a_page_that_the_disk_does_not_give(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.streams["orders"].real_log

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(OsFile, "pread", fail)
    with pytest.raises(CorruptRange) as caught:
        read_record(broker.streams["orders"].log, 5)
    assert failure(caught.value).status == 410
    assert log.is_quarantined(5, caught.value.next_offset)


def test_a_disk_that_does_not_give_the_file(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = broker.streams["orders"]

    def fail(*_: object) -> bytes:
        raise OSError(errno.ENOMEM, "out of memory")

    def fail_earlier(*_: object) -> object:
        raise StorageError("reading: out of memory")

    for owner, name, call, following in (
        (LogSlice, "pread", fail, 11),
        (stream.log, "read", fail_earlier, 6),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, call)
            with pytest.raises(StreamUnavailable) as caught:
                read_record(stream.log, 5)
        assert caught.value.details["next_offset"] == following
        answer = failure(caught.value)
        assert answer.status == 503
        assert json.loads(answer.text or "")["error"]["details"]["next_offset"] == following
    assert read_record(stream.log, 5)[0].value == b"value 5"


def test_a_record_that_cannot_be_decompressed_here(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> object:
        raise UnsupportedFormat("zstd needs zstandard")

    monkeypatch.setattr(one_record, "decode_batch", cannot)
    with pytest.raises(StreamUnavailable, match="zstd needs zstandard") as caught:
        read_record(broker.streams["orders"].log, 5)
    assert failure(caught.value).status == 503
