"""Checkpoints: the position of each consumer, durable in the compacted stream `_offsets`."""

from __future__ import annotations

from liftlog.server.checkpoints.layout import OFFSETS_STREAM
from liftlog.server.checkpoints.service import Checkpoints

__all__ = ["OFFSETS_STREAM", "Checkpoints"]
