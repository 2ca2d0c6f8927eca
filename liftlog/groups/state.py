"""The stored state of one group, and its encoding. Pure.

The state is a record of the stream `_offsets`, which also stores the checkpoints;
`docs/reference/checkpoints.md` specifies its key and its value. Each change creates a new,
immutable state, so the durable state stays unchanged while a new one is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from liftlog.errors import CorruptBatch, InvalidArgument
from liftlog.names import check_consumer_name, check_stream_name

VERSION = 1
DEFAULT_SLOTS = 64
MAX_SLOTS = 1024
MAX_MEMBERS = 1024
"""Maximum number of members of one group. If there are more members than slots, members without a
slot wait until other members leave."""
MIN_SESSION_MS, MAX_SESSION_MS = 200, 3_600_000
FREE = ""
"""The owner of a slot that no member owns."""

KEY_PREFIX = b"group:"
_SEPARATOR = "/"
_MAX_UINT = 2**63 - 1

GroupKey = tuple[str, str]
"""(group, stream)"""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group.

    `joined` distinguishes the member from other members of the same name. Each new member of the
    same name gets a greater number, as long as the group exists. The client chose `token` for this
    join; a request with the same token repeats the same join.
    """

    joined: int
    session_ms: int
    token: str = ""
    principal: str = ""


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a group. `generation` grows with every change of members or owners, but not with
    a commit.

    For each slot, `owners` contains the name of the member, `since` contains the generation in
    which the slot was assigned, and `offsets` contains the next offset to read. Offset 0 stands for
    the current log start. `incarnation` and `epoch` of the stream come with the newest commit; they
    are empty and 0 before the first commit."""

    generation: int
    owners: tuple[str, ...]
    since: tuple[int, ...]
    offsets: tuple[int, ...]
    members: Mapping[str, Member] = field(default_factory=dict)
    incarnation: str = ""
    epoch: int = 0
    time_ns: int = 0
    principal: str = ""
    """The principal that created the group."""

    @property
    def slots(self) -> int:
        return len(self.owners)

    def owned_by(self, member: str) -> list[int]:
        return [slot for slot, owner in enumerate(self.owners) if owner == member]


def new_group(slots: int, start: int, principal: str = "") -> GroupState:
    """Return a group without members that reads from `start` on. Raises InvalidArgument."""
    if not 1 <= slots <= MAX_SLOTS:
        raise InvalidArgument(f"a group has 1 to {MAX_SLOTS} slots, not {slots}")
    nothing = (0,) * slots
    return GroupState(0, (FREE,) * slots, nothing, (start,) * slots, principal=principal)


# --- as a record ------------------------------------------------------------------


def encode_key(key: GroupKey) -> bytes:
    return KEY_PREFIX + _SEPARATOR.join(key).encode("ascii")


def decode_key(raw: bytes) -> GroupKey:
    """Decode the key of a record. Raises CorruptBatch if the key is not that of a group."""
    try:
        group, stream = raw.removeprefix(KEY_PREFIX).decode("ascii").split(_SEPARATOR)
        check_consumer_name(group)
        check_stream_name(stream, may_be_system=True)
    except (ValueError, InvalidArgument) as error:
        raise CorruptBatch(f"{raw!r} is not the key of a group") from error
    return group, stream


def encode_value(state: GroupState) -> bytes:
    """Encode the state. Owners are indexes into the list of members, -1 for a slot without an
    owner."""
    names = list(state.members)
    number = {name: place for place, name in enumerate(names)}
    members = [
        [name, one.joined, one.session_ms, one.token, one.principal]
        for name, one in state.members.items()
    ]
    content = {
        "v": VERSION,
        "generation": state.generation,
        "offsets": state.offsets,
        "owners": [number.get(owner, -1) for owner in state.owners],
        "since": state.since,
        "members": members,
        "incarnation": state.incarnation,
        "epoch": state.epoch,
        "time_ns": state.time_ns,
        "principal": state.principal,
    }
    return _encoder.encode(content).encode("ascii")


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def decode_value(raw: bytes) -> GroupState:
    """Decode the value of a record. Ignores unknown JSON keys. Raises CorruptBatch if the value is
    not a group in this version's format."""
    try:
        content = json.loads(raw)
        if not isinstance(content, dict) or content["v"] != VERSION:
            raise ValueError("not of version 1")
        members = {
            _text(name): Member(_whole(joined), _whole(session_ms), _text(token), _text(principal))
            for name, joined, session_ms, token, principal in content["members"]
        }
        names = [*members, FREE]  # -1 is the last one
        owners = tuple([names[_place(place, len(members))] for place in content["owners"]])
        since = tuple([_whole(one) for one in content["since"]])
        offsets = tuple([_whole(one) for one in content["offsets"]])
        if not 1 <= len(owners) == len(since) == len(offsets) <= MAX_SLOTS:
            raise ValueError("the lists of its slots do not fit each other")
        return GroupState(
            _whole(content["generation"]),
            owners,
            since,
            offsets,
            members,
            _text(content["incarnation"]),
            _whole(content["epoch"]),
            _whole(content["time_ns"]),
            _text(content.get("principal", "")),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptBatch(f"{raw[:200]!r} is not the value of a group: {error}") from error


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_UINT:
        raise ValueError(f"{value!r} is not a number")
    return value


def _place(value: Any, members: int) -> int:
    if type(value) is not int or not -1 <= value < members:
        raise ValueError(f"{value!r} is not the number of a member")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not text")
    return value
