"""Ranges that `log verify` reports as damaged are the ranges that readers do not get after the next
start."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from support.clients.values import ZERO_TAILS
from support.disks.stored_logs import StoredLog

from liftlog.errors import CorruptBatch, CorruptRange
from liftlog.log import Log
from liftlog.log.offline.files import find_streams
from liftlog.log.offline.verify import DAMAGE, verify_stream
from liftlog.records.decode import decode_batch

sizes = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 400), st.sampled_from(ZERO_TAILS[:-1])),
    min_size=1,
    max_size=12,
)
flips = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=3)


def readable(log: Log) -> set[int]:
    """Return the offsets that a reader gets that reads everything and checks every batch."""
    found: set[int] = set()
    offset = log.log_start_offset
    while offset < log.high_watermark:
        try:
            piece = log.read(offset, 1)
        except CorruptRange as error:
            offset = error.next_offset
            continue
        if piece is None:
            break
        with piece:
            raw, offset = piece.pread(), piece.next_offset
        try:
            found.update(decode_batch(raw).offsets())
        except CorruptBatch:
            pass
    return found


def damaged(directory: Path) -> set[int]:
    (stream,) = find_streams(directory)
    found: set[int] = set()
    for finding in verify_stream(stream).findings:
        if finding.kind == DAMAGE:
            assert finding.first_offset is not None
            assert finding.next_offset is not None
            found.update(range(finding.first_offset, finding.next_offset))
    return found


@given(
    batches=sizes,
    flipped=flips,
    roll=st.booleans(),
    cut=st.floats(0, 1),
    codec=st.sampled_from(["none", "lz4", "zstd"]),
)
def test_verify_agrees_with_the_next_start(
    batches: list[tuple[int, int, bytes]],
    flipped: list[tuple[float, int]],
    roll: bool,
    cut: float,
    codec: str,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        log = StoredLog(path, segment_max_bytes=1500 if roll else 1 << 20)
        for count, size, tail in batches:
            log.append([b"v" * size + tail] * count, compression=codec)
        end = log.log.high_watermark
        segments = [(one.path, one.size_bytes) for one in log.log.segments]
        log.crash()
        for where, bit in flipped:
            position = int(where * sum(size for _, size in segments))
            for file, size in segments:
                if position < size:
                    flip_bit(file, position, bit)
                    break
                position -= size
        if cut < 0.3:
            file, size = segments[-1]
            with file.open("r+b") as active:
                active.truncate(int(size * cut / 0.3))
        lost = damaged(path)
        again = StoredLog(path)
        kept = readable(again.log)
        again.close()
        acked = set(range(1, end))
        assert kept <= acked
        assert lost & acked == acked - kept


def flip_bit(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))
