"""Makes backups of a data directory while the daemon runs, verifies and restores them.

files      the files of a backup, its manifest written last; copies with a checksum
source     finds the part of a stream to copy: all acked records; seals the active part
creating   makes a backup of a data directory
restoring  verifies a backup; restores it to a data directory with a new leader epoch
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
