"""Our own acks while two servers are in use: no stream stores them, however slow a server is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from acl.subjects import matches
from liftlog.errors import NatsUnavailable
from liftlog.sequencing import MessageRun
from liftlog.sequencing.acks import Sent, publish_commands, published
from liftlog.server.ingest import handover as module
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.echoes import FORGET_SECONDS, Echoes
from liftlog.server.ingest.handover import Handover
from liftlog.server.ingest.subscriptions import LinkSubscription, RunHandler

PAIR_SECONDS = 0.05


class Connection:
    """One of ours, to a server that takes what we send after `there` seconds, needs `between` to
    send it to the other one, and whose answers need `back` seconds."""

    def __init__(self, there: float, back: float, between: float = 0.0) -> None:
        self.there, self.back, self.between = there, back, between
        self.others: list[Connection] = []
        self.sids: dict[LinkSubscription, dict[str, int]] = {}
        self.ended = asyncio.Event()
        self.ending = None
        self.cluster_name = "c"
        self._subscribed: set[LinkSubscription] = set()
        self.handlers: dict[LinkSubscription, RunHandler] = {}

    def later(self, seconds: float, what: Callable[..., object], *arguments: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, what, *arguments)

    def send(self, commands: bytes) -> bool:
        self.later(self.there, self._take, commands)
        return True

    def _take(self, commands: bytes) -> None:
        for message in published(commands):
            for other in self.others:  # not to ourselves: no_echo
                # There, a publisher waits for it; what is sent first arrives first.
                self.later(self.between, other.publish, message)

    def publish(self, message: Sent) -> None:
        subject, reply, headers, payload = message
        run = MessageRun([subject], [reply], [payload], [headers] if headers else None)
        for one in self._subscribed:
            if any(matches(pattern, subject.decode()) for pattern in one.subjects):
                self.later(self.back, self._arrive, one, run)

    def _arrive(self, one: LinkSubscription, run: MessageRun) -> None:
        if one in self.handlers:
            self.handlers[one](run)

    async def confirm(self, seconds: float = 10.0) -> None:
        if self.there + self.back > seconds:
            await asyncio.sleep(seconds)
            raise NatsUnavailable("no answer")
        answered = asyncio.Event()
        self.later(self.there, self.later, self.back, answered.set)
        await answered.wait()

    async def subscribe(
        self,
        wanted: Sequence[LinkSubscription],
        handler_of: Callable[[LinkSubscription], RunHandler] = lambda one: one.handler,
    ) -> dict[LinkSubscription, dict[str, str]]:
        for one in wanted:
            self.sids[one] = dict.fromkeys(one.subjects, 1)
            self.handlers[one] = handler_of(one)
            self.later(self.there, self._subscribed.add, one)
        await self.confirm()
        return {}

    async def drain(self, wanted: Sequence[LinkSubscription], seconds: float) -> None:
        for one in wanted:
            self.later(self.there, self._subscribed.discard, one)
        await self.confirm(seconds)
        for one in wanted:
            del self.sids[one], self.handlers[one]

    def set_handler(self, one: LinkSubscription, handler: RunHandler) -> None:
        self.handlers[one] = handler


class Witness:
    def __init__(self, queue_group: str | None) -> None:
        self.payloads: list[bytes] = []
        self.subscription = LinkSubscription(("_INBOX.>",), queue_group, self._take)

    def _take(self, run: MessageRun) -> None:
        self.payloads += run.payloads


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OVERLAP_SECONDS", 0.1)
    monkeypatch.setattr(module, "_PAIR_SECONDS", PAIR_SECONDS)
    monkeypatch.setattr(module, "_DRAIN_SECONDS", 0.3)


def handover_of(
    old: Connection,
    new: Connection,
    witness: Witness,
    echoes: Echoes | None = None,
    hurry: asyncio.Event | None = None,
) -> Handover:
    old.others, new.others = [new], [old]
    return Handover(
        cast(NatsConnection, old),
        cast(NatsConnection, new),
        [witness.subscription],
        lambda: None,
        hurry or asyncio.Event(),
        echoes or Echoes(time.monotonic),
    )


@pytest.mark.parametrize("queue_group", [None, "q"])
@pytest.mark.parametrize(
    ("there", "between", "back"),
    [
        (0.0, 0.0, 0.0),
        (0.02, 0.0, 0.0),
        (3 * PAIR_SECONDS, 0.0, 0.0),
        (0.0, 0.02, 0.0),
        (0.0, 3 * PAIR_SECONDS, 0.0),
        (0.0, 0.0, 3 * PAIR_SECONDS),
        (0.1, 0.1, 0.1),
    ],
    ids=[
        "quick",
        "late acks",
        "very late acks",
        "late routes",
        "very late routes",
        "late copies",
        "all late",
    ],
)
async def test_no_stream_stores_what_we_have_sent(
    there: float, between: float, back: float, queue_group: str | None
) -> None:
    """Some are on their way when the handover begins, and some when it has ended."""
    old, new = Connection(there, 0.0, between), Connection(0.0, back)
    witness = Witness(queue_group)
    await old.subscribe([witness.subscription])
    handover = handover_of(old, new, witness)
    ended = asyncio.Event()
    sent = 0

    async def ack() -> None:
        nonlocal sent
        while not ended.is_set():
            numbers = range(sent, sent + 10)
            commands = publish_commands([(b"_INBOX.a", b'{"seq":%d}' % n) for n in numbers])
            commands += b"HPUB _INBOX.b 12 18\r\nNATS/1.0\r\n\r\n%06d\r\n" % sent
            commands += b"PUB _INBOX.c r 6\r\n%06d\r\n" % sent
            assert old.send(commands)
            handover.sent(commands)
            sent += len(numbers)
            await asyncio.sleep(0.001)

    before = publish_commands([(b"_INBOX.a", b"before")])
    old.send(before)  # the link knew of no handover
    acking = asyncio.create_task(ack())
    await handover.run()
    ended.set()
    await acking
    await asyncio.sleep(there + between + back + 2 * PAIR_SECONDS)
    assert sent > 20
    assert witness.payloads == []
    new.publish(Sent(b"_INBOX.b", b"", b"", b"of another"))
    await asyncio.sleep(back + 0.01)
    assert witness.payloads == [b"of another"]
    assert new.handlers[witness.subscription] == witness.subscription.handler, "nothing between"


async def test_an_old_server_that_takes_nothing_is_not_left() -> None:
    """What it has not taken may come back at any time. It is tried again."""
    old, new, witness = Connection(1.0, 0.0), Connection(0.0, 0.0), Witness(None)
    with pytest.raises(NatsUnavailable):
        await handover_of(old, new, witness).run()
    assert new.sids == {}


@pytest.mark.parametrize("reason", ["not of one cluster", "refused"])
async def test_no_mark_comes(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Nothing comes from one to the other, or NATS lets us only answer: no reason to stay."""
    old, new, witness = Connection(0.0, 0.0), Connection(0.0, 0.0), Witness(None)
    await old.subscribe([witness.subscription])
    handover = handover_of(old, new, witness)
    old.others = []
    if reason == "refused":
        assert not handover.publish_refused("_INBOX.of.another")
        asyncio.get_running_loop().call_later(0.01, handover.publish_refused, handover._mark)
    else:
        new.cluster_name = "another"
        monkeypatch.setattr(module, "_MARK_SECONDS", 0.05)
    await handover.run()
    assert not handover.doubt
    assert list(new.sids) == [witness.subscription]


async def test_who_stops_does_not_wait_for_the_mark() -> None:
    old, new, witness = Connection(0.0, 0.0, 10.0), Connection(0.0, 0.0), Witness(None)
    await old.subscribe([witness.subscription])
    hurry = asyncio.Event()
    handover = handover_of(old, new, witness, hurry=hurry)
    asyncio.get_running_loop().call_later(0.05, hurry.set)
    with pytest.raises(NatsUnavailable):
        await handover.run()
    assert list(old.sids) == [witness.subscription]


async def test_a_server_that_is_far_behind_is_not_gone_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has not got from the old one may come at any time. It is tried again."""
    monkeypatch.setattr(module, "_MARK_SECONDS", 0.05)
    old, new, witness = Connection(0.0, 0.0, 10.0), Connection(0.0, 0.0), Witness(None)
    await old.subscribe([witness.subscription])
    with pytest.raises(NatsUnavailable):
        await handover_of(old, new, witness).run()
    assert new.sids == {}
    assert old.handlers[witness.subscription] == witness.subscription.handler


async def test_what_is_late_comes_during_the_next_handover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over both of its connections."""
    first, second, third = (Connection(0.0, 0.0) for _ in range(3))
    witness = Witness(None)
    await first.subscribe([witness.subscription])
    handover = handover_of(first, second, witness)
    await handover.run()
    commands = publish_commands([(b"_INBOX.a", b"1")])
    handover.sent(commands)
    handover._end()
    [late] = published(commands)
    handover = handover_of(second, third, witness, handover.echoes)
    second.later(0.05, second.publish, late)
    third.later(0.08, third.publish, late)
    await handover.run()
    await asyncio.sleep(2 * PAIR_SECONDS)
    assert witness.payloads == []


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def run_of(*payloads: bytes) -> MessageRun:
    return MessageRun([b"_INBOX.a"] * len(payloads), [b""] * len(payloads), list(payloads))


def left(echoes: Echoes, one: LinkSubscription, *payloads: bytes) -> list[bytes]:
    run = echoes.without(one, run_of(*payloads))
    return [] if run is None else list(run.payloads)


def test_each_comes_back_once() -> None:
    echoes, one = Echoes(Clock()), Witness(None).subscription
    for payload in (b"1", b"1", b"2", b"3"):
        echoes.sent(one, (b"_INBOX.a", b"", b"", payload))
    assert left(echoes, one, b"x", b"1", b"1", b"1", b"2") == [b"x", b"1"]
    other = MessageRun([b"_INBOX.a"], [b"reply"], [b"3"])
    assert echoes.without(one, other) is other, "what asks for an answer is of another"
    assert echoes.are_due(one)
    assert left(echoes, one, b"3", b"3") == [b"3"]
    assert not echoes.are_due(one)


def test_what_the_last_has_passed_does_not_come() -> None:
    """The new server did not know the subscription yet."""
    echoes, one = Echoes(Clock()), Witness(None).subscription
    for payload in (b"1", b"2", b"3"):
        echoes.sent(one, (b"_INBOX.a", b"", b"", payload))
    assert left(echoes, one, b"3", b"1") == [b"1"]
    assert len(echoes) == 0


def test_they_are_not_waited_for_for_ever() -> None:
    clock = Clock()
    echoes, one = Echoes(clock), Witness(None).subscription
    echoes.sent(one, (b"_INBOX.a", b"", b"", b"1"))
    clock.now = FORGET_SECONDS - 1
    assert echoes.are_due(one)
    clock.now = FORGET_SECONDS
    assert left(echoes, one, b"1") == [b"1"]
    assert len(echoes) == 0
