"""Ensures that only one process at a time holds the name of a node, even if processes use different
directories.

The holder writes its identity into `live.<node>`. This entry expires if it is not renewed. Another
process that wants the name waits until the entry expires, unless it can prove that the holder has
ended. There are two proofs:

- The waiting process has acquired the file lock that the holder had.
- Both processes run on the same kernel, and the kernel no longer has the holder's process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from liftlog.cluster.store import CasLost, Entry, MetaStore, NodeSession
from liftlog.errors import ConfigError, CorruptMetadata
from liftlog.log.files.acked_end import current_boot_id
from liftlog.log.files.lock import LockFile
from liftlog.server.metadata.membership import to_bytes, value_of

logger = logging.getLogger("liftlog.server.replication")

_LOOK_SECONDS = 0.25
_RENEWALS_OF_THE_LIVING = 2
"""Number of renewals that prove that a holder is running. A single renewal proves nothing, because
it can arrive after the end of the process."""
_TOLD_AGAIN_SECONDS = 60.0
_PROCESSES = Path("/proc")
_ENDED = -1


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, and the directory that it uses. A field that the process could not determine is
    empty."""

    data_id: str
    life: str
    """A random value that the process has chosen: no other process has it."""
    host: str = ""
    data_dir: str = ""
    boot_id: str = ""
    lock: tuple[int, int] = (0, 0)
    """Device and inode of the file `lock`."""
    process_space: int = 0
    """The PID namespace that `process` belongs to."""
    process: int = 0
    process_began: int = 0
    """Clock ticks from the boot to the start of the process; 0 if unknown. The number distinguishes
    processes with the same process number."""

    @classmethod
    def here(cls, data_id: str, data_dir: Path, lock: LockFile | None) -> Holder:
        """Return the holder that describes this process. This process has the lock of `data_dir`.
        Blocking."""
        number = os.getpid()
        return cls(
            data_id=data_id,
            life=secrets.token_hex(8),
            host=socket.gethostname(),
            data_dir=str(data_dir),
            boot_id=current_boot_id(),
            lock=(0, 0) if lock is None else (lock.device, lock.inode),
            process_space=_process_space(),
            process=number,
            process_began=_began(number),
        )

    @classmethod
    def of(cls, entry: Entry) -> Holder | None:
        """Return the process that has written this entry of `live.<node>`. Return None if an older
        version of liftlog wrote the entry."""
        try:
            value = value_of(entry)
            known: Mapping[str, Any] = {one: value[one] for one in cls.__slots__ if one in value}
            device, inode = known.get("lock", (0, 0))
            return cls(**{**known, "lock": (int(device), int(inode))})
        except (CorruptMetadata, TypeError, ValueError):
            return None

    def to_bytes(self) -> bytes:
        return to_bytes(asdict(self))

    def has_ended(self, here: Holder) -> bool:
        """Return True if `here` can prove that this process has ended. Blocking."""
        if not self.boot_id or self.boot_id != here.boot_id:
            return False
        if self.lock == here.lock != (0, 0):
            return True
        if not self.process_space or self.process_space != here.process_space:
            return False
        return _is_gone(self.process, self.process_began)

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, with the data directory {self.data_dir}"


def _process_space() -> int:
    """Return the PID namespace of this process; 0 if it cannot be determined, or if `/proc` belongs
    to another namespace."""
    try:
        if int(str((_PROCESSES / "self").readlink())) != os.getpid():
            return 0
        return (_PROCESSES / "self" / "ns" / "pid").stat().st_ino
    except (OSError, ValueError):
        return 0


def _is_gone(process: int, began: int) -> bool:
    """Return True if it is certain that this process has ended. The kernel then has no process with
    that number, or `/proc` shows a different process with that number. A process that is only
    missing in `/proc` may still run, because `/proc` may hide processes of other users, and opening
    a file may fail."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OverflowError, TypeError):
        return False  # `process` is not a valid number
    except OSError:
        pass  # the process may belong to another user
    now = _began(process)
    return now == _ENDED or 0 < now != began > 0


def _began(process: int) -> int:
    """Return the start time of a process; 0 if it is unknown. Return _ENDED if the process has
    ended but its parent has not called `wait` yet."""
    try:
        text = (_PROCESSES / str(process) / "stat").read_text()
        # The name of the program is the second field, in parentheses. It may contain any
        # characters.
        fields = text.rpartition(")")[2].split()
        return _ENDED if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


async def take_name(
    store: MetaStore,
    node: str,
    here: Holder,
    ttl_seconds: int,
    *,
    same_directory: bool,
    was_displaced: bool = False,
) -> NodeSession:
    """Begin the session of `node`. From then on no other process has the name.

    Processes of older versions do not describe themselves in the entry. If `same_directory` is
    true, such a holder counts as an earlier process of this directory. If a running process has the
    name, raises ConfigError. If `was_displaced` is true, waits instead until that process has
    ended. Raises CasUnknown, StoreUnavailable.
    """
    key = f"live.{node}"
    seen, renewals, told_at = None, 0, float("-inf")
    while True:
        entry = await store.get(key)
        holder = None if entry is None else Holder.of(entry)
        if await _is_free(entry, holder, here, same_directory=same_directory):
            try:
                revision = 0 if entry is None else entry.revision
                return await store.session(key, here.to_bytes(), ttl_seconds, revision)
            except CasLost:
                continue  # determine which process was faster
        assert entry is not None
        if seen is not None and seen.revision != entry.revision:
            renewals = renewals + 1 if seen.value == entry.value else 0
        seen = entry
        if renewals >= _RENEWALS_OF_THE_LIVING and not was_displaced:
            raise _in_use(node, holder)
        now = asyncio.get_running_loop().time()
        if now - told_at >= _TOLD_AGAIN_SECONDS:
            told_at = now
            logger.warning(
                "node-name-awaited node=%s session_seconds=%d holder=%s",
                node,
                ttl_seconds,
                holder or "another process",
            )
        await asyncio.sleep(_LOOK_SECONDS)


async def _is_free(
    entry: Entry | None, holder: Holder | None, here: Holder, *, same_directory: bool
) -> bool:
    """Return True if no process that may still run has the name."""
    if entry is None:
        return True
    if holder is None:
        return same_directory
    return await asyncio.to_thread(holder.has_ended, here)


def _in_use(node: str, holder: Holder | None) -> ConfigError:
    return ConfigError(
        f"node {node} runs already: {holder or 'another process'} renews its session",
        hint="give this daemon its own cluster.node. If it replaces the running daemon, stop the "
        f"running daemon first: `liftlog cluster status` shows node {node}",
    )
