"""Blocking storage: segments, index, manifest, recovery. No asyncio and no NATS here.

The package holds the log of one stream. Other packages mainly use its module `log`. A module
imports only modules below it in this list:

    backup, offline  copies a log while a daemon runs; verifies, dumps, repairs and reindexes it
                     without one
    rewrite          compaction, re-batching, scrubbing; in a process of its own
    data_dir         all streams of a data directory, and the files that they share
    recovery/        opens a log after a stop
    log              one stream's log, with its writer, its structure and its view
    read/            reads, on a view of the log
    truncation       cuts either end
    structure        retention, swaps of rewritten segments, quarantine, erasures
    writing          appends, syncs, acks, rolls to a new segment
    erasing          finds the records to erase, and writes their offsets to files
    state            the immutable view that readers take, and how it is replaced
    active_segment   the file that is being written, its index, how far it is written and synced
    copied_batches   checks batches that come from another log
    environment      shared by all logs: clock, open files, indexes
    segment/         one segment and the files made from it
    erased           the set of the offsets of erased records
    files/           low-level files: file system, manifest, leases, acked end

`docs/explanation/durability.md` explains what an ack guarantees, and why;
`docs/reference/storage-format.md` specifies every byte.
"""

from liftlog.log.data_dir import DataDir
from liftlog.log.environment import Clock, LogConfig, LogEnvironment, SystemClock
from liftlog.log.files.filesystem import FileSystem, OsFileSystem
from liftlog.log.log import Log
from liftlog.log.read.reading import Gap
from liftlog.log.read.slices import LogSlice
from liftlog.log.recovery.inventory import RecoveryReport
from liftlog.log.recovery.opening import open_log
from liftlog.log.segment.tail import ActiveState
from liftlog.records.encode import EncodedBatch

__all__ = [
    "ActiveState",
    "Clock",
    "DataDir",
    "EncodedBatch",
    "FileSystem",
    "Gap",
    "Log",
    "LogConfig",
    "LogEnvironment",
    "LogSlice",
    "OsFileSystem",
    "RecoveryReport",
    "SystemClock",
    "open_log",
]
