"""Comparing the settings of streams: what differs, and which streams get in each other's way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acl.subjects import overlaps
from liftlog.errors import Conflict, InvalidArgument, StaleIncarnation
from liftlog.settings import StreamSettings, parse_stream_settings

Difference = tuple[str, Any, Any]
"""(dotted setting, existing value, requested value)"""

SWITCHES = ("paused", "read_only")
"""Thrown while a stream runs, also one of the configuration file."""

_FIXED = {
    "subject": "what is recorded belongs to the identity of a stream",
    "queue_group": "what is recorded belongs to the identity of a stream",
    "initial_offset": "the first offset was given away when the stream was created",
    "replicas": "replication is reserved",
    "min_isr": "replication is reserved",
}


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def differences(have: StreamSettings, want: StreamSettings) -> list[Difference]:
    """Every setting that differs."""
    left, right = _flatten(have.to_yaml_dict()), _flatten(want.to_yaml_dict())
    return [
        (path, left.get(path), right.get(path))
        for path in sorted({*left, *right})
        if left.get(path) != right.get(path)
    ]


def check_same(name: str, origin: str, have: StreamSettings, want: StreamSettings) -> None:
    """Creating a stream again is idempotent; with other settings it raises Conflict.

    Whoever creates a stream does not ask for it not to be paused: that is for its operator.
    """
    found = [
        (path, old, new)
        for path, old, new in differences(have, want)
        if not (path in SWITCHES and old is True)
    ]
    if not found:
        return
    text = "; ".join(f"{path}: {old} here, {new} asked" for path, old, new in found)
    hint = (
        "the stream comes from the configuration file; change it there"
        if origin == "config"
        else "update the stream, or ask for the settings that it has"
    )
    raise Conflict(
        f"stream {name} exists with other settings: {text}",
        hint=hint,
        differences=[
            {"setting": path, "existing": old, "requested": new} for path, old, new in found
        ],
    )


# --- other settings for a stream that is there ---


def merged_settings(have: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """`have` with `changes` on top: a mapping changes the keys in it, anything else replaces.

    Raises InvalidArgument with every finding.
    """
    if not isinstance(changes, Mapping):
        raise InvalidArgument("the settings of a stream must be a mapping with text as keys")
    return parse_stream_settings(_merge(have.to_yaml_dict(), changes))


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def check_changeable(name: str, found: Sequence[Difference]) -> None:
    """Raises InvalidArgument naming every setting that cannot be changed."""
    fixed = [path for path, _, _ in found if path in _FIXED]
    if fixed:
        reasons = dict.fromkeys(_FIXED[path] for path in fixed)
        raise InvalidArgument(
            f"{' and '.join(fixed)} of stream {name} cannot be changed: {'; '.join(reasons)}",
            hint="create another stream, on the same subject if need be",
            settings=fixed,
        )


def with_switches(
    configured: StreamSettings, stored: object
) -> tuple[StreamSettings, dict[str, list[bool]]]:
    """The settings of the file, with what was switched over the API while the file said the same
    as now; and those switches. `stored` comes from the manifest."""
    kept: dict[str, list[bool]] = {}
    for name, pair in stored.items() if isinstance(stored, Mapping) else ():
        if name in SWITCHES and isinstance(pair, list) and len(pair) == 2:
            said, holds = pair
            if said is getattr(configured, name) and isinstance(holds, bool) and holds != said:
                kept[name] = [said, holds]
    return configured.model_copy(update={name: pair[1] for name, pair in kept.items()}), kept


# --- streams beside each other ---


def share_messages(first: StreamSettings, second: StreamSettings) -> bool:
    """Whether NATS gives each message to only one of them. A queue group is known by its name
    alone: it also spans subscriptions with different patterns."""
    return first.queue_group is not None and first.queue_group == second.queue_group


def rivals(name: str, settings: StreamSettings, others: Mapping[str, StreamSettings]) -> list[str]:
    """Warnings about streams that would ack the same messages."""
    if settings.acks != "on":
        return []
    found = []
    for other_name, other in others.items():
        if other_name == name or other.acks != "on":
            continue
        if not share_messages(settings, other) and overlaps(settings.subject, other.subject):
            found.append(
                f"stream {other_name} also acks messages on {other.subject}: publishers take the "
                "first ack they get, which says nothing about the other stream"
            )
    return found


def check_incarnation(name: str, present: str, wanted: str | None) -> None:
    """Raises StaleIncarnation when the stream is not the one that is meant; None: whichever."""
    if wanted is not None and wanted != present:
        raise StaleIncarnation(f"stream {name} was created anew since", incarnation=present)
