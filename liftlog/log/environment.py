"""What a log is given: its limits, and what all logs of a daemon share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from liftlog.log.clock import Clock
from liftlog.log.file_pool import FilePool
from liftlog.log.filesystem import FileSystem
from liftlog.log.index_cache import IndexCache


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What of a stream's settings the log itself needs; sizes in bytes."""

    segment_max_bytes: int = 256 * 1024 * 1024
    segment_max_age_ns: int | None = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class LogEnvironment:
    """What all logs of a daemon share."""

    fs: FileSystem
    clock: Clock
    pool: FilePool
    indexes: IndexCache
    synced: Callable[[float], None]
    """Called by the thread of an fdatasync of a segment file, with the seconds that it took."""

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        clock: Clock,
        *,
        max_open_files: int = 256,
        cached_indexes: int = 64,
        synced: Callable[[float], None] = lambda seconds: None,
    ) -> LogEnvironment:
        pool, indexes = FilePool(fs, max_open_files), IndexCache(fs, cached_indexes)
        return cls(fs, clock, pool, indexes, synced)


class EncodedBatch(NamedTuple):
    """A batch as `encode_batch` made it, with what the log must know of it."""

    data: bytearray | memoryview
    base_offset: int
    next_offset: int
    record_count: int
    base_timestamp_ns: int
    max_timestamp_ns: int
