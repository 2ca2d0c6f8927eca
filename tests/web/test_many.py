"""The web page where there is much: five hundred streams, a million records, a long search."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from support.clients.accessibility import check_accessible
from support.clients.browser import NewWindow, run_apart
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

MANY = 500
MILLION = 1_000_000
DOCUMENTS = 200_000
STREAMS = {
    "large": {"subject": "large.>", "acks": "off"},
    "documents": {"subject": "documents.>", "acks": "off"},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    streams = {f"plant-{n:03d}": {"subject": f"plant.{n}.>"} for n in range(MANY)}
    with NatsServer() as server, Daemon(server.url, {"streams": streams}) as daemon:
        yield daemon


@pytest.mark.long
def test_five_hundred_streams(crowded: Daemon, window: NewWindow) -> None:
    page = window(crowded).page
    page.goto("/ui/streams?page=10")
    before = crowded.cpu_seconds
    page.goto("/ui/streams")
    assert crowded.cpu_seconds - before < 1
    expect(page.locator("[data-count=streams]")).to_have_text(str(MANY))
    assert page.locator("table.streams tbody tr").count() == 50
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("Page 2 of 10")).to_be_visible()
    page.get_by_label("Name or subject").fill("plant.499")
    page.get_by_role("button", name="Find").click()
    assert page.locator("table.streams tbody tr").count() == 1
    # Looking at them all again and again does not hold the event loop, on which commits run.
    before = crowded.cpu_seconds
    for _ in range(20):
        assert crowded.get("/ui/streams.json?sort=size")[0] == 200
    assert crowded.cpu_seconds - before < 2
    samples = crowded.get("/metrics")[1].splitlines()
    late = [int(line.split()[-1]) for line in samples if "event_loop_lag_seconds_bucket" in line
            and ('le="0.1"' in line or 'le="+Inf"' in line)]  # fmt: skip
    assert late[1] - late[0] <= 2, "looks at which the loop was later than 0.1 s"


def test_a_million_records(daemon: Daemon, server: NatsServer, window: NewWindow) -> None:
    run_apart(_publish_many(server.url, MILLION))
    deadline = time.monotonic() + 180
    while daemon.metric("liftlog_high_watermark", stream="large") <= MILLION:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    page = window(daemon).page
    for offset in (1, 500_000, 999_960):
        before = daemon.cpu_seconds
        page.goto(f"/ui/streams/large/records?offset={offset}")
        assert daemon.cpu_seconds - before < 1, offset
        assert page.locator("table.records tbody tr").first.inner_text().startswith(f"{offset:,}")
    _search_a_million(daemon, page)
    page.goto("/ui/streams/large/records")
    expect(page.get_by_role("rowheader", name="1,000,000")).to_be_visible()
    below = page.get_by_role("navigation", name="More records", exact=True)
    below.get_by_role("link", name="Older").click()
    expect(page.get_by_role("rowheader", name="999,901")).to_be_visible()
    before = daemon.cpu_seconds
    page.goto("/ui/streams/large/records?subject=large.rare")
    assert daemon.cpu_seconds - before < 6
    reached = page.get_by_text("Continue search").or_(page.get_by_text("Start of the stream"))
    expect(reached.first).to_be_visible()


def _search_a_million(daemon: Daemon, page: Page) -> None:
    """The first hits cost little, wherever the search begins; a search for what is not there shows
    how far it is, ends, and can be stopped. The bound is twice what a busy machine needs: with all
    processors busy, the same work takes up to twice the processor time."""
    for question in ("value=VALUE", "value=^v.*e$&kind=regex", "value=value&order=oldest"):
        before = daemon.cpu_seconds
        page.goto(f"/ui/streams/large/records?limit=25&{question}")
        rows = page.locator("table.records tbody tr")
        expect(rows.first).to_be_visible()
        # A page of a slow machine continues its search, by whole pages.
        expect(rows.nth(24)).to_be_visible(timeout=60_000)
        assert rows.count() < 2 * 25
        assert daemon.cpu_seconds - before < 12, question
    page.goto("/ui/streams/large/records?value=absent.*&kind=regex")
    expect(page.get_by_text("No records match.")).to_be_visible()


@pytest.mark.long
def test_a_long_search_shows_how_far_it_is(
    daemon: Daemon, server: NatsServer, window: NewWindow
) -> None:
    # A backslash: so no document can be passed over without parsing it.
    document = b'{"name": "\\u0061", "numbers": [%s]}' % b",".join([b"1"] * 150)
    run_apart(_publish_many(server.url, DOCUMENTS, b"documents.x", document))
    deadline = time.monotonic() + 60
    while daemon.metric("liftlog_high_watermark", stream="documents") <= DOCUMENTS:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    page = window(daemon).page
    held: list[object] = []
    page.route("**/records?*offset=*", lambda route: held.append(route))
    page.goto("/ui/streams/documents/records?value=absent&kind=json")
    bar = page.get_by_label("Part of the stream that was searched")
    assert 0 < bar.evaluate("one => one.value") < 1
    check_accessible(page)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped")).to_be_visible()
    expect(page.get_by_role("link", name="Continue search")).to_be_visible()
    page.unroute("**/records?*offset=*")
    page.goto("/ui/streams/documents/records?value=absent&kind=json")
    expect(page.get_by_text("All was searched")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("No records match.")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    assert bar.evaluate("one => one.value") == 1


async def _publish_many(
    url: str, count: int, subject: bytes = b"large.x", value: bytes = b"value"
) -> None:
    """On a raw socket: the client would take a minute."""
    host, port = url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
    chunk = b"PUB %s %d\r\n%s\r\n" % (subject, len(value), value) * 1000
    for _ in range(count // 1000):
        writer.write(chunk)
        await writer.drain()
    writer.write(b"PING\r\n")
    while b"PONG" not in await reader.readline():
        pass
    writer.close()
    await writer.wait_closed()
