"""A data directory with one stream, written by the real log, for tests that examine and damage
files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from liftlog.log import DataDir, EncodedBatch, Log, LogConfig, LogEnvironment
from liftlog.log.environment import SystemClock
from liftlog.log.files.filesystem import FileSystem, OsFileSystem
from liftlog.log.segment.tail import ActiveState
from liftlog.records.encode import encode_batch
from liftlog.records.header import BatchHeader, parse_header
from liftlog.server.commits.writing import compressed

STREAM = "orders"
FIRST_SEGMENT = f"{1:020d}.log"
STAMP_NS = 1_767_225_600_000_000_000


class StoredLog:
    """Append batches, then call `close` (a clean stop) or `crash` (like a killed process)."""

    def __init__(
        self,
        data_dir: Path,
        *,
        segment_max_bytes: int = 1 << 20,
        replicated: bool = False,
        fs: FileSystem | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.directory = data_dir / "streams" / STREAM
        self.environment = LogEnvironment.create(fs or OsFileSystem(), SystemClock())
        self.config = LogConfig(
            segment_max_bytes=segment_max_bytes, segment_max_age_ns=None, replicated=replicated
        )
        self._dir = DataDir(data_dir, self.environment)
        self._dir.open()
        if STREAM in self._dir.stream_names():
            self.log, self.report = self._dir.open_log(STREAM, self.config)
        else:
            self.log = self._dir.create_log(STREAM, self.config, initial_offset=1, metadata={})

    def append(
        self,
        values: Sequence[bytes | None],
        *,
        commit: bool = True,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes] | None = None,
        compression: str = "none",
    ) -> None:
        """Append one batch. Without `commit` it is written, but neither synced nor acked."""
        data = make_batch(self.log, values, keys=keys, headers=headers)
        self.log.append(compressed([encoded(data, parse_header(data))], compression))
        if commit:
            self.log.sync()
            self.log.commit_up_to(self.log.log_end_offset)

    def save_recovery_point(self) -> ActiveState:
        point = self.log.checkpoint()
        self._dir.write_recovery_points({STREAM: point})
        return point

    def delete(self) -> None:
        """Delete the stream. Call it after `close`."""
        self._dir.open()
        self._dir.delete_log(STREAM)
        self._dir.close(None)

    def close(self) -> None:
        state = self.log.close()
        assert state is not None
        self._dir.close({STREAM: state})

    def crash(self) -> None:
        """Leave all files as a killed process leaves them."""
        self.log.close_files()
        self._dir.close(None)

    def positions(self, segment: str = FIRST_SEGMENT) -> list[tuple[int, BatchHeader]]:
        return batch_positions(self.directory / segment)


def make_batch(
    log: Log,
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes] | None = None,
    base_offset: int | None = None,
) -> bytearray:
    return encode_batch(
        base_offset=log.log_end_offset if base_offset is None else base_offset,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(STAMP_NS, len(values))],
        subjects=[b"orders.new"] * len(values),
        values=values,
        keys=keys,
        headers=headers,
        has_tombstones=None in values,
    )


def encoded(data: bytearray, header: BatchHeader) -> EncodedBatch:
    return EncodedBatch(
        data,
        header.base_offset,
        header.next_offset,
        header.record_count,
        header.base_timestamp_ns,
        header.max_timestamp_ns,
    )


def batch_positions(path: Path) -> list[tuple[int, BatchHeader]]:
    """Return (position, header) of every batch of an undamaged segment."""
    raw = path.read_bytes()
    found = []
    position = 0
    while position < len(raw) and raw[position] != 0:
        header = parse_header(raw, position)
        found.append((position, header))
        position += header.length
    return found


def flip(path: Path, position: int) -> None:
    """Damage one bit."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def fingerprint(directory: Path) -> dict[str, tuple[str, int]]:
    """Return the content and the modification time of all files below a directory, to show that no
    file was changed."""
    return {
        str(path): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in [directory, *sorted(directory.rglob("*"))]
    }
