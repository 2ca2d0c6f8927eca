"""Moving the checkpoint of a consumer, over HTTP; the checkpoints record what they are told."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from support.daemons.local_checkpoints import NoGroups

from liftlog.errors import CheckpointMoved, LiftlogError
from liftlog.protocol.checkpoints import Checkpoint

PAGE = "/ui/streams/orders/consumers/billing"


class Kept:
    """One checkpoint, of `billing` in `orders`."""

    def __init__(self) -> None:
        self.present: Checkpoint | None = Checkpoint("billing", "orders", 4, lag=3, metadata="m")
        self.committed: list[Any] = []
        self.error: LiftlogError | None = None
        self.groups = NoGroups()

    def fetch(self, consumer: str, stream: str, *, check: bool) -> Checkpoint | None:
        assert not check
        return self.present if (consumer, stream) == ("billing", "orders") else None

    def commit(
        self, consumer: str, stream: str, offset: int, told: Callable[..., None], **rest: Any
    ) -> None:
        self.committed.append((consumer, stream, offset, rest))
        told(self.error)

    def page(self, *_: Any, **__: Any) -> tuple[list[Checkpoint], None]:
        return [] if self.present is None else [self.present], None


@pytest.fixture
def kept(broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch) -> Kept:
    found = Kept()
    monkeypatch.setattr(broker, "checkpoints", found)
    orders.append([b"x"] * 3)
    return found


def fields(text: str) -> dict[str, str]:
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text)
    return {name: unescape(value) for name, value in found}


async def preview(browser: Any, to: str) -> dict[str, Any]:
    status, text, _ = await browser.get(f"{PAGE}.json?to={to}")
    assert status == 200, text
    found: dict[str, Any] = json.loads(text)
    return found


async def test_a_preview_says_what_is_read_again_or_skipped(site: Any, kept: Kept) -> None:
    async with site() as browser:
        _, text, _ = await browser.get(f"{PAGE}.json")
        info = json.loads(text)
        first, end = info["log_start_offset"], info["high_watermark"]
        assert (info["target"], info["present"]["offset"]) == (None, 4)
        for to, offset in (("start", first), ("end", end), ("2", 2), ("1970-01-01", first),
                           ("2100-01-01", end), ("1h", first)):  # fmt: skip
            target = (await preview(browser, to))["target"]
            assert (target["offset"], target["moved_by"]) == (offset, offset - 4), to
            assert target["to_read"] == end - offset
        kept.present = Checkpoint("billing", "orders", 4, problem="DIVERGED")
        assert (await preview(browser, "2"))["target"]["moved_by"] is None
        kept.present = None
        assert (await preview(browser, "2"))["target"]["expected"] == 0
        _, text, _ = await browser.get(f"{PAGE}?to=2")
        assert "no checkpoint" in text


@pytest.mark.parametrize("wrong", ["0", "999", "9" * 30, "tomorrow", "-1", "<script>"])
async def test_a_wrong_position_is_told_in_the_form(site: Any, kept: Kept, wrong: str) -> None:
    async with site() as browser:
        status, text, _ = await browser.get(f"{PAGE}?to={wrong}")
        assert status == 400
        assert 'aria-invalid="true"' in text
        assert "<script>" not in text.replace("<script type", "")
        assert "Move to" not in text
        assert (await browser.get(f"{PAGE}.json?to={wrong}"))[0] == 400
    assert kept.committed == []


async def test_the_change_carries_what_the_preview_knew(site: Any, kept: Kept) -> None:
    async with site() as browser:
        _, text, _ = await browser.get(f"{PAGE}?to=2")
        sent = fields(text)
        status, _, answer = await browser.post(PAGE, sent)
        assert (status, answer.headers["Location"]) == (303, f"{PAGE}?moved=1")
        ((consumer, stream, offset, rest),) = kept.committed
        assert (consumer, stream, offset) == ("billing", "orders", 2)
        assert (rest["expected"], rest["metadata"]) == (4, "m")
        assert rest["incarnation"] == sent["incarnation"] != ""
        _, text, _ = await browser.get(f"{PAGE}?moved=1")
        assert "The checkpoint is stored." in text
        kept.error = CheckpointMoved("the checkpoint has moved to 9")
        status, text, _ = await browser.post(PAGE, sent)
        assert status == 409
        assert "The checkpoint has moved to 9." in text


async def test_a_forged_or_broken_form_changes_nothing(site: Any, kept: Kept) -> None:
    async with site() as browser:
        _, text, _ = await browser.get(f"{PAGE}?to=2")
        sent = fields(text)
        for broken in ({**sent, "form_token": "x"}, {**sent, "offset": ""},
                       {**sent, "epoch": "-1"}, {**sent, "expected": "1" * 30}):  # fmt: skip
            status, _, _ = await browser.post(PAGE, broken)
            assert status in (400, 403)
        other = PAGE.replace("billing", "shipping")
        assert (await browser.post(other, sent))[0] == 403  # the token is for one consumer
        assert (await browser.get("/ui/streams/orders/consumers/a%20b"))[0] == 400
    assert kept.committed == []


async def test_only_for_those_who_may_commit(site: Any, kept: Kept, policy: Any) -> None:
    async with site(policy) as browser:
        await browser.sign_in("eu")
        assert (await browser.get(PAGE))[0] == 403
        assert (await browser.post(PAGE, {"form_token": "x"}))[0] == 403
        _, text, _ = await browser.get("/ui/streams/orders")
        assert "Move…" not in text
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams/orders")
        assert f'href="{PAGE}"' in text
        _, text, _ = await browser.get("/ui/consumers")
        assert f'href="{PAGE}"' in text


async def test_a_consumer_has_a_chart_and_a_place(site: Any, kept: Kept, policy: Any) -> None:
    async with site(policy) as browser:
        await browser.sign_in("eu")
        status, text, _ = await browser.get("/ui/streams/orders/charts.json?consumer=billing")
        assert (status, json.loads(text)["series"]) == (200, {"lag": [], "lag_seconds": []})
        status, text, _ = await browser.get("/ui/streams/orders/charts?consumer=billing&span=1h")
        assert status == 200
        assert 'href="?consumer=billing&amp;span=24h"' in text
        _, text, _ = await browser.get("/ui/streams/orders/charts?group=billing&span=1h")
        assert 'href="?group=billing&amp;span=24h"' in text
        assert "/ui/streams/orders/groups/billing" in text
        assert (await browser.get("/ui/streams/orders/charts?consumer=a%20b"))[0] == 400
        assert (await browser.get("/ui/streams/bills/charts?consumer=billing"))[0] == 403
        _, text, _ = await browser.get("/ui/streams/orders.json")
        (one,) = json.loads(text)["consumers"]
        assert 0 < one["place"] < 1000
        _, text, _ = await browser.get("/ui/streams/orders")
        assert f'x="{one["place"]}"' in text


async def test_a_consumer_that_is_new_gets_a_checkpoint(site: Any, kept: Kept, policy: Any) -> None:
    begin = "/ui/streams/orders/consumers"
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams/orders")
        assert f'action="{begin}"' in text
        status, _, answer = await browser.get(f"{begin}?name=replay&to=1h")
        where = answer.headers["Location"]
        assert (status, where) == (303, f"{begin}/replay?to=1h")
        kept.present = None
        _, text, _ = await browser.get(where)
        assert "The consumer has no checkpoint yet." in text
        status, _, _ = await browser.post(f"{begin}/replay", fields(text))
        assert status == 303
        ((consumer, stream, offset, rest),) = kept.committed
        assert (consumer, stream, offset, rest["expected"]) == ("replay", "orders", 1, 0)
        for wrong in ("", "name=", "name=a%20b", "name=..%2Fx"):
            assert (await browser.get(f"{begin}?{wrong}"))[0] == 400
    async with site(policy) as browser:
        await browser.sign_in("eu")
        assert (await browser.get(f"{begin}?name=replay"))[0] == 403
