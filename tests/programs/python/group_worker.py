"""A worker with nats-py's `js.subscribe` and a queue: a push consumer whose group has several
members. Naks have a delay."""

import asyncio
import json
import random
import sys

import nats
from nats.errors import Error
from nats.js.api import ConsumerConfig

SERVER, DONE = sys.argv[1:]


async def work() -> None:
    client = await nats.connect(SERVER, max_reconnect_attempts=-1, reconnect_time_wait=0.2)
    stream = client.jetstream()

    async def handle(message) -> None:
        if random.random() < 0.1:
            await message.nak(delay=0.5)
            return
        with open(DONE, "a") as done:
            done.write(f"{json.loads(message.data)['number']}\n")
        await message.ack()

    await stream.add_stream(name="programs_group", subjects=["programs.group"])
    while True:
        try:
            await stream.subscribe(
                "programs.group",
                queue="billing",
                durable="billing",
                stream="programs_group",
                cb=handle,
                manual_ack=True,
                config=ConsumerConfig(ack_wait=3, max_ack_pending=50),
            )
            break
        except Error as error:
            print(f"not subscribed: {error!r}", flush=True)
            await asyncio.sleep(0.5)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(work())
