"""The page "Ten tasks": its commands run, its ways through the web page lead there, and its table
has the steps that they take; with the mouse, and with the keyboard alone."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
from playwright.sync_api import Locator, Page, expect
from support.clients.accessibility import check_in_every_way
from support.clients.browser import NewWindow
from support.clients.command_line import Cli
from support.clients.ingesting import publish
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import batch_positions, flip
from support.repository import REPOSITORY

from acl.tokens import hash_token
from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

PAGE = (REPOSITORY / "docs/how-to/ten-tasks.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
_ROW = re.compile(r"^\| ([^|]+) \| \d \| (\d+) \|", re.MULTILINE)
STEPS = {name: int(steps) for name, steps in _ROW.findall(PAGE)}
STREAMS = {
    "orders": {"subject": "orders.>"},
    "orders-eu": {"subject": "orders.eu.*", "queue_group": "archive"},
    "customers": {"subject": "customers.*", "segment": {"max_bytes": "4KiB"},
                  "dedupe_window": "0s", "compaction": {}},
    "payments": {"subject": "payments.>", "segment": {"max_bytes": "4KiB"}, "dedupe_window": "0s"},
}  # fmt: skip
SECRET = "s" * 40
ACL = f"""
principals: {{ops: {{token_hash: "{hash_token(SECRET)}"}}, eve: {{unix_uid: 4294967294}}}}
roles:
  all: [{{allow: [create, delete, admin, read, commit], streams: ["*"], attach: [">"]}}]
  some: [{{allow: [read], streams: [payments], subjects: ["payments.eu.>"]}}]
bindings: {{ops: [all], eve: [some]}}
"""
TOKEN = f"ops.{SECRET}"
MAX_TABS = 150
_FIELDS: tuple[Literal["textbox"], Literal["combobox"]] = ("textbox", "combobox")


@pytest.fixture(scope="module")
def daemon(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("tasks")
    (directory / "acl.yaml").write_text(ACL)
    settings = {"streams": STREAMS, "acl": {"file": str(directory / "acl.yaml")}}
    with Daemon(server.url, settings, directory=directory) as daemon:
        with RawNats(server.port) as raw, connect_sync(daemon.pull_address, token=TOKEN) as client:
            for number in range(10, 20):
                value = json.dumps({"customer": {"id": number}, "pad": "x" * 20}).encode()
                publish(raw, "orders.us.new", value, Liftlog_Key=f"order-{number}")
            for state in ("new", "paid"):
                value = json.dumps({"state": state}).encode()
                publish(raw, f"orders.eu.{state}", value, Liftlog_Key="order-42")
            for _ in range(12):
                publish(raw, "payments.eu.card", b"x" * 1000)
            client.commit_checkpoint("billing", "orders", 2)
            client.acquire_lease("customers", "earliest", ttl=600, holder="a long read")
            for _ in range(12):
                publish(raw, "customers.1", b"x" * 1000, Liftlog_Key="k")
        daemon.stop()
        first = min((daemon.data_dir / "streams" / "payments").glob("*.log"))
        flip(first, batch_positions(first)[1][0] + 100)
        daemon.start()
        with connect_sync(daemon.pull_address, token=TOKEN) as client:
            list(client.read("payments", "earliest", "end", on_corrupt=lambda error: None))
        yield daemon


def test_the_commands(daemon: Daemon, server: NatsServer) -> None:
    liftlog = Cli(daemon, server)
    liftlog.environ["LIFTLOG_TOKEN"] = TOKEN
    shown = {}
    for line in COMMANDS:
        program, *words = shlex.split(line.replace("liftlog.yaml", str(daemon.config_path)))
        assert program == "liftlog"
        shown[line.split(" -")[0]] = liftlog.ok(*words)
    assert "oldest unread" in shown["liftlog offsets info billing"]
    assert shown["liftlog consume orders"].startswith("offset,timestamp,key,value.customer.name")
    assert "eve        payments.eu.>" in shown["liftlog acl who read payments"]
    assert "offset 2: " in shown["liftlog stream info payments"]
    assert "a long read holds the records from" in shown["liftlog stream info customers"]
    assert "hello" in shown["liftlog tail returns"]


class Visitor:
    """Counts what is done. Without a mouse everything is reached with Tab, which does not count."""

    def __init__(self, page: Page, *, has_mouse: bool) -> None:
        self.page = page
        self.steps = 0
        self._has_mouse = has_mouse

    def _reach(self, target: Locator) -> None:
        expect(target).to_be_visible()
        self.steps += 1
        tabs = 0
        while not target.evaluate("one => one === document.activeElement"):
            self.page.keyboard.press("Tab")
            tabs += 1
            assert tabs < MAX_TABS, f"{target} cannot be reached"

    def press(self, target: Locator) -> None:
        if self._has_mouse:
            target.click()
            self.steps += 1
        else:
            self._reach(target)
            self.page.keyboard.press("Enter")

    def link(self, name: str) -> None:
        self.press(self.page.get_by_role("link", name=name, exact=True))

    def fill(self, name: str, text: str) -> None:
        fields = [self.page.get_by_role(one, name=name, exact=True) for one in _FIELDS]
        field = fields[0].or_(fields[1])
        if self._has_mouse:
            field.fill(text)
            self.steps += 1
        else:
            self._reach(field)
            self.page.keyboard.type(text)

    def enter(self) -> None:
        self.page.keyboard.press("Enter")
        self.steps += 1

    def see(self, text: str) -> None:
        expect(self.page.locator("main").get_by_text(text).first).to_be_visible()


def find_a_record(visitor: Visitor) -> None:
    visitor.link("orders")
    visitor.link("Records")
    visitor.fill("Search in values", "customer.id = 17")
    visitor.fill("From time", "1h")
    visitor.enter()
    visitor.press(visitor.page.get_by_role("link", name="Search for the JSON field"))
    visitor.see("order-17")


def see_why_it_is_late(visitor: Visitor) -> None:
    visitor.link("Consumers")
    visitor.see("billing")


def compare_versions(visitor: Visitor) -> None:
    visitor.link("orders")
    visitor.link("Records")
    visitor.fill("Key", "order-42")
    visitor.enter()
    expect(visitor.page.locator("table.records tbody tr")).to_have_count(2)
    visitor.press(visitor.page.locator("table.records summary").first)
    visitor.press(visitor.page.get_by_role("link", name="Versions of this key").first)
    visitor.see("What has changed")


def replay_an_hour(visitor: Visitor) -> None:
    visitor.link("orders")
    visitor.fill("New consumer", f"by-{id(visitor)}")
    visitor.fill("begins at", "1h")
    visitor.enter()
    visitor.press(visitor.page.get_by_role("button", name="Store"))
    visitor.see("by-")


def see_who_may_read(visitor: Visitor) -> None:
    visitor.link("Access")
    visitor.fill("Stream", "payments")
    visitor.enter()
    visitor.see("payments.eu.>")


def see_where_a_message_goes(visitor: Visitor) -> None:
    visitor.link("Topology")
    visitor.fill("Subject", "orders.eu.new")
    visitor.enter()
    visitor.see("is recorded by 2 streams")
    visitor.see("each message goes to one of the group")


def see_what_is_lost(visitor: Visitor) -> None:
    visitor.see("Damage in 1 stream")
    visitor.link("Show only these")
    visitor.link("payments")
    visitor.see("1 offset cannot be read")
    visitor.see("the daemon was not running")


def see_why_compaction_waits(visitor: Visitor) -> None:
    visitor.link("customers")
    visitor.see("holds the records")


def create_a_stream(visitor: Visitor) -> None:
    name = f"made-{id(visitor)}"
    visitor.link("Create a stream…")
    visitor.fill("Name", name)
    visitor.fill("Subject", f"{name}.>")
    visitor.enter()
    visitor.link("Publish…")
    visitor.fill("Subject", f"{name}.new")
    visitor.fill("Value", "hello")
    visitor.press(visitor.page.get_by_role("button", name="Publish"))
    visitor.see("Stored at offset 1")


TASKS = {
    "find a record": find_a_record,
    "late consumer": see_why_it_is_late,
    "versions of a key": compare_versions,
    "replay an hour": replay_an_hour,
    "who may read": see_who_may_read,
    "where a message goes": see_where_a_message_goes,
    "damage and loss": see_what_is_lost,
    "why compaction waits": see_why_compaction_waits,
    "create a stream": create_a_stream,
}


assert set(STEPS) == set(TASKS)


def sign_in(daemon: Daemon, window: NewWindow) -> Page:
    page = window(daemon, viewport={"width": 1280, "height": 800}).page
    page.goto("/ui/streams")
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Streams")
    return page


BY_KEYS = ("late consumer", "who may read", "where a message goes")
"""Those in which Tab is pressed the least: it takes longer than a click."""


@pytest.mark.long
@pytest.mark.parametrize("has_mouse", [True, False], ids=["mouse", "keyboard"])
def test_the_ways_through_the_web_page(daemon: Daemon, window: NewWindow, has_mouse: bool) -> None:
    page = sign_in(daemon, window)
    wanted = STEPS if has_mouse else {name: STEPS[name] for name in BY_KEYS}
    steps = {}
    for name in wanted:
        page.goto("/ui/streams")
        visitor = Visitor(page, has_mouse=has_mouse)
        TASKS[name](visitor)
        steps[name] = visitor.steps
    assert steps == wanted


@contextmanager
def live_load(server: NatsServer) -> Iterator[None]:
    """Some thousand messages a second, until the block ends."""
    stop = threading.Event()
    burst = b"".join(pub_frame("orders.us.load", b'{"load": 1}') for _ in range(50))

    def publish_all() -> None:
        with RawNats(server.port) as raw:
            while not stop.wait(0.02):
                raw.send(burst)

    thread = threading.Thread(target=publish_all)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.long
def test_damage_is_told_while_messages_come(
    daemon: Daemon, server: NatsServer, window: NewWindow
) -> None:
    page = sign_in(daemon, window)
    with live_load(server):
        orders = page.locator("tr[data-key=orders]")
        expect(orders.locator("[data-rate=rate]")).not_to_have_text("0", timeout=30_000)
        expect(page.get_by_text("Damage in 1 stream")).to_be_visible()
        page.goto("/ui/streams/payments/records?order=oldest")
        expect(page.locator("tr.damage")).to_contain_text("checksum")
        check_in_every_way(page, "a damaged record")
        page.set_viewport_size({"width": 1280, "height": 800})
        page.goto("/ui/streams/orders/records?subject=orders.us.load&limit=25")
        count = page.locator("table.records tbody tr").count()
        page.get_by_role("button", name="Follow").click()
        rows = page.locator("table.records tbody tr")
        expect(rows.nth(count + 25)).to_be_attached(timeout=30_000)
        shown = [
            int(one.replace(",", "")) for one in page.get_by_role("rowheader").all_inner_texts()
        ]
        assert shown == sorted(set(shown), reverse=True)
