"""The same steps on a real JetStream and on the state machine of deliveries: what arrives, in which
order, with which counts, and which words end a pull."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Any

import nats
import numpy as np
import pytest
from nats.aio.msg import Msg
from support.daemons.nats_server import NatsServer
from support.rounds import examples

from liftlog.deliveries.acks import AckKind, Acks
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Advisory, Deliver, Instruction, Status
from liftlog.deliveries.pull import Priority
from liftlog.deliveries.records import Records, Scan
from liftlog.deliveries.settings import AckPolicy, PriorityPolicy, Settings
from liftlog.deliveries.state import ConsumerState

pytestmark = pytest.mark.integration

SECOND = 10**9
STREAM, CONSUMER = "S", "C"
PREFIX = f"$JS.ACK.{STREAM}.{CONSUMER}."
BODIES = {
    AckKind.ACK: b"+ACK",
    AckKind.NAK: b"-NAK",
    AckKind.PROGRESS: b"+WPI",
    AckKind.TERM: b"+TERM",
}


class Beside:
    """Sequences of the stream are offsets here. `settings` is that of the consumer in both."""

    def __init__(self, client: Any, settings: Settings) -> None:
        self._client = client
        self.settings = settings
        self.machine = Consumer(ConsumerState(settings, 1))
        self.log: dict[int, int] = {}
        """Sequence -> size. Its stamp is its sequence."""
        self.real: dict[str, list[Any]] = defaultdict(list)
        self.ours: dict[str, list[Any]] = defaultdict(list)
        self.replies: dict[tuple[int, int], str] = {}
        self.exhausted: list[int] = []
        self.told: list[int] = []
        self.real_pins: list[tuple[str, int]] = []
        self.our_pins: list[tuple[str, int]] = []
        self.newest_pin = ""
        self.pins: dict[str, str] = {}
        """JetStream's ids of pinned clients -> ours."""
        self._pulls = 0

    async def begin(self) -> None:
        await self._request(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["s.*"]})
        policy = {0: "explicit", 1: "all", 2: "none"}[self.settings.ack_policy]
        config = {
            "durable_name": CONSUMER,
            "ack_policy": policy,
            "ack_wait": self.settings.ack_wait_ns,
            "max_deliver": self.settings.max_deliver,
            "max_waiting": self.settings.max_waiting,
        }
        if self.settings.ack_policy != AckPolicy.NONE:
            config["max_ack_pending"] = self.settings.max_ack_pending
        if self.settings.priority_groups:
            config["priority_groups"] = list(self.settings.priority_groups)
            config["priority_policy"] = self.settings.priority_policy.name.lower()
            if self.settings.priority_policy == PriorityPolicy.PINNED_CLIENT:
                config["priority_timeout"] = self.settings.pinned_ttl_ns
        if self.settings.backoff_ns:
            config["backoff"] = list(self.settings.backoff_ns)
        await self._request(
            f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config}
        )
        advisories = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{STREAM}.{CONSUMER}"
        await self._client.subscribe(advisories, cb=self._advised)
        await self._client.flush()

    # --- steps -------------------------------------------------------------------

    async def publish(self, count: int, size: int) -> None:
        for _ in range(count):
            answer = await self._client.request("s.x", b"x" * size, timeout=10)
            sequence = json.loads(answer.data)["seq"]
            self.log[sequence] = len("s.x") + size
            await self.settle()

    async def pull(self, **body: Any) -> str:
        self._pulls += 1
        reply = f"r.{self._pulls}"
        await self._client.subscribe(reply, cb=partial(self._arrived, reply))
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}"
        await self._client.publish(subject, json.dumps(body).encode(), reply=reply)
        request = PullRequest(
            reply.encode(),
            body.get("batch", 1),
            body.get("max_bytes", 0),
            body.get("no_wait", False),
            body.get("expires", 0),
            body.get("idle_heartbeat", 0),
            Priority(
                body.get("group", ""),
                body.get("min_pending", 0),
                body.get("min_ack_pending", 0),
                self.pins.get(body.get("id", ""), body.get("id", "")).encode(),
                body.get("priority", 0),
            ),
            f"pin of {reply}".encode(),
        )
        self.machine.pull(request, self._num_pending(), time.time_ns())
        await self.settle()
        return reply

    async def ack(self, kind: AckKind, *chosen: tuple[int, int], delay: float = 0) -> None:
        """Offsets and counts of deliveries."""
        body = BODIES[kind] + (b' {"delay": %d}' % (delay * SECOND) if delay else b"")
        for one in chosen:
            await self._client.publish(self.replies[one], body)
        columns = np.array(chosen, np.int64).reshape(-1, 2)
        kinds = np.full(len(chosen), kind, np.uint8)
        delays = np.full(len(chosen), int(delay * SECOND))
        acks = Acks(columns[:, 0], columns[:, 1], columns[:, 0], kinds, delays)
        self.machine.acknowledge(acks, time.time_ns())
        await self.settle()

    async def wait(self, seconds: float) -> None:
        """Let time pass in both."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(0.02)
            self._serve()
        await self.settle()

    async def settle(self) -> None:
        """Wait until both have sent the same, and have the same figures."""
        end = time.monotonic() + 5
        while True:
            await self._client.flush()
            self._serve()
            figures = await self._figures()
            ours = self._our_figures()
            is_equal = _quiet(self.real) == _quiet(self.ours) and self.told == self.exhausted
            if is_equal and figures == ours:
                return
            if time.monotonic() > end:
                assert _quiet(self.ours) == _quiet(self.real)
                assert self.exhausted == self.told
                assert ours == figures
            await asyncio.sleep(0.02)

    # --- inside ------------------------------------------------------------------

    def _num_pending(self) -> int:
        return sum(sequence >= self.machine.state.next_offset for sequence in self.log)

    def _records(self, sequences: list[int]) -> Records:
        sizes = np.array([self.log[one] for one in sequences], np.int64)
        column = np.array(sequences, np.int64)
        return Records(column, sizes, column)

    def _serve(self) -> None:
        machine, now = self.machine, time.time_ns()
        machine.tick(now)
        for _ in range(100):
            wants = machine.wants(now, 500)
            if not len(wants.again) and not wants.first:
                break
            if len(wants.again):
                found = self._records(sorted(wants.again.tolist()))
                machine.redeliver(wants.again, found, self._num_pending(), now)
            if wants.first:
                left = [one for one in self.log if one >= wants.start][: wants.first]
                is_at_end = len(left) == self._num_pending()
                end = left[-1] + 1 if left else wants.start
                scan = Scan(wants.start, end, self._records(left), is_at_end)
                machine.deliver(scan, self._num_pending(), now)
                if not left and not len(wants.again):
                    break
        for one in machine.end_turn().instructions:
            self._note(one)

    def _note(self, one: Instruction) -> None:
        if isinstance(one, Deliver):
            columns = one.counts, one.offsets, one.sequences, one.pendings
            rows = zip(*[column.tolist() for column in columns], strict=True)
            self.ours[one.reply.decode()] += rows
            if one.pin:
                self.our_pins += [(one.reply.decode(), offset) for offset in one.offsets.tolist()]
                self.pins[self.newest_pin] = one.pin.decode()
        elif isinstance(one, Advisory):
            if one.kind.value == "max_deliver":
                self.exhausted += one.offsets.tolist()
        elif isinstance(one, Status):
            headers = {key.decode(): str(value) for key, value in one.headers}
            self.ours[one.reply.decode()].append((one.words.decode(), headers))

    async def _arrived(self, reply: str, message: Msg) -> None:
        if message.reply.startswith(PREFIX):
            count, sequence, delivery, _, pending = map(int, message.reply.split(".")[4:])
            self.replies[sequence, count] = message.reply
            pin = (message.headers or {}).get("Nats-Pin-Id", "")
            if pin:
                self.real_pins.append((reply, sequence))
                self.newest_pin = pin
            self.real[reply].append((count, sequence, delivery, pending))
        else:
            headers = dict(message.headers or {})
            words = f"{headers.pop('Status')} {headers.pop('Description')}"
            self.real[reply].append((words, headers))

    async def _advised(self, message: Msg) -> None:
        self.told.append(json.loads(message.data)["stream_seq"])

    async def _figures(self) -> tuple[int, ...]:
        info = await self._request(f"CONSUMER.INFO.{STREAM}.{CONSUMER}", {})
        # JetStream leaves the floor below exhausted messages until the next ack.
        keys = ("delivered",) if self.exhausted else ("delivered", "ack_floor")
        ends = [info[key][part] for key in keys for part in _PARTS]
        counts = [info[key] for key in ("num_ack_pending", "num_redelivered", "num_waiting")]
        return (*ends, *counts)

    def _our_figures(self) -> tuple[int, ...]:
        found = self.machine.figures(time.time_ns())
        floor = () if self.exhausted else (found.floor_sequence, found.floor_offset)
        return (
            *(found.delivered_sequence, found.delivered_offset),
            *floor,
            *(found.num_ack_pending, found.num_redelivered, found.num_waiting),
        )

    async def _request(self, method: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        answer = json.loads((await self._client.request(f"$JS.API.{method}", data, 10)).data)
        assert "error" not in answer, answer
        return answer


def _quiet(sent: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Leave out heartbeats that repeat one: a slow machine sends fewer."""
    return {
        reply: [row for row, before in zip(rows, [None, *rows], strict=False) if row != before]
        for reply, rows in sent.items()
    }


_PARTS = ("consumer_seq", "stream_seq")


@pytest.fixture
async def beside() -> AsyncIterator[Any]:
    """A function that begins with settings."""
    with NatsServer(jetstream=True) as server:
        client = await nats.connect(server.url)

        async def begin(**settings: Any) -> Beside:
            found = Beside(client, Settings(ack_prefix_bytes=len(PREFIX), **settings))
            await found.begin()
            return found

        yield begin
        await client.close()


async def test_pulls_and_their_words(beside: Any) -> None:
    both = await beside(max_waiting=3)
    await both.pull(batch=5, no_wait=True)
    await both.pull(batch=4, expires=60 * SECOND)
    await both.pull(batch=2, expires=60 * SECOND)
    await both.publish(4, 10)
    await both.pull(batch=9)
    await both.pull(batch=9, expires=60 * SECOND, idle_heartbeat=20 * SECOND)
    await both.pull(batch=1)
    await both.pull(batch=1, expires=60 * SECOND, idle_heartbeat=20 * SECOND)
    await both.publish(20, 10)
    await both.pull(batch=1, max_bytes=20)
    await both.publish(1, 10)
    await both.pull(batch=9, max_bytes=2000, no_wait=True)
    await both.pull(batch=9, max_bytes=100, expires=60 * SECOND)
    await both.publish(4, 10)
    await both.pull(batch=2, max_bytes=1000, expires=60 * SECOND)
    await both.publish(3, 10)
    await both.pull(batch=7, no_wait=True, expires=SECOND // 2)
    await both.publish(3, 10)
    await both.pull(batch=7, no_wait=True, expires=SECOND // 2)
    await both.wait(0.7)
    await both.pull(batch=5, max_bytes=500, expires=SECOND, idle_heartbeat=2 * SECOND // 5)
    await both.wait(1.2)
    assert words_of(both) == {
        "100 Idle Heartbeat",
        "404 No Messages",
        "408 Request Timeout",
        "409 Batch Completed",
        "409 Exceeded MaxWaiting",
        "409 Message Size Exceeds MaxBytes",
    }


async def test_a_full_max_ack_pending(beside: Any) -> None:
    both = await beside(max_ack_pending=2)
    await both.publish(5, 10)
    await both.pull(batch=4, no_wait=True)
    await both.pull(batch=10, expires=60 * SECOND)
    await both.pull(batch=1, no_wait=True)
    await both.ack(AckKind.NAK, (2, 1))
    await both.ack(AckKind.ACK, (1, 1))
    await both.ack(AckKind.ACK, (2, 2), (3, 1))
    assert words_of(both) == {"408 Requests Pending"}


def words_of(both: Beside) -> set[str]:
    return {row[0] for rows in both.real.values() for row in rows if isinstance(row[0], str)}


async def test_acks_naks_terms_and_signs_of_progress(beside: Any) -> None:
    both = await beside(max_ack_pending=8)
    await both.publish(12, 5)
    await both.pull(batch=50, expires=60 * SECOND)
    await both.ack(AckKind.ACK, (2, 1), (4, 1), (2, 1))
    await both.ack(AckKind.NAK, (7, 1))
    await both.ack(AckKind.NAK, (3, 1))
    await both.ack(AckKind.TERM, (5, 1))
    await both.ack(AckKind.PROGRESS, (6, 1))
    await both.ack(AckKind.ACK, (1, 1))
    await both.ack(AckKind.ACK, (7, 1), (3, 2))
    await both.ack(AckKind.NAK, (8, 1), delay=0.3)
    await both.wait(0.5)
    await both.ack(AckKind.ACK, (6, 1), (8, 2), (9, 1), (10, 1), (11, 1), (12, 1))


async def test_expiry_backoff_and_the_last_delivery(beside: Any) -> None:
    both = await beside(max_deliver=3, backoff_ns=(SECOND // 2, SECOND))
    await both.publish(3, 5)
    await both.pull(batch=50, expires=60 * SECOND)
    await both.ack(AckKind.ACK, (2, 1))
    await both.wait(0.7)
    await both.ack(AckKind.ACK, (1, 2))
    await both.wait(1.2)
    await both.wait(1.2)
    assert both.told == [3]


async def test_policy_all(beside: Any) -> None:
    both = await beside(ack_policy=AckPolicy.ALL)
    await both.publish(9, 5)
    await both.pull(batch=6, expires=60 * SECOND)
    await both.ack(AckKind.ACK, (3, 1))
    await both.ack(AckKind.ACK, (2, 1))
    await both.pull(batch=6, expires=60 * SECOND)
    await both.ack(AckKind.ACK, (9, 1))


async def test_policy_none(beside: Any) -> None:
    both = await beside(ack_policy=AckPolicy.NONE)
    await both.publish(9, 5)
    await both.pull(batch=6, expires=60 * SECOND)
    await both.pull(batch=6, expires=60 * SECOND)


async def test_requests_of_priority_groups_that_are_refused(beside: Any) -> None:
    both = await beside(priority_policy=PriorityPolicy.OVERFLOW, priority_groups=("g",))
    for body in ({}, {"group": "h"}, {"group": "g", "id": "x"}, {"group": "g", "priority": 10}):
        await both.pull(batch=1, expires=60 * SECOND, **body)
    assert len(words_of(both)) == 4


async def test_a_pinned_client(beside: Any) -> None:
    both = await beside(
        priority_policy=PriorityPolicy.PINNED_CLIENT,
        priority_groups=("g",),
        pinned_ttl_ns=3600 * SECOND,
    )
    body = {"group": "g", "expires": 60 * SECOND}
    await both.pull(batch=3, **body)
    await both.pull(batch=9, **body)
    await both.publish(2, 5)
    await both.publish(3, 5)
    await both.settle()
    assert both.our_pins == both.real_pins == [("r.1", 1), ("r.1", 2), ("r.1", 3)]
    both.pins[both.newest_pin] = "pin of r.1"
    await both.pull(batch=3, id="another", **body)
    await both.pull(batch=4, id=both.newest_pin, **body)
    await both.publish(1, 5)
    assert both.our_pins == both.real_pins
    assert words_of(both) == {"423 Nats-Pin-Id mismatch"}


@pytest.mark.parametrize("policy", [PriorityPolicy.OVERFLOW, PriorityPolicy.PRIORITIZED])
async def test_random_pulls_of_priority_groups(beside: Any, policy: PriorityPolicy) -> None:
    chance = Random(policy)
    both = await beside(priority_policy=policy, priority_groups=("g",), max_ack_pending=30)
    for _ in range(50):
        step = chance.random()
        if step < 0.4:
            await both.publish(chance.randint(1, 4), 5)
        elif step < 0.8:
            body: dict[str, Any] = {"group": "g", "expires": 60 * SECOND}
            if policy == PriorityPolicy.PRIORITIZED:
                body["priority"] = chance.randint(0, 9)
            elif chance.random() < 0.7:
                body["min_pending"] = chance.choice([0, 2, 5])
                body["min_ack_pending"] = chance.choice([0, 3, 8])
            await both.pull(batch=chance.randint(1, 6), **body)
        elif both.replies:
            kind = chance.choice([AckKind.ACK, AckKind.ACK, AckKind.NAK])
            offset = chance.choice(list(both.replies))[0]
            newest = max(one[1] for one in both.replies if one[0] == offset)
            await both.ack(kind, (offset, newest))


@pytest.mark.parametrize("seed", range(examples(0.06)))
async def test_random_steps(beside: Any, seed: int) -> None:
    """Without waits for acks, so that a slow machine changes nothing."""
    chance = Random(seed)
    both = await beside(
        max_ack_pending=chance.choice([3, 10, 1000]),
        max_deliver=chance.choice([-1, 3]),
        max_waiting=chance.choice([2, 512]),
    )
    for _ in range(60):
        step = chance.random()
        # A late ack of an exhausted message changes figures of JetStream alone.
        known = [one for one in both.replies if one[0] not in both.told][-15:]
        if step < 0.25:
            await both.publish(chance.randint(1, 6), chance.randint(0, 50))
        elif step < 0.6:
            limits = {"max_bytes": chance.randint(40, 400)} if chance.random() < 0.3 else {}
            no_wait = chance.random() < 0.3
            expires = 0 if no_wait else 60 * SECOND
            await both.pull(batch=chance.randint(1, 9), no_wait=no_wait, expires=expires, **limits)
        elif known:
            offset, count = chance.choice(known)
            newest = max(one[1] for one in both.replies if one[0] == offset)
            kind = chance.choice([AckKind.ACK, AckKind.ACK, AckKind.NAK, AckKind.TERM])
            await both.ack(kind, (offset, newest if kind == AckKind.NAK else count))
