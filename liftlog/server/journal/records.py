"""Encodes and decodes the records of the journal. Pure.

The key of a record is `<incarnation of the stream>/<consumer>`. Its value begins with a header;
`docs/reference/storage-format.md` is normative:

     0   1  version, 1
     1   1  kind: 1 snapshot, 2 settings, 3 delta, 4 deleted
     2   2  flags: 1 uncertain
     4   4  settings_bytes  u32  size of the settings that follow the header; the rest is the state
     8   4  epoch           u32  state version: leader epoch of the stream ...
    12   4  unsynced        u32  offsets from the synced end of the log to this record
    16   8  number          u64  ... and number
    24   8  previous        u64  offset of the consumer's record before this one; 0: none

`previous` links each record of a consumer to the record before it. This chain leads from the newest
record to the snapshot, and shows whether a record is missing. `unsynced` shows which records were
certainly synced before this record was written.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from liftlog.errors import CorruptBatch, NewerFormat

VERSION = 1
UNCERTAIN = 1
_SEPARATOR = "/"
_MAX_UNSYNCED = 2**32 - 1
_HEADER = struct.Struct(
    "<"
    "B"  # version
    "B"  # kind
    "H"  # flags
    "I"  # settings_bytes
    "I"  # epoch
    "I"  # unsynced
    "Q"  # number
    "Q"  # previous
)
HEADER_SIZE = _HEADER.size


class ConsumerKey(NamedTuple):
    """A consumer of one incarnation of a stream. An empty `consumer` stands for all consumers of
    the stream."""

    incarnation: str
    consumer: str


class StateVersion(NamedTuple):
    """The version of a stream's state after a change: the leader epoch, and the number of the
    change in this epoch."""

    epoch: int
    number: int


class Kind(IntEnum):
    SNAPSHOT = 1
    SETTINGS = 2
    DELTA = 3
    DELETED = 4


_KINDS = {int(kind): kind for kind in Kind}
_NO_VERSION = StateVersion(0, 0)


class Change(NamedTuple):
    """A change of one consumer. Settings and state are bytes that the journal does not read."""

    key: ConsumerKey
    kind: Kind
    version: StateVersion
    settings: bytes
    state: bytes
    settles: bool = False
    """True if the consumer is no longer uncertain after this change."""

    @classmethod
    def snapshot(
        cls,
        key: ConsumerKey,
        version: StateVersion,
        settings: bytes,
        state: bytes,
        *,
        settles: bool = False,
    ) -> Change:
        """Return a change with the whole state of a consumer. It replaces all earlier records of
        the consumer. Set `settles` if the state comes from another replica or was reset. Records
        that this node has lost then no longer matter."""
        return cls(key, Kind.SNAPSHOT, version, settings, state, settles)

    @classmethod
    def updated(cls, key: ConsumerKey, version: StateVersion, settings: bytes) -> Change:
        """Return a change with new settings of a consumer. The state does not change."""
        return cls(key, Kind.SETTINGS, version, settings, b"")

    @classmethod
    def delta(cls, key: ConsumerKey, version: StateVersion, delta: bytes) -> Change:
        """Return a change of the state of a consumer."""
        return cls(key, Kind.DELTA, version, b"", delta)

    @classmethod
    def deleted(cls, key: ConsumerKey) -> Change:
        """Return the change for a consumer that was deleted or could not be created."""
        return cls(key, Kind.DELETED, _NO_VERSION, b"", b"")

    @classmethod
    def stream_deleted(cls, incarnation: str) -> Change:
        """Return the change for a stream that was deleted with all its consumers."""
        return cls.deleted(ConsumerKey(incarnation, ""))


class Chaining(NamedTuple):
    """The fields of a header that the journal fills in when it appends the record."""

    previous: int
    unsynced: int
    is_uncertain: bool


class StoredChange(NamedTuple):
    """A change as it was read."""

    change: Change
    chaining: Chaining


def encode_key(key: ConsumerKey) -> bytes:
    return _SEPARATOR.join(key).encode()


def decode_key(raw: bytes) -> ConsumerKey:
    """Decode the key of a record. Raises CorruptBatch."""
    try:
        incarnation, separator, consumer = raw.decode().partition(_SEPARATOR)
    except UnicodeDecodeError as error:
        raise CorruptBatch(f"{raw[:80]!r} is not the key of a consumer") from error
    if not separator or not incarnation:
        raise CorruptBatch(f"{raw[:80]!r} is not the key of a consumer")
    return ConsumerKey(incarnation, consumer)


def encode_value(change: Change, chaining: Chaining) -> bytes:
    header = _HEADER.pack(
        VERSION,
        change.kind,
        UNCERTAIN if chaining.is_uncertain else 0,
        len(change.settings),
        change.version.epoch,
        min(chaining.unsynced, _MAX_UNSYNCED),
        change.version.number,
        chaining.previous,
    )
    return b"".join((header, change.settings, change.state))


Head = tuple[Kind, int, int, int, int, int, int]
"""The fields of a header without the version; see the diagram."""


def decode_head(raw: bytes) -> Head:
    """Read the header of a value. Raises CorruptBatch, and NewerFormat for a record of a newer
    liftlog."""
    try:
        version, kind, *others = _HEADER.unpack_from(raw)
    except struct.error as error:
        raise CorruptBatch(f"{raw[:80]!r} is not a record of the journal") from error
    if version != VERSION:
        raise NewerFormat(f"the journal of consumers has a record of version {version}")
    if kind not in _KINDS or HEADER_SIZE + others[1] > len(raw):
        raise CorruptBatch(f"{raw[:80]!r} is not a record of the journal")
    return (_KINDS[kind], *others)


def decode_value(key: ConsumerKey, raw: bytes) -> StoredChange:
    """Read a whole value. Raises CorruptBatch, and NewerFormat for a record of a newer liftlog."""
    kind, flags, settings_bytes, epoch, unsynced, number, previous = decode_head(raw)
    at = HEADER_SIZE + settings_bytes
    version = StateVersion(epoch, number)
    change = Change(key, kind, version, raw[HEADER_SIZE:at], raw[at:])
    return StoredChange(change, Chaining(previous, unsynced, bool(flags & UNCERTAIN)))


def size_of(change: Change) -> int:
    """Return the approximate size of the record of a change, in bytes."""
    key, _, _, settings, state, _ = change
    return HEADER_SIZE + len(settings) + len(state) + size_of_key(key)


def size_of_key(key: ConsumerKey) -> int:
    """Return the approximate size of a record without its value, in bytes."""
    return len(key[0]) + len(key[1]) + 16
