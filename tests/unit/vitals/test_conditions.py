"""The list of conditions: its order, who sees what, how often it is made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from liftlog.server.vitals import conditions as module
from liftlog.server.vitals.conditions import (
    KINDS,
    About,
    Condition,
    Conditions,
    Severity,
    by_kind,
    first_of_each_kind,
)
from tools.pages.conditions import render

PAGE = Path(__file__).parents[3] / "docs/reference/conditions.md"


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run: make pages"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_a_kind_says_what_to_do(kind: module.Kind) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.name)
    assert kind.meaning.endswith(".")
    assert kind.next_step
    assert not kind.next_step.endswith(".")
    assert not kind.concerns_streams or kind.about is About.DAEMON


async def test_the_worst_is_first() -> None:
    conditions = Conditions()
    conditions.add(lambda: [Condition.of("cleaning", "words", "b")])
    conditions.add(lambda: [Condition.of("cleaning", "words", "a"), Condition.of("disk", "full")])
    conditions.add(lambda: [Condition.of("lost_records", "words", "c")])
    found = [(one.kind.name, one.subject) for one in await conditions.now()]
    assert found == [("disk", ""), ("lost_records", "c"), ("cleaning", "a"), ("cleaning", "b")]


async def test_each_sees_the_streams_that_it_may_read() -> None:
    conditions = Conditions()
    conditions.add(
        lambda: [
            Condition.of("disk", "a commit waits", streams=["open", "secret"]),
            Condition.of("lost_records", "words", "secret"),
            Condition.of("lost_records", "words", "open"),
        ]
    )
    everything = str([one.to_wire() for one in await conditions.now()])
    assert "a commit waits: open, secret" in everything
    shown = await conditions.now(lambda name: name == "open")
    assert "secret" not in str([one.to_wire() for one in shown])
    assert by_kind(shown) == {"disk": "a commit waits: open", "lost_records": "open: words"}


async def test_a_thousand_streams_are_twenty_and_a_number() -> None:
    many = [Condition.of("lost_records", "words", f"s{number:04d}") for number in range(1000)]
    text = by_kind(many)["lost_records"]
    assert text.count(": words") == 20
    assert text.endswith("; and 980 more")


def test_what_is_sent_has_twenty_of_a_kind_and_says_how_many_more() -> None:
    many = [Condition.of("no_leader", "words", f"s{number:05d}") for number in range(10_000)]
    rest = [Condition.of("clock_skew", "words", f"n{number:02d}") for number in range(20)]
    shown = first_of_each_kind([Condition.of("disk", "full"), *many, *rest])
    assert [one.kind.name for one in shown] == ["disk"] + ["no_leader"] * 21 + ["clock_skew"] * 20
    more = shown[21]
    assert more.sentence == "9,980 more like this; `liftlog cluster status` lists them"
    assert len(str([one.to_wire() for one in shown])) < 20_000


@pytest.mark.parametrize(("took", "looks"), [(0.0005, 5000), (0.002, 25), (0.005, 10), (0.1, 5)])
async def test_a_list_that_takes_long_is_not_made_for_everyone(
    took: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may ask: a hundredth of the event loop, whatever they ask, or one list a second."""
    conditions, looked, now = Conditions(), 0, 0.0
    clocks = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: now)
    monkeypatch.setattr(module, "time", clocks)

    def slow() -> Iterator[Condition]:
        nonlocal looked, now
        looked += 1
        now += took
        yield Condition.of("disk", "full")

    conditions.add(slow)
    while now < 4.999:
        assert [one.text for one in await conditions.now()] == ["full"]
        now += 0.0005
    assert looked == looks


def test_severities_are_in_order() -> None:
    places = [Severity(one) for one in ("unready", "error", "warning")]
    assert list(Severity) == places
