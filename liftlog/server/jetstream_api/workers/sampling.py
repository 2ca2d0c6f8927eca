"""Chooses the acks about which a metric is published (`sample_freq`)."""

from __future__ import annotations

import random
from typing import Protocol

import numpy as np

from liftlog.deliveries.acks import AckKind
from liftlog.deliveries.block import Phase
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.pending import PendingMessages
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.jetstream_api.workers.advisories import MOST_PER_SECOND, Advisories, Sample


class Sampled(Protocol):
    """The part of a consumer that sampling needs."""

    spec: ConsumerSpec
    host: StreamHost
    machine: Consumer


def publish_samples(
    advisories: Advisories, consumer: Sampled, arrived: WorkerAcks, now_ns: int
) -> None:
    """Publish metrics about some of the acks that are about to be applied, if their subject has a
    subscriber."""
    stream, spec = consumer.host.name, consumer.spec
    if advisories.wants_samples(stream, spec.name):
        pending = consumer.machine.state.pending
        found = sampled(arrived, pending, spec.sample_percent, now_ns)
        advisories.acked(stream, spec.name, found)


def sampled(
    arrived: WorkerAcks, pending: PendingMessages, percent: int, now_ns: int
) -> list[Sample]:
    """Return samples of the acks that are about to be applied. Only plain acks of messages that a
    worker currently has are sampled."""
    acks = arrived.acks
    found = pending.find(acks.offsets, acks.stamps_ns)
    counts = (acks.kinds == AckKind.ACK) & found.is_pending & ~found.is_foreign
    counts &= found.phases == Phase.OUT
    places = [
        place
        for place in np.flatnonzero(counts).tolist()[:MOST_PER_SECOND]
        if percent >= 100 or random.uniform(0, 100) < percent
    ]
    return [
        Sample(
            int(arrived.sequences[place]),
            int(acks.offsets[place]),
            max(now_ns - int(found.tickets[place]), 0),
            int(found.counts[place]),
        )
        for place in places
    ]
