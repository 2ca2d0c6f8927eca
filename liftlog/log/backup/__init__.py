"""Backups of a data directory, taken while the daemon runs, and what is made of them again.

files      what a backup consists of, its manifest written last; copies with a checksum
source     what of a stream is to be copied: everything that was acked, the active part sealed
creating   from a data directory to a backup
restoring  whether a backup is whole; from it to a data directory that begins a new leader epoch
"""

from liftlog.log.backup.creating import Progress, create_backup
from liftlog.log.backup.files import BackedUpFile, BackedUpStream, Backup, read_backup
from liftlog.log.backup.restoring import (
    BackupFinding,
    RestoredStream,
    add_to_data_dir,
    restore_backup,
    verify_backup,
)
from liftlog.log.backup.source import Committed

__all__ = [
    "BackedUpFile",
    "BackedUpStream",
    "Backup",
    "BackupFinding",
    "Committed",
    "Progress",
    "RestoredStream",
    "add_to_data_dir",
    "create_backup",
    "read_backup",
    "restore_backup",
    "verify_backup",
]
