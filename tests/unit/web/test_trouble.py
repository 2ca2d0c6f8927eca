"""How the page tells what is wrong: in words, once, and without anything that misleads."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog.errors import CorruptRange, StreamUnavailable
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.messages import StreamInfo
from liftlog.server.web.pages import record
from liftlog.server.web.troubles import in_words, worded

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
        assert text.count("Manifest is lost") == 1
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
    monkeypatch.setattr(broker.checkpoints, "page", lambda *_, **__: (found, None))
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
        assert "Records 2 to 3 are lost." in text
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
    """In words, and with links where there are records."""
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/orders/records/99")
    assert status == 404
    assert "<p>There is no record 99 in orders yet.</p>" in text
    assert '<p class="muted">Its records have the offsets 1 to 5.</p>' in text
    assert 'href="/ui/streams/orders/records?order=oldest">Oldest records<' in text


def test_errors_in_the_words_of_a_page() -> None:
    def told(name: str, message: str, hint: str = "", **details: Any) -> Any:
        error = {"name": name, "message": message, "hint": hint, "details": details}
        return worded(error, {"stream": "orders", "offset": "2"})

    kept = {"log_start_offset": 5, "log_end_offset": 6}
    gone = told("OFFSET_OUT_OF_RANGE", "offset 2 is outside", "start at `earliest`", **kept)
    assert gone.message == "Record 2 of orders has been deleted."
    assert gone.hint == "Its records have the offset 5."
    lost = told("CORRUPT_RANGE", "the records [2, 1003) are lost: rotten", "x", next_offset=1003)
    assert (lost.message, lost.hint) == ("Records 2 to 1,002 are lost: rotten.", "")
    assert lost.links == (("1003", "Continue at offset 1,003"),)
    alone = told("STREAM_UNAVAILABLE", "too few", "try again; `liftlog cluster status` shows it")
    assert (alone.hint, alone.links) == ("Try again.", (("/ui/cluster", "Cluster"),))
    assert told("INTERNAL", "the daemon failed").message == "The daemon failed."
    assert in_words("the records [7, 8) are damaged on disk") == "record 7 is damaged on disk"
    assert in_words("the records [7, 7000) cannot be read") == "records 7 to 6,999 cannot be read"


async def test_an_address_without_a_page(site: Any, orders: Any, policy: Any) -> None:
    async with site() as browser:
        for path in ("/ui/nowhere", "/ui/streams/orders/nothing", "/ui/streams/orders/a/b"):
            status, text, _ = await browser.get(path)
            assert (status, "There is no page at this address." in text) == (404, True)
    async with site(policy) as browser:
        status, _, answer = await browser.get("/ui/nowhere")
        assert (status, answer.headers["Location"][:9]) == (303, "/ui/login")
