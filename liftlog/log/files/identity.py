"""Distinguishes the data directory that a node used at its last start from a copy of it.

A copy that was made while the daemon ran lacks the records that were acked since. No counter inside
can show that, because the counter was copied too. So each start stores, in the node's record, a
property that `cp`, `rsync` and `tar` cannot copy: the birth time of the directory `streams`. The
file system sets it, and no program can change it. It stays the same over mounts, boots, other
device numbers, changes of owner, and failed starts. Device and file system numbers can change, so
they are not compared.

If the file system does not store a birth time, the inode number decides, together with the change
time of the file `lock`, since some systems assign new inode numbers at each mount: the directory
counts as a copy only if both differ. A snapshot of the whole volume has all three, and counts as
the volume.

A directory that was closed cleanly has everything that its start confirmed, so a copy of it is as
good. The marker `clean` names that start, which must be the last one in the store: a process that
ended before it became the node, for example because it was refused, writes no marker.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_AT_FDCWD = -100
_BIRTH_TIME = 0x800
"""STATX_BTIME: the bit of the birth time in the masks of requested and of returned fields."""
_STATX_BYTES = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")
_BIRTH_TIME_AT = 80


class Witness(NamedTuple):
    """The evidence that a copy of a data directory does not share."""

    born_ns: int
    """Birth time of `streams`; 0 if the file system does not keep it."""
    inode: int
    """Inode number of `streams`."""
    lock_changed_ns: int
    """Change time of the inode of `lock`: each start that gets the lock writes the file."""

    @classmethod
    def of(cls, streams: Path, lock_changed_ns: int) -> Witness | None:
        """Collect the evidence; None if the directory cannot be examined. Blocking."""
        try:
            return cls(_born_ns(streams), streams.stat().st_ino, lock_changed_ns)
        except OSError:
            return None

    @classmethod
    def from_value(cls, value: object) -> Witness | None:
        """Read it from the record of a node; None if another version wrote the record."""
        if not isinstance(value, Mapping):
            return None
        known = [one for name in cls._fields if isinstance(one := value.get(name), int)]
        return cls(*known) if len(known) == len(cls._fields) else None

    def is_of_another(self, last: Witness) -> bool:
        """True if `last` certainly belongs to another directory."""
        if self.born_ns and last.born_ns:
            return self.born_ns != last.born_ns
        return self.inode != last.inode and self.lock_changed_ns != last.lock_changed_ns


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """The evidence about a data directory at a start."""

    found: Witness | None
    """The directory as the last process left it."""
    taken: Witness | None
    """The directory now."""
    closed_start: int = 0
    """Number of the node's start that closed the directory and its logs cleanly; 0: none."""

    def is_copy(self, registered: int, last: object) -> bool:
        """True if the directory is a copy that may lack what the start `registered` confirmed.
        `last` is the evidence in the record about the directory that this start used."""
        if self.closed_start == registered > 0:
            return False
        known = Witness.from_value(last)
        return self.found is not None and known is not None and self.found.is_of_another(known)


def _born_ns(path: Path) -> int:
    """Birth time of the inode; 0 if the system or the file system does not keep it."""
    import ctypes  # for this one call at a start: `os.statx` came with Python 3.15

    found = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH_TIME, found)
    except (OSError, AttributeError):  # a C library without it
        return 0
    [mask] = _MASK.unpack_from(found)
    if failed or not mask & _BIRTH_TIME:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(found, _BIRTH_TIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)
