"""Backups of a data directory, taken while the daemon runs, and what is made of them again.

layout     what a backup consists of; its own manifest, written last
source     what of a stream is to be copied: everything that was acked
copying    files, byte for byte, with a checksum; what the source's disk does not give
sealing    what was acked of the active segment, as a sealed one
creating   from a data directory to a backup
verifying  whether a backup is whole
restoring  from a backup to a data directory that begins a new leader epoch
"""

from liftlog.log.backup.creating import Progress, create_backup
from liftlog.log.backup.layout import BackedUpFile, BackedUpStream, Backup, read_backup
from liftlog.log.backup.restoring import RestoredStream, restore_backup
from liftlog.log.backup.verifying import BackupFinding, verify_backup

__all__ = [
    "BackedUpFile",
    "BackedUpStream",
    "Backup",
    "BackupFinding",
    "Progress",
    "RestoredStream",
    "create_backup",
    "read_backup",
    "restore_backup",
    "verify_backup",
]
