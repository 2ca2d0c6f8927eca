"""Comparing the settings of streams: what differs, and which streams get in each other's way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acl.subjects import overlaps
from liftlog.errors import Conflict
from liftlog.settings import StreamSettings


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def differences(have: StreamSettings, want: StreamSettings) -> list[tuple[str, Any, Any]]:
    """(dotted setting, existing value, requested value) of every setting that differs."""
    left, right = _flatten(have.to_yaml_dict()), _flatten(want.to_yaml_dict())
    return [
        (path, left.get(path), right.get(path))
        for path in sorted({*left, *right})
        if left.get(path) != right.get(path)
    ]


def check_same(name: str, origin: str, have: StreamSettings, want: StreamSettings) -> None:
    """Creating a stream again is idempotent; with other settings it raises Conflict."""
    found = differences(have, want)
    if not found:
        return
    text = "; ".join(f"{path}: {old} here, {new} asked" for path, old, new in found)
    hint = (
        "the stream comes from the configuration file; change it there"
        if origin == "config"
        else "delete the stream first, or ask for the settings that it has"
    )
    raise Conflict(
        f"stream {name} exists with other settings: {text}",
        hint=hint,
        differences=[
            {"setting": path, "existing": old, "requested": new} for path, old, new in found
        ],
    )


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
