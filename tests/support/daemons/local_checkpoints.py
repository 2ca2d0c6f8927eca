"""The daemon's real checkpoints on a disk that a test controls."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from liftlog.errors import LiftlogError
from liftlog.server.checkpoints.service import Checkpoints, Told
from liftlog.server.checkpoints.table import CheckpointTable


class LocalOffsets:
    """Offsets that become durable at once. While `held`, they become durable on `release`; with
    `error`, they are refused."""

    failure = ""

    def __init__(self) -> None:
        self.error: LiftlogError | None = None
        self.held: list[Told] | None = None
        self.stores = 0

    def store(
        self,
        subjects: list[bytes],
        keys: list[bytes | None],
        values: list[bytes | None],
        done: Told,
    ) -> None:
        self.stores += 1
        if self.held is not None:
            self.held.append(done)
        else:
            asyncio.get_running_loop().call_soon(done, self.error)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for done in held:
            done(None)


def serve_checkpoints(broker: Any) -> LocalOffsets:
    """Give a `LogBroker` checkpoints."""
    offsets = LocalOffsets()
    broker.checkpoints = Checkpoints(
        broker.stream,
        offsets,
        CheckpointTable(),
        subject_prefix="liftlog.test.offsets",
        max_count=1000,
        now_ns=time.time_ns,
    )
    return offsets


class NoGroups:
    """Groups for pages of a daemon without consumer groups."""

    def page(self, may_read: Any, **_: Any) -> tuple[list[Any], None]:
        return [], None

    def describe(self, key: tuple[str, str]) -> None:
        return None
