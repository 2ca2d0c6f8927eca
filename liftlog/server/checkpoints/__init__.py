"""Checkpoints: the position of each consumer, durable in the compacted stream `_offsets`.

opening     creates the stream if it is missing, and loads the table
checkpoint  one checkpoint: its encoding, and the check that a stream can be read from it
table       the checkpoints in memory
newer       records that only a newer version can read
service     commits, deletes, lists and expires checkpoints; stores many with one write
expiring    deletes the checkpoints of consumers that are gone
groups      consumer groups: stores the decisions of `liftlog.groups`
over_nats   commits that arrive as NATS messages
"""

from __future__ import annotations

from liftlog.server.checkpoints.checkpoint import OFFSETS_STREAM
from liftlog.server.checkpoints.service import Checkpoints

__all__ = ["OFFSETS_STREAM", "Checkpoints"]
