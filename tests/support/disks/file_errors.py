"""Every error for every call on every kind of file of a log, for the tests of errors."""

from __future__ import annotations

import errno
import itertools
from typing import NamedTuple

from support.disks.simfs import Fault

SECTOR_ERRORS = (errno.EIO, errno.EBADMSG, errno.EUCLEAN)
"""Errors for bytes that the disk cannot return."""

OTHER_ERRORS = (
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.EAGAIN,
    errno.EBUSY,
    errno.ETIMEDOUT,
    errno.ESTALE,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENXIO,
    errno.EROFS,
    errno.ENOSPC,
    errno.EDQUOT,
)
"""Errors that do not show damage of the bytes."""

LOOKS = ("open", "pread", "stat")
CHANGES = ("create", "write", "fsync", "rename", "truncate", "unlink", "allocate")
DERIVED = (".index", ".sketch", ".subjects")
DISPENSABLE = ("clean", "recovery-points", "leases")
KINDS = (*DERIVED, ".log", "acked", "manifest", "manifest.copy", *DISPENSABLE)


class Failure(NamedTuple):
    """A call that fails, for files of one kind."""

    operation: str
    kind: str
    error: int

    def fault(self, *, countdown: int = 1, times: int = 1) -> Fault:
        return Fault(self.operation, self.error, self.kind, countdown, times)

    def __str__(self) -> str:
        return f"{self.operation} {self.kind} {errno.errorcode[self.error]}"


def failures(
    operations: tuple[str, ...], kinds: tuple[str, ...], errors: tuple[int, ...]
) -> list[Failure]:
    return [Failure(*one) for one in itertools.product(operations, kinds, errors)]
