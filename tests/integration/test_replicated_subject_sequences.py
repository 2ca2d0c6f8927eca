"""`Nats-Expected-Last-Subject-Sequence` on a stream with replicas: every leader gives the answers
that the one before would have given."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support.clients.ingesting import ack_of, until
from support.clients.raw_nats import RawNats, header_block
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_server import NatsServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

STREAMS = {
    "kv": {"subject": "kv.>", "replicas": 3, "min_isr": 2, "subject_sequences": {}},
}
QUICK = {"session": "6s", "lag_max": "5s"}


class Expecting:
    """Knows the newest offset of each subject, by the acks."""

    def __init__(self, raw: RawNats) -> None:
        self.last: dict[str, int] = {}
        self._raw = raw

    def put(self, subject: str, expected: int) -> Any:
        """The offset, or what the error says; asks again while the leader does not know."""
        headers = header_block({"Nats-Expected-Last-Subject-Sequence": str(expected)})
        answers = []

        def is_answered() -> bool:
            message = self._raw.request(subject, b"v", headers=headers)
            if message.payload:  # else "no responders": no node leads at the moment
                answers.append(ack_of(message))
            return bool(answers) and answers[-1].get("error", {}).get("code") != 503

        until(is_answered, 60)
        if "error" in answers[-1]:
            return answers[-1]["error"]["description"]
        self.last[subject] = answers[-1]["seq"]
        return answers[-1]["seq"]

    def check(self, rng: random.Random) -> None:
        """Right and wrong expectations of every subject, new ones, too."""
        for subject in rng.sample([*self.last, f"kv.new-{len(self.last)}"], len(self.last) + 1):
            last = self.last.get(subject, 0)
            assert self.put(subject, last + 1) == f"wrong last sequence: {last}"
            assert self.put(subject, last) > last


def test_each_leader_answers_as_the_one_before(server: NatsServer) -> None:
    rng = random.Random(7)
    with (
        Cluster(server.url, STREAMS, cluster=QUICK) as cluster,
        RawNats(server.port, timeout=30) as raw,
    ):
        cluster.wait_isr("kv")
        cluster.wait_recorded("kv")
        model = Expecting(raw)
        for number in range(20):
            assert model.put(f"kv.{number}", 0) > 0
        model.check(rng)
        led = {cluster.leader("kv")}
        while len(led) < 2:
            leader = cluster.leader("kv")
            cluster.stop(leader)
            until(lambda leader=leader: cluster.leader("kv") != leader, 60)  # type: ignore[misc]
            model.check(rng)
            led.add(cluster.leader("kv"))
            cluster.start(leader)
            cluster.wait_isr("kv")
        cluster.kill()
        cluster.start(*NODES)
        cluster.wait_isr("kv")
        model.check(rng)
        cluster.assert_sound()
