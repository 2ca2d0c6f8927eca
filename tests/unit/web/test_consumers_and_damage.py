"""All consumers on one page, and damage at the top of the pages that it concerns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog.protocol.checkpoints import Checkpoint
from liftlog.server.web.formats import damage_marks, segment_parts

FOUND = [
    Checkpoint("done", "orders", 6, lag=0, time_ns=3),
    Checkpoint("behind", "orders", 2, lag=4, time_ns=1),
    Checkpoint("stuck", "orders", 1, problem="DIVERGED", time_ns=2),
    Checkpoint("behind", "gone", 2, lag=1),
]


async def consumers(browser: Any, question: str = "") -> Any:
    status, text, _ = await browser.get(f"/ui/consumers.json?{question}")
    assert status == 200, text
    return json.loads(text)


async def test_the_largest_lag_first(
    site: Any, broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.checkpoints, "page", lambda *_, **__: (FOUND, None))
    async with site() as browser:
        found = await consumers(browser)
        names = [(one["consumer"], one["stream"]) for one in found["consumers"]]
        assert names == [("stuck", "orders"), ("behind", "orders"), ("behind", "gone"),
                         ("done", "orders")]  # fmt: skip
        stuck, behind, gone, done = [one["lag_seconds"] for one in found["consumers"]]
        assert (stuck, gone, done) == (None, None, 0.0)
        assert behind is not None
        assert behind >= 0
        assert found["totals"] == {"consumers": 4, "lag": 5, "problems": 1}
        assert [one["stream"] for one in (await consumers(browser, "q=GONE"))["consumers"]] == [
            "gone"
        ]
        for sort in ("consumer", "stream", "stored"):
            assert len((await consumers(browser, f"sort={sort}"))["consumers"]) == 4
        _, text, _ = await browser.get("/ui/consumers")
        assert ">from a different history<" in text
        assert ">unknown<" in text
    assert broker.unreleased == 0


async def test_only_those_of_streams_that_one_may_read(
    site: Any, broker: Any, orders: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker.checkpoints, "page", lambda *_, **__: (FOUND, None))
    async with site(policy) as browser:
        await browser.sign_in("eu")
        assert {one["stream"] for one in (await consumers(browser))["consumers"]} == {"orders"}
    async with site(policy) as browser:
        await browser.sign_in("nil")
        found = await consumers(browser)
        assert (found["consumers"], found["totals"]["consumers"]) == ([], 0)


async def test_damage_stands_at_the_top(
    site: Any, broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LogBroker.describe_stream
    bad = {"first_offset": 2, "next_offset": 4, "segment": orders.log.segments[0].path.name,
           "position": 0, "end_position": 1, "reason": "checksum"}  # fmt: skip

    async def describe(self: Any, name: str) -> Any:
        found = await real(self, name)
        return replace(found, quarantined=[bad]) if name == "orders" else found

    broker.add("well", subject="well.>")
    async with site() as browser:
        for page in ("/ui/streams", "/ui/streams/orders", "/ui/health"):
            assert "<strong>Damage</strong>" not in (await browser.get(page))[1]
    monkeypatch.setattr(LogBroker, "describe_stream", describe)
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams")
        assert "<strong>Damage</strong> in" in text
        found = json.loads((await browser.get("/ui/streams.json?only=problems"))[1])
        assert [one["name"] for one in found["streams"]] == ["orders"]
        assert found["totals"]["damaged"] == 1
        _, text, _ = await browser.get("/ui/streams/orders")
        assert "2 offsets cannot be read" in text
        assert "<title>damaged: 2 to 3</title>" in text
        found = json.loads((await browser.get("/ui/health.json"))[1])
        assert found["damaged"] == [{"name": "orders", "ranges": 1, "offsets": 2}]
        _, text, _ = await browser.get("/ui/health")
        assert 'href="/ui/streams/orders#damage"' in text


def test_where_the_damage_lies() -> None:
    segments = [
        {"kind": "sealed", "base_offset": n, "next_offset": n + 100, "size_bytes": 1000}
        for n in (0, 100)
    ]
    parts = segment_parts(segments)
    bad = [{"first_offset": 50, "next_offset": 150}, {"first_offset": 199, "next_offset": 200}]
    marks = damage_marks(parts, bad)
    assert [(one["first_offset"], one["next_offset"]) for one in marks] == [
        (50, 100), (100, 150), (199, 200)
    ]  # fmt: skip
    assert [(one["x"], one["width"]) for one in marks] == [(250, 250), (500, 250), (995, 5)]
    tiny = damage_marks(parts, [{"first_offset": 199, "next_offset": 200}])[0]
    assert tiny["x"] + tiny["width"] <= 1000
    assert damage_marks(parts, [{"first_offset": 500, "next_offset": 600}]) == []
