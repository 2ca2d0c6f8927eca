"""Where messages go: which streams record a subject and why, and the picture of it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
from support.daemons.local_checkpoints import NoGroups

from acl.subjects import matches, overlaps
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.server.web.pages import topology
from liftlog.server.web.pages.topology import why_not, why_recorded
from liftlog.server.web.picture import BOX, WIDTH, drawn
from liftlog.server.web.readers import MAX_SHOWN

PATTERNS = ("a", "a.b", "a.*", "*.b", "a.>", ">", "*", "a.*.c", "a.b.>", "A.b", "b.>")
SUBJECTS = ("a", "a.b", "a.b.c", "b", "b.c", "A.b", "a.x.c", "c.c.c")


class Kept:
    def __init__(self, *found: Checkpoint) -> None:
        self.found, self.groups = list(found), NoGroups()

    def page(self, may_read: Any, **_: Any) -> tuple[list[Checkpoint], None]:
        return [one for one in self.found if may_read(one.stream)], None


async def shown(browser: Any, question: str = "") -> dict[str, Any]:
    status, text, _ = await browser.get(f"/ui/topology.json?{question}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_there_is_a_reason_for_each_answer(pattern: str) -> None:
    for subject in SUBJECTS:
        why = why_recorded([pattern], subject)
        assert (why is not None) == matches(pattern, subject), subject
        if why is None:
            assert pattern in why_not(pattern, subject)
    for asked in PATTERNS:
        assert (why_recorded([pattern], asked) is not None) == overlaps(pattern, asked)


def test_reasons() -> None:
    for pattern, subject, why in (
        ("a.*.>", "a.b.c.d", "`a.*.>` matches: `*` stands for `b`, `>` stands for `c.d`"),
        ("a.b", "a.b", "`a.b` is this subject"),
        ("a.>", "a.*", "`a.>` covers all subjects of `a.*`"),
        ("a.b", "a.*", "`a.b` lies within `a.*`"),
        ("a.*", "*.b", "`a.*` has some subjects in common with `*.b`"),
    ):
        assert why_recorded([pattern], subject) == why
    assert why_recorded(["x.>", "a.b"], "a.b") == "`a.b` is this subject"
    for pattern, subject, why in (
        ("a.*.c", "a.b", "the subject has 2 tokens; `a.*.c` needs 3"),
        ("a.>", "a", "the subject has 1 token; `a.>` needs at least 2"),
        ("a.b", "a.c.d", "token 2 is `c`; `a.b` has `b` there"),
        ("a.b", "A.b", "token 1 is `A`; `a.b` has `a` there, and NATS subjects are case-sensitive"),
    ):
        assert why_not(pattern, subject) == why


async def test_a_subject_finds_its_streams(site: Any, broker: Any, orders: Any) -> None:
    broker.add("orders-eu", subject="orders.eu.*")
    broker.add("payments", subject="payments.>")
    async with site() as browser:
        everything = await shown(browser)
        assert [one["name"] for one in everything["streams"]] == ["orders", "orders-eu", "payments"]
        found = await shown(browser, "subject=orders.eu.new")
        assert [one["name"] for one in found["streams"]] == ["orders", "orders-eu"]
        assert (found["matching"], found["recording"], found["near"]) == (2, 2, [])
        assert found["streams"][1]["why"] == "`orders.eu.*` matches: `*` stands for `new`"
        pattern = await shown(browser, f"subject={quote('*.eu.>')}")
        assert [one["name"] for one in pattern["streams"]] == ["orders", "orders-eu", "payments"]
        missed = await shown(browser, "subject=payment.x")
        assert (missed["streams"], missed["near"]) == ([], [])
        near = await shown(browser, "subject=Orders.eu")
        assert [one["name"] for one in near["near"]] == ["orders-eu", "orders"]
        _, text, _ = await browser.get("/ui/topology?subject=Orders.eu")
        assert "Streams that come close" in text
        assert "is not stored" in text


@pytest.mark.parametrize("wrong", ["a..b", "a b", "<script>.*x", "a.>.b"])
async def test_what_is_no_subject_is_told_in_the_form(site: Any, orders: Any, wrong: str) -> None:
    async with site() as browser:
        status, text, _ = await browser.get(f"/ui/topology?subject={quote(wrong)}")
        assert status == 400
        assert 'aria-invalid="true"' in text
        assert "<script>." not in text
        assert (await browser.get(f"/ui/topology.json?subject={quote(wrong)}"))[0] == 400


async def test_readers_and_their_lag(
    site: Any, broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"c{number}" for number in range(MAX_SHOWN + 2)]
    kept = [Checkpoint(name, "orders", 1, lag=number) for number, name in enumerate(names)]
    kept.append(Checkpoint("lost", "orders", 9, problem="OFFSET_OUT_OF_RANGE"))
    monkeypatch.setattr(broker, "checkpoints", Kept(*kept))
    async with site() as browser:
        (row,) = (await shown(browser))["streams"]
        assert [one["name"] for one in row["readers"]] == ["lost", "c6", "c5", "c4", "c3"]
        assert row["more"] == 3
        assert (await shown(browser, "q=C3"))["matching"] == 1
        assert (await shown(browser, "q=c0"))["matching"] == 1  # one that is only counted
        assert (await shown(browser, "q=nothing"))["matching"] == 0
        _, text, _ = await browser.get("/ui/topology")
        assert "cannot continue" in text
        assert "3 more…" in text


async def test_only_what_may_be_read(site: Any, broker: Any, orders: Any, policy: Any) -> None:
    broker.add("secret", subject="orders.>")
    kept = [Checkpoint("covert", "secret", 1, lag=1), Checkpoint("billing", "orders", 1, lag=1)]
    broker.checkpoints = Kept(*kept)
    async with site(policy) as browser:
        await browser.sign_in("eu")
        found = await shown(browser, "subject=orders.eu.new")
        assert [one["name"] for one in found["streams"]] == ["orders"]
        assert [one["name"] for one in found["readers"]] == ["billing"]
        _, text, _ = await browser.get("/ui/topology")
        assert "secret" not in text
        assert "covert" not in text


async def test_many_streams_have_pages(site: Any, broker: Any) -> None:
    for number in range(topology.PER_PAGE + 1):
        broker.add(f"s-{number:02}", subject=f"s.{number:02}.>")
    async with site() as browser:
        first = await shown(browser)
        assert (len(first["streams"]), first["pages"]) == (topology.PER_PAGE, 2)
        second = await shown(browser, "page=2")
        assert [one["name"] for one in second["streams"]] == ["s-25"]
        _, text, _ = await browser.get("/ui/topology?q=s-")
        assert 'href="?q=s-&amp;page=2"' in text


def row(name: str, filters: list[str], readers: int = 0, more: int = 0, **rest: Any) -> Any:
    shown = [{"kind": "consumer", "name": f"c{n}", "problem": ""} for n in range(readers)]
    return {
        "name": name,
        "filters": filters,
        "queue_group": None,
        "records": True,
        "readers": shown,
        "more": more,
        **rest,
    }


def test_no_box_lies_on_another_and_every_line_ends_at_boxes() -> None:
    rows = [
        row("a", ["x.>"], readers=3, more=9),
        row("b", ["x.>"], records=False),
        row("c", ["x.>"], queue_group="g"),
        row("d", ["y.>", "z.*", "z.1"], readers=1),
        row("e" * 128, ["long." * 40 + "end"]),
    ]
    picture = drawn(rows)
    assert [len(one) for one in (picture.filters, picture.streams, picture.readers)] == [6, 5, 5]
    for column in (picture.filters, picture.streams, picture.readers):
        tops = sorted(box.y for box in column)
        assert all(b - a >= BOX for a, b in pairwise(tops))
        assert 0 <= tops[0] <= tops[-1] <= picture.height - BOX
        assert all(box.x + box.width <= WIDTH for box in column)
    assert len(picture.lines) == 5 + 2 + 5  # shared boxes have a line to each of their streams
    ends = {box.y + BOX / 2 for box in (*picture.filters, *picture.streams, *picture.readers)}
    for line in picture.lines:
        numbers = [float(one) for one in re.findall(r"[\d.]+", line.path)]
        assert {numbers[1], numbers[-1]} <= ends
    assert [line.is_open for line in picture.lines].count(True) == 1
    assert picture.streams[-1].text.endswith("…")


def test_nothing_to_draw() -> None:
    assert drawn([]).height == 0
