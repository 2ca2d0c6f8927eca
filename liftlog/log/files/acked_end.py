"""The acked-end slot: a small file of each stream that stores its acked end.

Acks may have been sent for all records below the acked end. Each commit writes the slot with one
`pwrite`, and the hot path never fsyncs it. The page cache survives a killed process but not a power
cut, so each entry names the boot id under which it is exact. The file is not mapped into memory: if
the disk is full or a sector is unreadable, a store into a mapped page ends the whole process with
SIGBUS. `pwrite` returns an error instead, which affects only one stream. The slot has two entries,
which are written alternately, so that an interrupted write of one entry leaves the other entry
intact.

    0  8  acked_end u64
    8  8  sequence  u64   the entry with the higher sequence is newer
   16  8  CRC-32C of the lineage and of the boot id (u32 each)
   24  4  CRC-32C of bytes 0..23
   28  4  0
"""

from __future__ import annotations

import errno
import logging
import os
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from liftlog.log.files.filesystem import File, FileSystem, is_full
from liftlog.log.files.unreadable import is_unreadable

logger = logging.getLogger("liftlog.log")

ACKED_END_NAME = "acked"
_ENTRY = struct.Struct("<QQIII4x")
_FIELDS = struct.Struct("<QQII")
_CHECKED = _FIELDS.size + 4
_SIZE = 2 * _ENTRY.size
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT_ID_UNKNOWN = (
    f"{_BOOT_ID} cannot be read, so a restart cannot tell a killed process from a power cut and "
    "may have to report offsets as lost that were never acked",
    "make it readable (systemd: no ProcSubset=pid)",
)
"""Error text and hint."""


def current_boot_id() -> str:
    """Return an id that changes with every boot of the machine; an empty string if the system has
    none."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class AckedEnd(NamedTuple):
    """The stored end of the acked records. `exact` means that the machine has not rebooted since
    the last update, so the update covers every ack."""

    acked_end: int
    exact: bool


def read_acked_end(
    fs: FileSystem, directory: Path, lineage: str, *, boot_id: str | None = None
) -> AckedEnd | None:
    """Read the slot's entry for that lineage; None if the slot holds nothing usable.

    Changes nothing. Raises OSError if the file exists and cannot be read. If `is_unreadable` is
    true for the error, the entry is lost; after any other error it may still be readable later.
    """
    return _read(fs, directory / ACKED_END_NAME, crc32c(lineage.encode()), _boot_crc(boot_id))[0]


def known_acked_end(
    fs: FileSystem, directory: Path, lineage: str, *, boot_id: str | None = None
) -> AckedEnd | None:
    """Call `read_acked_end`, but also return None if the disk cannot read the bytes. Raises OSError
    for other errors, after which a retry may succeed."""
    try:
        return read_acked_end(fs, directory, lineage, boot_id=boot_id)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return None


def _boot_crc(boot_id: str | None) -> int:
    boot = _known_boot_id() if boot_id is None else boot_id
    return crc32c(boot.encode()) if boot else 0


@cache
def _known_boot_id() -> str:
    """The boot id of this process: the machine cannot be rebooted while the process lives."""
    return current_boot_id()


def _read(
    fs: FileSystem, path: Path, lineage_crc: int, boot_crc: int
) -> tuple[AckedEnd | None, int]:
    """Return the newest entry of the lineage, and its sequence or 0. Raises OSError."""
    if not fs.exists(path):
        return None, 0
    file = fs.open(path, writable=False)
    try:
        raw = file.pread(_SIZE, 0)
    finally:
        file.close()
    newest, highest = None, 0
    for position in range(0, len(raw) - _ENTRY.size + 1, _ENTRY.size):
        acked_end, sequence, lineage, boot, check = _ENTRY.unpack_from(raw, position)
        if crc32c(raw[position : position + _FIELDS.size]) != check or lineage != lineage_crc:
            continue
        if sequence > highest:
            newest = AckedEnd(acked_end, exact=bool(boot) and boot == boot_crc)
            highest = sequence
    return newest, highest


class AckedEndFile:
    """Writer of one stream's slot. Not thread-safe: the committing thread owns it.

    A failed update raises no error, because the records of the update are already stored and may be
    acked. After a kill, the next start finds these records by a scan of the log. But if the records
    are damaged later, the slot does not show that they were acked. So the slot is `in_doubt` after
    a failed update, and the log rejects appends until `write_pending` succeeds.
    """

    def __init__(
        self, fs: FileSystem, directory: Path, lineage: str, *, boot_id: str | None = None
    ) -> None:
        """Open the slot. If the disk cannot read the stored bytes, the slot is rewritten. Raises
        OSError for every other error."""
        self._fs = fs
        self._path = directory / ACKED_END_NAME
        self._boot_crc = _boot_crc(boot_id)
        self._lineage_crc = crc32c(lineage.encode())
        self._file: File | None = None
        self._closed = False
        self._acked_end = 0
        self._replace = False
        self.in_doubt = False
        self.recovered: AckedEnd | None = None
        """State of the slot when it was opened; None if it held nothing usable."""
        self._sequence = 0
        try:
            self.recovered, self._sequence = _read(
                fs, self._path, self._lineage_crc, self._boot_crc
            )
        except OSError as error:
            if not is_unreadable(error):
                raise  # the content is unknown and must not be overwritten
            self._replace = True

    def begin_lineage(self, lineage: str) -> None:
        """Switch to another lineage; call `update` next."""
        self._lineage_crc = crc32c(lineage.encode())

    def update(self, acked_end: int) -> None:
        """Store `acked_end`. Everything below this offset may have been acked."""
        if self._closed:
            return
        self._acked_end = acked_end
        try:
            self._write(self._boot_crc)
        except OSError as error:
            # An unreadable sector of the file is permanent, so the file is replaced. A full disk or
            # a lack of descriptors is transient, and the file may be the only exact evidence.
            self._replace = self._replace or is_unreadable(error)
            if not is_full(error):
                self._let_go()  # a stale file handle never becomes valid again
            if not self.in_doubt:
                self.in_doubt = True
                logger.warning("acked-slot-not-written path=%s error=%s", self._path, error)

    def write_pending(self) -> None:
        """Retry the last update if it failed. Raises OSError if it fails again."""
        if self.in_doubt and not self._closed:
            self._write(self._boot_crc)
            self.in_doubt = False
            self._replace = False
            logger.info("acked-slot-written-again path=%s", self._path)

    def sync_as_lower_bound(self) -> None:
        """Make the slot durable, marked as only a lower bound of the acked end. Raises OSError.

        Later updates are exact again, but only in the page cache. The page cache can be lost
        without a reboot, for example if a volume is detached by force. In this case the next start
        finds the older value on disk, and the mark shows that this value is not the exact end.
        """
        if self._closed:
            return
        self._write(0)
        assert self._file is not None
        self._file.fdatasync()
        self._write(self._boot_crc)

    def _write(self, boot_crc: int) -> None:
        file = self._file
        if file is None or self._replace:
            file = self._open()
        sequence = self._sequence + 1
        fields = _FIELDS.pack(self._acked_end, sequence, self._lineage_crc, boot_crc)
        entry = fields + crc32c(fields).to_bytes(4, "little")
        written = file.pwritev((entry,), (sequence & 1) * _ENTRY.size)
        if written != _CHECKED:
            # The next write goes to the same place, because only the other entry is intact now.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._sequence = sequence

    def _open(self) -> File:
        create = self._replace or not self._fs.exists(self._path)
        self._let_go()
        file = self._fs.open(self._path, create=create)
        self._file = file
        if file.size() < _SIZE:
            written = file.pwritev((bytes(_SIZE),), 0)  # allocates room for both entries
            if written != _SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._replace = False
        return file

    def close(self) -> None:
        self._closed = True
        self._let_go()

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
