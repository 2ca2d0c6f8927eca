"""A subscriber of FastStream with nothing but a subject and a stream: an ephemeral push consumer,
which reads the stream from its beginning after each start of the worker."""

import asyncio
import sys

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker

SERVER, DONE = sys.argv[1:]

broker = NatsBroker(SERVER)
stream = JStream("programs_ephemeral", subjects=["programs.ephemeral"])
failed: set[int] = set()


@broker.subscriber("programs.ephemeral", stream=stream, ack_policy=AckPolicy.NACK_ON_ERROR)
async def handle(message: dict) -> None:
    number = message["number"]
    if number % 10 == 0 and number not in failed:
        failed.add(number)
        raise RuntimeError("each tenth message fails once")
    with open(DONE, "a") as done:
        done.write(f"{number}\n")


if __name__ == "__main__":
    asyncio.run(FastStream(broker).run())
