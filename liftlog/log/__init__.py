"""Blocking storage: segments, index, manifest, recovery. No asyncio and no NATS here.

One stream's log; `log` is what others see of it. Read its parts in this order:

    active_segment   the one file that is being written, its index and its ends
    state            the immutable view that readers take, and how it is replaced
    writing          appending, syncing, acks, the roll to a new segment
    structure        retention, swaps of rewritten segments, quarantine
    truncation       cutting either end

    reading, slices      across segments; inside one: the bytes of a file for a fetch (`sendfile`)
    segment, index       a file of batches and how places in it are found
    sketch               which blocks of a segment can hold records of a subject, key or time
    parts                checksums in the sketch: of what precedes a batch's values, and of values
    subject_index        where the records on each subject of a segment lie
    derived              what these files beside a segment have in common
    sketched, partial, sparse   reading only parts of batches
    by_subject           reading the records on few subjects
    measuring            bytes between offsets; the n-th record of a segment
    manifest, leases, slot   what else lies in a stream's directory

What a crash can leave, and how it is recovered:

    opening      a log after a clean stop and after any other
    judging      a log that is alone: finds out about its end, and carries out each verdict
    inventory    which files are there
    recovery     the scan of the active segment; the verdict on a bad tail: cut, or kept as acked
    replica_recovery   what a replica does instead: it cuts at damage, and tells what is missing
    resync       where good batches continue after damage
    walk         the batches and gaps of a segment; what of it is damaged and not yet known

    data_dir, lock     all streams of a data directory; the checkpoint files that they share
    checkpoint_file    the form of all small files
    unreadable         reading around what the disk does not give, in windows
    filesystem         what is beneath
    shared_descriptors files that are open for writing share a bounded number of descriptors
    environment        what all logs share: clock, open files, indexes (rebuilt if lost or bad)

    rewrite      compaction, re-batching, scrubbing; in a process of its own
    offline      verify, dump, repair, reindex: without a daemon
    backup       copies while one does

`docs/explanation/durability.md` tells what an ack means and why;
`docs/reference/storage-format.md` specifies every byte.
"""

from liftlog.log.data_dir import DataDir
from liftlog.log.environment import Clock, LogConfig, LogEnvironment, SystemClock
from liftlog.log.filesystem import FileSystem, OsFileSystem
from liftlog.log.inventory import RecoveryReport
from liftlog.log.log import Log
from liftlog.log.opening import open_log
from liftlog.log.reading import Gap
from liftlog.log.recovery import ActiveState
from liftlog.log.slices import LogSlice
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
