"""Leases protect a range of a stream from retention and compaction for a bounded time. This module
also stores the other side state of a stream: small state that is copied to its replicas.

A lease holds the range [low, high) of a stream for a reader. While the lease lasts, the log start
does not pass `low`. Compaction ignores records from `high` on, so the reader gets the same records
as if the stream had ended at `high`. Compaction also keeps tombstones from `low` on, because the
reader needs them to delete keys.

The reader renews the lease and may raise `low` as it advances. A lease is durable before its holder
gets it. A lease ends when it is released, when it expires, or when the disk is full. On a full disk
publishing has priority: retention removes the protected records if necessary, and the reader gets
OFFSET_OUT_OF_RANGE.

Leases are stored in the checkpoint file `leases` of the stream's directory, which is created with
the first lease. For a replicated stream the file contains the whole side state: a version, by which
replicas compare their copies; the offset below which tombstones may be removed; and the places
where messages may have been missed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from liftlog.errors import (
    CorruptMetadata,
    InvalidArgument,
    LeaseGone,
    LimitExceeded,
    StorageError,
    UnsupportedFormat,
)
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.filesystem import FileSystem, storage_errors

logger = logging.getLogger("liftlog.log")

LEASES_NAME = "leases"
KIND = "leases"

MAX_DURATION_NS = 3600 * 1_000_000_000
_CLOCK_TOLERANCE_NS = 600 * 1_000_000_000
MAX_LEASES = 100
"""Maximum number of leases of one stream."""
MAX_LEASES_PER_PRINCIPAL = 50
"""Maximum number of leases of one principal on a stream, so that other principals can get leases,
too."""
EXPORT_LEASES = 10
"""Each of the two limits reserves this number of leases for exports. So the leases of reading jobs
cannot prevent exports."""
MAX_HOLDER_CHARACTERS = 200
MAX_POSSIBLE_LOSSES = 100
"""Maximum number of recorded possible losses of a stream. Above this number, the oldest ones are
dropped."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease. `holder` is a description for people; if the lease has a principal, it begins with
    the principal and a colon. Times are times of the wall clock, because a lease outlives the
    process."""

    lease_id: str
    low: int
    high: int
    expires_ns: int
    holder: str = ""

    def is_live(self, now_ns: int) -> bool:
        # A clock that was set back must not extend a lease. A small step back is normal, and is
        # tolerated.
        return 0 < self.expires_ns - now_ns <= MAX_DURATION_NS + _CLOCK_TOLERANCE_NS


@dataclass(frozen=True, slots=True)
class SideState:
    """The leases of a stream, and the other state that its replicas copy in addition to its
    records.

    `version` is 0 if the state is empty or the stream was never replicated. Every replica has all
    tombstones below `tombstone_bound`, except for replicas that have not reported for too long.
    """

    version: int = 0
    leases: Mapping[str, Lease] = field(default_factory=dict)
    tombstone_bound: int = 0
    possible_losses: tuple[Mapping[str, Any], ...] = ()
    """The possible losses, oldest first. Each has `offset` (offset of the first message after the
    loss), `time_ns` and `reason`."""

    def to_dict(self) -> dict[str, Any]:
        content: dict[str, Any] = {"leases": [asdict(lease) for lease in self.leases.values()]}
        if self.version:
            content |= {"version": self.version, "tombstone_bound": self.tombstone_bound}
        if self.possible_losses:
            content["possible_losses"] = [dict(one) for one in self.possible_losses]
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> SideState:
        """Parse a stored side state. Raises CorruptMetadata."""
        try:
            leases = [
                Lease(**{name: entry[name] for name in Lease.__slots__})
                for entry in content["leases"]
            ]
            found = cls(
                content.get("version", 0),
                {lease.lease_id: lease for lease in leases},
                content.get("tombstone_bound", 0),
                tuple(
                    {"offset": one["offset"], "time_ns": one["time_ns"], "reason": one["reason"]}
                    for one in content.get("possible_losses", ())
                ),
            )
            numbers = [found.version, found.tombstone_bound]
            for lease in leases:
                numbers += [lease.low, lease.high, lease.expires_ns]
                if type(lease.lease_id) is not str or type(lease.holder) is not str:
                    raise TypeError("a name is not a text")
            for loss in found.possible_losses:
                numbers += [loss["offset"], loss["time_ns"]]
                if type(loss["reason"]) is not str:
                    raise TypeError("a reason is not a text")
            if len(found.possible_losses) > MAX_POSSIBLE_LOSSES:
                raise TypeError("too many possible losses")
            if len(leases) > MAX_LEASES or not all(
                type(one) is int and one >= 0 for one in numbers
            ):
                raise TypeError("a number is out of range")
        except (KeyError, TypeError) as error:
            raise CorruptMetadata(f"the side state cannot be used: {error!r}") from error
        return found


class Leases:
    """The leases of one stream, and its side state. Thread-safe.

    Changes block, and wait for each other. Queries return the last durable state, without waiting
    for the disk or for a running change.
    """

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = threading.Lock()
        self._known: SideState | None = None  # replaced as a whole, never modified
        self._next_version: Callable[[int], int] = lambda version: version

    def load(self) -> None:
        """Read the file, unless an earlier call has read it. Blocking. Raises StorageError."""
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
        for_export: bool = False,
    ) -> Lease:
        """Add a lease on [low, high), durable on return. `principal` is its owner, if there is one.

        The caller is the log's current writer, so retention cannot move the log start during the
        call. The caller has checked that `low` is not below the log start, and `high` not above the
        high watermark. Raises InvalidArgument, LimitExceeded, DiskFull, StorageError.
        """
        _check_duration(duration_ns)
        if low > high:
            raise InvalidArgument(f"a lease on [{low}, {high}) is empty")
        holder = ": ".join(filter(None, (principal, holder)))[:MAX_HOLDER_CHARACTERS]
        lease = Lease(uuid.uuid4().hex, low, high, now_ns + duration_ns, holder)
        with self._lock:
            leases = self._living(now_ns)
            self._check_limits(leases, principal, kept_back=0 if for_export else EXPORT_LEASES)
            self._store(leases | {lease.lease_id: lease})
        return lease

    def _check_limits(self, leases: Mapping[str, Lease], principal: str, kept_back: int) -> None:
        """Raise LimitExceeded if one more lease would exceed a limit."""
        name, count, most, who = self._directory.name, len(leases), MAX_LEASES, "all principals"
        if principal and count < most - kept_back:
            count = sum(one.holder.partition(":")[0] == principal for one in leases.values())
            most, who = MAX_LEASES_PER_PRINCIPAL, principal
        if count < most - kept_back:
            return
        share = f"; {kept_back} more are kept for exports" if kept_back and count < most else ""
        raise LimitExceeded(
            f"there are {count} leases of {who} on {name} already{share}",
            hint=f"wait until some have expired, or end one: `liftlog stream lease ls {name}` "
            f"lists them, `liftlog stream lease release {name} ID` ends one",
        )

    def renew(
        self, lease_id: str, *, duration_ns: int, now_ns: int, low: int | None = None
    ) -> Lease:
        """Extend a lease to `duration_ns` from now. A higher `low` makes its range smaller. Durable
        on return.

        Raises LeaseGone if the lease has expired, was released or was voided. Records of its range
        may have been removed since then. A `low` below the current one is ignored. Raises
        InvalidArgument, DiskFull, StorageError; after an error the lease is unchanged.
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
        """End the lease; does nothing if the lease has ended already. Raises DiskFull,
        StorageError; after an error the lease ends when it expires."""
        with self._lock:
            leases = self._living(now_ns)
            if leases.pop(lease_id, None) is not None:
                self._store(leases)

    @property
    def are_known(self) -> bool:
        """True if the leases were read from their file."""
        return self._known is not None

    @property
    def may_be_void(self) -> bool:
        """True if the stream has leases, or if the file was not read yet."""
        return self._known is None or bool(self._known.leases)

    def void(self, reason: str) -> int:
        """End all leases now; returns their number. Blocking. Also works on a full disk. After
        that, a power cut may restore the leases, which then last until they expire."""
        with self._lock:
            try:
                known = self._load()
            except StorageError:
                known = SideState(leases={"unknown": Lease("unknown", 0, 0, 0)})
            count = len(known.leases)
            self._known = self._following(known, leases={}) if count else known
            if not count:
                return 0
            logger.warning(
                "leases-void stream=%s leases=%d reason=%s",
                self._directory.name,
                count,
                reason,
            )
            try:
                self._fs.unlink(self._directory / LEASES_NAME)
                if self._known.version:  # write the rest of the side state if the disk has space
                    self._write(self._known)
            except (OSError, StorageError) as error:
                logger.warning("leases-not-removed stream=%s error=%s", self._directory.name, error)
            return count

    def live(self, now_ns: int | None) -> tuple[Lease, ...]:
        """Return the leases that have not expired, or all leases if `now_ns` is None. Raises
        StorageError if the file was not read (`load`)."""
        known = self._known
        if known is None:
            raise StorageError(f"the leases of {self._directory.name} were not read")
        leases = known.leases.values()
        return tuple(lease for lease in leases if now_ns is None or lease.is_live(now_ns))

    def low_bound(self, now_ns: int | None) -> int | None:
        """Return the lowest `low` of the leases, or None if all leases have expired. The log start
        must not pass this offset, and tombstones from this offset on are kept. If `now_ns` is None,
        the time is unknown, and no lease counts as expired."""
        return min((lease.low for lease in self.live(now_ns)), default=None)

    # --- replicas ---

    @property
    def side_state(self) -> SideState:
        """The last durable side state. Raises StorageError if it was not read (`load`)."""
        known = self._known
        if known is None:
            raise StorageError(f"the side state of {self._directory.name} was not read")
        return known

    @property
    def tombstone_bound(self) -> int:
        """The offset from which a replicated stream keeps its tombstones."""
        return 0 if self._known is None else self._known.tombstone_bound

    def number(self, first: Callable[[int], int], following: Callable[[int], int]) -> None:
        """Start to number the changes of the side state, because this node now leads the replicated
        stream. `first` returns the version for the current state, `following` the version for each
        change. Both functions get the current version. Raises StorageError."""
        with self._lock:
            known = self._load()
            # Leases from before the stream was replicated have no version yet.
            version = known.version or int(bool(known.leases))
            self._known = replace(known, version=first(version))
            self._next_version = following

    def follow(self) -> None:
        """Stop numbering, because this node no longer leads the stream. From then on the leader
        numbers the changes. The version becomes the stored version, as after a start. Raises
        StorageError."""
        with self._lock:
            self._next_version = lambda version: version
            with storage_errors(f"reading the leases of {self._directory.name}"):
                self._known = self._read()

    def set_tombstone_bound(self, bound: int) -> None:
        """Allow this replica, and the replicas that copy its side state, to remove tombstones below
        `bound`. Durable on return. Raises DiskFull, StorageError."""
        with self._lock:
            known = self._load()
            if bound != known.tombstone_bound:
                self._write(self._following(known, tombstone_bound=bound))

    def note_possible_loss(self, offset: int, time_ns: int, reason: str) -> None:
        """Record that messages before the one at `offset` may have been missed. Durable on return;
        replicas copy the entry. Raises DiskFull, StorageError."""
        event = {"offset": offset, "time_ns": time_ns, "reason": reason}
        with self._lock:
            known = self._load()
            losses = (*known.possible_losses, event)[-MAX_POSSIBLE_LOSSES:]
            self._write(self._following(known, possible_losses=losses))

    def copy(self, side: SideState) -> None:
        """Store the side state of the leader; durable on return. Raises DiskFull, StorageError."""
        with self._lock:
            self._write(side)

    # --- the file ---

    def _living(self, now_ns: int) -> dict[str, Lease]:
        return {name: one for name, one in self._load().leases.items() if one.is_live(now_ns)}

    def _load(self) -> SideState:
        if self._known is None:
            with storage_errors(f"reading the leases of {self._directory.name}"):
                self._known = self._read()
        return self._known

    def _read(self) -> SideState:
        path = self._directory / LEASES_NAME
        try:
            content = read_checkpoint_file(self._fs, path, KIND)
            return SideState() if content is None else SideState.from_dict(content)
        except (CorruptMetadata, UnsupportedFormat) as error:
            # Their holders get LEASE_GONE. The stream keeps working without them.
            logger.error(  # noqa: TRY400  # the cause is in the message
                "leases-lost stream=%s error=%s", self._directory.name, error
            )
            return SideState()

    def _store(self, leases: dict[str, Lease]) -> None:
        self._write(self._following(self._load(), leases=leases))

    def _following(self, known: SideState, **changes: Any) -> SideState:
        return replace(known, version=self._next_version(known.version), **changes)

    def _write(self, side: SideState) -> None:
        path = self._directory / LEASES_NAME
        with storage_errors(f"storing the leases of {self._directory.name}"):
            if side.leases or side.version or self._fs.exists(path):
                write_checkpoint_file(self._fs, path, KIND, side.to_dict())
        self._known = side


def _check_duration(duration_ns: int) -> None:
    if not 0 < duration_ns <= MAX_DURATION_NS:
        raise InvalidArgument(
            f"a lease lasts up to {MAX_DURATION_NS // 1_000_000_000} seconds, "
            f"not {duration_ns / 1e9:g}"
        )
