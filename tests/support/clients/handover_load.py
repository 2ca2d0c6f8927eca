"""Publishes in all ways while the leadership of streams moves: with and without message ids, with
and without a reply subject. No publish may fail, and each message must be stored once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable

import nats
from nats.errors import Error as NatsError
from support.daemons.cluster import PATIENCE, Cluster

from liftlog.client import connect_sync

_TICK_SECONDS = 0.002
_ANSWER_SECONDS = 20.0
_MAX_WAITING = 300
WAYS = ("js", "request", "silent", "headed")
"""`js.publish` with an id, a request without an id, a publish without a reply subject, and the same
with headers."""


class EveryWay(threading.Thread):
    """Publishes `rate` messages per second to `<prefix>.<way>`, each way in turn."""

    def __init__(self, port: int, prefix: str, rate: float) -> None:
        super().__init__(name=f"every-way-{prefix}", daemon=True)
        self.prefix = prefix
        self.sent: Counter[str] = Counter()
        self.acked: dict[tuple[str, int], int] = {}
        self.seconds: list[float] = []
        """Duration of each ack in seconds."""
        self.failed: list[str] = []
        self.error: BaseException | None = None
        self._port = port
        self._rate = rate
        self._stop_asked = threading.Event()

    def finish(self) -> None:
        """Stop publishing. On return, all answers have arrived."""
        self._stop_asked.set()
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} does not end"
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            asyncio.run(self._publish())
        except Exception as error:  # told by `finish`
            self.error = error

    async def _publish(self) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{self._port}")
        stream = client.jetstream(timeout=_ANSWER_SECONDS)
        waiting: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        while not self._stop_asked.is_set():
            due = int((time.monotonic() - began) * self._rate) - self.sent.total()
            # If the machine is too busy for this rate, fewer messages are sent, because waiting
            # messages would time out.
            for _ in range(min(due, len(WAYS) * (_MAX_WAITING - len(waiting)))):
                way = WAYS[self.sent.total() % len(WAYS)]
                number = self.sent[way]
                self.sent[way] += 1
                subject, value = f"{self.prefix}.{way}", b"%d" % number
                if way == "silent":
                    await client.publish(subject, value)
                elif way == "headed":
                    await client.publish(subject, value, headers={"X-Number": str(number)})
                else:
                    task = asyncio.create_task(self._ask(client, stream, way, number))
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
            await asyncio.sleep(_TICK_SECONDS)
        await asyncio.gather(*waiting)
        await client.flush()
        await client.close()

    async def _ask(self, client: nats.NATS, stream: object, way: str, number: int) -> None:
        subject, value = f"{self.prefix}.{way}", b"%d" % number
        began = time.monotonic()
        try:
            if way == "js":
                headers = {"Nats-Msg-Id": f"{self.prefix}/{number}"}
                ack = await stream.publish(subject, value, headers=headers)  # type: ignore[attr-defined]
                offset = ack.seq
            else:
                answer = await client.request(subject, value, timeout=_ANSWER_SECONDS)
                offset = json.loads(answer.data)["seq"]
        except (NatsError, TimeoutError, KeyError, ValueError) as error:
            self.failed.append(f"{subject} {number}: {error!r}")
            return
        self.seconds.append(time.monotonic() - began)
        self.acked[subject, number] = offset

    def slowest(self, share: float) -> float:
        """Return the time within which this share of the acks arrived."""
        found = sorted(self.seconds)
        return found[min(len(found) - 1, int(len(found) * share))]

    def check(self, cluster: Cluster, stream: str, nodes: Iterable[str], *, start: int = 1) -> None:
        """Check that each message is stored once on each of these nodes, at the offset in its
        ack."""
        assert not self.failed, f"{len(self.failed)} failed: {self.failed[:5]}"
        for node in nodes:
            stored: Counter[tuple[str, int]] = Counter()
            with connect_sync(cluster.nodes[node].pull_address) as client:
                for record in client.read(stream, start=start, until="end", replica=node):
                    message = (record.subject, int(record.value or b"-1"))
                    if not record.subject.startswith(f"{self.prefix}."):
                        continue
                    stored[message] += 1
                    offset = self.acked.get(message, record.offset)
                    assert offset == record.offset, f"{message} was acked at {offset}: {record}"
            sent = {
                (f"{self.prefix}.{way}", number)
                for way, count in self.sent.items()
                for number in range(count)
            }
            lost, doubled = (
                sent - stored.keys(),
                [one for one, times in stored.items() if times > 1],
            )
            assert not lost, f"node {node} lacks {len(lost)}: {sorted(lost)[:5]}"
            assert not doubled, f"node {node} has twice: {doubled[:5]}"
