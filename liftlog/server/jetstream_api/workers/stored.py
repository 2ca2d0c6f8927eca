"""A consumer in the journal: its settings, and its state after all deltas."""

from __future__ import annotations

import json
from typing import NamedTuple

from liftlog.deliveries.codec import apply_delta
from liftlog.deliveries.snapshot import decode_snapshot
from liftlog.deliveries.state import ConsumerState
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, parse_consumer
from liftlog.server.journal import StateVersion, StoredConsumer


class Loaded(NamedTuple):
    spec: ConsumerSpec
    state: ConsumerState
    version: StateVersion
    created_ns: int
    chosen_end: int
    """Below this offset, the consumer delivers only the records that its deliver policy has chosen;
    0: it delivers all records."""


def encode_settings(spec: ConsumerSpec, created_ns: int, chosen_end: int) -> bytes:
    """Return the settings that the journal stores together with the state."""
    kept = {"config": spec.config, "created_ns": created_ns, "chosen_end": chosen_end}
    return json.dumps(kept, separators=(",", ":")).encode()


def load(stored: StoredConsumer, name: str) -> Loaded:
    """Raises CorruptState, NewerFormat, JetStreamError, ValueError, KeyError."""
    kept = json.loads(stored.settings)
    state, version = decode_snapshot(stored.state), stored.version
    for version, delta in stored.deltas:  # noqa: B007  # the last one counts
        apply_delta(state, delta)
    spec = parse_consumer(kept["config"], name)
    return Loaded(spec, state, version, kept["created_ns"], kept["chosen_end"])
