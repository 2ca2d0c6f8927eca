"""How the page tells what is wrong: in words, once, and without anything that misleads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.pull_broker import LogBroker

from liftlog.errors import CorruptRange, StreamUnavailable
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.messages import StreamInfo
from liftlog.server.web.pages import record

WHY = "manifest is lost (`liftlog log verify` shows <what> is readable)"


async def test_a_stream_that_could_not_be_opened(
    site: Any, broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = StreamInfo(name="orders", subject="", state="failed", warnings=[WHY])

    async def describe(_: LogBroker, name: str) -> StreamInfo:
        return info

    def refuse(_: LogBroker, name: str) -> Any:
        raise StreamUnavailable(f"stream {name} could not be opened: {WHY}")

    monkeypatch.setattr(LogBroker, "describe_stream", describe)
    monkeypatch.setattr(LogBroker, "stream", refuse)
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/orders")
        assert status == 200
        # Once, with the command set as one, and what came from elsewhere still escaped.
        assert text.count("manifest is lost") == 1
        assert "(<code>liftlog log verify</code> shows &lt;what&gt; is readable)" in text
        assert "liftlog log repair --dry-run" in text
        # No figures and no sections of which nothing is known.
        assert "<h2" not in text
        assert "0 B" not in text
        status, text, _ = await browser.get("/ui/streams/orders/records")
        assert status == 503
        assert "<code>liftlog log verify</code>" in text


async def test_why_a_consumer_cannot_go_on(
    site: Any, broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Checkpoint("behind", "orders", 1, problem="OFFSET_OUT_OF_RANGE"),
        Checkpoint("odd", "orders", 1, problem="SOMETHING_NEW"),
        Checkpoint("well", "orders", 3, lag=2),
    ]
    monkeypatch.setattr(broker.checkpoints, "page", lambda *_, **__: (found, None), raising=False)
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams/orders")
    assert 'title="OFFSET_OUT_OF_RANGE">the next records are gone<' in text
    assert ">SOMETHING_NEW<" in text
    assert 'data-count="lag">2<' in text


async def test_from_damage_one_goes_on(
    site: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rotten(*_: Any) -> Any:
        raise CorruptRange("the records [2, 4) are lost", hint="", first_offset=2, next_offset=4)

    monkeypatch.setattr(record, "read_record", rotten)
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/orders/records/2")
        assert status == 410
        assert "The records [2, 4) are lost." in text
        assert re.search(r'href="4">Continue at offset 4<', text)


async def test_long_pages_can_be_turned_at_both_ends(site: Any, broker: Any) -> None:
    broker.add("many").append([b"x"] * 60)
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams/many/records?limit=25")
        assert text.count('rel="prev"') == 2
        _, text, _ = await browser.get("/ui/streams/many/records?offset=55")
        assert text.count('rel="prev"') == 1


async def test_a_stream_that_is_not_there(site: Any) -> None:
    """The page has a button for what the hint says to do in a shell."""
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/nothing")
    assert status == 404
    assert "liftlog stream ls" not in text
    assert '<a class="button" href="/ui/streams">All streams</a>' in text


async def test_an_offset_that_is_not_there(site: Any, orders: Any) -> None:
    """The advice is a sentence, as all else on a page."""
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/orders/records/99")
    assert status == 404
    assert '<p class="muted">Start at <code>earliest</code> or <code>latest</code>' in text
    assert "inside the range.</p>" in text
