"""Prints the messages of a JetStream stream as JSON lines, for into_liftlog.py.

    python from_jetstream.py ORDERS --from 1

With --key-from-subject the subject becomes the key, and deleted keys become tombstones. Use this
option for streams that keep the newest message of each subject, such as buckets of a key-value
store. With --strip '$KV.' this prefix is removed from subjects.

nats-py has one value for each header name, as text: `liftlog import jetstream` copies all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import sys
from typing import Any

import nats
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

BATCH = 500


def line_of(message: Msg, strip: str, *, key_from_subject: bool) -> dict[str, Any]:
    headers = message.headers or {}
    subject = message.subject.removeprefix(strip)
    deleted = "KV-Operation" in headers or "Nats-Marker-Reason" in headers
    line: dict[str, Any] = {
        "sequence": message.metadata.sequence.stream,
        "subject": subject,
        "value": base64.b64encode(message.data).decode(),
        "headers": headers,
        "id": headers.get("Nats-Msg-Id"),
        "time": message.metadata.timestamp.isoformat(),
    }
    if key_from_subject:
        line["key"] = base64.b64encode(subject.encode()).decode()
        line["value"] = None if deleted else line["value"]
    return line


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stream")
    parser.add_argument("--from", dest="first", type=int, default=1, help="sequence to begin with")
    parser.add_argument("--key-from-subject", action="store_true")
    parser.add_argument("--strip", metavar="PREFIX", default="", help="of subjects")
    parser.add_argument("--nats", default=os.getenv("NATS_URL", "nats://127.0.0.1:4222"))
    given = parser.parse_args()
    connection = await nats.connect(given.nats)
    jetstream = connection.jetstream()
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=given.first,
        ack_policy=AckPolicy.NONE,
        inactive_threshold=60.0,
    )
    consumer = await jetstream.add_consumer(given.stream, config)
    pending = consumer.num_pending or 0
    source = await jetstream.pull_subscribe_bind(stream=given.stream, consumer=consumer.name)
    count = 0
    while pending:
        for message in await source.fetch(min(pending, BATCH), timeout=30):
            count += 1
            if message.metadata.sequence.consumer != count:
                sys.exit("NATS dropped a message on the way: begin again")
            pending = message.metadata.num_pending
            line = line_of(message, given.strip, key_from_subject=given.key_from_subject)
            sys.stdout.write(json.dumps(line) + "\n")
    await connection.close()
    print(f"{count} messages of {given.stream}", file=sys.stderr)


asyncio.run(main())
