"""Handovers while one of the two nodes stops, or has no NATS."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.cluster import transitions
from liftlog.errors import Conflict
from liftlog.protocol.replication import HandOver
from liftlog.server.ingest.relay import Relay
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.server.node import handing_over
from liftlog.server.node.handing_over import Handovers
from liftlog.server.streams.attachments import Attachments
from liftlog.settings import StreamSettings

TOKEN = b"t" * 16


class World:
    """Node b follows stream s, which a leads, and is asked to take it over."""

    def __init__(self, *, is_recorded: bool = True) -> None:
        self.record = transitions.create("s", "i", {}, ("a", "b"), starts={"a": 1, "b": 1})
        self.records = {"s": self.record}
        self.subscribed: list[str] = []
        self.connected = True
        self.host = SimpleNamespace(
            name="s",
            is_leading=False,
            failure="",
            settings=StreamSettings(subject="s.>"),
            log=None,
        )
        attachments = SimpleNamespace(
            is_recorded=lambda host: is_recorded,
            attach_early=self.attach_early,
            confirm_early=self.confirm_early,
            detach=self.detach,
            relay=lambda host: self.relay,
        )
        streams: Any = SimpleNamespace(
            hosts={"s": self.host},
            attachments=attachments,
            reserve=SimpleNamespace(is_disk_full=lambda: self.is_disk_full),
            steady_ns=lambda: 0,
        )
        self.is_disk_full = False
        self.attachments = attachments
        self.attachments.connected = True
        self.relay: Any = None
        self.newest = self.record
        self.reads = 0
        mirror: Any = SimpleNamespace(records=self.records, change=self.read)
        self.while_it_learns = lambda: None
        ids: Any = SimpleNamespace(catch_up=self.learn)
        no_link: Any = None
        self.handovers = Handovers("b", mirror, streams, ids, no_link, lambda work: work.close())

    async def learn(self, host: Any) -> None:
        self.while_it_learns()

    async def read(self, name: str, step: Any) -> None:
        """From the metadata store."""
        self.reads += 1
        assert step(self.newest) is None
        self.records[name] = self.newest

    async def attach_early(self, host: Any, relay: Any) -> None:
        self.relay = relay
        self.subscribed.append(host.name)

    async def confirm_early(self, host: Any) -> None:
        pass

    async def detach(self, host: Any) -> bool:
        self.subscribed.remove(host.name)
        return True

    async def ask(self, step: str, epoch: int = 1) -> None:
        await self.handovers.asked(HandOver("s", "i", epoch, "a", step, TOKEN))

    def stop(self) -> None:
        self.handovers.is_stopping = True


@pytest.fixture
async def world() -> World:
    return World()


async def test_a_node_that_stops_begins_nothing(world: World) -> None:
    world.stop()
    with pytest.raises(Conflict):
        await world.ask("prepare")
    assert not world.handovers.is_taking


async def test_a_node_whose_disk_is_full_takes_nothing_over(world: World) -> None:
    world.is_disk_full = True
    with pytest.raises(Conflict, match="its disk is full"):
        await world.ask("prepare")
    world.is_disk_full = False
    await world.ask("prepare")


@pytest.mark.parametrize("missed", ["the lead", "that it is in sync"])
async def test_a_node_that_has_an_older_record_reads_it_again(world: World, missed: str) -> None:
    """The leader asks by a record of which the notice has not come here yet."""
    if missed == "the lead":
        world.newest = replace(world.record, leader_epoch=2, version=2)
        await world.ask("prepare", epoch=2)
    else:
        world.records["s"] = replace(world.record, isr=("a",))
        await world.ask("prepare")
    await world.ask("subscribe", epoch=world.newest.leader_epoch)
    assert world.reads == 1


async def test_a_leader_of_the_past_is_declined_without_asking_the_store(world: World) -> None:
    world.records["s"] = world.newest = replace(world.record, leader="b", leader_epoch=2)
    with pytest.raises(Conflict):
        await world.ask("prepare")
    assert world.reads == 0


async def test_a_stop_while_it_learns_ids_is_told(world: World) -> None:
    world.while_it_learns = world.stop
    with pytest.raises(Conflict, match="stops"):
        await world.ask("prepare")


async def test_a_stop_before_it_subscribes_is_told(world: World) -> None:
    await world.ask("prepare")
    assert not world.handovers.is_taking
    world.stop()
    with pytest.raises(Conflict, match="stops"):
        await world.ask("subscribe")
    assert not world.subscribed


async def test_once_subscribed_it_goes_through_with_it_though_it_stops(world: World) -> None:
    """The giver may have unsubscribed: no other node would receive what comes."""
    await world.ask("prepare")
    await world.ask("subscribe")
    world.stop()
    assert world.handovers.is_taking
    await world.ask("tell")
    assert world.subscribed
    assert world.handovers.is_taking
    world.records["s"] = transitions.transfer(world.record, "b") or world.record
    assert not world.handovers.is_taking, "it leads, as the record says"
    world.handovers.leads("s")


@pytest.mark.parametrize("end", ["the leader gives up", "another node leads"])
async def test_a_stop_waits_for_no_handover_that_has_ended(world: World, end: str) -> None:
    await world.ask("prepare")
    await world.ask("subscribe")
    world.stop()
    if end == "the leader gives up":
        await world.ask("drop")
        assert not world.subscribed
    else:
        world.records["s"] = transitions.resign(world.record, "a") or world.record
    assert not world.handovers.is_taking


async def test_a_stream_without_messages_may_be_led_here_once_it_was_prepared() -> None:
    world = World(is_recorded=False)
    await world.ask("prepare")
    world.stop()
    assert world.handovers.is_taking


async def test_a_node_without_nats_takes_over_only_what_needs_none() -> None:
    for is_recorded in (True, False):
        world = World(is_recorded=is_recorded)
        world.attachments.connected = False
        if is_recorded:
            with pytest.raises(Conflict):
                await world.ask("prepare")
        else:
            await world.ask("prepare")


class Giving:
    """Node a leads stream s, and hands it over to b, which does whatever it is asked."""

    def __init__(self) -> None:
        self.record = transitions.create("s", "i", {}, ("a", "b"), starts={"a": 1, "b": 1})
        self.steps: list[str] = []
        self.is_transferring = asyncio.Event()
        self.subscribed = True
        self.losses: list[str] = []
        self.undoing: list[asyncio.Task[None]] = []
        relay = Relay(asyncio.get_running_loop().time)
        host = SimpleNamespace(
            name="s",
            is_leading=True,
            is_accepting=True,
            failure="",
            settings=StreamSettings(subject="s.>"),
            log=SimpleNamespace(high_watermark=1, log_end_offset=1),
            drained=self.nothing,
            refuse_new=lambda reason: None,
            accept_again=lambda reason: None,
        )
        attachments = SimpleNamespace(
            is_recorded=lambda host: True,
            relay=lambda host: relay,
            detach=self.detach,
            attach=self.attach,
            want=lambda host: None,
        )
        streams: Any = SimpleNamespace(
            hosts={"s": host},
            attachments=attachments,
            note_possible_loss=lambda host, reason: self.losses.append(reason),
        )
        mirror: Any = SimpleNamespace(records={"s": self.record}, change=self.change)
        link: Any = SimpleNamespace(request=self.request, give_up=lambda exchange: None)
        no_ids: Any = None
        self.handovers = Handovers("a", mirror, streams, no_ids, lambda node: link, self.spawn)

    async def nothing(self) -> None:
        pass

    async def detach(self, host: Any) -> bool:
        self.subscribed = False
        return True

    async def attach(self, host: Any) -> None:
        self.subscribed = True

    async def change(self, name: str, step: Any) -> None:
        """The store may do it, and does not answer."""
        self.is_transferring.set()
        await asyncio.Event().wait()

    def request(self, message: HandOver, exchange: Any) -> None:
        self.steps.append(message.step)
        exchange.finish(None, None)

    def spawn(self, work: Any) -> None:
        self.undoing.append(asyncio.get_running_loop().create_task(work))


async def test_a_stop_that_cuts_a_transfer_leaves_what_it_told_to_the_taker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may lead already, as the store says, and not know it: what it holds has no other node."""
    monkeypatch.setattr(handing_over, "SPREAD_SECONDS", 0.0)
    world = Giving()
    handing = asyncio.create_task(world.handovers.hand_over("s", "b"))
    await world.is_transferring.wait()
    handing.cancel()
    await asyncio.wait({handing})
    await asyncio.gather(*world.undoing)
    assert handing.cancelled()
    assert world.steps == ["prepare", "subscribe", "tell"], "it is not told to drop anything"
    assert not world.subscribed
    assert not world.losses


@pytest.mark.parametrize("subjects", [("s.>",), ("s.>", "t")])
async def test_a_subscription_to_other_subjects_is_not_taken_over(
    subjects: tuple[str, ...],
) -> None:
    """They were changed while the stream came here: what the new ones carried meanwhile is lost,
    which the stream is to note."""
    settings = StreamSettings(subject=list(subjects))
    host: Any = SimpleNamespace(
        name="s",
        is_leading=False,
        origin="api",
        settings=StreamSettings(subject="s.>"),
        log=SimpleNamespace(log_end_offset=1),
    )
    intake: Any = SimpleNamespace(receiver=lambda host: None, mark_dirty=lambda host: None)
    link: Any = Link()
    attachments = Attachments({}, intake, lambda host, reason: None)
    attachments.set_link(link)
    relay: Any = SimpleNamespace(receive=None, take=lambda end, receive: True)
    await attachments.attach_early(host, relay)
    host.settings = settings
    assert attachments.take(host) is (subjects == ("s.>",))


class Link:
    """A connection on which NATS confirms everything."""

    def send(self, commands: bytes) -> bool:
        return True

    def want(self, *arguments: Any, **options: Any) -> LinkSubscription:
        subjects, queue_group, receive, on_gap = arguments
        return LinkSubscription(subjects, queue_group, receive, on_gap)

    async def attach(self, wanted: LinkSubscription) -> None:
        wanted.accepted()
