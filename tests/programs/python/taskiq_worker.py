"""A worker of taskiq: a durable pull consumer. Run with `publish` it sends the tasks."""

import asyncio
import random
import sys

from nats.js.api import ConsumerConfig
from taskiq.api import run_receiver_task
from taskiq_nats import PullBasedJetStreamBroker

SERVER, DONE, *MORE = sys.argv[1:]

broker = PullBasedJetStreamBroker(
    servers=[SERVER],
    subject="programs.taskiq",
    stream_name="programs_taskiq",
    durable="billing",
    consumer_config=ConsumerConfig(durable_name="billing", ack_wait=3),
    pull_consume_batch=10,
    pull_consume_timeout=2,
)


@broker.task(task_name="work")
async def work(number: int) -> None:
    await asyncio.sleep(random.random() * 0.01)
    with open(DONE, "a") as done:
        done.write(f"{number}\n")


async def publish(count: int) -> None:
    await broker.startup()
    for number in range(count):
        await work.kiq(number)
    await broker.shutdown()


async def run() -> None:
    broker.is_worker_process = True
    await run_receiver_task(broker, run_startup=True)


if __name__ == "__main__":
    asyncio.run(publish(int(MORE[1])) if MORE else run())
