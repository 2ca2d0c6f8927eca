"""The record of one stream: the nodes with a copy, the leader, and the copies that have all acked
data.

Records are JSON objects in the metadata store. A node that rewrites a record keeps keys that are
unknown to it, so nodes of two versions can work on the same record.

Three sets of replicas define which copies can be trusted:

isr             in sync: each of them holds everything that was ever acked, and the next ack waits
                for all of them
eligible        left the ISR when the ISR was already too small to ack, so they also hold
                everything that was acked
last_eligible   were in `isr` or `eligible`, then had a start that may have lost data
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from zlib import crc32

from liftlog.errors import CorruptMetadata, NewerFormat

FORMAT_VERSION = 1
_TRAIL = 64
Mark = tuple[int, int]
"""The version and the checksum of a record."""

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def default_min_isr(replicas: int) -> int:
    """Return the default of `min_isr`, the smallest ISR that may ack: half of the replicas, rounded
    up."""
    return (replicas + 1) // 2


@dataclass(frozen=True, slots=True)
class StreamMetadata:
    """The metadata of one stream: a value of the key `stream.<name>`. Node names are in the order
    of `replicas`."""

    name: str
    incarnation: str
    settings: Mapping[str, Any]
    """The settings as in the configuration file. This module reads only `min_isr`; other modules
    read the rest."""
    replicas: tuple[str, ...]
    """The nodes that hold a copy. The first node is preferred as leader."""
    leader: str | None
    leader_epoch: int
    """Increases by one with every change of the leader, and with every completed reassignment."""
    isr: tuple[str, ...]
    eligible: tuple[str, ...] = ()
    last_eligible: tuple[str, ...] = ()
    starts: Mapping[str, int] = field(default_factory=dict)
    """Maps each node to the number of the start that the node registered last. The number grows
    with each start of the node. A node whose copy is no longer needed stays in this map until it
    has removed the copy."""
    adding: tuple[str, ...] = ()
    """Replicas that a pending reassignment adds; they are among `replicas`."""
    removing: tuple[str, ...] = ()
    """Replicas that leave when the reassignment completes; they are among `replicas` until then."""
    observers: tuple[str, ...] = ()
    """Nodes with a copy that never lead. No ack waits for these copies."""
    log_start: int = 0
    """Administrative truncation: every replica deletes the records below this offset."""
    unclean_epoch: int = 0
    """The leader epoch that the last unclean recovery began; 0 if there was none. A log without a
    record of that epoch or a later one may have to drop offsets below its high watermark."""
    decided: int = 0
    """The version with which an operator last restored the record; 0 if never. A node drops its
    copy if its version of the record is older than this version and is not in its history."""
    deleted: bool = False
    former: tuple[str, ...] = ()
    """The newest incarnations of deleted streams with this name. Nodes may still have copies of
    these streams."""
    system: bool = False
    version: int = 1
    """Increases by one with every change."""
    trail: tuple[int, ...] = ()
    """The last versions before this one, each followed by the checksum of the record of that
    version. A node uses the trail to determine whether its own version is a predecessor of this
    one."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Keys that a newer version of liftlog added."""
    _json: bytes = field(default=b"", init=False, repr=False, compare=False)
    """Cache of the JSON text, filled at the first use, because a change of the record needs the
    text several times."""

    @property
    def min_isr(self) -> int:
        """The smallest ISR that may ack."""
        chosen = self.settings.get("min_isr")
        return default_min_isr(len(self.target)) if chosen is None else int(chosen)

    @property
    def can_commit(self) -> bool:
        """True if the ISR is large enough to ack."""
        return len(self.isr) >= self.min_isr

    @property
    def target(self) -> tuple[str, ...]:
        """The replicas after the pending reassignment."""
        if not self.removing:
            return self.replicas
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def members(self) -> tuple[str, ...]:
        """Every node with a copy, observers last."""
        return self.replicas + self.observers

    def leads(self, node: str, start: int) -> bool:
        """Return True if `node` leads, in the process run with the number `start`."""
        return self.leader == node and self.starts.get(node) == start

    def must_keep(self, node: str) -> bool:
        """Return True if the copy of `node` may be the last copy of some acked data."""
        return node in self.isr or node in self.eligible

    def concerns(self, node: str) -> bool:
        """Return True if `node` has a copy, must get one, or must remove one."""
        return node in self.starts or (node in self.members and not self.deleted)

    def in_order(self, nodes: Iterable[str]) -> tuple[str, ...]:
        """Return the replicas among `nodes`, in the order of `replicas`."""
        wanted = frozenset(nodes)
        return tuple(node for node in self.replicas if node in wanted)

    @property
    def mark(self) -> Mark:
        """The mark of this version. No other version has the same mark, even in another history of
        the record."""
        return self.version, self.checksum

    @property
    def marks(self) -> list[Mark]:
        """The marks of this version and of its predecessors in the trail."""
        return [*zip(self.trail[::2], self.trail[1::2], strict=True), self.mark]

    def has(self, mark: Mark) -> bool:
        """Return True if `mark` belongs to this version, or to an earlier one within the trail."""
        version, checksum = mark
        if version >= self.version:
            return mark == self.mark
        versions = self.trail[::2]
        return version in versions and self.trail[2 * versions.index(version) + 1] == checksum

    def may_come_from(self, mark: Mark) -> bool:
        """Return True if this record belongs to the history of `mark`, or if its trail is too short
        to decide."""
        return self.has(mark) or bool(self.trail and mark[0] < self.trail[0])

    def checksum_of(self, version: int) -> int:
        """Return the checksum of this version or of an earlier one; 0 if the trail does not have
        it."""
        return dict(self.marks).get(version, 0)

    @property
    def checksum(self) -> int:
        """The CRC-32 of the record. The checksum covers the trail, and so all earlier versions."""
        return crc32(self.to_json())

    def follows(self, earlier: StreamMetadata) -> bool:
        """Return True if this record is `earlier`, or a successor of `earlier` according to the
        trail.

        Two different records can have the same version, if the store was restored to an older state
        after the first one was written.
        """
        if self.version <= earlier.version:
            return self == earlier
        known = dict(zip(self.trail[::2], self.trail[1::2], strict=False))
        if self.trail and earlier.version > self.trail[0]:
            # Versions that are left out were dropped when the record was restored.
            return known.get(earlier.version) == earlier.checksum
        return known.get(earlier.version, earlier.checksum) == earlier.checksum

    def next_trail(self) -> tuple[int, ...]:
        """The trail of the version after this one."""
        return (*self.trail, self.version, self.checksum)[-2 * _TRAIL :]

    def to_json(self) -> bytes:
        """Return the value to store.

        Every version of liftlog that has this format returns the same bytes for the same record,
        because nodes identify a record by its checksum.
        """
        if not self._json:
            known = {name: getattr(self, name) for name in _KEYS}
            later = {name: value for name in _LATER if (value := known.pop(name))}
            text = _to_json({**self.unknown, **later, "v": FORMAT_VERSION, **known})
            object.__setattr__(self, "_json", text.encode())
        return self._json

    @staticmethod
    def from_json(data: bytes) -> StreamMetadata:
        """Parse a value of the store.

        Raises CorruptMetadata if the value is not a valid record. Raises UnsupportedFormat if a
        newer version of liftlog wrote the value in a form that this version cannot read.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _corrupt(f"it is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise _corrupt("it is not a JSON object")
        version = value.pop("v", None)
        if not _is_count(version) or version != FORMAT_VERSION:
            if _is_count(version) and version > FORMAT_VERSION:
                raise NewerFormat(
                    f"a stream record has format {version}; this version reads {FORMAT_VERSION}"
                )
            raise _corrupt(f"its format is {version!r}")
        known = {name: value.pop(name) for name in _KEYS if name in value}
        if missing := _REQUIRED - known.keys():
            raise _corrupt(f"{', '.join(sorted(missing))} is missing")
        for name, given in known.items():
            if not _FORMS[name](given):
                raise _corrupt(f"{name} is {given!r}")
            if isinstance(given, list):
                known[name] = tuple(given)
        record = StreamMetadata(**known, unknown=value)
        if problem := record.problem():
            raise _corrupt(problem)
        return record

    def problem(self) -> str:
        """Return the first contradiction in this record; "" if there is none."""
        for what, nodes, among in (
            ("isr", self.isr, self.replicas),
            ("eligible", self.eligible, self.replicas),
            ("last_eligible", self.last_eligible, self.replicas),
            ("adding", self.adding, self.replicas),
            ("removing", self.removing, self.replicas),
        ):
            if not set(nodes) <= set(among):
                return f"{what} {list(nodes)} has a node that is not among {list(among)}"
        for what, nodes in (("replicas", self.members), ("adding", self.adding + self.removing)):
            if len(set(nodes)) < len(nodes):
                return f"{what} names a node twice: {list(nodes)}"
        copies = self.isr + self.eligible + self.last_eligible
        if len(set(copies)) < len(copies):
            return f"a node is in two of isr, eligible and last_eligible: {list(copies)}"
        if self.leader is not None and self.leader not in self.isr:
            return f"the leader {self.leader} is not in the ISR {list(self.isr)}"
        if not self.replicas:
            return "it names no replica"
        if not 1 <= self.min_isr <= len(self.target):
            return f"min_isr is {self.min_isr}, of {len(self.target)} replicas"
        return ""


def _corrupt(problem: str) -> CorruptMetadata:
    return CorruptMetadata(
        f"a stream record is damaged: {problem}",
        hint="put back the copy of it that another node keeps",
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(_is_name(one) for one in value)


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(_is_count(one) for one in value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_settings(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    chosen = value.get("min_isr")
    return chosen is None or _is_count(chosen)


def _are_starts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_count(start) for start in value.values())


_FORMS = {
    "name": _is_name,
    "version": _is_count,
    "incarnation": _is_name,
    "deleted": _is_flag,
    "former": _are_names,
    "system": _is_flag,
    "settings": _are_settings,
    "log_start": _is_count,
    "replicas": _are_names,
    "adding": _are_names,
    "removing": _are_names,
    "observers": _are_names,
    "leader": lambda value: value is None or _is_name(value),
    "leader_epoch": _is_count,
    "isr": _are_names,
    "eligible": _are_names,
    "last_eligible": _are_names,
    "starts": _are_starts,
    "unclean_epoch": _is_count,
    "decided": _is_count,
    "trail": _are_counts,
}
_KEYS = tuple(_FORMS)
# Versions that do not contain these keys read the same format, and write unknown keys first. A
# value of 0 is left out, as those versions leave it out.
_LATER = ("decided",)
# The keys that a record must have. Every other key has a default, which is its meaning in older
# versions that lacked the key.
_REQUIRED = frozenset(
    ("name", "version", "incarnation", "settings", "replicas", "leader", "leader_epoch", "isr")
)
assert {*_KEYS, "unknown", "_json"} == {one.name for one in fields(StreamMetadata)}


# --- roles: what a node must do for a stream, by the stream's record and the node's own state ---


@dataclass(frozen=True, slots=True)
class Lead:
    """Append in this epoch, and serve followers."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy from `leader`, the leader of the epoch `epoch`."""

    leader: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Register:
    """Register the present start in the stream's metadata. The node must register before it fetches
    or serves."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Keep the copy and wait, because no leader to copy from is known."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Delete the copy: the stream is deleted, or this node no longer holds a replica."""


Role = Lead | Follow | Register | Wait | Leave


def role_of(record: StreamMetadata, node: str, start: int, *, resigned_epoch: int = 0) -> Role:
    """Return the role of `node` according to `record`, in the process run with the number `start`.

    `resigned_epoch` is the newest epoch in which this process has resigned. The node does not lead
    again in that epoch, although the record may still name it as the leader.
    """
    if record.deleted or node not in record.members:
        return Leave()
    if record.starts.get(node) != start:
        return Register()
    if record.leader is None:
        return Wait()
    if record.leader != node:
        return Follow(record.leader, record.leader_epoch)
    return Wait() if resigned_epoch >= record.leader_epoch else Lead(record.leader_epoch)


@dataclass(frozen=True, slots=True)
class Change:
    """A record to commit by compare-and-set, at the revision at which `before` was read."""

    before: StreamMetadata
    after: StreamMetadata
