"""The web page of a real daemon in a real Chromium."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from playwright.sync_api import expect
from support.clients.accessibility import check_accessible, check_in_every_way
from support.clients.browser import NewWindow, run_apart
from support.clients.ingesting import until
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import one_in

from acl.tokens import hash_token
from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

BAD = "<script>top.hit=1</script>\"'><img/src=x/onerror=top.hit=2><svg/onload=top.hit=3>"
SECRET = "0123456789abcdefghijklmnop-"
ACL = """
principals:
  ann: {token_hash: "%s"}
  eve: {token_hash: "%s"}
roles:
  owner: [{allow: [read, commit, admin], streams: ["*"]}]
  reader: [{allow: [read], streams: ["orders"], subjects: ["orders.eu.>"]}]
bindings: {ann: [owner], eve: [reader]}
"""
LONG = "plant-eu-central-1-line-42-temperature-and-vibration-of-all"
STREAMS: dict[str, Any] = {
    "orders": {"subject": "orders.>", "segment": {"max_bytes": "64KiB"},
               "compaction": {"min_lag": "1d"}},
    "hostile": {"subject": "hostile.>"},
    LONG: {"subject": "plant.eu-central-1.line-42.machine.*.temperature.and.vibration.>"},
}  # fmt: skip


async def _publish(url: str, messages: list[tuple[str, bytes, dict[str, str] | None]]) -> None:
    connection = await nats.connect(url)
    for subject, payload, headers in messages:
        await connection.publish(subject, payload, headers=headers)
    await connection.flush()
    await connection.close()


def fill(server: NatsServer, daemon: Daemon, count: int = 600) -> None:
    messages: list[tuple[str, bytes, dict[str, str] | None]] = []
    for i in range(count):
        where = ("eu", "us")[i % 2]
        body = json.dumps({"order": i, "note": "x" * 200}).encode()
        messages.append((f"orders.{where}.new", body, {"Liftlog-Key": f"k-{i % 40}"}))
    text = BAD.replace(" ", "")
    values = [
        BAD.encode(),
        json.dumps({BAD: [BAD]}).encode(),
        b"\x81" + _packed(BAD) + _packed(BAD),
    ]
    messages += [
        (f"hostile.{text}", value, {"Liftlog-Key": BAD, "X-Note": BAD}) for value in values
    ]
    run_apart(_publish(server.url, messages))
    deadline = time.monotonic() + 20
    while daemon.metric("liftlog_records_total") < len(messages):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _packed(text: str) -> bytes:
    return b"\xd9" + bytes([len(text)]) + text.encode()


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        fill(server, daemon)
        share(daemon)
        yield daemon


def share(daemon: Daemon) -> None:
    """A group of two members, which stay members for their sessions, and one without."""
    address = daemon.pull_address
    with connect_sync(address) as client, connect_sync(address) as other:
        one = client.group("billing", "orders", member="worker-1", session=3600, slots=24)
        next(one)
        deadline = time.monotonic() + 60
        with other.group("billing", "orders", member=LONG, session=3600):
            while len(one.slots) != 12:
                assert time.monotonic() < deadline
                next(one)  # gives up what it has too much, once it has heard of that
                time.sleep(0.05)
        one.commit()
        one.close()
        client.seek_group("idle", "orders", 301)


@pytest.fixture(scope="module")
def guarded(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    path = tmp_path_factory.mktemp("acl") / "acl.yaml"
    path.write_text(ACL % (hash_token(SECRET + "ann"), hash_token(SECRET + "eve")))
    settings = {"streams": {"orders": STREAMS["orders"]}, "acl": {"file": str(path)},
                "name": "guarded"}  # fmt: skip
    with Daemon(server.url, settings) as daemon:
        fill_orders_only(server, daemon)
        yield daemon


def fill_orders_only(server: NatsServer, daemon: Daemon) -> None:
    run_apart(_publish(server.url, [(f"orders.{w}.new", b"v", None) for w in ("eu", "us")]))
    deadline = time.monotonic() + 20
    while daemon.metric("liftlog_records_total", stream="orders") < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)


PAGES = ("/ui/streams", "/ui/streams/orders", "/ui/streams/orders/records?limit=25",
         "/ui/streams/orders/records/3", "/ui/streams/orders/pause", "/ui/consumers", "/ui/access",
         "/ui/streams/orders/groups/billing",
         "/ui/streams/orders/groups/absent", "/ui/streams?q=absent", "/ui/streams?only=problems",
         "/ui/charts", "/ui/streams/orders/charts", "/ui/streams/orders/charts?group=billing",
         "/ui/charts?span=24h", f"/ui/streams/{LONG}", f"/ui/streams/{LONG}/records",
         "/ui/streams/orders/consumers/fresh", "/ui/streams/orders/consumers/fresh?to=never",
         "/ui/streams/orders/consumers/fresh?to=7", "/ui/streams/orders/compact",
         "/ui/streams/orders/records?value=a%5B&kind=regex&time=never", "/ui/cluster",
         "/ui/streams/orders/versions?key=k-3", "/ui/streams/orders/versions?key=absent",
         "/ui/streams/orders/records?fields=order,note&limit=25",
         "/ui/streams/hostile/records/3?view=hex", "/ui/streams/orders/records/9999",
         "/ui/create", "/ui/streams/orders/edit", "/ui/streams/orders/publish?subject=orders.eu.x",
         "/ui/streams/orders/erase?offset=3",
         "/ui/topology", "/ui/topology?subject=orders.eu.new", "/ui/topology?subject=Orders",
         "/ui/health", "/ui/streams/absent", "/ui/nowhere", "/ui/login")  # fmt: skip


@pytest.mark.parametrize("part", range(4))
def test_every_page_in_every_way(daemon: Daemon, window: NewWindow, part: int) -> None:
    page = window(daemon).page
    for path in one_in(1, PAGES[part::4], f"pages {part}"):
        page.goto(path)
        check_in_every_way(page, path)


@pytest.mark.long
def test_what_is_opened_and_what_is_wrong_in_every_way(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/streams/orders/records?key=k-3&limit=25")
    page.locator("table.records summary").first.click()
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_text("Following")).to_be_visible()
    check_in_every_way(page, "an expanded record")
    page.goto("/ui/streams/orders")
    for summary in page.locator("main > section > details > summary").all():
        summary.click()
    check_in_every_way(page, "a stream with its tables")
    page.goto("/ui/create")
    page.get_by_label("Name").fill("bills")
    page.get_by_label("Subject").fill("bills.>")
    page.get_by_label("At most this old").fill("soon")
    page.get_by_role("button", name="Create").click()
    check_in_every_way(page, "a stream that cannot be created")
    page.goto("/ui/streams/orders/publish")
    page.get_by_label("Subject").fill("hostile.no")
    page.get_by_role("button", name="Publish").click()
    check_in_every_way(page, "a message that cannot be published")
    page.goto("/ui/charts")
    expect(page.locator(".chart").first).to_be_visible(timeout=30_000)
    page.locator(".chart").first.focus()
    check_in_every_way(page, "a chart that is read")
    with connect_sync(daemon.pull_address) as client:
        client.create_stream("made", "made.>")
        page.goto("/ui/streams/made/edit")
        page.get_by_label("At most this old").fill("3d")
        page.get_by_role("button", name="Preview").click()
        check_in_every_way(page, "a change")
        client.delete_stream("made")


@pytest.mark.long
def test_pages_of_a_daemon_with_an_acl_in_every_way(guarded: Daemon, window: NewWindow) -> None:
    pages = {
        "ann": ("/ui/streams", "/ui/access", "/ui/access?stream=orders&principal=eve",
                "/ui/access?stream=orders&subject=orders.eu.x", "/ui/access?stream=bad!"),
        "eve": ("/ui/access?stream=orders", "/ui/streams/orders", "/ui/streams/orders/pause",
                "/ui/charts", "/ui/topology?subject=payments.new"),
    }  # fmt: skip
    for who, paths in pages.items():
        page = window(guarded).page
        page.goto("/ui/login")
        page.get_by_label("Token").fill(f"{who}.wrong")
        page.get_by_role("button", name="Sign in").click()
        if who == "eve":
            check_in_every_way(page, "a wrong token")
        page.get_by_label("Token").fill(f"{who}.{SECRET}{who}")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
        for path in paths:
            page.goto(path)
            check_in_every_way(page, path)


@pytest.mark.parametrize("path", ["/ui/streams", "/ui/streams/orders/records"])
def test_no_name_pushes_figures_out_of_sight(daemon: Daemon, window: NewWindow, path: str) -> None:
    for width in (390, 1280):
        page = window(daemon, viewport={"width": width, "height": 800}).page
        page.goto(path)
        table = page.locator(".scroll").first
        assert table.evaluate("one => one.scrollWidth <= one.clientWidth"), width
    rows = page.locator("table.streams tbody tr")
    assert all(
        height < 100 for height in rows.evaluate_all("all => all.map(one => one.offsetHeight)")
    )
    # On a desk the form stands on two lines.
    fields = page.locator("form.filters").locator("input, select, button").locator("visible=true")
    tops = fields.evaluate_all("all => all.map((one) => one.getBoundingClientRect().top)")
    assert len({round(top / 20) for top in tops}) <= 2


def test_nothing_of_a_row_is_cut_off_on_a_phone(daemon: Daemon, window: NewWindow) -> None:
    """Consumers, groups, leases and possible losses: a card for each row, with its labels."""
    with connect_sync(daemon.pull_address) as client:
        client.acquire_lease("orders", "earliest", ttl=60, holder=LONG)
        client.commit_checkpoint(LONG, "orders", 1)
    page = window(daemon, viewport={"width": 390, "height": 800}).page
    for path, name in (
        ("/ui/streams/orders", "Consumers"),
        ("/ui/streams/orders", "Leases"),
        ("/ui/streams/orders", "Segments"),
        ("/ui/streams/orders/records?fields=order,note,absent", "Records"),
        ("/ui/streams/orders/versions?key=k-3", "Versions"),
        ("/ui/consumers", "Consumers"),
        ("/ui/consumers", "Groups"),
    ):
        page.goto(path)
        if name == "Segments":
            page.get_by_text("As a table").click()
        region = page.get_by_role("region", name=f"{name}, a table")
        assert region.evaluate("one => one.scrollWidth <= one.clientWidth"), name
        if name == "Versions":
            value = region.get_by_role("cell").filter(has_text='{"order": 363')
            assert value.bounding_box()["width"] > 300
            continue  # its last column needs no header
        assert (
            region.get_by_role("columnheader").count()
            == region.get_by_role("row").nth(1).locator("> *").count()
        ), "a screen reader still sees a table"
    label = "one => getComputedStyle(one, '::before').content"
    assert page.get_by_role("cell").first.evaluate(label) == '"Stream: "'
    with connect_sync(daemon.pull_address) as client:
        client.delete_checkpoint(LONG, "orders", 1)


def test_from_the_overview_to_a_record(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("orders")
    page.get_by_text("As a table").click()
    assert page.get_by_role("region", name="Segments, a table").locator("tbody tr").count() > 1
    page.get_by_role("link", name="Records", exact=True).click()
    assert page.locator("table.records tbody tr").count() == 50
    page.get_by_label("Subject").fill("orders.us.>")
    page.get_by_label("Key").fill("k-3")
    page.get_by_role("button", name="Show").click()
    rows = page.locator("table.records tbody tr")
    expect(rows).to_have_count(15)
    assert set(rows.locator("td").nth(1).all_inner_texts()) == {"orders.us.new"}
    rows.last.get_by_role("link").click()
    expect(page.locator(".content")).to_contain_text('"order": 3')
    page.get_by_role("link", name="hex").click()
    expect(page.locator("pre")).to_contain_text("00000000  7b 22")
    page.get_by_role("link", name="All records with this key").click()
    expect(page.locator("table.records tbody tr")).to_have_count(15)


def test_without_javascript(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon, java_script_enabled=False).page
    page.goto("/ui/streams")
    assert page.locator("[data-live-status]").is_hidden()
    page.get_by_label("Name or subject").fill("hos")
    page.get_by_role("button", name="Find").click()
    assert page.locator("table.streams tbody tr").count() == 1
    page.get_by_role("link", name="hostile", exact=True).click()
    page.get_by_role("link", name="Pause…").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".notice")).to_contain_text("Paused")
    expect(page.locator("h1 .state")).to_have_text("paused")
    page.get_by_role("link", name="Resume…").click()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("h1 .state")).to_have_text("attached")
    page.get_by_role("link", name="Records", exact=True).click()
    page.get_by_label("From time").fill("1h")
    page.get_by_role("button", name="Show").click()
    assert page.locator("table.records tbody tr").count() == 3


def test_a_stream_from_its_creation_on_without_javascript(
    daemon: Daemon, window: NewWindow
) -> None:
    page = window(daemon, java_script_enabled=False).page
    page.goto("/ui/topology?subject=bills.eu.new")
    expect(page.get_by_text("is not stored")).to_be_visible()
    page.get_by_role("link", name="Create a stream for it").click()
    page.get_by_label("Name").fill("bills")
    page.get_by_label("Subject").fill("bills.>")
    page.get_by_label("At most this old").fill("soon")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("alert")).to_contain_text("retention.max_age")
    wrong = page.locator("[aria-invalid=true]")
    assert wrong.evaluate_all("all => all.map((one) => one.name)") == ["max_age"]
    wrong.fill("3d")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").first).to_contain_text("records its subject")
    page.get_by_role("link", name="Publish…").click()
    page.get_by_label("Subject").fill("orders.no")
    page.get_by_label("Value").fill('{"cents": 1}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("alert")).to_contain_text("does not match that")
    page.get_by_label("Subject").fill("bills.eu.new")
    page.get_by_label("Key", exact=True).fill("bill-1")
    page.get_by_label("Headers").fill("Origin: page")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status").first).to_contain_text("Stored at offset 1 of bills.")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.locator(".content")).to_contain_text('"cents": 1')
    expect(page.get_by_role("region", name="Headers")).to_contain_text("Origin")
    page.goto("/ui/streams/bills")
    page.get_by_role("link", name="Edit…").click()
    page.get_by_label("At most this old").fill("")
    page.get_by_label("More settings").fill("max_message_bytes: 1MiB")
    page.get_by_role("button", name="Preview").click()
    changes = page.get_by_role("region", name="Changes").locator("tbody th")
    assert changes.all_inner_texts() == ["max_message_bytes", "retention.max_age"]
    page.get_by_role("button", name="Change", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("The settings are changed")
    page.goto("/ui/topology?subject=bills.eu.new")
    expect(page.get_by_text("is recorded by 1 stream")).to_be_visible()


def test_what_somebody_published_does_nothing(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    pages = ["/ui/streams/hostile/records"]
    pages += [
        f"/ui/streams/hostile/records/{n}?view={view}"
        for n, view in ((1, "auto"), (1, "text"), (2, "json"), (3, "msgpack"), (3, "hex"))
    ]
    pages += ["/ui/streams/hostile/records?key=" + "%3Cimg%20src%3Dx%20onerror%3Dtop.hit%3D4%3E"]
    for path in pages:
        page.goto(path)
        assert page.evaluate("window.hit") is None
        assert page.locator("main script, main img").count() == 0
    page.goto(pages[1])
    assert BAD in page.locator("pre").inner_text()


def test_a_line_is_one_line_and_no_column_is_pushed_out(
    daemon: Daemon, server: NatsServer, window: NewWindow
) -> None:
    run_apart(
        _publish(server.url, [("hostile.key", b'{"a": {"b": 1}}', {"Liftlog-Key": "k " * 100})])
    )
    with connect_sync(daemon.pull_address) as client:
        client.commit_checkpoint(LONG * 2, "orders", 1)
    page = window(daemon, viewport={"width": 1280, "height": 800}).page
    page.goto("/ui/streams/hostile/records?subject=hostile.key")
    row = page.locator("table.records tbody tr")
    expect(row).to_have_count(1)
    assert row.bounding_box()["height"] < 45
    for path in ("/ui/consumers", "/ui/streams/orders"):
        page.goto(path)
        table = page.get_by_role("region", name="Consumers, a table")
        expect(table).to_contain_text(LONG * 2)
        assert table.evaluate("one => one.scrollWidth <= one.clientWidth"), path
    with connect_sync(daemon.pull_address) as client:
        client.delete_checkpoint(LONG * 2, "orders", 1)


def test_a_line_expands_in_place(daemon: Daemon, window: NewWindow) -> None:
    one = window(daemon, permissions=["clipboard-read", "clipboard-write"])
    page = one.page
    page.goto("/ui/streams/orders/records?key=k-3")
    expect(page.locator("table.records tbody tr")).to_have_count(15)
    row = page.locator("table.records tbody tr").last
    height = row.bounding_box()["height"]
    assert height < 45, "one line each"
    row.locator("summary").first.click()
    value = page.get_by_role("region", name="Value of record 4 as json")
    expect(value).to_contain_text('"order": 3')
    assert value.bounding_box()["width"] > 900, "over the whole width"
    check_accessible(page)
    value.locator("summary").click()
    expect(value.get_by_text('"order"')).to_be_hidden()
    row.get_by_role("button", name="Copy value").click()
    expect(row.get_by_role("status")).to_have_text("Copied")
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["order"] == 3
    row.get_by_role("button", name="Copy link").click()
    expect(row.get_by_role("status")).to_have_text("Copied")
    page.goto(page.evaluate("navigator.clipboard.readText()"))
    expect(page.get_by_role("heading", level=1)).to_have_text("Record 4")


def test_a_value_folds_without_javascript(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon, java_script_enabled=False).page
    page.goto("/ui/streams/orders/records?key=k-3")  # what others publish has no key
    page.locator("table.records tbody tr").first.locator("summary").first.click()
    assert page.get_by_role("button", name="Copy value").count() == 0
    value = page.get_by_role("region", name="as json")
    name = value.get_by_text('"order"')
    expect(name).to_be_visible()
    value.locator("summary").click()
    expect(name).to_be_hidden()


def test_a_phone_shows_few_fields_until_it_is_asked_for_all(
    daemon: Daemon, window: NewWindow
) -> None:
    page = window(daemon, viewport={"width": 390, "height": 800}, java_script_enabled=False).page
    page.goto("/ui/streams/orders/records")
    key = page.get_by_label("Key", exact=True)
    expect(key).to_be_hidden()
    assert page.get_by_role("rowheader").first.bounding_box()["y"] < 800, "records are in sight"
    page.get_by_label("All fields").check()
    key.fill("k-3")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("table.records tbody tr")).to_have_count(15)
    expect(key).to_have_value("k-3")  # what is filled in is shown
    expect(key).to_be_visible()


def test_after_a_search_what_was_found_is_next(daemon: Daemon, window: NewWindow) -> None:
    """For those who use the keyboard, and on a phone, which the form fills."""
    for width, is_form_in_sight in ((390, False), (1280, True)):
        page = window(daemon, viewport={"width": width, "height": 800}).page
        page.goto("/ui/streams/orders/records")
        subject = page.get_by_label("Subject", exact=True)
        subject.fill("orders.>")
        subject.press("Enter")
        expect(page).to_have_url(re.compile("subject=.*#found$"))
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.closest('form')")
        assert focused is None, "the form lies before"
        top = page.get_by_label("Search in values").bounding_box()
        assert top is not None
        assert (top["y"] > 0) == is_form_in_sight


def test_what_is_wrong_is_told_in_the_form(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/streams/orders/records")
    page.get_by_label("From time").fill("soon")
    page.get_by_label("Search in values").fill("(a")
    page.get_by_label("Search for").select_option("regex")
    page.get_by_role("button", name="Show").click()
    check_accessible(page)
    expect(page.get_by_role("alert")).to_contain_text("2 fields")
    wrong = page.locator("[aria-invalid=true]")
    assert wrong.evaluate_all("all => all.map((one) => one.value)") == ["(a", "soon"]
    expect(page.get_by_label("From time")).to_have_accessible_description(
        "Expected a time such as 2026-01-31 15:00 or yesterday 15:00, or 15m, 2h, 3d for a time "
        "ago."
    )
    expect(page.get_by_label("Search in values")).to_have_accessible_description(
        re.compile(r"missing \)")
    )
    page.get_by_label("From time").fill("1h")
    page.get_by_label("Search in values").fill('"order": (7|9),')
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("rowheader")).to_have_text(["10", "8"])  # of a slow machine in parts


@pytest.mark.long
def test_following_a_stream(daemon: Daemon, server: NatsServer, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/streams/hostile/records?subject=hostile.tail")
    expect(page.get_by_text("No records match.")).to_be_visible()
    rows = page.locator("table.records tbody tr")
    follow = page.get_by_role("button", name="Follow")
    follow.click()
    run_apart(
        _publish(server.url, [("hostile.tail", b"one", None), ("hostile.other", b"no", None)])
    )
    expect(rows).to_have_count(1)
    run_apart(_publish(server.url, [("hostile.tail", b"two", None)] * 2))
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("two")
    expect(rows.last).to_contain_text("one")
    follow.click()
    expect(page.locator("[data-tail] [role=status]")).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    run_apart(_publish(server.url, [("hostile.tail", b"three", None)]))
    page.wait_for_timeout(1500)
    assert asked == []
    follow.click()
    expect(rows).to_have_count(4)
    expect(rows.first).to_contain_text("three")
    # A page that does not hear of the daemon says so.
    page.route("**/records?*", lambda route: route.abort())
    expect(page.get_by_text("does not answer")).to_be_visible()
    page.unroute("**/records?*")
    expect(page.locator("[data-tail] [role=status]")).to_have_text("Following")


@pytest.mark.long
def test_it_lives(daemon: Daemon, server: NatsServer, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/streams/orders")
    mark = page.locator("[data-count=high_watermark]")
    before = int(mark.inner_text().replace(",", ""))
    run_apart(_publish(server.url, [("orders.eu.new", b"{}", None)] * 7))
    expect(mark).to_have_text(f"{before + 7:,}")
    # Another shape: a consumer appears, and what was opened stays open.
    page.get_by_text("As a table").click()
    with connect_sync(daemon.pull_address) as client:
        client.commit_checkpoint("billing", "orders", 5)
    expect(page.get_by_role("rowheader", name="billing")).to_be_visible()
    assert page.get_by_role("region", name="Segments, a table").is_visible()
    page.get_by_role("button", name="Live").click()
    run_apart(_publish(server.url, [("orders.eu.new", b"{}", None)]))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(2500)
    assert asked == []
    page.get_by_role("button", name="Live").click()
    expect(mark).to_have_text(f"{before + 8:,}")


def test_a_page_whose_daemon_is_gone_says_so(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/streams/orders")
    state = page.locator("h1 .state")
    usual = state.evaluate("one => getComputedStyle(one).color")
    page.route("**/*.json", lambda route: route.abort())
    expect(page.get_by_text("The daemon has not answered since")).to_be_visible()
    expect(state).not_to_have_css("color", usual)  # no longer green
    check_in_every_way(page, "a daemon that is gone")
    page.emulate_media(color_scheme="light")
    page.unroute("**/*.json")
    expect(page.get_by_text("The daemon has not answered since")).to_be_hidden(timeout=30_000)
    expect(state).to_have_css("color", usual)


@pytest.mark.long
def test_consumers_of_all_streams(daemon: Daemon, server: NatsServer, window: NewWindow) -> None:
    with connect_sync(daemon.pull_address) as client:
        client.commit_checkpoint("slow", "orders", 3)
        client.commit_checkpoint("slow", "hostile", 2)
    page = window(daemon).page
    page.goto("/ui/streams")
    page.get_by_role("link", name="Consumers").click()
    page.get_by_label("Consumer, group or stream").fill("slow")
    page.get_by_role("button", name="Find").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(2)
    lag = rows.filter(has_text="orders").locator("[data-count=lag]")
    before = int(lag.inner_text().replace(",", ""))
    run_apart(_publish(server.url, [("orders.eu.new", b"{}", None)] * 2))
    expect(lag).to_have_text(f"{before + 2:,}")
    expect(rows.filter(has_text="orders").locator("[data-duration]")).to_have_text(
        re.compile(r"\d (s|min|h)")
    )
    lag.click()
    waits = re.compile(r"^Oldest record that is not read: now waits for [1-9][\d.]* (s|min)")
    expect(page.get_by_label(waits)).to_be_visible(timeout=30_000)
    expect(page.get_by_label(re.compile(r"^Lag: now records \d{3}"))).to_be_visible()


def test_the_picture_of_a_group(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/consumers")
    page.get_by_role("link", name="billing", exact=True).click()
    strips = page.locator("td svg.slots")
    expect(strips).to_have_count(2)
    owned = [strips.nth(number).locator(".owned") for number in range(2)]
    for blocks in owned:
        expect(blocks).to_have_count(12)
    # Each slot is a block of one of them, at its own place.
    places = [
        box["x"]
        for blocks in owned
        for box in blocks.evaluate_all("all => all.map(one => one.getBoundingClientRect())")
    ]
    assert len({round(place) for place in places}) == 24
    page.goto("/ui/streams/orders/groups/idle")
    expect(page.get_by_text("no owner")).to_be_visible()
    images = page.get_by_role("img", name=re.compile("^slots 0 to 63; farthest"))
    expect(images).to_have_count(2)  # of the whole, and of what has no owner
    expect(images.first).to_be_visible()
    page.set_viewport_size({"width": 390, "height": 800})  # a phone shows whose they are at once
    scroll = page.locator(".scroll")
    assert scroll.evaluate("one => one.scrollWidth <= one.clientWidth")
    page.locator("a[data-count=lag]").click()
    expect(page.get_by_text("The group idle.")).to_be_visible()
    waits = re.compile(r"^Oldest record that is not read: now waits for [1-9][\d.]* (s|min)")
    expect(page.get_by_label(waits)).to_be_visible(timeout=30_000)


def _charted(daemon: Daemon, name: str) -> list[float]:
    found = json.loads(daemon.get("/ui/streams/orders/charts.json")[1])
    return list(found["series"][name])


@pytest.mark.long
def test_charts_are_read_with_pointer_and_keys(
    daemon: Daemon, server: NatsServer, window: NewWindow
) -> None:
    page = window(daemon).page
    page.goto("/ui/streams/orders/charts")
    expect(page.get_by_label(re.compile(r"^Records: now"))).to_be_visible(timeout=30_000)
    # What is read stays in sight when the page updates itself.
    chart = page.get_by_label(re.compile(r"^Records: now"))
    chart.locator(".spot").last.hover()
    expect(chart.locator("output")).to_be_visible()
    page.evaluate("document.addEventListener('replaced', () => { window.isReplaced = true; })")
    until(lambda: page.evaluate("window.isReplaced"), 30)
    expect(chart.locator("output")).to_be_visible()
    run_apart(_publish(server.url, [("orders.eu.new", b"{}", None)] * 10))
    with connect_sync(daemon.pull_address) as client:
        assert len(list(client.read("orders", "earliest", "end"))) >= 600  # what fill() stored
    chart = page.get_by_label(re.compile(r"^Records: now stored [\d.,]+/s, read .*; highest [1-9]"))
    expect(chart).to_be_visible(timeout=30_000)  # the page has updated itself
    until(lambda: max(_charted(daemon, "read_records")) > 0)
    assert max(_charted(daemon, "read_bytes")) > max(_charted(daemon, "read_records"))
    page.get_by_role("button", name="Live").click()  # the points stay where they are
    said = chart.locator("output")
    expect(said).to_be_hidden()
    spots = chart.locator(".spot")
    spots.last.hover()
    expect(said).to_have_text(re.compile(r"^\d\d:\d\d:\d\d: stored [\d.,]+/s, read [\d.,]+/s$"))
    page.mouse.move(0, 0)
    expect(said).to_be_hidden()
    chart.focus()
    expect(said).to_have_text(spots.last.locator("title").text_content() or "")
    page.keyboard.press("Home")
    expect(said).to_have_text(spots.first.locator("title").text_content() or "")
    page.get_by_role("link", name="24 hours").click()
    expect(page.get_by_role("link", name="24 hours")).to_have_attribute("aria-current", "true")
    expect(page.get_by_text("The first values come after 10 min")).to_be_visible()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Charts").click()
    for name in ("Records", "Bytes", "Time to ack", "fsync", "Messages refused", "Possible losses",
                 "Largest lag of a consumer or group"):  # fmt: skip
        expect(page.get_by_label(re.compile(f"^{name}: "))).to_be_visible(timeout=30_000)


def test_a_consumer_is_moved(daemon: Daemon, window: NewWindow) -> None:
    with connect_sync(daemon.pull_address) as client:
        client.commit_checkpoint("mover", "orders", 5)
        page = window(daemon).page
        page.goto("/ui/streams/orders")
        page.get_by_role("link", name="Move… mover").click()
        page.get_by_label("New position").fill("nonsense")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_text("expected start, end, an offset, a time")).to_be_visible()
        check_accessible(page)
        page.get_by_label("New position").fill("2")
        page.keyboard.press("Enter")
        expect(page.get_by_text("It reads 3 offsets again.")).to_be_visible()
        check_accessible(page)
        page.get_by_role("button", name="Move", exact=True).click()
        expect(page.get_by_role("status").first).to_contain_text("The checkpoint is stored.")
        found = client.fetch_checkpoint("mover", "orders")
        assert found is not None
        assert found.offset == 2


def test_the_script_writes_numbers_as_the_daemon_does(daemon: Daemon, window: NewWindow) -> None:
    from liftlog.server.web import formats
    from liftlog.server.web.formats import spark_points
    from liftlog.server.web.history import FINEST, SPANS

    numbers = [0, 0.04, 0.05, 0.25, 1.25, 9.95, 9.99, 10, 59.96, 99.94, 99.95, 512, 1023, 1023.5,
               1280, 1536, 102_348, 1_048_575, 1_234_567, 90_061, 3_600, 5e9, 7.3e13,
               2**53]  # fmt: skip
    page = window(daemon).page
    page.goto("/ui/streams")
    said = page.evaluate(
        """async (numbers) => { const m = await import('/ui/static/live.js?again');
        return numbers.map((n) => [m.count(n), m.size(n), m.rate(n), m.percent((n % 1000) / 1000),
                                   m.duration(n)]); }""",
        numbers,
    )
    for number, texts in zip(numbers, said, strict=True):
        expected = [formats.count(number), formats.size(number), formats.rate(number),
                    formats.percent(number % 1000 / 1000), formats.duration(number)]  # fmt: skip
        assert texts == expected, number
    history = [0, 3.25, 100, 17.5]
    points = page.evaluate(
        "async (h) => (await import('/ui/static/live.js?again')).sparkPoints(h)", history
    )
    near = [
        pytest.approx(float(n), abs=0.11)
        for n in re.findall(r"[\d.]+", spark_points(history, SPANS[FINEST].kept))
    ]
    assert [float(n) for n in re.findall(r"[\d.]+", points)] == near


def test_with_the_keyboard_alone(daemon: Daemon, window: NewWindow) -> None:
    page = window(daemon).page
    page.goto("/ui/streams")
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    seen = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        seen.add(page.evaluate("document.activeElement.textContent.trim().slice(0, 20)"))
        assert outline != "none" or page.evaluate("document.activeElement === document.body")
    assert {"orders", "Find"} <= seen


def test_signing_in(guarded: Daemon, window: NewWindow) -> None:
    one = window(guarded)
    page = one.page
    page.goto("/ui/streams/orders/records")
    expect(page.get_by_label("Token")).to_be_focused()
    check_accessible(page)
    page.get_by_label("Token").fill("ann.wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
    page.get_by_label("Token").fill(f"ann.{SECRET}ann")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Records of orders")
    (cookie,) = one.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    page.goto("/ui/access?stream=orders&principal=eve")
    check_accessible(page)
    assert "rule 1 of role 'reader'" in page.get_by_role("region", name="Explanation").inner_text()
    page.goto("/ui/streams/orders")
    page.get_by_role("link", name="Compact now…").click()
    page.get_by_role("button", name="Compact now").click()
    expect(page.locator(".notice")).to_contain_text("compaction pass")
    page.get_by_role("button", name="Sign out").click()
    page.goto("/ui/streams")
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_principal_with_less(guarded: Daemon, window: NewWindow) -> None:
    page = window(guarded).page
    page.goto("/ui/login")
    page.get_by_label("Token").fill(f"eve.{SECRET}eve")
    page.get_by_role("button", name="Sign in").click()
    page.goto("/ui/streams/orders/records")
    rows = page.locator("table.records tbody tr")
    assert rows.locator("td").nth(1).all_inner_texts() == ["orders.eu.new"]
    assert page.goto("/ui/streams/orders/pause").status == 403
    check_accessible(page)
    page.goto("/ui/streams/orders")
    assert page.get_by_role("link", name="Pause…").count() == 0


def test_a_page_of_somebody_else_can_do_nothing(
    guarded: Daemon, window: NewWindow, tmp_path: Path
) -> None:
    """It posts a form into the session of its visitor, and shows our page in a frame."""
    one = window(guarded)
    page = one.page
    page.goto("/ui/login")
    page.get_by_label("Token").fill(f"ann.{SECRET}ann")
    page.get_by_role("button", name="Sign in").click()
    target = f"{one.base}/ui/streams/orders/pause"
    evil = tmp_path / "evil.html"
    evil.write_text(f'<form method="post" action="{target}"><button>go</button></form>'
                    f'<iframe src="{one.base}/ui/streams"></iframe>')  # fmt: skip
    other = one.context.new_page()
    other.goto(evil.as_uri())
    with other.expect_navigation() as arrived:
        other.get_by_role("button").click()
    assert arrived.value.status in (303, 403)
    assert "attached" in page.goto("/ui/streams/orders").text()
    other.close()
