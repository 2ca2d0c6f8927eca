"""Copies messages into a stream. It reads the messages as JSON lines from standard input, and keeps
their order.

    python from_jetstream.py ORDERS --from "$(python into_liftlog.py orders --next)" |
        python into_liftlog.py orders

A line is one message: `sequence` (its number at the source), `subject`, `value` (base64; null is a
tombstone), and, if present, `key` (base64), `headers` (a mapping; a value may be a list), `id` and
`time` (text).

Every record gets the headers Copied-Sequence, Copied-Id and Copied-Time. Copied-Sequence lets an
interrupted copy continue where it stopped. Each message names its predecessor, so no message is
stored twice or in another order. If another client publishes during the copy, no further message is
stored.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
from collections import deque
from typing import Any

from liftlog.client import Client, StreamInfo, connect
from liftlog.client.publisher import Publisher
from liftlog.errors import LiftlogError

SEQUENCE = "Copied-Sequence"
# Control headers took effect at the source, and would take effect again here.
NOT_COPIED = ("nats-", "liftlog-")
UNDER_WAY = 1000


async def last_copied(client: Client, info: StreamInfo) -> int:
    """Return the number of the newest copied message; 0 if there is none."""
    if info.high_watermark == info.log_start_offset:
        return 0
    async for record in client.read(info.name, start=info.high_watermark - 1, until="end"):
        if SEQUENCE in record.headers:
            return int(record.headers[SEQUENCE])
    sys.exit(f"the last record of {info.name} is not a copy: does another client publish?")


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def id_of(sequence: int) -> str:
    return f"copied-{sequence}"


def arguments_of(line: dict[str, Any], before: int) -> dict[str, Any]:
    """Return one line as arguments of `Publisher.submit`, for a message that directly follows the
    copy `before`."""
    headers = {
        name: value
        for name, value in (line.get("headers") or {}).items()
        if not name.lower().startswith(NOT_COPIED)
    }
    headers[SEQUENCE] = str(line["sequence"])
    if before:
        headers["Nats-Expected-Last-Msg-Id"] = id_of(before)
    for field in ("id", "time"):
        if line.get(field):
            headers[f"Copied-{field.title()}"] = line[field]
    return {
        "subject": line["subject"],
        "value": decoded(line["value"]),
        "key": decoded(line.get("key")),
        "headers": headers,
        "message_id": id_of(line["sequence"]),
    }


async def copy(publisher: Publisher, copied: int) -> tuple[int, int]:
    """Copy the messages. Returns the number of copied messages, and the number of the last one."""
    under_way: deque[asyncio.Future[Any]] = deque()
    count = 0
    rest = b""
    while chunk := await asyncio.to_thread(sys.stdin.buffer.read1, 1 << 20):
        *lines, rest = (rest + chunk).split(b"\n")
        for text in lines:
            line = json.loads(text)
            if line["sequence"] <= copied:
                sys.exit(f"message {line['sequence']} comes after {copied}: begin with --next")
            under_way.append(await publisher.submit(**arguments_of(line, copied)))
            copied = line["sequence"]
            count += 1
            while len(under_way) > UNDER_WAY:
                await under_way.popleft()
    for ack in under_way:
        await ack
    if rest:
        sys.exit("the input ends in the middle of a line: begin again")
    return count, copied


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream")
    parser.add_argument("--next", action="store_true", help="print where the source is to begin")
    parser.add_argument("--envelope", action="store_true", help="for keys that fit no header")
    parser.add_argument("--nats", default=os.getenv("NATS_URL", "nats://127.0.0.1:4222"))
    parser.add_argument("--server", default=os.getenv("LIFTLOG_SERVER", "tcp://127.0.0.1:9292"))
    given = parser.parse_args()
    async with connect(given.server) as client:
        info = await client.describe_stream(given.stream)
        copied = await last_copied(client, info)
    if given.next:
        print(copied + 1)
        return
    async with Publisher(
        given.nats,
        expect=[given.stream],
        order="sequence",
        last_sequence=info.log_end_offset - 1,
        use_envelope=given.envelope,
    ) as publisher:
        count, copied = await copy(publisher, copied)
    print(f"{count} messages copied, the last one was {copied}")


try:
    asyncio.run(main())
except LiftlogError as error:
    sys.exit(f"{error.name}: {error}")
