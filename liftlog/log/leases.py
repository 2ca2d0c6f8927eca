"""Leases: for a bounded time, what a reader reads stays as it is.

A lease fixes the range [low, high) of a stream. While it lives the log start does not pass `low`,
and compaction takes no records from `high` on into account, so its reader sees the stream as it
was at `high`; nor does it drop tombstones from `low` on, which say what the reader must forget.

The reader renews the lease and may raise `low` as it advances. A lease is durable before its
holder learns of it, and ends by release, by time, or when the disk is full: rather than refuse
what is published, retention then removes what it must, and the reader gets
OFFSET_OUT_OF_RANGE.

Kept in the checkpoint file `leases` in the stream's directory, from the first lease on.
"""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from liftlog.errors import (
    CorruptMetadata,
    InvalidArgument,
    LeaseGone,
    LimitExceeded,
    StorageError,
    UnsupportedFormat,
)
from liftlog.log.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.filesystem import FileSystem, storage_errors

logger = logging.getLogger("liftlog.log")

LEASES_NAME = "leases"
KIND = "leases"

MAX_DURATION_NS = 3600 * 1_000_000_000
_CLOCK_TOLERANCE_NS = 600 * 1_000_000_000
MAX_LEASES = 100
"""The most leases of one stream."""
MAX_LEASES_PER_PRINCIPAL = 50
"""The most of these that one principal can hold, so that room is left for the others."""
MAX_HOLDER_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Lease:
    """`holder` is for people; it begins with the principal, if there is one, and a colon. Times by
    the wall clock, since they outlive the process."""

    lease_id: str
    low: int
    high: int
    expires_ns: int
    holder: str = ""

    def is_live(self, now_ns: int) -> bool:
        # A clock that was set back must not make a lease last; a small step back is normal.
        return 0 < self.expires_ns - now_ns <= MAX_DURATION_NS + _CLOCK_TOLERANCE_NS


class Leases:
    """The leases of one stream. Thread-safe.

    A change blocks, and waits for its turn. A question is answered from the last durable state and
    never waits, neither for the disk nor for a change under way.
    """

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = threading.Lock()
        self._known: dict[str, Lease] | None = None  # replaced as a whole, never changed

    def load(self) -> None:
        """Read them, if that has not been done. Blocking; raises StorageError when they cannot be
        read."""
        if self._known is None:
            with self._lock:
                self._load()

    def acquire(
        self,
        low: int,
        high: int,
        *,
        duration_ns: int,
        now_ns: int,
        holder: str = "",
        principal: str = "",
    ) -> Lease:
        """A new lease on [low, high), durable on return. `principal` is its owner, if there is one.

        Take it as the log's writer of the moment, when `low` is not below the log start and `high`
        not above the high watermark: so no retention that was decided before comes in between.
        Raises InvalidArgument, LimitExceeded, DiskFull, StorageError.
        """
        _check_duration(duration_ns)
        if low > high:
            raise InvalidArgument(f"a lease on [{low}, {high}) holds nothing")
        holder = ": ".join(filter(None, (principal, holder)))[:MAX_HOLDER_CHARACTERS]
        lease = Lease(uuid.uuid4().hex, low, high, now_ns + duration_ns, holder)
        with self._lock:
            leases = self._living(now_ns)
            if len(leases) >= MAX_LEASES:
                raise LimitExceeded(f"{self._directory.name} has {MAX_LEASES} leases already")
            if principal:
                of_principal = [
                    one for one in leases.values() if one.holder.partition(":")[0] == principal
                ]
                if len(of_principal) >= MAX_LEASES_PER_PRINCIPAL:
                    raise LimitExceeded(
                        f"{principal} has {MAX_LEASES_PER_PRINCIPAL} leases of "
                        f"{self._directory.name} already",
                        hint="give some back, or wait until they have expired",
                    )
            self._store(leases | {lease.lease_id: lease})
        return lease

    def renew(
        self, lease_id: str, *, duration_ns: int, now_ns: int, low: int | None = None
    ) -> Lease:
        """Let it last `duration_ns` from now on; `low` may rise, never fall. Durable on return.

        Raises LeaseGone when it has expired, was released or is void: what it held may have changed
        since. Raises InvalidArgument, DiskFull, StorageError; then it is as it was.
        """
        _check_duration(duration_ns)
        with self._lock:
            leases = self._living(now_ns)
            old = leases.get(lease_id)
            if old is None:
                raise LeaseGone(f"{self._directory.name} has no lease {lease_id} (any more)")
            raised = old.low if low is None else min(max(old.low, low), old.high)
            lease = replace(old, low=raised, expires_ns=now_ns + duration_ns)
            self._store(leases | {lease_id: lease})
        return lease

    def release(self, lease_id: str, *, now_ns: int) -> None:
        """End the lease; one that has ended is not an error. Raises DiskFull, StorageError: then it
        ends when it expires."""
        with self._lock:
            leases = self._living(now_ns)
            if leases.pop(lease_id, None) is not None:
                self._store(leases)

    @property
    def are_known(self) -> bool:
        """Whether they were read."""
        return self._known is not None

    @property
    def may_be_void(self) -> bool:
        """Whether there are any, or that is not known."""
        return self._known is None or bool(self._known)

    def void(self, reason: str) -> int:
        """End all leases, now; returns how many there were. Blocking, but needs no room on the
        disk: after a power cut they may be back, until they expire."""
        with self._lock:
            try:
                leases = self._load()
            except StorageError:
                leases = {"unknown": Lease("unknown", 0, 0, 0)}
            self._known = {}
            if not leases:
                return 0
            logger.warning(
                "leases-void stream=%s leases=%d reason=%s",
                self._directory.name,
                len(leases),
                reason,
            )
            try:
                self._fs.unlink(self._directory / LEASES_NAME)
            except OSError as error:
                logger.warning("leases-not-removed stream=%s error=%s", self._directory.name, error)
            return len(leases)

    def live(self, now_ns: int) -> tuple[Lease, ...]:
        """Raises StorageError while they could not be read (`load`)."""
        known = self._known
        if known is None:
            raise StorageError(f"the leases of {self._directory.name} were not read")
        return tuple(lease for lease in known.values() if lease.is_live(now_ns))

    def low_bound(self, now_ns: int) -> int | None:
        """The log start must not pass this, nor may tombstones go from here on; None if free."""
        return min((lease.low for lease in self.live(now_ns)), default=None)

    # --- the file ---

    def _living(self, now_ns: int) -> dict[str, Lease]:
        return {name: one for name, one in self._load().items() if one.is_live(now_ns)}

    def _load(self) -> dict[str, Lease]:
        if self._known is None:
            with storage_errors(f"reading the leases of {self._directory.name}"):
                self._known = self._read()
        return self._known

    def _read(self) -> dict[str, Lease]:
        path = self._directory / LEASES_NAME
        try:
            content = read_checkpoint_file(self._fs, path, KIND)
            if content is None:
                return {}
            leases = [
                Lease(**{name: entry[name] for name in Lease.__slots__})
                for entry in content["leases"]
            ]
        except (CorruptMetadata, UnsupportedFormat, KeyError, TypeError) as error:
            # Their holders get LEASE_GONE; the stream must not stop because of them.
            logger.error(  # noqa: TRY400  # the cause is in the message
                "leases-lost stream=%s error=%s", self._directory.name, error
            )
            return {}
        return {lease.lease_id: lease for lease in leases}

    def _store(self, leases: dict[str, Lease]) -> None:
        path = self._directory / LEASES_NAME
        with storage_errors(f"storing the leases of {self._directory.name}"):
            if leases or self._fs.exists(path):
                content = {"leases": [asdict(lease) for lease in leases.values()]}
                write_checkpoint_file(self._fs, path, KIND, content)
        self._known = leases


def _check_duration(duration_ns: int) -> None:
    if not 0 < duration_ns <= MAX_DURATION_NS:
        raise InvalidArgument(
            f"a lease lasts up to {MAX_DURATION_NS // 1_000_000_000} seconds, "
            f"not {duration_ns / 1e9:g}"
        )
