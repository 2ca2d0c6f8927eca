"""Publishers expect the last offset of a subject while the daemon is killed repeatedly. No record
may follow another record of its subject that its publisher had not received."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from support.clients.ingesting import assert_no_traceback, records_of, until
from support.clients.raw_nats import RawNats, header_block
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

EXPECTED = "Nats-Expected-Last-Subject-Sequence"
SUBJECTS = [f"race.{number}" for number in range(3)]
SETTINGS = {
    "streams": {
        "race": {
            "subject": "race.>",
            "subject_sequences": {},
            "segment": {"max_bytes": "16KiB"},
            "rebatch": {"min_age": "0s"},
        }
    }
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class Updater(threading.Thread):
    """Adds to the record that it considers the newest of a subject, and corrects its view after
    refusals."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(name=f"updater-{seed}")
        self._port, self._chance = port, random.Random(seed)
        self.acked: list[tuple[str, int]] = []
        self.answers: Counter[int] = Counter()
        self.stop_asked = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        last = dict.fromkeys(SUBJECTS, 0)
        try:
            with RawNats(self._port) as client:
                while not self.stop_asked.is_set():
                    subject = self._chance.choice(SUBJECTS)
                    block = header_block({EXPECTED: str(last[subject])})
                    try:
                        answer = client.request(subject, b"v", headers=block, timeout=0.5)
                    except TimeoutError:
                        continue
                    if not answer.payload:  # no responders
                        self.stop_asked.wait(0.02)
                        continue
                    self._learn(subject, last, json.loads(answer.payload))
        except (OSError, AssertionError, KeyError) as error:
            self.error = error

    def _learn(self, subject: str, last: dict[str, int], answer: dict[str, object]) -> None:
        error = answer.get("error")
        if error is None:
            last[subject] = int(str(answer["seq"]))
            self.acked.append((subject, last[subject]))
            return
        assert isinstance(error, dict)
        self.answers[error["err_code"]] += 1
        if error["err_code"] == 10071:
            last[subject] = int(error["description"].rpartition(" ")[2])


def test_no_update_is_lost(server: NatsServer) -> None:
    chance = random.Random("updates")
    updaters = [Updater(server.port, seed) for seed in range(3)]
    with Daemon(server.url, SETTINGS) as daemon:
        for updater in updaters:
            updater.start()

        def acked() -> int:
            return sum(len(updater.acked) for updater in updaters)

        try:
            for _ in range(rounds(2)):
                goal = acked() + chance.randint(20, 100)
                until(lambda goal=goal: acked() >= goal, 60)
                daemon.kill()
                daemon.start()
            goal = acked() + 50
            until(lambda: acked() >= goal, 60)
        finally:
            for updater in updaters:
                updater.stop_asked.set()
            for updater in updaters:
                updater.join(20)
        assert [updater.error for updater in updaters] == [None] * 3
        assert_no_traceback(daemon)
        newest = dict.fromkeys(SUBJECTS, 0)
        offsets = set()
        for record in records_of(daemon, "race"):
            assert record.headers[EXPECTED] == str(newest[record.subject]), record
            newest[record.subject] = record.offset
            offsets.add((record.subject, record.offset))
        told = [one for updater in updaters for one in updater.acked]
        assert len(told) == len(set(told))
        assert offsets.issuperset(told)
        answers = sum((updater.answers for updater in updaters), Counter[int]())
        assert answers[10071] > 0, "they were in each other's way"
        assert set(answers) <= {10071, 10077}
