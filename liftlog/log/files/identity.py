"""Distinguishes the data directory that a node used at its last start from a copy of it.

A copy that was made while the daemon ran lacks the records that were acked later. A counter in a
file cannot distinguish the two, because the copy contains the same counter. So each start stores,
in the metadata of the node, a property that `cp`, `rsync` and `tar` cannot copy: the birth time of
the directory `streams`. The file system sets this time, and no program can change it. Mounts,
boots, other device numbers, changes of owner and failed starts do not change it either. Device and
file system numbers can change, so they are not compared.

If the file system does not store birth times, the start compares the inode number and the change
time of the file `lock`. The directory counts as a copy only if both differ, because some systems
assign new inode numbers at each mount. A snapshot of the whole volume has the same birth time,
inode number and change time, so it counts as the original.

A directory that was closed cleanly has all records that the daemon confirmed since its start, so a
copy of this directory is as good as the original. The marker `clean` contains the number of the
start, and the copy is accepted if the metadata store contains no later start. A process writes no
marker if it ends before it is registered as the node, for example because the cluster refused it.
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
    """Properties of a data directory. A copy of the directory has other properties."""

    born_ns: int
    """Birth time of `streams`; 0 if the file system does not store it."""
    inode: int
    """Inode number of `streams`."""
    lock_changed_ns: int
    """Change time of the inode of `lock`, in ns since 1970. Each start that gets the lock writes
    the file."""

    @classmethod
    def of(cls, streams: Path, lock_changed_ns: int) -> Witness | None:
        """Read the properties; None if the directory cannot be examined. Blocking."""
        try:
            return cls(_born_ns(streams), streams.stat().st_ino, lock_changed_ns)
        except OSError:
            return None

    @classmethod
    def from_value(cls, value: object) -> Witness | None:
        """Parse the witness in the metadata of a node; None if another version of liftlog wrote
        it."""
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
    """The properties of a data directory at a start of the daemon."""

    found: Witness | None
    """The properties of the directory at the time when the last process ended."""
    taken: Witness | None
    """The properties of the directory now."""
    closed_start: int = 0
    """Number of the start of the node that closed the directory and its logs cleanly; 0 if none
    did."""

    def is_copy(self, registered: int, last: object) -> bool:
        """Return True if the directory is a copy, and may lack records that the start `registered`
        confirmed. `last` is the witness of the directory that this start used, from the metadata of
        the node."""
        if self.closed_start == registered > 0:
            return False
        known = Witness.from_value(last)
        return self.found is not None and known is not None and self.found.is_of_another(known)


def _born_ns(path: Path) -> int:
    """Return the birth time of an inode, ns since 1970; 0 if the system does not store it."""
    import ctypes  # `os.statx` exists only since Python 3.15

    found = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, _BIRTH_TIME, found)
    except (OSError, AttributeError):  # a C library without `statx`
        return 0
    [mask] = _MASK.unpack_from(found)
    if failed or not mask & _BIRTH_TIME:
        return 0
    seconds, nanoseconds = _TIME.unpack_from(found, _BIRTH_TIME_AT)
    return int(seconds * 1_000_000_000 + nanoseconds)
