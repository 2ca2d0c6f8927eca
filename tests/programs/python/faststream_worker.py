"""A subscriber of FastStream on a stream, as its documentation begins: a push consumer. It has a
name and a queue, so that it stays when a worker ends, and several workers share it."""

import asyncio
import os
import random
import sys

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker
from nats.js.api import ConsumerConfig

SERVER, DONE = sys.argv[1:]

broker = NatsBroker(SERVER)
stream = JStream("programs_faststream", subjects=["programs.faststream"])


@broker.subscriber(
    "programs.faststream",
    stream=stream,
    queue="billing",
    durable="billing",
    config=ConsumerConfig(ack_wait=3),
    ack_policy=AckPolicy.NACK_ON_ERROR,
)
async def handle(message: dict) -> None:
    if random.random() < 0.1:
        raise RuntimeError("a random failure")
    with open(DONE, "a") as done:
        done.write(f"{message['number']}\n")


if __name__ == "__main__":
    os.environ.setdefault("FASTSTREAM_LOG", "0")
    asyncio.run(FastStream(broker).run())
