"""Blocking storage: segments, index, manifest, recovery. No asyncio and no NATS here.

Read `state.py`, `writing.py`, `structure.py`, `truncation.py` and `log.py` in this order: one class
on top of the other. Then `opening.py` and `recovery.py`: what a crash may leave.
`docs/explanation/durability.md` tells what an ack means and why;
`docs/reference/storage-format.md` specifies every byte.
"""

from liftlog.log.clock import Clock, SystemClock
from liftlog.log.data_dir import DataDir
from liftlog.log.environment import EncodedBatch, LogConfig, LogEnvironment
from liftlog.log.filesystem import FileSystem, OsFileSystem
from liftlog.log.inventory import RecoveryReport
from liftlog.log.log import Log
from liftlog.log.opening import open_log
from liftlog.log.recovery import ActiveState
from liftlog.log.slices import LogSlice

__all__ = [
    "ActiveState",
    "Clock",
    "DataDir",
    "EncodedBatch",
    "FileSystem",
    "Log",
    "LogConfig",
    "LogEnvironment",
    "LogSlice",
    "OsFileSystem",
    "RecoveryReport",
    "SystemClock",
    "open_log",
]
