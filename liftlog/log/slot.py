"""The acked-end slot: how far acks went, kept in a memory-mapped page.

Written after every commit and never fsynced on the hot path: the page survives a killed process
but not a power cut, hence the boot id. Two entries are written in turn, so that a process that
dies in the middle of one leaves the other whole.

    0  8  acked_end u64
    8  8  sequence  u64   the entry with the higher one is newer
   16  8  CRC-32C of the lineage and of the boot id (u32 each)
   24  4  CRC-32C of bytes 0..23
   28  4  0
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from liftlog.log.filesystem import FileSystem

SLOT_NAME = "acked"
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
"""The problem and the advice."""


def current_boot_id() -> str:
    """Changes with every boot of the machine; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


class SlotState(NamedTuple):
    """`exact` when no reboot lies between the last update and now: then it is the true end."""

    acked_end: int
    exact: bool


class AckedSlot:
    """Writer and reader of one stream's slot. Not thread-safe: the committing thread owns it."""

    def __init__(
        self, fs: FileSystem, directory: Path, lineage: str, *, boot_id: str | None = None
    ) -> None:
        boot = current_boot_id() if boot_id is None else boot_id
        self._boot_crc = crc32c(boot.encode()) if boot else 0
        self._lineage_crc = crc32c(lineage.encode())
        self._map: mmap.mmap | None = fs.map_shared(directory / SLOT_NAME, _SIZE)
        self._sequence = 0
        self._state = self._read()

    def _read(self) -> SlotState | None:
        assert self._map is not None
        newest: SlotState | None = None
        for position in (0, _ENTRY.size):
            acked_end, sequence, lineage, boot, check = _ENTRY.unpack_from(self._map, position)
            if crc32c(self._map[position : position + 24]) != check:
                continue
            if lineage != self._lineage_crc or sequence <= self._sequence:
                continue
            self._sequence = sequence
            newest = SlotState(acked_end, exact=bool(boot) and boot == self._boot_crc)
        return newest

    @property
    def recovered(self) -> SlotState | None:
        """What the slot said when it was opened; None when it holds nothing usable."""
        return self._state

    def begin_lineage(self, lineage: str) -> None:
        """From now on speak of another history of offsets; `update` is to follow."""
        self._lineage_crc = crc32c(lineage.encode())

    def update(self, acked_end: int) -> None:
        """Remember that everything below `acked_end` may have been acked."""
        if self._map is None:
            return
        self._sequence += 1
        position = (self._sequence & 1) * _ENTRY.size
        fields = _FIELDS.pack(acked_end, self._sequence, self._lineage_crc, self._boot_crc)
        self._map[position : position + _CHECKED] = fields + crc32c(fields).to_bytes(4, "little")

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None
