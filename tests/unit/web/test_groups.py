"""Groups on the page of all consumers, and the page of one: who owns what, and its picture."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from support.daemons.local_checkpoints import serve_checkpoints

from liftlog.errors import ShuttingDown
from liftlog.groups.requests import Commit, Join
from liftlog.server.web.pages import consumers as page_of_consumers
from liftlog.server.web.pages import groups as page_of_groups

KEY = ("billing", "orders")


@pytest.fixture
async def group(broker: Any, orders: Any) -> Any:
    """Of 8 slots and two members; the stream ends at 6. Slot 2 is at 5, the others begin."""
    serve_checkpoints(broker)
    groups = broker.checkpoints.groups
    joined: Any = None
    for name in ("w1", "w2"):
        joined = await groups.asked(Join(KEY, name, f"token-{name}", 60_000, 8, 1, "ann"))
    # Until w1 gives slots up, it has all.
    log = broker.stream("orders").log
    first = groups.coordinator.groups[KEY].members["w1"].joined
    commit = Commit(KEY, "w1", first, 1, {2: 5}, log.incarnation, log.leader_epoch)
    await groups.asked(commit)
    yield joined
    groups.close(ShuttingDown("the test ends"))


async def twin(browser: Any, path: str) -> Any:
    status, text, _ = await browser.get(f"{path}.json")
    assert status == 200, text
    return json.loads(text)


async def test_the_page_of_a_group(site: Any, group: Any) -> None:
    async with site() as browser:
        found = await twin(browser, "/ui/streams/orders/groups/billing")
        assert (found["slot_count"], found["lag"], found["member_count"]) == (8, 5, 2)
        assert found["lags"] == [5, 5, 1, 5, 5, 5, 5, 5]
        assert [(one["name"], one["owned"], one["lag"]) for one in found["members"]] == [
            ("w1", list(range(8)), 5),
            ("w2", [], 0),
        ]
        assert found["without_owner"] == []
        _, text, _ = await browser.get("/ui/streams/orders/groups/billing")
        assert 'aria-label="slots 0 to 7; farthest behind is slot 0, by 5"' in text
        assert 'aria-label="no slots"' in text
        picture, text = text.partition("<table")[::2]
        assert 'aria-label="slots 0 to 7; farthest behind is slot 0, by 5"' in picture
        assert picture.count('class="behind"') == 8
        bars = re.findall(
            r'class="behind" x="(\d)" y="([\d.]+)" width="0.9" height="([\d.]+)"', text
        )
        assert [height for _, _, height in bars] == ["20.0"] * 2 + ["4.0"] + ["20.0"] * 5
        assert [y for _, y, _ in bars][2] == "16.0"
        assert "<title>slot 2: 1 behind</title>" in text
        assert "<script" not in text.partition("<main")[2]


async def test_slots_without_an_owner_come_first(site: Any, broker: Any, orders: Any) -> None:
    serve_checkpoints(broker)
    groups = broker.checkpoints.groups
    await groups.asked(groups.seek(KEY, 3))
    async with site() as browser:
        found = await twin(browser, "/ui/streams/orders/groups/billing")
        assert found["members"] == []
        assert found["without_owner"] == [
            {"name": "", "slots": 64, "lag": 3, "owned": list(range(64))}
        ]
        _, text, _ = await browser.get("/ui/streams/orders/groups/billing")
        assert ">no owner<" in text
        # A page in a browser is drawn again when its shape is another one.
        orders.append([b"7"])
        later = await twin(browser, "/ui/streams/orders/groups/billing")
        assert later["lags"] == [4] * 64
        assert later["shape"] != found["shape"], "the picture would stay as it is"
        listed = (await twin(browser, "/ui/consumers"))["groups"]
        assert [(one["members"], one["free_slots"], one["lag"]) for one in listed] == [(0, 64, 4)]


async def test_groups_among_the_consumers(
    site: Any, group: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(policy) as browser:
        await browser.sign_in("eu")
        found = await twin(browser, "/ui/consumers")
        assert [(one["id"], one["members"], one["lag"]) for one in found["groups"]] == [
            ("billing/orders", 2, 5)
        ]
        _, text, _ = await browser.get("/ui/consumers")
        assert 'href="/ui/streams/orders/groups/billing"' in text
        assert "No consumer has stored" not in text
        assert (await browser.get("/ui/consumers.json?q=nothing"))[0] == 200
        _, text, _ = await browser.get("/ui/consumers?q=nothing")
        assert "No consumer, group or stream contains" in text
        monkeypatch.setattr(page_of_consumers, "MAX_GROUPS", 0)
        found = await twin(browser, "/ui/consumers")
        assert (found["groups"], found["group_count"]) == ([], 1)


async def test_who_may_not_read_the_stream_sees_nothing(site: Any, group: Any, policy: Any) -> None:
    async with site(policy) as browser:
        await browser.sign_in("nil")
        assert (await twin(browser, "/ui/consumers"))["groups"] == []
        for path in ("", ".json"):
            status, text, _ = await browser.get(f"/ui/streams/orders/groups/billing{path}")
            assert status == 403
            assert "w1" not in text


async def test_names_that_no_group_has(site: Any, group: Any) -> None:
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/orders/groups/shipping")
        assert status == 200
        assert "There is no group <strong>shipping</strong>" in text
        assert (await browser.get("/ui/streams/orders/groups/a%20b"))[0] == 400
        assert (await browser.get("/ui/streams/a%20b/groups/billing"))[0] == 400


def test_stretches_of_slots() -> None:
    for slots, label in (([0, 1, 2, 5, 7, 8], "slots 0 to 2, 5, 7 to 8"), ([3], "slots 3")):
        strip = page_of_groups._strip(slots, [0] * 9, 0)
        assert strip["label"] == label
        assert [bar["height"] for bar in strip["bars"]] == [0] * len(slots)
