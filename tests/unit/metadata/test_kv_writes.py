"""What becomes of a write when two NATS servers take themselves for the leader, and both answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from liftlog.cluster.store import CasLost, CasUnknown, StoreUnavailable
from liftlog.server.metadata import kv_store
from liftlog.server.metadata.kv_bucket import Refused
from liftlog.server.metadata.kv_link import NobodyAnswers, Unanswered
from liftlog.server.metadata.kv_store import NatsKvMetaStore
from liftlog.settings import NatsSettings


class Answers:
    """In the place of the link: answers in order, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []

    async def ask(
        self, subject: str, *rest: Any, headers: Sequence[tuple[str, str]] = (), **more: Any
    ) -> Any:
        self.asked.append((subject.partition(".liftlog_prod.")[2], dict(headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def wrong(found: int) -> Refused:
    return Refused(400, 10071, f"wrong last sequence: {found}")


BUSY = Refused(400, 10164, "wrong last sequence")
SAME = Refused(409, 10158, "duplicate message id is in process")
MADE, MADE_BEFORE = (9, True), (9, False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "_LAG_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        ([MADE], 9),
        ([wrong(8)], CasLost),
        ([wrong(5), MADE], 9),  # refused by a server that lags
        ([wrong(5), MADE_BEFORE], 9),  # and taken by the one that leads
        ([BUSY, MADE_BEFORE], 9),
        ([SAME, MADE_BEFORE], 9),
        ([BUSY, wrong(8)], CasLost),
        ([BUSY], CasUnknown),
        ([*[wrong(5)] * 10, MADE], CasLost),  # the barrier confirms that it is at 5
        ([wrong(5)], CasUnknown),
        ([Unanswered("")], CasUnknown),
        ([NobodyAnswers("")], StoreUnavailable),
        ([BUSY, NobodyAnswers("")], CasUnknown),
        ([Refused(503, 10077, "disk")], CasUnknown),
        ([Refused(400, 10054, "size")], StoreUnavailable),
    ],
)
async def test_what_answers_mean(
    answers: list[Any], outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Answers(*answers)
    monkeypatch.setattr(kv_store, "KvLink", lambda *_, **options: link)
    store = NatsKvMetaStore(NatsSettings(), ["nats://x"], "prod", "a")
    if outcome == 9:
        assert await store.cas("stream.a", b"{}", 7) == 9
    else:
        with pytest.raises(outcome):
            await store.cas("stream.a", b"{}", 7)
    writes = [headers for key, headers in link.asked if key == "stream.a"]
    assert {one["Nats-Expected-Last-Subject-Sequence"] for one in writes} == {"7"}
    assert len({one["Nats-Msg-Id"] for one in writes}) == 1
