"""Checkpoints: the position of each consumer, durable in the compacted stream `_offsets`.

opening    creates the stream if it is missing, and loads the table
layout     the key and the value of a stored checkpoint
table      the checkpoints in memory
judging    whether a stream can be read from a position
service    commits, deletes, lists and expires checkpoints; stores many at a time
over_nats  commits that arrive as NATS messages
"""

from __future__ import annotations

from liftlog.server.checkpoints.layout import OFFSETS_STREAM
from liftlog.server.checkpoints.service import Checkpoints

__all__ = ["OFFSETS_STREAM", "Checkpoints"]
