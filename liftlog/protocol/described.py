"""Values that are sent as maps. The keys of a map are the names of the value's attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a default for every field.

    `from_wire` ignores unknown keys and uses the default for a value that is missing or has another
    type, so that old clients read new daemons and vice versa.
    """

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _wire_types(type(self))}

    @classmethod
    def from_wire(cls, received: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {}
        for name, expected in _wire_types(cls).items():
            value = received.get(name)
            if type(value) is expected:
                values[name] = value
            elif expected is float and type(value) is int:
                values[name] = float(value)
        return cls(**values)


_known: dict[type, dict[str, type]] = {}


def _wire_types(cls: type[Described]) -> dict[str, type]:
    """Return the type of each field's value: int for `int | None`, list for `list[str]`."""
    types = _known.get(cls)
    if types is None:
        hints = get_type_hints(cls)
        types = _known[cls] = {name: _plain_type(hint) for name, hint in hints.items()}
    return types


def _plain_type(hint: Any) -> type:
    choices = get_args(hint)
    if NoneType in choices:
        (hint,) = [one for one in choices if one is not NoneType]
    plain: type = get_origin(hint) or hint
    return plain


@dataclass(frozen=True, slots=True)
class StreamInfo(Described):
    """Snapshot of a stream's state in the daemon. Sizes are in bytes."""

    name: str = ""
    subject: str = ""
    """All subjects in one line. With several subjects, this text is not a pattern."""
    subjects: list[str] = field(default_factory=list)
    """The subject patterns of the stream; empty in the answer of an older daemon, which supports
    one subject per stream; see `recorded_subjects`."""
    queue_group: str | None = None
    state: str = "unknown"
    origin: str = "api"
    incarnation: str = ""
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    record_count: int | None = None
    """Records between the log start and the high watermark; None from an older daemon.

    The number is an upper bound if records are damaged, and after compaction, when it also counts
    records of the first segment below the log start."""
    size_bytes: int = 0
    segment_count: int = 0
    leader_epoch: int = 0
    acks: str = ""
    durability: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    possible_losses: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    compaction: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that override settings of the configuration file, each with `file` and `value`. An
    override applies until the value in the file changes."""
    readable_subjects: list[str] = field(default_factory=list)
    """If not empty, the caller gets only the records on these subjects. Only answers to `describe`
    contain it."""

    @property
    def recorded_subjects(self) -> list[str]:
        """The subject patterns of the stream, no two of which overlap; empty if they are not
        known."""
        return self.subjects or ([self.subject] if self.subject else [])

    @property
    def is_compacted(self) -> bool:
        """True if compaction by key is on. Without it a tombstone deletes nothing."""
        compaction = self.settings.get("compaction")
        return isinstance(compaction, dict) and compaction.get("enabled") is True

    @property
    def records(self) -> int:
        """Number of records, or of offsets if the number of records is not known."""
        if self.record_count is not None:
            return self.record_count
        return max(self.high_watermark - self.log_start_offset, 0)


@dataclass(frozen=True, slots=True)
class LeaseInfo(Described):
    """A lease on [low, high) of a stream. During the lease, its reader receives the records as they
    were when the high watermark was `high`.

    `expires_ns` is the end of the lease by the daemon's clock. `remaining_ms` is the remaining time
    when the daemon answered. `lease_id` is empty if the principal may not release the lease.
    """

    stream: str = ""
    incarnation: str = ""
    lease_id: str = ""
    low: int = 0
    high: int = 0
    holder: str = ""
    expires_ns: int = 0
    remaining_ms: int = 0


@dataclass(frozen=True, slots=True)
class ErasureInfo(Described):
    """An erasure in the list of a stream.

    - `ranges`: the requested ranges of offsets, each [first, next); at most 64 of them.
    - `selector`: a hash of the filter; empty without one.
    - `count`: number of erased records. They are in `range_count` ranges, from `first_offset` to
      `last_offset`; these three are None if the daemon no longer has the offsets.
    - `left`: number of these records whose bytes are still in segments of the stream. Their size is
      about `left_bytes` bytes.
    - `now`: True if the client requested that the daemon removes the bytes at once. `is_removing`
      is True until this removal ends.
    - `reasons`: sentences that explain why these bytes still exist.
    - `problem`: the reason why the last attempt to remove the bytes failed; empty without a
      failure.
    """

    erasure_id: str = ""
    time_ns: int = 0
    principal: str = ""
    reason: str = ""
    selector: str = ""
    count: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    range_count: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    left: int = 0
    left_bytes: int = 0
    now: bool = False
    is_removing: bool = False
    reasons: list[str] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProvenFile(Described):
    """A file in which a search for erased records has found something.

    `found` is the number of erased records in the file. `first_offset` is the offset of the first
    of these records; None if there is none. `is_listed` is True if the manifest lists the file.
    `problem` describes the part that could not be examined, or other content that the file may
    have.
    """

    file: str = ""
    is_listed: bool = False
    size_bytes: int = 0
    found: int = 0
    first_offset: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Removal(Described):
    """The records that retention would delete now: at most `records` records, and `segments` files
    with `size_bytes` in total. The log would then start at `log_start_offset`."""

    log_start_offset: int = 0
    records: int = 0
    segments: int = 0
    size_bytes: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DaemonInfo(Described):
    """A daemon's description of itself.

    - `nats`: `connected` and `server_version`.
    - `limits`: limits of the daemon's connections.
    - `features`: supported requests and other capabilities.
    - `commit`: the commit from which the daemon was built, or "".
    - `stream_count`: number of streams that the principal may read, including failed streams.
    - `conditions`: the current problems, the worst first. Each is a map with `name`, `severity`
      (unready, error or warning), `about` (daemon, stream or node), `subject`, `text` and
      `next_step`. The list has at most 20 entries of each kind. If a kind has more entries, one
      additional entry without `subject` has the number of omitted entries.
    - `warnings`: maps the names of conditions that do not affect readiness to their texts.
    - `nodes`: addresses of the pull sockets of the daemon's cluster, including its own; empty if
      the daemon does not belong to a cluster.
    """

    name: str = ""
    version: str = ""
    server_id: str = ""
    started_ns: int = 0
    uptime_seconds: float = 0.0
    nats: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    stream_count: int = 0
    features: list[str] = field(default_factory=list)
    warnings: dict[str, Any] = field(default_factory=dict)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    commit: str = ""
