"""Measures reading over NATS, from liftlog and from JetStream, and over the pull socket: how fast
one reader gets the records of one stream that is in memory. The readers run in this process, one at
a time; the servers run in their own processes. There are no figures to reach, because the table
only helps to choose a way of reading. A second table shows live delivery (`following`)."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nats
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect

from . import following
from .main import interrupt, scratch_directory
from .progress import Progress

THEIRS, OURS = "JetStream", "liftlog over NATS"
_STREAM, _SUBJECT = "read", "read.a"
_PIECE = 1000
READING, LIVE = "reading", "live"
_PATIENCE_SECONDS = 120.0

ORDERED = "nats-py's ordered consumer, {}"
RAW = "pull consumer without acks, a raw socket, {}"
SOCKET_RECORDS = "liftlog's pull socket, Python client, records"
SOCKET_BATCHES = "liftlog's pull socket, Python client, batches"
COMPARED_WITH = ORDERED.format(THEIRS)


def fill(port: int, count: int, size: int) -> None:
    """Publish messages. Returns when the stream has all of them."""
    with RawNats(port, timeout=_PATIENCE_SECONDS) as raw:
        config = {"name": _STREAM, "subjects": ["read.>"]}
        answer = raw.request(f"$JS.API.STREAM.CREATE.{_STREAM}", json.dumps(config)).json()
        if "error" in answer:
            raise RuntimeError(str(answer["error"]))
        frame = pub_frame(_SUBJECT, b"x" * size)
        for _ in range(0, count, _PIECE):
            raw.send(frame * _PIECE)
            raw.ping()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while stored(raw) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{stored(raw)} of {count} messages were stored")
            time.sleep(0.05)


def stored(raw: RawNats) -> int:
    answer = raw.request(f"$JS.API.STREAM.INFO.{_STREAM}", b"").json()
    return int(answer["state"]["messages"])


async def ordered(port: int, count: int) -> None:
    """Read with a callback, because `next_msg` of nats-py answers flow control late, with every
    server."""
    client = await nats.connect(f"nats://127.0.0.1:{port}")
    offsets: list[int] = []
    done = asyncio.Event()

    async def take(message: Any) -> None:
        offsets.append(message.metadata.sequence.stream)
        if len(offsets) == count:
            done.set()

    try:
        js = client.jetstream(timeout=_PATIENCE_SECONDS)
        await js.subscribe("read.>", stream=_STREAM, ordered_consumer=True, cb=take)
        await asyncio.wait_for(done.wait(), _PATIENCE_SECONDS)
    finally:
        await client.close()
    if offsets != list(range(1, count + 1)):
        raise RuntimeError("records were missing or came twice")


def raw_pull(port: int, count: int) -> None:
    with RawNats(port, timeout=_PATIENCE_SECONDS) as raw:
        body = {"stream_name": _STREAM, "config": {"ack_policy": "none"}}
        made = raw.request(f"$JS.API.CONSUMER.CREATE.{_STREAM}", json.dumps(body)).json()
        inbox = "_INBOX.over-nats"
        raw.sub(inbox)
        asks = json.dumps({"batch": count, "expires": int(_PATIENCE_SECONDS * 10**9)})
        raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{_STREAM}.{made['name']}", asks, reply=inbox)
        head, got, left = b"$JS.ACK.", 0, b""
        while got < count:
            piece = left + raw.socket.recv(1 << 20)
            got += piece.count(head)
            left = piece[-len(head) + 1 :]  # a head may be cut in two


async def socket_records(address: str, count: int) -> None:
    async with connect(address) as client:
        got = 0
        async for _ in client.read(_STREAM, "earliest", "end"):
            got += 1
        _check(got, count)


async def socket_batches(address: str, count: int) -> None:
    async with connect(address) as client:
        got = 0
        async for batch in client.read_batches(_STREAM, "earliest", "end"):
            got += len(batch)
        _check(got, count)


def _check(got: int, count: int) -> None:
    if got != count:
        raise RuntimeError(f"{got} of {count} records were read")


def readers(
    theirs: NatsServer, ours: NatsServer, daemon: Daemon, count: int
) -> dict[str, Callable[[], Any]]:
    address = daemon.pull_address
    return {
        ORDERED.format(THEIRS): lambda: asyncio.run(ordered(theirs.port, count)),
        ORDERED.format(OURS): lambda: asyncio.run(ordered(ours.port, count)),
        RAW.format(THEIRS): lambda: raw_pull(theirs.port, count),
        RAW.format(OURS): lambda: raw_pull(ours.port, count),
        SOCKET_RECORDS: lambda: asyncio.run(socket_records(address, count)),
        SOCKET_BATCHES: lambda: asyncio.run(socket_batches(address, count)),
    }


def measure(options: argparse.Namespace, directory: Path) -> dict[str, list[float]]:
    """Return the records per second of each reader, in each round."""
    progress = Progress(quiet=options.quiet)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        theirs = stack.enter_context(NatsServer(directory / "theirs", jetstream=True))
        ours = stack.enter_context(
            NatsServer(directory / "ours", leafnodes={"listen": "127.0.0.1:-1"})
        )
        listener = re.search(r"for leafnode connections on (\S+)", ours.log)
        assert listener is not None, ours.log
        settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
        daemon = stack.enter_context(Daemon(ours.url, settings, directory=directory / "liftlog"))
        while "jetstream-api-answers" not in daemon.log or "nats-leaf-connected" not in daemon.log:
            time.sleep(0.05)
        for port in (theirs.port, ours.port):
            fill(port, options.records, options.size)
        for number in range(options.rounds):
            for name, read in readers(theirs, ours, daemon, options.records).items():
                progress.say(f"round {number + 1}: {name}")
                began = time.monotonic()
                read()
                took = time.monotonic() - began
                found.setdefault(name, []).append(options.records / took)
    return found


def show(found: dict[str, list[float]]) -> None:
    base = found[COMPARED_WITH]
    print("| reader | records/s | of JetStream's ordered consumer |\n|---|---|---|")
    for name, rates in found.items():
        ratio = statistics.median(rate / other for rate, other in zip(rates, base, strict=True))
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        print(f"| {name} | {statistics.median(rates):,.0f} ({spread}) | {ratio:.2f} |")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/over_nats.py", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument("--size", type=int, default=256, help="in bytes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--only", choices=(READING, LIVE), help="one of the two tables")
    parser.add_argument(
        "--followers", type=int, nargs="+", default=[1, 50], help="(default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=int, default=3, help="of publishing to followers (default: %(default)s)"
    )
    parser.add_argument(
        "--before", type=Path, help="a checkout of the project, whose followers take turns"
    )
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            if options.only != LIVE:
                show(measure(options, directory))
            if options.only != READING:
                following.show(following.measure(options, directory))
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    return 0
