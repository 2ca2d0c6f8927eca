"""The checkpoints of a cluster against a model: leaders come and go at any moment.

Each leader loads the real table from what is committed, as `load_table` does, and serves the real
`Checkpoints`. What it writes is committed, or is under way when it loses the lead: then the next
leader has it or not, as chance has it. The model knows what each consumer was told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from liftlog.errors import CheckpointMoved, LiftlogError, NotReady, RequestTimeout
from liftlog.sequencing.refusals import NOT_LEADING
from liftlog.server.checkpoints.checkpoint import (
    BoundsElsewhere,
    CheckpointKey,
    Stored,
    StreamBounds,
    decode_key,
    decode_value,
)
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.checkpoints.table import CheckpointTable
from liftlog.server.commits.waiting import OwnRecords, Told

Change = dict[CheckpointKey, Stored | None]
CONSUMERS = [f"c{number}" for number in range(4)]


class Log:
    """The committed records, and the records that the leader has written and nobody may get yet."""

    def __init__(self) -> None:
        self.committed: list[Change] = []
        self.tail: list[Change] = []

    def table(self) -> CheckpointTable:
        found: dict[CheckpointKey, Stored] = {}
        for change in self.committed:
            for key, stored in change.items():
                if stored is None:
                    found.pop(key, None)
                else:
                    found[key] = stored
        return CheckpointTable(found)


class Leader:
    """Replaces the host of `_offsets`. The real `OwnRecords` waits for commits."""

    failure = ""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.is_leading = True
        self._own = OwnRecords("_offsets")
        self._end = 0
        self._done = 0
        self.checkpoints = Checkpoints(
            lambda name: StreamBounds(BoundsElsewhere("x", 3)),
            self,  # type: ignore[arg-type]
            log.table(),
            subject_prefix="o",
            max_count=1000,
            now_ns=lambda: 1,
        )

    def store(
        self, subjects: Any, keys: list[bytes], values: list[bytes | None], told: Told
    ) -> None:
        if not self.is_leading:
            self._own.refused(NOT_LEADING, told)
            return
        pairs = zip(keys, values, strict=True)
        self.log.tail.append(
            {decode_key(k): None if v is None else decode_value(v) for k, v in pairs}
        )
        self._end += 1
        self._own.wait(self._end, told)

    def commit(self) -> None:
        """One more flight is on all replicas in sync."""
        if self.log.tail:
            self.log.committed.append(self.log.tail.pop(0))
            self._done += 1
            self._own.committed(self._done)

    def lose(self, survives: int) -> None:
        """The next leader has the first `survives` of the flights that were not committed."""
        self.is_leading = False
        self.log.committed += self.log.tail[:survives]
        self.log.tail.clear()
        self._own.stepped_down()


class Model:
    """The consumers' knowledge: for each key the values that may be stored, from the newest
    confirmed one on."""

    def __init__(self) -> None:
        self.possible: dict[CheckpointKey, set[int]] = {(name, "s"): {0} for name in CONSUMERS}
        self.told = 0

    def answered(
        self, key: CheckpointKey, offset: int, expected: int | None, error: LiftlogError | None
    ) -> None:
        self.told += 1
        if error is None:
            if expected is not None:
                assert expected in self.possible[key], (
                    "it was confirmed against what cannot be there"
                )
            self.possible[key] = {offset}
        elif isinstance(error, CheckpointMoved):
            stored = int(error.details["offset"])
            assert stored in self.possible[key], f"{key} is {stored}: {self.possible[key]}"
            self.possible[key] = {stored}
        elif isinstance(error, RequestTimeout):
            assert expected is not None, "it could have been repeated"
            self.possible[key] |= {offset}
        else:
            assert isinstance(error, NotReady), error
            if expected is None:  # else the client would find its own change in its way
                self.possible[key] |= {offset}


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_what_was_confirmed_outlives_every_leader(seed: int) -> None:
    chance = random.Random(seed)
    log, model = Log(), Model()
    leader = Leader(log)
    under_way: set[CheckpointKey] = set()
    steps: list[Callable[[], None]]

    def ask() -> None:
        key = (chance.choice(CONSUMERS), "s")
        if key in under_way:  # a consumer waits for its answer
            return
        offset = chance.randrange(1, 100)
        expected = chance.choice([None, None, *model.possible[key], 77])
        told = partial(done, key, offset, expected)
        if chance.random() < 0.2:
            leader.checkpoints.delete(*key, partial(done, key, 0, expected), expected=expected)
        else:
            leader.checkpoints.commit(*key, offset, told, expected=expected, epoch=2)
        under_way.add(key)

    def done(
        key: CheckpointKey, offset: int, expected: int | None, error: LiftlogError | None
    ) -> None:
        under_way.discard(key)
        model.answered(key, offset, expected, error)

    def fail_over() -> None:
        nonlocal leader
        leader.lose(chance.randint(0, len(log.tail)))
        leader = Leader(log)

    steps = [ask, ask, ask, ask, lambda: leader.commit(), lambda: leader.commit(), fail_over]
    for _ in range(300):
        chance.choice(steps)()
        if chance.random() < 0.7:
            await turn()
        for key, possible in model.possible.items():
            found = leader.checkpoints.fetch(*key, check=False)
            if key not in under_way:
                stored = 0 if found is None else found.offset
                assert stored in possible, f"{key} is {stored}, of {possible}"
    while under_way:
        await turn()
        leader.commit()
    assert model.told > 30
