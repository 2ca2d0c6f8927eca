"""Workers on plain sockets. They use so little time that the result shows the speed of the
servers."""

from __future__ import annotations

import asyncio
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence

import nats
from support.clients.client_publishers import Program
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon

from liftlog.client import WorkBatch, connect

from .acked_sides import PATIENCE_SECONDS, PAYLOAD, Side

_ACK = re.compile(rb"\$JS\.ACK\.\S+")
_BATCH, _BUSY_BATCH = 500, 100
_ACKS_AT_ONCE = 8


def drain(
    side: Side,
    stream: str,
    name: str,
    count: int,
    *,
    answer: bytes = b"+ACK",
    every: int = 1,
    is_finished: bool = True,
) -> float:
    """Receive `count` messages, two pulls ahead, and answer every n-th of them. Returns the
    seconds; if `is_finished`, until the consumer has all acks."""
    with side.connect() as raw:
        raw.sub(b"_INBOX.drain")
        raw.ping()
        body = json.dumps({"batch": _BATCH, "expires": 60 * 10**9}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        pull = b"PUB %b _INBOX.drain %d\r\n%b\r\n" % (subject, len(body), body)
        tail = b" %d\r\n%b\r\n" % (len(answer), answer)
        began = time.perf_counter()
        raw.send(2 * pull)
        got, asked, left = 0, 2 * _BATCH, b""
        while got < count:
            data = left + raw.socket.recv(1 << 18)
            end = data.rfind(b"\n") + 1
            left = data[end:]
            replies = _ACK.findall(data, 0, end)
            frames = [b"PUB " + reply + tail for reply in replies[-got % every :: every]]
            got += len(replies)
            if asked - _BATCH < got and asked < count:
                frames.append(pull)
                asked += _BATCH
            if frames:
                raw.send(b"".join(frames))
        raw.ping()
        if is_finished:
            side.wait_done(raw, stream, name)
        return time.perf_counter() - began


def ack_sync(side: Side, stream: str, name: str, count: int, workers: int) -> list[float]:
    """Ack `count` messages, `workers` at a time; returns the seconds of each until its answer."""
    with side.connect() as raw:
        raw.sub(b"_INBOX.work")
        raw.sub(b"_INBOX.done.*")
        raw.ping()
        body = json.dumps({"batch": count, "expires": 60 * 10**9}).encode()
        raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", body, reply=b"_INBOX.work")
        replies = []
        while len(replies) < count:
            replies.append(raw.next_message().reply)
        waits = [0.0] * count
        sent = done = 0
        left = b""

        def ack(number: int) -> bytes:
            waits[number] = -time.perf_counter()
            return b"PUB %b _INBOX.done.%d 4\r\n+ACK\r\n" % (replies[number], number)

        raw.send(b"".join([ack(number) for number in range(min(workers, count))]))
        sent = min(workers, count)
        while done < count:
            data = left + raw.socket.recv(1 << 16)
            end = data.rfind(b"\n") + 1
            left = data[end:]
            now = time.perf_counter()
            frames = []
            for number in re.findall(rb"_INBOX\.done\.(\d+)", data[:end]):
                waits[int(number)] += now
                done += 1
                if sent < count:
                    frames.append(ack(sent))
                    sent += 1
            if frames:
                raw.send(b"".join(frames))
        return waits


def fetch_one(side: Side, stream: str, name: str, count: int) -> list[float]:
    """Fetch and ack single messages; returns the seconds of each fetch."""
    waits = []
    with side.connect() as raw:
        raw.sub(b"_INBOX.one")
        raw.ping()
        for _ in range(count):
            began = time.perf_counter()
            raw.pub(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
                b'{"batch":1,"expires":5000000000}',
                reply=b"_INBOX.one",
            )
            message = raw.next_message()
            waits.append(time.perf_counter() - began)
            raw.pub(message.reply, b"+ACK")
            raw.ping()
    return waits


def published_to_pull(
    side: Side, stream: str, name: str, count: int
) -> tuple[list[float], list[float]]:
    """Publish single messages while a pull waits. Returns the seconds from the publisher's ack to
    the delivery (negative if the delivery arrived first), and the seconds from publishing to the
    delivery."""
    after_ack, whole = [], []
    with side.connect() as raw, side.connect() as publisher:
        raw.sub(b"_INBOX.wait")
        raw.ping()
        for _ in range(count):
            raw.pub(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
                b'{"batch":1,"expires":5000000000}',
                reply=b"_INBOX.wait",
            )
            raw.ping()
            time.sleep(0.005)
            began = time.perf_counter()
            publisher.request(f"{stream}.a", PAYLOAD)
            acked = time.perf_counter()
            message = raw.next_message()
            now = time.perf_counter()
            after_ack.append(now - acked)
            whole.append(now - began)
            raw.pub(message.reply, b"+ACK")
            raw.ping()
    return after_ack, whole


def create_and_delete(side: Side, stream: str, count: int) -> tuple[list[float], list[float]]:
    created, deleted = [], []
    with side.connect() as raw:
        for number in range(count):
            began = time.perf_counter()
            side.consumer(raw, stream, f"c{number}")
            middle = time.perf_counter()
            side.api(raw, f"CONSUMER.DELETE.{stream}.c{number}")
            created.append(middle - began)
            deleted.append(time.perf_counter() - middle)
    return created, deleted


async def fetch_in_python(side: Side, stream: str, name: str, count: int) -> float:
    """Run `fetch(100)` of nats-py, and ack each message. Returns the seconds."""
    client = await nats.connect(f"nats://127.0.0.1:{side.port}")
    try:
        js = client.jetstream(timeout=PATIENCE_SECONDS)
        bound = await js.pull_subscribe_bind(name, stream=stream)
        began, got = time.perf_counter(), 0
        while got < count:
            messages = await bound.fetch(100, timeout=PATIENCE_SECONDS)
            for message in messages:
                await message.ack()
            got += len(messages)
        await client.flush()
        return time.perf_counter() - began
    finally:
        await client.close()


async def work_on_socket(side: Side, stream: str, name: str, count: int) -> float:
    """Receive messages over the pull socket, and ack each batch. Some acks may wait for their
    confirmations at the same time. Returns the seconds until all are confirmed."""
    daemon = side.server
    assert isinstance(daemon, Daemon)
    async with await connect(daemon.pull_address) as client:
        async with client.worker(stream, name, batch=_BATCH, create=False) as worker:
            began, got = time.perf_counter(), 0
            free = asyncio.Semaphore(_ACKS_AT_ONCE)

            async def ack(batch: WorkBatch) -> None:
                await worker.ack(batch)
                free.release()

            async with asyncio.TaskGroup() as acks:
                async for batch in worker:
                    await free.acquire()
                    acks.create_task(ack(batch))
                    got += len(batch)
                    if got >= count:
                        break
            return time.perf_counter() - began


def run_program(program: Program, side: Side, stream: str, name: str, count: int) -> float:
    """Let a worker of another language receive and ack the messages. Returns its seconds."""
    arguments = [f"nats://127.0.0.1:{side.port}", stream, name, str(count)]
    done = subprocess.run(
        [*program.command, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{program.client} with {side.name}: {done.stderr[-300:]}")
    return float(done.stdout)


def keep_busy(port: int, streams: Sequence[str], name: str) -> None:
    """Receive messages and return them (nak) as fast as possible, until the process is ended: one
    connection for the consumer of each stream."""
    poll = select.poll()
    busy: dict[int, _Busy] = {}
    for stream in streams:
        one = _Busy(RawNats(port), stream, name)
        busy[one.raw.socket.fileno()] = one
        poll.register(one.raw.socket, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            busy[descriptor].take()


class _Busy:
    def __init__(self, raw: RawNats, stream: str, name: str) -> None:
        self.raw = raw
        self._left = b""
        self._got = 0
        inbox = b"_INBOX.busy." + stream.encode()
        raw.sub(inbox)
        body = json.dumps({"batch": _BUSY_BATCH, "expires": 600 * 10**9}).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}".encode()
        self._pull = b"PUB %b %b %d\r\n%b\r\n" % (subject, inbox, len(body), body)
        raw.send(2 * self._pull)

    def take(self) -> None:
        data = self._left + self.raw.socket.recv(1 << 16)
        end = data.rfind(b"\n") + 1
        self._left = data[end:]
        replies = _ACK.findall(data, 0, end)
        frames = [b"PUB %b 4\r\n-NAK\r\n" % reply for reply in replies]
        self._got += len(replies)
        if self._got >= _BUSY_BATCH:
            self._got -= _BUSY_BATCH
            frames.append(self._pull)
        self.raw.send(b"".join(frames))


if __name__ == "__main__":
    keep_busy(**json.loads(sys.argv[1]))
