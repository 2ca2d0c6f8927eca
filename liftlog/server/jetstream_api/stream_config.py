"""Converts JetStream's configuration of a stream to liftlog's settings and back. Pure.

A JetStream setting that liftlog cannot fulfil is refused, never ignored. Some liftlog settings have
no counterpart in JetStream: durability, batches, times of compaction. They get their defaults when
a stream is created, and keep their values when the stream is updated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acl.subjects import first_overlap, overlaps, why_invalid
from liftlog.names import NAME_HELP, is_stream_name
from liftlog.server.jetstream_api.answers import (
    JetStreamError,
    invalid_config,
    invalid_json,
    is_utf8,
)
from liftlog.server.jetstream_api.config_fields import ConfigFields, is_empty
from liftlog.settings import StreamSettings
from liftlog.settings.stream import (
    MAX_FILTERS,
    MAX_HISTORY,
    MAX_MESSAGE_BYTES,
    JetStreamSettings,
)

_NS = 1_000_000_000
_DUPLICATE_WINDOW_NS = 120 * _NS
_SHORTEST_NS = 100_000_000
_MAX_NS = 100 * 365 * 86_400 * _NS
_MIN_SEGMENT_BYTES, _MAX_SEGMENT_BYTES = 64 * 1024, 256 * 2**20
_MIN_SEGMENT_SECONDS, _MAX_SEGMENT_SECONDS = 1.0, 86_400.0
_SEGMENTS_PER_LIMIT = 8
"""Number of segments within a limit. Because only whole segments are deleted, a stream exceeds its
limit by at most an eighth."""

NO_ROLLUPS_IN_CLUSTER = (
    "allow_rollup_hdrs: in a cluster, roll-ups are supported only with max_msgs_per_subject"
)
REFUSED = {
    "mirror": "mirrors are not supported",
    "sources": "sources are not supported",
    "republish": "republish is not supported",
    "subject_transform": "subject transforms are not supported",
    "placement": "placement is not supported: the daemon chooses the nodes",
    "consumer_limits": "consumer limits are not supported",
    "template_owner": "stream templates are not supported",
    "allow_msg_ttl": "per-message TTLs are not supported",
    "subject_delete_marker_ttl": "subject delete markers are not supported",
    "allow_msg_counter": "message counters are not supported",
    "allow_atomic": "atomic batch publishing is not supported",
    "allow_msg_schedules": "message schedules are not supported",
    "allow_batched": "fast batch publishing is not supported",
}
"""JetStream settings that are refused unless they have the empty value of their type."""


def config_of(name: str, settings: StreamSettings) -> dict[str, Any]:
    """Return the configuration of this stream in JetStream's terms."""
    own = settings.jetstream or JetStreamSettings()
    limits = settings.retention
    config: dict[str, Any] = {"name": name}
    if own.description:
        config["description"] = own.description
    config |= {
        "subjects": list(settings.subjects),
        "retention": "limits",
        "max_consumers": own.max_consumers or -1,
        "max_msgs": limits.max_messages or -1,
        "max_bytes": limits.max_bytes or -1,
        "max_age": _to_ns(limits.max_age_seconds or 0),
        "max_msgs_per_subject": own.max_msgs_per_subject or -1,
        "max_msg_size": _shown_size(settings.max_message_bytes),
        "discard": "new" if "new" in (own.discard, limits.discard) else "old",
        "storage": "file",
        "num_replicas": settings.replicas,
        "duplicate_window": _to_ns(settings.dedupe_window_seconds),
        "compression": "none" if settings.compression == "none" else "s2",
        "allow_direct": own.allow_direct,
        "mirror_direct": False,
        "sealed": settings.read_only,
        "deny_delete": own.deny_delete,
        "deny_purge": own.deny_purge,
        "allow_rollup_hdrs": own.allow_rollup_hdrs
        or (own.max_msgs_per_subject is not None and not own.deny_purge),
        "consumer_limits": {},
        "allow_msg_ttl": False,
    }
    if own.discard_new_per_subject:
        config["discard_new_per_subject"] = True
    if settings.acks == "off":
        config["no_ack"] = True
    if settings.initial_offset != 1:
        config["first_seq"] = settings.initial_offset
    if own.metadata:
        config["metadata"] = dict(own.metadata)
    return config


def settings_from(name: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return liftlog's settings for a new stream of this configuration, as input for
    `parse_stream_settings`. Raises JetStreamError."""
    if not is_stream_name(name):
        raise invalid_config(f"stream name {name[:80]!r}: expected {NAME_HELP}")
    return _Reader(name, config).read()


_CHANGEABLE = {
    "subject": "subjects",
    "acks": "no_ack",
    "dedupe_window": "duplicate_window",
    "max_message_bytes": "max_msg_size",
    "compression": "compression",
    "read_only": "sealed",
}
"""liftlog settings that contain more information than the fields of JetStream."""


def changes_from(
    settings: Mapping[str, Any], have: Mapping[str, Any], want: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the changes for `update_stream` that lead to `settings`, the result of
    `settings_from`.

    `have` and `want` are the results of `config_of` for the present and the wanted configuration.
    The result omits settings that are equal in both. It also omits settings that were derived when
    the stream was created.
    """
    changes = {key: settings[key] for key in ("retention", "jetstream")}
    history = settings["jetstream"]["max_msgs_per_subject"]
    is_longer = history is not None and history > 1
    # To lengthen the history, the update must contain `null` even if `have` shows the same value,
    # because `have` may be outdated.
    if is_longer or have.get("max_msgs_per_subject") != want.get("max_msgs_per_subject"):
        changes["compaction"] = settings["compaction"]
    for key, field in _CHANGEABLE.items():
        if have.get(field) != want.get(field):
            changes[key] = settings[key]
    if "acks" in changes:  # without acks, expected sequences have no effect
        changes["subject_sequences"] = settings["subject_sequences"]
    return changes


def check_unchangeable(have: Mapping[str, Any], want: Mapping[str, Any]) -> None:
    """Raise JetStreamError if the two configurations differ in a setting that cannot change."""
    for key in ("first_seq", "num_replicas"):
        if have.get(key) != want.get(key):
            raise invalid_config(
                f"stream configuration update can not change {key}: a stream records what it was "
                "created for; create another one"
            )
    if (have["max_msgs_per_subject"] > 0) != (want["max_msgs_per_subject"] > 0):
        raise invalid_config(
            "stream configuration update can not add or remove max_msgs_per_subject: it decides "
            "whether the subject of a record is its key"
        )
    if have["sealed"] and not want["sealed"]:
        raise invalid_config("stream configuration update can not unseal a sealed stream")
    if have["deny_delete"] and not want["deny_delete"]:
        raise invalid_config("stream configuration update can not cancel deny message deletes")
    if have["deny_purge"] and not want["deny_purge"]:
        raise invalid_config("stream configuration update can not cancel deny purge")


class _Reader(ConfigFields):
    """The fields of one configuration. Each field is removed when it is read; the fields that
    remain are unknown."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._name = name
        super().__init__(config)

    def read(self) -> dict[str, Any]:
        self._refuse_what_is_not_promised()
        max_age = self._nanoseconds("max_age")
        max_bytes = self._limit("max_bytes")
        max_messages = self._limit("max_msgs")
        self._check_policies()
        discard = self._choice("discard", ("old", "new", "")) or "old"
        has_limits = max_bytes is not None or max_messages is not None
        no_ack = self._flag("no_ack")
        own = self._own() | {"discard": "old" if has_limits else discard}
        own["discard_new_per_subject"] = self._discard_new_per_subject(
            discard, own["max_msgs_per_subject"], no_ack=no_ack
        )
        history = own["max_msgs_per_subject"]
        own["allow_rollup_hdrs"] = self._rollups(
            history, no_ack=no_ack, deny_purge=own["deny_purge"]
        )
        if has_limits and discard == "new" and history is not None:
            self._check_bucket_limits(history, max_messages, max_age)
        settings: dict[str, Any] = {
            "subject": self._subjects(),
            "acks": "off" if no_ack else "on",
            "dedupe_window": self._duplicate_window(max_age) / _NS,
            "max_message_bytes": self._message_size(),
            "retention": {
                "max_age": max_age / _NS or None,
                "max_bytes": max_bytes,
                "max_messages": max_messages,
                "discard": discard if has_limits else "old",
            },
            "segment": _segment(max_age, max_bytes),
            "subject_sequences": None if no_ack else {},
            "compression": self._compression(),
            "initial_offset": self._whole("first_seq") or 1,
            "read_only": self._flag("sealed"),
            "replicas": self._replicas(),
            "jetstream": own,
            "compaction": {} if own["max_msgs_per_subject"] == 1 else None,
        }
        self._refuse_unknown()
        return settings

    # --- refused settings ---

    def _refuse_what_is_not_promised(self) -> None:
        if self._left.get("max_msgs_per_subject") not in (None, 0, -1):
            # Some clients request this setting with each bucket. The answer shows that it is off,
            # and a message with a TTL is refused.
            self._left.pop("allow_msg_ttl", None)
        if self._flag("mirror_direct"):
            if self._left.get("mirror"):
                raise invalid_config(f"mirror: {REFUSED['mirror']}")
            raise invalid_config("stream has no mirror but does have mirror direct")
        for key, why in REFUSED.items():
            if not is_empty(self._left.pop(key, None)):
                raise invalid_config(f"{key}: {why}")

    def _check_policies(self) -> None:
        if self._choice("retention", ("limits", "interest", "workqueue")) != "limits":
            raise invalid_config("retention: only limits is supported; consumers delete nothing")
        if self._choice("storage", ("file", "memory")) != "file":
            raise invalid_config("storage: only file is supported; acked messages are on the disk")
        if self._choice("persist_mode", ("default", "async", "")) == "async":
            raise invalid_config("persist_mode: async is not supported; see durability")

    def _refuse_unknown(self) -> None:
        for key, value in self._left.items():
            if not is_empty(value):
                raise invalid_json(f"unknown field {key[:80]!r}")

    # --- converted settings ---

    def _subjects(self) -> list[str]:
        name = self._text("name")
        if name != self._name:
            raise JetStreamError(400, 10056, "stream name in subject does not match request")
        subjects = self._left.pop("subjects", None) or [self._name]
        if not isinstance(subjects, list) or not all(isinstance(one, str) for one in subjects):
            raise invalid_json("subjects: expected a list of text")
        if len(subjects) > MAX_FILTERS:
            raise invalid_config(f"subjects: expected at most {MAX_FILTERS}")
        for one in subjects:
            wrong = why_invalid(one)
            if wrong is not None:
                raise invalid_config(f"invalid subject: {wrong}")
            if overlaps(one, "$JS.>") or overlaps(one, "$SYS.>"):
                raise invalid_config("subjects that overlap with the system's are not supported")
        both = first_overlap(subjects)
        if both is not None:
            raise invalid_config(f'subject "{both[0]}" overlaps with "{both[1]}"')
        return subjects

    def _duplicate_window(self, max_age: int) -> int:
        window = self._nanoseconds("duplicate_window")
        if not window:
            return min(max_age or _DUPLICATE_WINDOW_NS, _DUPLICATE_WINDOW_NS)
        if max_age and window > max_age:
            raise invalid_config("duplicates window can not be larger then max age")
        return window

    def _message_size(self) -> int:
        size = self._limit("max_msg_size")
        if size is not None and size > MAX_MESSAGE_BYTES:
            raise invalid_config(f"max_msg_size: expected at most {MAX_MESSAGE_BYTES}")
        return size or MAX_MESSAGE_BYTES

    def _compression(self) -> str:
        return "none" if self._choice("compression", ("none", "s2", "")) != "s2" else "lz4"

    def _replicas(self) -> int:
        count = self._whole("num_replicas", least=-(2**63))
        if count < 0:
            raise JetStreamError(400, 10133, "replicas count cannot be negative")
        return count or 1

    def _own(self) -> dict[str, Any]:
        self._drop_levels()
        metadata = self._left.pop("metadata", None) or {}
        if not isinstance(metadata, dict) or not all(
            isinstance(value, str) and is_utf8(key) and is_utf8(value)
            for key, value in metadata.items()
        ):
            raise invalid_json("metadata: expected an object of texts")
        direct = self._left.pop("allow_direct", None)
        if not isinstance(direct, bool | None):
            raise invalid_json("allow_direct: expected true or false")
        return {
            "description": self._text("description"),
            "metadata": metadata,
            "deny_delete": self._flag("deny_delete"),
            "deny_purge": self._flag("deny_purge"),
            "allow_direct": bool(direct),
            "max_msgs_per_subject": self._history(),
            "max_consumers": self._limit("max_consumers"),
        }

    def _history(self) -> int | None:
        """Return the history of a key-value bucket; None if the history has no limit."""
        limit = self._limit("max_msgs_per_subject")
        if limit is not None and limit > MAX_HISTORY:
            raise invalid_config(f"max_msgs_per_subject: expected at most {MAX_HISTORY}")
        return limit

    def _rollups(self, history: int | None, *, no_ack: bool, deny_purge: bool) -> bool:
        """Return True if roll-ups erase records. A key-value bucket accepts them in any case."""
        is_allowed = self._flag("allow_rollup_hdrs")
        if is_allowed and deny_purge:
            raise invalid_config("roll-ups require the purge permission")
        is_allowed = is_allowed and history is None
        if is_allowed and no_ack:
            raise invalid_config("allow_rollup_hdrs is supported only with acks")
        if is_allowed and self._left.get("num_replicas") not in (None, 0, 1):
            raise invalid_config(NO_ROLLUPS_IN_CLUSTER)
        return is_allowed

    def _check_bucket_limits(self, history: int, max_messages: int | None, max_age: int) -> None:
        if max_messages is not None:
            raise invalid_config(
                "discard: new is not supported with both max_msgs and max_msgs_per_subject: the "
                "newest messages of each subject are counted by bytes only"
            )
        if history > 1 and not max_age:
            raise invalid_config(
                "max_bytes with discard: new is supported only with max_msgs_per_subject: 1 or "
                "with max_age: nothing else deletes what exceeds a longer history"
            )

    def _discard_new_per_subject(self, discard: str, history: int | None, *, no_ack: bool) -> bool:
        if not self._flag("discard_new_per_subject"):
            return False
        if discard != "new":
            raise invalid_config("discard new per subject requires discard new policy to be set")
        if history is None:
            raise invalid_config("discard new per subject requires max msgs per subject > 0")
        if history > 1 or no_ack:
            raise invalid_config(
                "discard_new_per_subject is supported only with max_msgs_per_subject: 1, and with "
                "acks: the messages of a subject are not counted"
            )
        return True

    # --- single fields ---

    def _limit(self, key: str) -> int | None:
        """Read a limit; None if there is no limit, which JetStream expresses as 0 or a negative
        number."""
        value = self._whole(key, least=-(2**63))
        return value if value > 0 else None

    def _nanoseconds(self, key: str) -> int:
        value = self._whole(key, least=-(2**63))
        if value < 0 or 0 < value < _SHORTEST_NS:
            raise invalid_config(f"{key}: expected 0 or at least 100ms")
        if value > _MAX_NS:
            raise invalid_config(f"{key}: expected at most 100 years")
        return value


def _segment(max_age_ns: int, max_bytes: int | None) -> dict[str, Any]:
    """Return settings for segments that are small in comparison with the limits, because only whole
    segments are deleted."""
    segment: dict[str, Any] = {}
    if max_age_ns:
        seconds = max_age_ns / _NS / _SEGMENTS_PER_LIMIT
        segment["max_age"] = min(max(seconds, _MIN_SEGMENT_SECONDS), _MAX_SEGMENT_SECONDS)
    if max_bytes:
        size = max_bytes // _SEGMENTS_PER_LIMIT
        segment["max_bytes"] = min(max(size, _MIN_SEGMENT_BYTES), _MAX_SEGMENT_BYTES)
    return segment


def _to_ns(seconds: float) -> int:
    return round(seconds * _NS)


def _shown_size(size_bytes: int) -> int:
    """Return the size to show for a limit on messages: at most NATS's maximum, because NATS accepts
    no larger message."""
    return -1 if size_bytes >= MAX_MESSAGE_BYTES else size_bytes
