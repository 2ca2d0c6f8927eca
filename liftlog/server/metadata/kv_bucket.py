"""The bucket that holds a cluster's metadata: its subjects, its configuration, and JetStream's
answers about it. No I/O.

    $KV.liftlog_<cluster>.<key>     a key; JetStream keeps the newest message of each subject
    liftlog.<cluster>.meta.<key>    each change, republished as a plain message: a notice

The revision of an entry is the sequence of its message in the stream of the bucket. If a key was
deleted or has expired, its newest message is a *marker*. A marker is a message without a value; it
expires after a minute.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from liftlog.cluster.store import MAX_VALUE_BYTES, Entry, MetaStoreError, StoreUnavailable
from liftlog.records.message_headers import first_value

MARKER_SECONDS = 60
_MAX_MESSAGE_BYTES = MAX_VALUE_BYTES + 2048  # JetStream also counts the headers
_KEY = re.compile(r"[A-Za-z0-9_=/-]+(\.[A-Za-z0-9_=/-]+)*")
_NANOSECONDS = 1_000_000_000

WRONG_SEQUENCE = 10071
"""Error code: the comparison has failed. The description of the error ends with the sequence that
JetStream found."""
IN_PROCESS = (10164, 10158)
"""Error code: this write, or another write of the same key, is in progress."""
NO_MESSAGE = 10037
NO_STREAM = 10059
NO_JETSTREAM = (10039, 10076)
NO_LEADER = 10008
"""Error code: no leader is elected, or the server that answers cannot reach the leader."""
NO_PEERS = 10005
"""Error code: there are too few servers for the bucket. More servers may be about to join."""
NO_CLUSTER = 10074


class Found(NamedTuple):
    """The newest message of a key. `value` is None if the message is a marker. If there is no
    message, `sequence` is 0 and `value` is None."""

    sequence: int
    value: bytes | None

    @property
    def entry(self) -> Entry | None:
        return None if self.value is None else Entry(self.sequence, self.value)


ABSENT = Found(0, None)


class Notice(NamedTuple):
    """A change, as JetStream republishes it."""

    key: str
    found: Found


class Refused(MetaStoreError):
    """JetStream answered with an error. Callers of the store do not see this error: they get one of
    the store's own errors."""

    def __init__(self, status: int, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.status = status
        self.code = code
        self.description = description

    @property
    def found_sequence(self) -> int | None:
        """The sequence that JetStream found instead of the expected sequence."""
        last = self.description.rpartition(" ")[2]
        return int(last) if self.code == WRONG_SEQUENCE and last.isdecimal() else None

    @property
    def is_away(self) -> bool:
        """True if JetStream has no leader that this server can reach, or is off on this server."""
        return self.code in (NO_LEADER, *NO_JETSTREAM)

    @property
    def is_certain(self) -> bool:
        """True if the store was certainly not changed. If the server itself failed, this is not
        certain, because other servers may have accepted the change before."""
        return 400 <= self.status < 500


@dataclass(frozen=True, slots=True)
class State:
    """JetStream's description of the bucket. `messages` is the number of keys, including
    markers."""

    created: str
    replicas: int
    last_sequence: int
    messages: int
    problem: str
    """The reason why liftlog cannot use the bucket as it is configured; empty if liftlog can use
    it."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """The bucket of the cluster of this name."""

    cluster: str

    @property
    def name(self) -> str:
        return f"liftlog_{self.cluster}"

    @property
    def stream(self) -> str:
        return f"KV_{self.name}"

    @property
    def notices(self) -> str:
        """The subject that receives all notices."""
        return f"liftlog.{self.cluster}.meta.>"

    def subject(self, key: str) -> str:
        """Return the subject of a key. Raises ValueError if `key` cannot be a key."""
        if _KEY.fullmatch(key) is None:
            raise ValueError(f"{key!r} cannot be a key of the metadata store")
        return f"$KV.{self.name}.{key}"

    def subjects(self, prefix: str) -> str:
        """Return a filter for all keys that begin with `prefix`; it may also match other keys."""
        tokens, dot, _ = prefix.rpartition(".")
        return self.subject(tokens) + ".>" if dot else f"$KV.{self.name}.>"

    def key(self, subject: str) -> str:
        return subject.removeprefix(f"$KV.{self.name}.")

    def configuration(self, replicas: int) -> dict[str, Any]:
        """Return the configuration for creating the bucket in JetStream."""
        return {
            "name": self.stream,
            "subjects": [f"$KV.{self.name}.>"],
            "description": f"Metadata of the liftlog cluster {self.cluster}",
            "retention": "limits",
            "storage": "file",
            "num_replicas": replicas,
            "max_msgs_per_subject": 1,
            "max_msg_size": _MAX_MESSAGE_BYTES,
            "discard": "new",
            "deny_delete": True,
            "allow_rollup_hdrs": True,
            "allow_direct": False,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": MARKER_SECONDS * _NANOSECONDS,
            "republish": {"src": f"$KV.{self.name}.>", "dest": self.notices},
        }

    def problem(self, found: Mapping[str, Any]) -> str:
        """Return the problem with the configuration of an existing bucket; empty if there is
        none."""
        wanted = self.configuration(1)
        exact = ("subjects", "storage", "max_msgs_per_subject", "allow_msg_ttl")
        for name in exact:
            if found.get(name) != wanted[name]:
                return f"{name} is {found.get(name)!r}, not {wanted[name]!r}"
        if found.get("allow_direct"):
            return "allow_direct is on: members that lag behind would answer reads"
        for name in ("max_age", "max_msgs", "max_bytes"):
            if (found.get(name) or 0) > 0:
                return f"{name} is {found[name]}: records would be dropped"
        size = found.get("max_msg_size") or 0
        if 0 < size < _MAX_MESSAGE_BYTES:
            return f"max_msg_size is {size}, less than {_MAX_MESSAGE_BYTES}"
        if not found.get("subject_delete_marker_ttl"):
            return "subject_delete_marker_ttl is not set: members would expire keys on their own"
        republish = found.get("republish") or {}
        if any(republish.get(one) != wanted["republish"][one] for one in ("src", "dest")):
            return f"it is not republished to {self.notices}"
        if republish.get("headers_only") or found.get("mirror") or found.get("sealed"):
            return "it is a mirror, sealed, or republished without values"
        return ""

    # --- answers of JetStream ---

    def state(self, payload: bytes) -> State:
        """Parse the answer to STREAM.INFO. Raises Refused, StoreUnavailable."""
        answer = _answer(payload)
        try:
            config, state = answer["config"], answer["state"]
            return State(
                str(answer["created"]),
                int(config["num_replicas"]),
                int(state["last_seq"]),
                int(state["messages"]),
                self.problem(config),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _strange(payload) from error

    def keys(self, payload: bytes) -> tuple[list[str], int]:
        """Return the keys in an answer to STREAM.INFO, and the total number of keys. Raises
        Refused, StoreUnavailable."""
        answer = _answer(payload)
        try:
            subjects = answer["state"].get("subjects") or {}
            return [self.key(one) for one in subjects], int(answer.get("total") or len(subjects))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _strange(payload) from error

    def revision(self, payload: bytes) -> tuple[int, bool] | None:
        """Parse the answer to a write. Returns the revision, and True if this request made the
        write. If an earlier request with the same message id made the write, the second value is
        False. Returns None if another service sent the answer, such as a stream of liftlog that
        records the subject. Raises Refused."""
        try:
            if json.loads(payload)["stream"] != self.stream:
                return None
            answer = _answer(payload)
            return int(answer["seq"]), answer.get("duplicate") is not True
        except (StoreUnavailable, KeyError, TypeError, ValueError, RecursionError):
            return None

    def notice(self, subject: bytes, headers: bytes, payload: bytes) -> Notice | None:
        """Parse a notice; returns None if JetStream did not send the message."""
        sequence = first_value(headers, b"Nats-Sequence") or b""
        told = (first_value(headers, b"Nats-Subject") or b"").decode("utf-8", "replace")
        if not sequence.isdigit() or len(sequence) > 19:
            return None
        if first_value(headers, b"Nats-Stream") != self.stream.encode():
            return None
        if self.notices[:-1] + self.key(told) != subject.decode("utf-8", "replace"):
            return None
        value = None if _is_marker(headers) else payload
        return Notice(self.key(told), Found(int(sequence), value))


def found_message(payload: bytes) -> Found:
    """Parse the answer to STREAM.MSG.GET. Raises Refused, StoreUnavailable."""
    try:
        message = _answer(payload)["message"]
        headers = base64.b64decode(message.get("hdrs") or "", validate=True)
        value = base64.b64decode(message.get("data") or "", validate=True)
        return Found(int(message["seq"]), None if _is_marker(headers) else value)
    except Refused as error:
        if error.code == NO_MESSAGE:
            return ABSENT
        raise
    except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
        raise _strange(payload) from error


def check_created(payload: bytes) -> bool:
    """Parse the answer to STREAM.CREATE; returns True. Raises Refused, StoreUnavailable."""
    return bool(_answer(payload))


def _is_marker(headers: bytes) -> bool:
    if first_value(headers, b"KV-Operation") in (b"DEL", b"PURGE"):
        return True
    return first_value(headers, b"Nats-Marker-Reason") is not None


def _answer(payload: bytes) -> dict[str, Any]:
    """Parse any answer of JetStream. Raises Refused, StoreUnavailable."""
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise _strange(payload) from error
    if not isinstance(answer, dict):
        raise _strange(payload)
    told = answer.get("error")
    if isinstance(told, dict):
        try:
            status, code = int(told.get("code", 0)), int(told.get("err_code", 0))
        except (TypeError, ValueError):
            raise _strange(payload) from None
        raise Refused(status, code, str(told.get("description", "")))
    return answer


def _strange(payload: bytes) -> StoreUnavailable:
    return StoreUnavailable(
        f"JetStream's answer was not understood: {payload[:120]!r}; another service may answer on "
        "its subjects"
    )
