"""Blocking storage: segments, index, manifest, recovery. No asyncio and no NATS here.

Read `log.py` first (append, sync, read), then `recovery.py` (what a crash may leave).
"""

from liftlog.log.clock import Clock, SystemClock
from liftlog.log.data_dir import DataDir
from liftlog.log.filesystem import FileSystem, OsFileSystem
from liftlog.log.log import EncodedBatch, Log, LogConfig, LogEnvironment
from liftlog.log.opening import RecoveryReport, open_log
from liftlog.log.reader import LogSlice
from liftlog.log.recovery import ActiveState

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
