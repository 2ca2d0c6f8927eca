"""What one client can take of what all consumers share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import add, keyed, row

from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers import table as consumer_table
from liftlog.server.jetstream_api.consumers.budget import Budget
from liftlog.server.jetstream_api.consumers.table import IDLE_SECONDS, MAX_CONSUMERS, Consumers
from liftlog.server.jetstream_api.messages.newest import NewestOf

ROLLUP = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"


def test_who_needs_little_gets_it_and_who_needs_much_while_there_is_room() -> None:
    budget = Budget(100, 10)
    greedy, modest, other = budget.part(), budget.part(), budget.part()
    assert greedy.resize(100)
    assert not greedy.resize(101)
    assert modest.resize(10)
    assert not modest.resize(11)
    assert not other.resize(11)
    assert greedy.resize(50)
    assert other.resize(40)
    assert not other.resize(41)
    for part in (greedy, modest, other):
        part.close()
        part.close()
    assert budget.used == 0


def test_what_a_search_has_noted_is_what_it_counts() -> None:
    log = keyed(SimFileSystem())
    block = [b"", b"", b"", ROLLUP, b""]
    batches = [
        [row(None, b"x", subject=subject, headers=block[(number + at) % 5])]
        for number in range(20)
        for at, subject in enumerate(("a", "b", "a"))
    ]
    add(log, batches)
    newest = NewestOf(4, log.high_watermark)
    offset, sizes = 1, set()
    while (piece := log.read(offset, 100)) is not None:
        with piece:
            newest.note(piece.pread())
            offset = piece.next_offset
        assert newest.size == len(list(newest.offsets()))
        sizes.add(newest.size)
    assert len(sizes) > 3


class Idle:
    """A consumer, as far as the table asks."""

    def __init__(self, number: int, idle_seconds: float, party: bytes) -> None:
        self.host = HOST
        self.spec = SimpleNamespace(name=f"c{number}", deliver_subject="")
        self.party = party
        self.idle = idle_seconds
        self.ended = b""

    def idle_seconds(self) -> float:
        return self.idle

    def is_there(self) -> bool:
        return True

    async def close(self, status: bytes = b"") -> None:
        self.ended = status


HOST = cast(StreamHost, SimpleNamespace(name="s", settings=SimpleNamespace(jetstream=None)))


def full_table(monkeypatch: pytest.MonkeyPatch, idle: list[float]) -> tuple[Any, list[Idle]]:
    monkeypatch.setattr(consumer_table.Consumer, "idle_seconds", Idle.idle_seconds)
    none = cast(Any, None)
    table: Any = Consumers(none, none, none, None, none)
    all_of_them = [
        Idle(number, idle[number % len(idle)], b"_INBOX.%d" % (number % 8))
        for number in range(MAX_CONSUMERS)
    ]
    table._all = {("s", one.spec.name): one for one in all_of_them}
    table._being_made[b"_INBOX.new"] = 1
    return table, all_of_them


async def make_room(table: Any) -> None:
    """As `create` does before it makes the next one."""
    await table._make_room(HOST, b"_INBOX.new")


async def test_the_one_that_was_idle_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    table, them = full_table(monkeypatch, [0.0, IDLE_SECONDS + 1])
    them[7].idle = IDLE_SECONDS + 2
    await make_room(table)
    assert [one.spec.name for one in them if one.ended] == ["c7"]
    assert table.count() == MAX_CONSUMERS - 1


async def test_those_that_are_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    table, them = full_table(monkeypatch, [0.0, IDLE_SECONDS - 1])
    with pytest.raises(JetStreamError, match="maximum consumers limit reached"):
        await make_room(table)
    assert not any(one.ended for one in them)
