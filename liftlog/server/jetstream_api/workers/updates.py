"""The settings of a consumer with acks, and the check of later changes to the settings."""

from __future__ import annotations

from dataclasses import replace

from liftlog.deliveries.settings import Settings
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec


def settings_of(spec: ConsumerSpec, stream: str) -> Settings:
    """Return the settings for the state machine of a consumer of `stream`."""
    prefix = len(f"$JS.ACK.{stream}.{spec.name}.")
    return replace(spec.settings, ack_prefix_bytes=prefix)


_FIXED = (
    ("policy", "deliver policy"),
    ("start_sequence", "start sequence"),
    ("start_time_ns", "start time"),
    ("is_replayed", "replay policy"),
    ("heartbeat_seconds", "heart beats"),
    ("flow_control", "flow control"),
)


def check_update(old: ConsumerSpec, new: ConsumerSpec) -> None:
    """Check a change of settings. Raises JetStreamError for changes that JetStream also refuses."""
    for field, shown in _FIXED:
        if getattr(old, field) != getattr(new, field):
            raise JetStreamError(500, 10012, f"{shown} can not be updated")
    if old.settings.ack_policy is not new.settings.ack_policy:
        raise JetStreamError(500, 10012, "ack policy can not be updated")
    if bool(old.deliver_subject) != bool(new.deliver_subject):
        kinds = ("pull", "push") if new.deliver_subject else ("push", "pull")
        raise JetStreamError(500, 10012, "can not update {} consumer to {} based".format(*kinds))
    if old.settings.max_waiting != new.settings.max_waiting:
        raise JetStreamError(500, 10012, "max waiting can not be updated")
