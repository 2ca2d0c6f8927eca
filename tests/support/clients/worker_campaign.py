"""Runs workers on one consumer, and an oracle that records every delivery, every ack and its
confirmation.

The oracle reports these errors:

- a message whose ack or term was confirmed is delivered again;
- a delivery count falls, or stays the same;
- a message is delivered again although a worker has it, or before the delay of its nak has passed;
- a stored message is never delivered.

A power cut may undo the latest deliveries and their counts (`power_lost`).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.errors import APIError

SECOND = 10**9
ACK_WAIT_SECONDS = 6.0
_EARLY_SECONDS = 2.0
"""A delivery within this time after the previous one is early. The time is shorter than the ack
wait, because a delivery may have been in flight for a while."""
_MOMENT_SECONDS = 0.5
"""A power cut may undo deliveries that clients received within this time."""
_DELAY_SECONDS = 1.0
_MOST_UNFINISHED = 1_000
"""Publishing pauses at this number of unfinished messages. The workers pause on purpose, and finish
about 50 messages a second."""
_SUBJECTS = 5
STREAM, SUBJECT = "jobs", "jobs"


class _Delivery(NamedTuple):
    count: int
    at: float


@dataclass
class _Message:
    """The facts that the oracle has recorded about one message."""

    deliveries: list[_Delivery] = field(default_factory=list)
    nak_at: float = 0.0
    """Time of a nak since the last delivery, if it is unknown whether the nak arrived; 0 if there
    is none."""
    delay: float = 0.0
    is_done: bool = False
    """True if an ack or a term was confirmed."""
    has_come: bool = False


@dataclass
class Oracle:
    """The oracle. It belongs to one event loop."""

    stored: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    again: int = 0
    """Deliveries after a confirmed ack."""
    fallen: int = 0
    """Deliveries whose count did not rise."""
    early: int = 0
    confirmed: int = 0
    gone_below: int = 0
    """The log may start at this offset, so messages below it need not be delivered any more."""
    _messages: dict[int, _Message] = field(default_factory=dict)
    is_down: bool = False
    """True while the daemon is down, so that a nak does not reach it."""
    _cut: float = 0.0
    """Time of the last power cut."""
    _disturbed: float = 0.0
    """Deliveries before this time may have been in flight for long."""

    def delivered(self, offset: int, count: int) -> None:
        now = time.monotonic()
        one = self._messages.setdefault(offset, _Message())
        last = one.deliveries[-1] if one.deliveries else _Delivery(0, 0.0)
        if one.is_done:
            self.again += 1
            self.wrong.append(f"{offset} was acked, and came again with count {count}")
        if count <= last.count:
            self.fallen += 1
            cut = f", {self._cut - last.at:.2f} s before the power cut" if self._cut else ""
            self.wrong.append(f"{offset} came with count {count} after {last.count}{cut}")
        if one.nak_at:
            if now - one.nak_at < one.delay - 0.05:
                self.early += 1
                self.wrong.append(f"{offset} came before the delay of its nak had passed")
        elif last.at > self._disturbed and now - last.at < _EARLY_SECONDS:
            self.early += 1
            self.wrong.append(f"{offset} came again after {now - last.at:.2f} s, held by a worker")
        one.deliveries.append(_Delivery(count, now))
        one.has_come = True
        one.nak_at = 0.0

    def nakked(self, offset: int, delay: float) -> None:
        one = self._messages[offset]
        one.nak_at, one.delay = time.monotonic(), 0.0 if self.is_down else delay

    def finished(self, offset: int) -> None:
        """Note that the ack or term of a message was confirmed."""
        self._messages[offset].is_done = True
        self.confirmed += 1

    def disturbed(self) -> None:
        """Note that a process was stopped until now. Messages in flight may arrive late, and their
        next delivery may follow soon."""
        self._disturbed = time.monotonic() + 0.5

    def power_lost(self, at: float) -> None:
        """Note that the machine lost its power `at` this time of the monotonic clock."""
        self._cut, self.is_down = at, True
        for one in self._messages.values():
            while one.deliveries and one.deliveries[-1].at > at - _MOMENT_SECONDS:
                one.deliveries.pop()
                one.nak_at, one.delay = 1.0, 0.0  # it may be delivered at once
            if one.nak_at > at - _MOMENT_SECONDS:
                one.delay = 0.0
        self.disturbed()

    @property
    def unfinished(self) -> set[int]:
        """Return the stored messages that are neither done nor removed."""
        return {
            offset
            for offset in self.stored
            if offset >= self.gone_below and not self._is_done(offset)
        }

    def never_came(self, offsets: set[int]) -> set[int]:
        return {one for one in offsets if not self._messages.get(one, _Message()).has_come}

    def _is_done(self, offset: int) -> bool:
        found = self._messages.get(offset)
        return found is not None and found.is_done

    def summary(self) -> str:
        return (
            f"{self.confirmed} confirmed acks, {self.again} delivered again, "
            f"{self.fallen} counts that fell, {self.early} early deliveries"
        )


class Campaign:
    """Runs workers, a publisher and an operator during faults of a daemon and its machine."""

    def __init__(
        self, url: str, oracle: Oracle, luck: random.Random, *, is_push: bool, operates: bool = True
    ) -> None:
        self._url, self._oracle, self._luck = url, oracle, luck
        self._is_push = is_push
        self._operates = operates
        self._stop, self._done = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._client: Client | None = None

    @property
    def config(self) -> dict[str, Any]:
        common = {
            "durable_name": "w",
            "ack_policy": "explicit",
            "ack_wait": round(ACK_WAIT_SECONDS * SECOND),
            "max_ack_pending": 200,
        }
        push = {"deliver_subject": "push.w", "deliver_group": "g"} if self._is_push else {}
        return common | push

    async def start(self, workers: int) -> None:
        self._client = client = await self._connected()
        body = {"stream_name": STREAM, "config": self.config}
        async with asyncio.timeout(60):
            while "error" in await asked(client, f"CONSUMER.DURABLE.CREATE.{STREAM}.w", body):
                await asyncio.sleep(0.1)
        work = self._work_for_pushes if self._is_push else self._work_with_pulls
        running = [self._publish(), *(work(number) for number in range(workers))]
        if self._operates:
            running.append(self._operate())
        self._tasks = [asyncio.create_task(one) for one in running]

    async def finish(self, seconds: float) -> None:
        """Stop publishing, and let the workers finish. Then every stored message is done, except if
        its ack arrived and the answer was lost."""
        assert self._client is not None
        self._stop.set()
        try:
            async with asyncio.timeout(seconds):
                while self._oracle.unfinished and not await self._is_drained(self._client):
                    await asyncio.sleep(0.3)
        finally:
            self._done.set()
            await asyncio.gather(*self._tasks)
            await self._client.close()

    async def _is_drained(self, client: Client) -> bool:
        info = await asked(client, f"CONSUMER.INFO.{STREAM}.w", {})
        return info.get("num_pending") == 0 and info.get("num_ack_pending") == 0

    async def _connected(self) -> Client:
        async def ignore(_: Exception) -> None:
            """Ignore errors, because servers go down now and then."""

        return await nats.connect(
            self._url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore
        )

    # --- publishing ---

    async def _publish(self) -> None:
        client, number = await self._connected(), 0
        while not self._stop.is_set():
            try:
                subject = f"{SUBJECT}.{number % _SUBJECTS}"
                answer = await client.request(subject, b"%d" % number, timeout=1)
            except Error:
                await asyncio.sleep(0.05)
                continue
            found = re.search(rb'"seq":(\d+)', answer.data)
            if found is not None and b'"error"' not in answer.data:
                self._oracle.stored.add(int(found[1]))
            number += 1
            await asyncio.sleep(0.003)
            while number % 100 == 0 and len(self._oracle.unfinished) > _MOST_UNFINISHED:
                if self._stop.is_set():
                    break
                await asyncio.sleep(0.1)
        await client.close()

    # --- working ---

    async def _work_with_pulls(self, number: int) -> None:
        luck = random.Random(f"{number} {self._luck.random()}")
        while not self._done.is_set():
            client, inbox = await self._connected(), ""
            arrived: asyncio.Queue[Msg] = asyncio.Queue()
            inbox = client.new_inbox()
            await client.subscribe(inbox, cb=self._taking(arrived))
            ends = time.monotonic() + luck.uniform(2, 15)
            while not self._done.is_set() and time.monotonic() < ends:
                body = json.dumps({"batch": luck.choice([1, 5, 50]), "expires": SECOND // 2})
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.w"
                await client.publish(subject, body.encode(), reply=inbox)
                await asyncio.sleep(luck.uniform(0.02, 0.5))
                while not arrived.empty():
                    await self._answer(arrived.get_nowait(), luck)
            with suppress(OSError):  # the server has just ended
                await client.close()  # with unacked messages

    async def _work_for_pushes(self, number: int) -> None:
        luck = random.Random(f"{number} {self._luck.random()}")
        while not self._done.is_set():
            client = await self._connected()
            arrived: asyncio.Queue[Msg] = asyncio.Queue()
            await client.subscribe("push.w", queue="g", cb=self._taking(arrived))
            ends = time.monotonic() + luck.uniform(2, 15)
            while not self._done.is_set() and time.monotonic() < ends:
                await asyncio.sleep(luck.uniform(0.02, 0.2))
                while not arrived.empty():
                    await self._answer(arrived.get_nowait(), luck)
            with suppress(OSError):
                await client.close()

    def _taking(self, arrived: asyncio.Queue[Msg]) -> Any:
        async def take(message: Msg) -> None:
            """Record each delivery when it arrives, and not at the end of a fetch."""
            if message.reply:
                metadata = message.metadata
                self._oracle.delivered(metadata.sequence.stream, metadata.num_delivered)
                arrived.put_nowait(message)

        return take

    async def _answer(self, message: Msg, luck: random.Random) -> None:
        offset, chance = message.metadata.sequence.stream, luck.random()
        try:
            if chance < 0.6:
                await message.ack_sync(timeout=1)
                self._oracle.finished(offset)
            elif chance < 0.7:
                await message.ack()
            elif chance < 0.75:
                await message._client.request(message.reply, b"+TERM no use", timeout=1)
                self._oracle.finished(offset)
            elif chance < 0.9:
                delay = luck.choice([0.0, _DELAY_SECONDS])
                self._oracle.nakked(offset, delay)
                await message.nak(delay or None)
            elif chance < 0.95:
                await message.in_progress()
        except Error:
            pass  # it may have an effect or not

    # --- operating ---

    async def _operate(self) -> None:
        """Purge old messages, change the consumer, and pause it."""
        luck, client = self._luck, await self._connected()
        while not self._stop.is_set():
            await asyncio.sleep(luck.uniform(0.5, 3))
            what = luck.choice(["purge", "update", "pause"])
            if what == "purge":
                await self._purge(client)
            elif what == "update":
                config = {**self.config, "max_ack_pending": luck.choice([50, 200, 1000])}
                body = {"stream_name": STREAM, "config": config}
                await asked(client, f"CONSUMER.DURABLE.CREATE.{STREAM}.w", body)
            else:
                until = time.time() + luck.uniform(0.2, 1.5)
                shown = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(until)) + ".5Z"
                await asked(client, f"CONSUMER.PAUSE.{STREAM}.w", {"pause_until": shown})
        await asked(client, f"CONSUMER.PAUSE.{STREAM}.w", {})
        await client.close()

    async def _purge(self, client: Client) -> None:
        info = await asked(client, f"CONSUMER.INFO.{STREAM}.w", {})
        if "ack_floor" in info:
            end = info["ack_floor"]["stream_seq"] + self._luck.choice([1, 1, 20])
            # A purge without an answer may have taken effect.
            self._oracle.gone_below = max(self._oracle.gone_below, end)
            await asked(client, f"STREAM.PURGE.{STREAM}", {"seq": end})


async def asked(client: Client, method: str, body: Any) -> Any:
    """Return the answer; `{"error": ...}` if there is none."""
    try:
        answer = await client.request(f"$JS.API.{method}", json.dumps(body).encode(), timeout=2)
        return json.loads(answer.data)
    except (Error, APIError, ValueError) as error:
        return {"error": repr(error)}
