"""Encodes and decodes changes of a stream's consumers for another node. Pure.

A body is a sequence of changes, each with a header; `docs/reference/protocol.md` is normative:

     0   1  kind, as in the journal
     1   1  flags: 1 continues the change before it (deltas after a snapshot)
     2   2  name_bytes      u16
     4   4  settings_bytes  u32
     8   4  state_bytes     u32
    12   8  number          u64  of the change in the leader's epoch
    20      name, settings, state
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from liftlog.errors import CorruptBatch
from liftlog.server.journal.records import Change, ConsumerKey, Kind, StateVersion

_CONTINUES = 1
_HEADER = struct.Struct(
    "<"
    "B"  # kind
    "B"  # flags
    "H"  # name_bytes
    "I"  # settings_bytes
    "I"  # state_bytes
    "Q"  # number
)
_KINDS = {int(kind): kind for kind in Kind}


class Sent(NamedTuple):
    """A change in a body."""

    change: Change
    continues: bool = False
    """True for a delta that belongs to the snapshot before it."""


def encode_change(sent: Sent) -> bytes:
    change = sent.change
    name = change.key.consumer.encode()
    header = _HEADER.pack(
        change.kind,
        _CONTINUES if sent.continues else 0,
        len(name),
        len(change.settings),
        len(change.state),
        change.version.number,
    )
    return b"".join((header, name, change.settings, change.state))


def encode_snapshot_records(changes: Sequence[Change], version: StateVersion) -> bytes:
    """Encode the stored records of a consumer, from its snapshot on. They are encoded as the
    consumer's state of `version`."""
    return b"".join(
        [
            encode_change(Sent(change._replace(version=version), continues=index > 0))
            for index, change in enumerate(changes)
        ]
    )


def decode_changes(incarnation: str, epoch: int, body: memoryview | bytes) -> list[Sent]:
    """Decode the changes of a stream's consumers in a body. Raises CorruptBatch."""
    try:
        return list(_decoded(incarnation, epoch, bytes(body)))
    except (struct.error, KeyError, UnicodeDecodeError) as error:
        raise CorruptBatch(f"the changes of consumers cannot be read: {error!r}") from error


def _decoded(incarnation: str, epoch: int, body: bytes) -> Iterator[Sent]:
    at = 0
    while at < len(body):
        kind, flags, name_bytes, settings_bytes, state_bytes, number = _HEADER.unpack_from(body, at)
        settings_at = at + _HEADER.size + name_bytes
        state_at = settings_at + settings_bytes
        name = body[at + _HEADER.size : settings_at].decode()
        at = state_at + state_bytes
        if at > len(body) or not name:
            raise CorruptBatch("the changes of consumers end in the middle of one")
        key, version = ConsumerKey(incarnation, name), StateVersion(epoch, number)
        settings, state = body[settings_at:state_at], body[state_at:at]
        # Records that this node has lost do not matter, because the state comes from another
        # replica.
        settles = _KINDS[kind] is Kind.SNAPSHOT
        change = Change(key, _KINDS[kind], version, settings, state, settles)
        yield Sent(change, bool(flags & _CONTINUES))
