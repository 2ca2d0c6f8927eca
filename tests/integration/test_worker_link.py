"""The connection for acks and pulls, with a real NATS server and the acks of real clients."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from support.clients.raw_nats import RawNats, header_block, pub_frame
from support.daemons.nats_server import NatsServer

from liftlog.deliveries.acks import AckKind
from liftlog.errors import NatsRefused, NatsUnavailable
from liftlog.sequencing.destinations import own_subject
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.leaf_frames import leaf_message
from liftlog.server.jetstream_api.consumers.leaf_login import LeafLogin
from liftlog.server.jetstream_api.consumers.pull_body import BadPull, Pull
from liftlog.server.jetstream_api.workers import worker_link
from liftlog.server.jetstream_api.workers.pulls import WorkerPull
from liftlog.server.jetstream_api.workers.worker_link import Arrived, WorkerLink
from liftlog.settings import NatsSettings

pytestmark = pytest.mark.integration

SECOND = 10**9
STAMP = 1_764_469_999_123_456_789
PATIENCE = 60.0
FULL_PART = 512
"""Number of acks in a part of a read that has more acks."""
ACKS = "$JS.ACK.s.>"
PULLS = "$JS.API.CONSUMER.MSG.NEXT.s.*"
NEXT = "$JS.API.CONSUMER.MSG.NEXT.s.c"


def reply_of(offset: int, consumer: str = "c", stream: str = "s") -> str:
    return f"$JS.ACK.{stream}.{consumer}.1.{offset}.{offset}.{STAMP}.0"


class Taken:
    """Collects everything that a link hands over."""

    def __init__(self) -> None:
        self.arrived: list[Arrived] = []
        self.then: Callable[[Arrived], None] = lambda arrived: None
        """Called with each part."""

    def __call__(self, arrived: Arrived) -> None:
        self.arrived.append(arrived)
        self.then(arrived)

    @property
    def offsets(self) -> list[int]:
        return [
            int(offset)
            for one in self.arrived
            for found in one.acks
            for offset in found.acks.offsets
        ]

    @property
    def pulls(self) -> list[tuple[str, bytes, Pull | BadPull]]:
        return [tuple(pull) for one in self.arrived for pull in one.pulls]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # nothing tells
            await asyncio.sleep(0.01)


@asynccontextmanager
async def linked(server: NatsServer, **settings: Any) -> AsyncIterator[tuple[WorkerLink, Taken]]:
    taken = Taken()
    nats_settings = NatsSettings(servers=[server.url], reconnect_wait="50ms", **settings)
    link = WorkerLink(nats_settings, [server.url], "parser", taken, api_level=1)
    link.start()
    try:
        await until(lambda: link.link.connected)
        yield link, taken
    finally:
        await link.close()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


@asynccontextmanager
async def leaf_of(server: NatsServer) -> AsyncIterator[LeafLink]:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    leaf = LeafLink([found[1]], LeafLogin(NatsSettings()), name="test")
    leaf.start()
    try:
        await leaf.wait_connected()
        yield leaf
    finally:
        await leaf.close()


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port) as raw:
        yield raw


async def test_a_leaf_sends_in_the_order_of_the_calls(server: NatsServer, raw: RawNats) -> None:
    """Whether a command is put for the end of the turn or sent at once."""
    target = own_subject(b"order.a")
    raw.sub("order.a")
    raw.ping()
    async with leaf_of(server) as leaf:
        await until(lambda: leaf.has_interest(b"order.a"))
        for number in range(0, 30, 3):
            assert leaf.has_room
            leaf.put(leaf_message(target, b"", b"", b"%d" % number))
            leaf.put(leaf_message(target, b"", b"", b"%d" % (number + 1)))
            await leaf.send(leaf_message(target, b"", b"", b"%d" % (number + 2)))
        leaf.put(leaf_message(target, b"", b"", b"30"))
        found = [await asyncio.to_thread(raw.next_message) for _ in range(31)]
    assert [int(one.payload) for one in found] == list(range(31))
    assert not leaf.has_room, "there is no connection"


async def test_acks_of_one_read_come_before_its_pulls(server: NatsServer, raw: RawNats) -> None:
    async with linked(server) as (link, taken):
        link.lead("s")
        link.lead("s")
        await link.confirm("s")
        assert link.problems() == {}
        raw.send(
            pub_frame(NEXT, b"5", reply="_INBOX.pull")
            + pub_frame(reply_of(1), b"+ACK")
            + pub_frame(reply_of(2, "d"), b"-NAK 5s", reply="_INBOX.nak")
            + pub_frame(reply_of(3), b"+NXT 2", reply="_INBOX.next")
            + pub_frame(reply_of(4), b"?", reply="_INBOX.none")
            + pub_frame(reply_of(5, stream="other"), b"")
            + pub_frame("$JS.ACK.s.c.1", b"")
            + pub_frame("$JS.ACK.s.forged.x.1.1.1.1.1", b"")
        )
        await until(lambda: link.counters.not_parsed == 2)
        [arrived] = taken.arrived
        assert arrived.stream == "s"
        found = {one.consumer: one for one in arrived.acks}
        assert found["c"].acks.offsets.tolist() == found["c"].sequences.tolist() == [1, 3]
        assert found["c"].acks.stamps_ns.tolist() == [STAMP, STAMP]
        assert found["c"].acks.counts.tolist() == [1, 1]
        assert list(found["c"].replies) == []
        assert found["d"].acks.kinds.tolist() == [AckKind.NAK]
        assert found["d"].acks.delays_ns.tolist() == [5 * SECOND]
        assert list(found["d"].replies) == [b"_INBOX.nak"]
        assert sorted(taken.pulls) == [
            ("c", b"_INBOX.next", Pull(2)),
            ("c", b"_INBOX.pull", Pull(5)),
        ]
        assert arrived.answers == [b"_INBOX.none"]
        assert (link.counters.acks, link.counters.pulls) == (4, 1)


class Choice:
    """Stands for the consumers, whose states decide what is urgent."""

    def __init__(self, *, waits: bool = True, first: bool = True) -> None:
        self.waits, self.first = waits, first
        self.asked: list[tuple[str, str, int]] = []

    def can_wait(self, stream: str, consumer: bytes) -> bool:
        return self.waits and (stream, consumer) == ("s", b"c")

    def precedes(self, stream: str, pull: WorkerPull, acks: int) -> bool:
        self.asked.append((stream, pull.consumer, acks))
        return self.first


async def test_acks_that_can_wait_are_passed_on_with_those_that_follow(
    server: NatsServer, raw: RawNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_link, "WAIT_SECONDS", 3600.0)
    async with linked(server) as (link, taken):
        link.urgency = Choice(first=False)
        link.lead("s")
        await link.confirm("s")
        for number in range(3):
            raw.pub(reply_of(number), b"+ACK")
            raw.ping()
            await asyncio.sleep(0.05)  # each in a read of its own
        assert not taken.arrived
        raw.hpub(reply_of(3), header_block({"A": "b"}), b"+ACK")
        raw.ping()
        await asyncio.sleep(0.05)
        raw.pub(reply_of(4), b"+ACK", reply="_INBOX.sync")
        await until(lambda: taken.arrived)
        [arrived] = taken.arrived
        [acks] = arrived.acks
        assert acks.acks.offsets.tolist() == [0, 1, 2, 3, 4]
        assert list(acks.replies) == [b"", b"", b"", b"", b"_INBOX.sync"]
        raw.pub(reply_of(5, "d"), b"+ACK")
        await until(lambda: taken.offsets == [0, 1, 2, 3, 4, 5])  # a consumer of which no ack waits
        raw.pub(reply_of(6), b"+ACK")
        raw.ping()
        await asyncio.sleep(0.05)
        assert taken.offsets == [0, 1, 2, 3, 4, 5]
        link.pass_on()
        assert taken.offsets == [0, 1, 2, 3, 4, 5, 6]
        raw.pub(reply_of(7), b"+ACK")
        raw.ping()
        await asyncio.sleep(0.05)
        link.finish()
        assert taken.offsets == [0, 1, 2, 3, 4, 5, 6, 7]
        assert link.counters.acks == 8


async def test_acks_wait_for_a_moment_only(server: NatsServer, raw: RawNats) -> None:
    async with linked(server) as (link, taken):
        link.urgency = Choice()
        link.lead("s")
        await link.confirm("s")
        raw.pub(reply_of(1), b"+ACK")
        await until(lambda: taken.offsets == [1])


@pytest.mark.parametrize("first", [True, False])
async def test_a_pull_can_precede_the_acks_of_its_read(
    server: NatsServer, raw: RawNats, *, first: bool
) -> None:
    async with linked(server) as (link, taken):
        link.urgency = choice = Choice(first=first)
        link.lead("s")
        await link.confirm("s")
        acks = [pub_frame(reply_of(number), b"+ACK") for number in range(3)]
        raw.send(b"".join(acks) + pub_frame(NEXT, b"5", reply="_INBOX.pull"))
        await until(lambda: len(taken.offsets) == 3 and taken.pulls)
        assert choice.asked == [("s", "c", 3)]
        parts = [
            (len(one.pulls), sum(len(some.acks) for some in one.acks)) for one in taken.arrived
        ]
        assert parts == ([(1, 0), (0, 3)] if first else [(1, 3)])
        assert (link.counters.acks, link.counters.pulls) == (3, 1)


async def test_acks_behind_a_pull_follow_in_the_next_turn_of_the_loop(
    server: NatsServer, raw: RawNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the pull is sent in between."""
    monkeypatch.setattr(worker_link, "WAIT_SECONDS", 3600.0)
    async with linked(server) as (link, taken):
        link.urgency = choice = Choice()
        link.lead("s")
        await link.confirm("s")
        steps = list[str]()

        def note(arrived: Arrived) -> None:
            steps.append("pull" if arrived.pulls else "acks")
            asyncio.get_running_loop().call_soon(steps.append, "turn")

        taken.then = note
        pull = pub_frame(NEXT, b"5", reply="_INBOX.pull")
        for number in range(3):
            raw.send(pub_frame(reply_of(number), b"+ACK") + pull)
            await until(lambda: len(taken.offsets) == number + 1)  # noqa: B023  within the round
        assert choice.asked == 3 * [("s", "c", 1)]
        assert steps == 3 * ["pull", "turn", "acks", "turn"]
        assert (link.counters.acks, link.counters.pulls) == (3, 3)


async def test_acks_behind_a_pull_are_passed_on_at_the_end(
    server: NatsServer, raw: RawNats
) -> None:
    async with linked(server) as (link, taken):
        link.urgency = Choice()
        link.lead("s")
        await link.confirm("s")
        taken.then = lambda arrived: link.hold() if arrived.pulls else None
        raw.send(pub_frame(reply_of(1), b"+ACK") + pub_frame(NEXT, b"5", reply="_INBOX.pull"))
        await until(lambda: taken.pulls)
        assert taken.offsets == []
        link.finish()
        assert taken.offsets == [1]


async def test_pulls_do_not_make_acks_wait_longer(server: NatsServer, raw: RawNats) -> None:
    async with linked(server) as (link, taken):
        link.urgency = Choice()
        link.lead("s")
        await link.confirm("s")
        pull = pub_frame(NEXT, b"5", reply="_INBOX.pull")
        raw.send(pub_frame(reply_of(0), b"+ACK") + pull)
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            while not taken.offsets:  # a pull in each read, also when the time is over
                raw.send(pull)
                raw.ping()
                await asyncio.sleep(0)
        waited = time.monotonic() - began
        assert taken.offsets == [0]
        assert len(taken.pulls) > 1
        assert waited < 20, waited


@pytest.mark.parametrize(
    "frame",
    [
        pub_frame(reply_of(2), b"-NAK"),
        pub_frame(reply_of(2), b"+ACK", reply="_INBOX.sync"),
        pub_frame(reply_of(2), b"+NXT", reply="_INBOX.next"),
        pub_frame(NEXT, b"5", reply="_INBOX.other"),
    ],
    ids=["nak", "confirmed", "next", "two pulls"],
)
async def test_some_acks_precede_every_pull(server: NatsServer, raw: RawNats, frame: bytes) -> None:
    async with linked(server) as (link, taken):
        link.urgency = Choice()
        link.lead("s")
        await link.confirm("s")
        frames = [pub_frame(reply_of(1), b"+ACK"), frame, pub_frame(NEXT, b"5", reply="_INBOX.p")]
        raw.send(b"".join(frames))
        await until(lambda: 1 in taken.offsets and (b"_INBOX.p" in [one[1] for one in taken.pulls]))
        assert len(taken.arrived) == 1


async def test_the_acks_of_a_client(server: NatsServer) -> None:
    """nats-py acks messages that are delivered over a leaf node connection."""
    async with linked(server) as (link, taken), leaf_of(server) as leaf:
        link.lead("s")
        await link.confirm("s")
        client = await nats.connect(server.url)
        try:
            subscription = await client.subscribe("inbox")
            await until(lambda: leaf.has_interest(b"inbox"))

            async def delivered(offset: int) -> Msg:
                reply = f"{reply_of(offset)}@orders.new".encode()
                await leaf.send(leaf_message(own_subject(b"inbox"), reply, b"", b"payload"))
                message = await subscription.next_msg(PATIENCE)
                assert (message.subject, message.data) == ("orders.new", b"payload")
                return message

            await (await delivered(1)).ack()
            await (await delivered(2)).nak()
            await (await delivered(3)).nak(delay=1.5)
            await (await delivered(4)).in_progress()
            await (await delivered(5)).term()
            waiting = asyncio.ensure_future((await delivered(6)).ack_sync(PATIENCE))
            await until(lambda: len(taken.offsets) == 6)
            acks = [one for arrived in taken.arrived for one in arrived.acks]
            ack, nak = AckKind.ACK, AckKind.NAK
            kinds = [int(kind) for one in acks for kind in one.acks.kinds]
            assert kinds == [ack, nak, nak, AckKind.PROGRESS, AckKind.TERM, ack]
            delays = [int(delay) for one in acks for delay in one.acks.delays_ns]
            assert delays == [0, 0, 3 * SECOND // 2, 0, 0, 0]
            assert not waiting.done()
            [answer] = filter(None, acks[-1].replies)
            link.link.send(b"PUB %b 0\r\n\r\n" % answer)
            await waiting
        finally:
            await client.close()


async def test_pulls_of_a_read_with_headers(server: NatsServer, raw: RawNats) -> None:
    async with linked(server) as (link, taken):
        link.lead("s")
        await link.confirm("s")
        raw.hpub(NEXT, header_block({"Nats-Required-Api-Level": "2"}), b"", reply="_INBOX.a")
        raw.hpub(NEXT, header_block({"Nats-Required-Api-Level": "1"}), b"3", reply="_INBOX.b")
        raw.hpub(reply_of(1), header_block({"A": "b"}), b"+TERM why")
        raw.pub(NEXT, b"{", reply="_INBOX.c")
        await until(lambda: len(taken.pulls) == 3 and taken.offsets == [1])
        words = [one.words for _, _, one in taken.pulls if isinstance(one, BadPull)]
        assert words[0] == b"412 Required Api Level"
        assert words[1].startswith(b"400 Bad Request - ")
        assert taken.pulls[1][2] == Pull(3)
        reasons = [found.acks.reasons for one in taken.arrived for found in one.acks]
        assert reasons == [{0: "why"}]


async def test_streams_come_and_go(server: NatsServer, raw: RawNats) -> None:
    async with linked(server) as (link, taken):
        for stream in ("s", "t"):
            link.lead(stream)
            await link.confirm(stream)
        link.leave("s")
        link.lead("s")  # at once again
        await link.confirm("s")
        raw.pub(reply_of(1))
        await until(lambda: taken.offsets == [1])  # once: the first subscription is gone
        link.leave("s")
        link.leave("s")
        await link.left()
        raw.pub(reply_of(2))
        raw.pub(NEXT, reply="_INBOX.a")
        raw.pub(reply_of(3, stream="t"))
        await until(lambda: 3 in taken.offsets)
        assert taken.offsets == [1, 3]
        assert not taken.pulls


async def test_a_flood_is_held_back_and_nothing_of_it_is_lost(
    server: NatsServer, raw: RawNats
) -> None:
    count = 20_000
    async with linked(server) as (link, taken):
        link.lead("s")
        await link.confirm("s")
        link.hold()
        frames = [pub_frame(reply_of(number), b"+ACK") for number in range(count)]
        for at in range(0, count, 1000):
            raw.send(b"".join(frames[at : at + 1000]))
        raw.ping()
        await asyncio.sleep(0.2)  # what was being read
        before = len(taken.offsets)
        await asyncio.sleep(0.2)  # nothing arrives in it, whatever is in the sockets
        assert len(taken.offsets) == before < count
        link.release()
        await until(lambda: len(taken.offsets) == count)
        assert taken.offsets == list(range(count))
        assert link.counters.gaps == 0


async def test_a_large_read_is_passed_on_in_parts(server: NatsServer, raw: RawNats) -> None:
    """Between two parts, other tasks of the event loop run, for example those of publishers."""
    count, slow = 2_000, 0.003
    async with linked(server) as (link, taken):
        turns = [0]
        parts: list[tuple[int, int]] = []

        async def others() -> None:
            while True:
                turns[0] += 1
                await asyncio.sleep(0)

        def take(arrived: Arrived) -> None:
            size = sum(len(one.acks) for one in arrived.acks) + len(arrived.pulls)
            parts.append((turns[0], size))
            time.sleep(slow)

        taken.then = take
        link.lead("s")
        await link.confirm("s")
        task = asyncio.create_task(others())
        pulls = [pub_frame(NEXT, b"1", reply=f"_INBOX.{number}") for number in range(count)]
        acks = [pub_frame(reply_of(number), b"+ACK") for number in range(count)]
        raw.send(b"".join(pulls + acks))
        await until(lambda: len(taken.offsets) == count and len(taken.pulls) == count)
        task.cancel()
        assert max(size for _, size in parts) <= 1024
        # A turn has at most one part of what waits, and one of a read that comes in it.
        assert max(Counter(turn for turn, _ in parts).values()) <= 2
        assert taken.offsets == list(range(count))
        assert [reply for _, reply, _ in taken.pulls] == [b"_INBOX.%d" % n for n in range(count)]
        assert (link.counters.acks, link.counters.pulls) == (count, count)


async def test_parts_that_wait_are_dropped_with_their_stream(
    server: NatsServer, raw: RawNats
) -> None:
    async with linked(server) as (link, taken):
        link.lead("s")
        await link.confirm("s")
        frames = [pub_frame(NEXT, b"1", reply=f"_INBOX.{number}") for number in range(1000)]

        def take(arrived: Arrived) -> None:
            link.hold()
            link.leave("s")

        taken.then = take
        raw.send(b"".join(frames))
        await until(lambda: taken.pulls)
        link.release()
        await link.left()
        before = len(taken.pulls)
        taken.then = lambda arrived: None
        link.lead("s")
        await link.confirm("s")
        raw.pub(NEXT, b"7", reply="_INBOX.last")
        await until(lambda: len(taken.pulls) > before)
        assert taken.pulls[before:] == [("c", b"_INBOX.last", Pull(7))]


async def test_parts_that_wait_when_the_daemon_stops_are_passed_on(
    server: NatsServer, raw: RawNats
) -> None:
    sent, held = 0, asyncio.Event()

    def take(arrived: Arrived) -> None:
        if len(arrived.acks[0].acks) == FULL_PART:  # other parts of the same read follow
            link.hold()
            held.set()

    async with linked(server) as (link, taken):
        link.lead("s")
        await link.confirm("s")
        taken.then = take
        async with asyncio.timeout(PATIENCE):
            while not held.is_set():  # a busy machine can read a few acks at a time
                numbers = range(sent, sent + 2_000)
                raw.send(b"".join([pub_frame(reply_of(number), b"+ACK") for number in numbers]))
                sent += len(numbers)
                await asyncio.sleep(0.05)
        before = len(taken.offsets)
        assert before < sent, "the other parts wait"
        link.finish()
        passed = len(taken.offsets)
        assert passed > before
        assert taken.offsets == list(range(passed))
        await asyncio.sleep(0.2)
        assert len(taken.offsets) == passed, "nothing is read afterwards"


async def test_after_a_disconnect() -> None:
    with NatsServer() as server:
        async with linked(server) as (link, taken):
            link.lead("s")
            await link.confirm("s")
            server.stop()
            await until(lambda: not link.link.connected)
            link.lead("t")
            with pytest.raises(NatsUnavailable):
                await link.confirm("t")
            server.start()
            await until(lambda: link.link.connected)
            for stream in ("s", "t"):
                await link.confirm(stream)
            assert link.problems() == {}
            assert link.counters.gaps >= 2  # both subjects of the first stream
            with RawNats(server.port) as raw:
                raw.pub(reply_of(1))
                raw.pub(reply_of(2, stream="t"))
            await until(lambda: sorted(taken.offsets) == [1, 2])


async def test_a_wait_for_subscriptions_ends() -> None:
    """With their confirmation, with their end, with a refusal, and in any case with its time."""
    with NatsServer(**users("_INBOX.>", "$JS.ACK.>", "$JS.API.>")) as server:
        async with linked(server, user="daemon", password="secret") as (link, _):
            link.lead("s")
            await link.wait_confirmed(["s", "unknown"], PATIENCE)
            assert link.problems() == {}
            async with asyncio.timeout(0):
                await link.confirm("s")  # which does not have to wait
            server.reload(**users("_INBOX.>"))
            link.lead("t")
            await link.wait_confirmed(["t"], PATIENCE)
            assert set(link.problems()) >= {"t"}
            server.stop()
            await until(lambda: not link.link.connected)
            link.lead("u")
            waiting = asyncio.ensure_future(link.wait_confirmed(["u"], PATIENCE))
            await link.wait_confirmed(["u"], 0.05)
            assert not waiting.done()
            link.leave("u")
            await waiting


def users(*subscribe: str) -> dict[str, Any]:
    permissions = {"subscribe": list(subscribe), "publish": ["_INBOX.>"]}
    daemon = {"user": "daemon", "password": "secret", "permissions": permissions}
    everybody = {"user": "all", "password": "all"}
    return {"authorization": {"users": [daemon, everybody]}, "no_auth_user": "all"}


@pytest.mark.parametrize("allowed", [(), (ACKS,), (PULLS,)], ids=["nothing", "acks", "pulls"])
async def test_a_permission_that_is_missing_is_named_and_may_be_given_later(
    allowed: tuple[str, ...],
) -> None:
    with NatsServer(**users("_INBOX.>", *allowed)) as server:
        async with linked(server, user="daemon", password="secret") as (link, taken):
            link.lead("s")
            with pytest.raises(NatsRefused, match="Permissions Violation"):
                await link.confirm("s")
            link.leave("s")
            assert not link.problems()  # nobody wants it any more
            link.lead("s")
            with pytest.raises(NatsRefused, match="Permissions Violation") as refused:
                await link.confirm("s")
            hint = f"give the daemon's NATS user permission to subscribe to {ACKS}, {PULLS}"
            assert refused.value.hint == hint
            problem = link.problems()["s"]
            assert problem.endswith(hint)
            for subject in (ACKS, PULLS):
                assert (subject in problem.removesuffix(hint)) == (subject not in allowed)
            server.reload(**users("_INBOX.>", ACKS, PULLS))
            link.link.ask_again()
            await until(lambda: not link.problems())
            with RawNats(server.port) as raw:
                raw.pub(reply_of(1))
                raw.pub(NEXT, reply="_INBOX.a")
            await until(lambda: taken.offsets == [1] and len(taken.pulls) == 1)
            server.reload(**users("_INBOX.>", ACKS))
            await until(lambda: PULLS in link.problems().get("s", ""))


async def test_cancelled_while_nats_is_asked(server: NatsServer, raw: RawNats) -> None:
    """The subscriptions stay wanted, and are made."""
    async with linked(server) as (link, taken):
        link.lead("s")
        for _ in range(3):
            confirming = asyncio.ensure_future(link.confirm("s"))
            await asyncio.sleep(0)
            confirming.cancel()
            await asyncio.gather(confirming, return_exceptions=True)
        await link.confirm("s")
        raw.pub(reply_of(1))
        await until(lambda: taken.offsets == [1])
