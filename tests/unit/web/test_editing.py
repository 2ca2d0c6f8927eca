"""Forms that create a stream, change one, and publish a message, over HTTP. What they ask for is
recorded; the settings are checked by the daemon's own code."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from liftlog.client.publishing.results import Ack, PublishUnknown
from liftlog.errors import Conflict, LiftlogError
from liftlog.protocol.administration import StreamUpdate
from liftlog.protocol.described import Removal, StreamInfo
from liftlog.server.streams.settings import differences, merged_settings
from liftlog.settings import parse_stream_settings

EDIT = "/ui/streams/orders/edit"
PUBLISH = "/ui/streams/orders/publish"


class Changing:
    """The administration of a stream with these settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = parse_stream_settings(settings)
        self.asked: list[tuple[dict[str, Any], bool, bool]] = []
        self.created: list[tuple[str, dict[str, Any]]] = []
        self.removal: Removal | None = None

    async def describe(self, name: str) -> StreamInfo:
        settings = self.settings.to_yaml_dict()
        subject = self.settings.shown_subjects
        return StreamInfo(name, subject, acks="on", settings=settings, incarnation="i")

    async def create(self, name: str, settings: dict[str, Any]) -> StreamInfo:
        parse_stream_settings(settings)
        if any(name == one for one, _ in self.created):
            raise Conflict(f"stream {name} exists with other settings")
        self.created.append((name, settings))
        return StreamInfo(name, settings["subject"])

    async def update_stream(
        self, name: str, settings: dict[str, Any], *, dry_run: bool, allow_deletion: bool
    ) -> StreamUpdate:
        self.asked.append((settings, dry_run, allow_deletion))
        wanted = merged_settings(self.settings, settings)
        found = differences(self.settings, wanted)
        if not dry_run:
            self.settings = wanted
        rows = [{"setting": path, "existing": a, "requested": b} for path, a, b in found]
        return StreamUpdate(await self.describe(name), rows, self.removal, dry_run)


@pytest.fixture
def changing(broker: Any, orders: Any, monkeypatch: pytest.MonkeyPatch) -> Changing:
    settings = {"subject": "orders.>", "retention": {"max_age": "7d"}, "compaction": {}}
    found = Changing(settings)
    monkeypatch.setattr(broker, "describe_stream", found.describe)
    monkeypatch.setattr(broker, "create_stream", found.create)
    monkeypatch.setattr(broker.administration, "update_stream", found.update_stream)
    return found


def fields(text: str) -> dict[str, str]:
    """Of the last form on the page, as a browser would send it."""
    form = text[text.rindex('<form class="editing"') :]
    found = dict(re.findall(r'<input (?!type="checkbox")[^>]*name="([^"]+)" value="([^"]*)"', form))
    for name, options in re.findall(r'<select [^>]*name="([^"]+)"[^>]*>(.*?)</select>', form):
        chosen = re.search(r"<option selected>([^<]*)<", options)
        found[name] = chosen[1] if chosen else ""
    found |= dict(re.findall(r'<textarea [^>]*name="([^"]+)"[^>]*>([^<]*)<', form))
    return {name: unescape(value) for name, value in found.items()}


def agreed(text: str) -> dict[str, str]:
    """The hidden fields below a preview."""
    form = text[: text.rindex('<form class="editing"')]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in found}


async def test_a_stream_is_created(site: Any, changing: Changing) -> None:
    async with site() as browser:
        _, text, _ = await browser.get("/ui/create?subject=bills.%3E")
        sent = fields(text)
        assert (sent["subject"], sent["durability"], sent["compaction"]) == (
            "bills.>", "fsync", "off",
        )  # fmt: skip
        sent |= {"name": "bills", "max_age": "3d", "max_messages": "1000", "compaction": "on",
                 "more": "segment: {max_bytes: 1MiB}\nretention: {max_bytes: 1GiB}"}  # fmt: skip
        status, text, answer = await browser.post("/ui/create", sent)
        assert status == 303, text
        assert answer.headers["Location"] == "/ui/streams/bills?done=create"
        ((name, settings),) = changing.created
        assert name == "bills"
        assert settings["retention"] == {"max_age": "3d", "max_messages": 1000, "max_bytes": "1GiB"}
        assert (settings["compaction"], settings["segment"]) == ({}, {"max_bytes": "1MiB"})
        status, text, _ = await browser.post("/ui/create", sent)
        assert status == 409
        assert "exists with other settings" in text


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"subject": "a..b"}, "empty token"), ({"name": "a b"}, "name"), ({"subject": ""}, "missing"),
     ({"max_age": "soon"}, "retention.max_age"), ({"more": "a: ["}, "More settings, line"),
     ({"more": "- 1"}, "expected lines"), ({"more": "colour: red"}, "colour"),
     ({"more": "retention: 7"}, "retention"), ({"durability": "never"}, "durability"),
     ({"max_messages": "<script>x"}, "retention.max_messages")],
)  # fmt: skip
async def test_what_is_wrong_is_told_and_kept(
    site: Any, changing: Changing, wrong: dict[str, str], said: str
) -> None:
    async with site() as browser:
        _, text, _ = await browser.get("/ui/create")
        sent = fields(text) | {"name": "bills", "subject": "bills.>", "acks": "off", **wrong}
        status, text, _ = await browser.post("/ui/create", sent)
        assert status == 400, text
        alert = text[text.index('role="alert"') :]
        assert said in alert[: alert.index("</p>")]
        assert "<script>x" not in text
        assert fields(text)["acks"] == "off"
        if len(said) > 10 and "retention." in said:
            assert 'aria-invalid="true"' in text
    assert changing.created == []


async def test_a_change_is_shown_before_it_is_made(site: Any, changing: Changing) -> None:
    async with site() as browser:
        _, text, _ = await browser.get(EDIT)
        sent = fields(text)
        assert (sent["max_age"], sent["compaction"]) == ("7d", "on")
        _, text, _ = await browser.post(EDIT, sent)
        assert "Nothing would change" in text
        assert changing.asked.pop() == ({}, True, False)
        sent |= {"max_age": "", "max_bytes": "1GiB", "compaction": "off"}
        _, text, _ = await browser.post(EDIT, sent)
        wanted = {"retention": {"max_bytes": "1GiB", "max_age": None},
                  "compaction": {"enabled": False}}  # fmt: skip
        assert changing.asked.pop() == (wanted, True, False)
        assert changing.settings.retention.max_bytes is None
        assert "What would change" in text
        status, _, answer = await browser.post(EDIT, agreed(text))
        assert (status, answer.headers["Location"]) == (303, "/ui/streams/orders?done=edit")
        assert changing.asked.pop() == (wanted, False, False)
        assert changing.settings.retention.max_bytes == 2**30
        _, text, _ = await browser.get(EDIT)
        assert fields(text)["compaction"] == "off"


async def test_records_are_deleted_only_after_it_was_said(site: Any, changing: Changing) -> None:
    changing.removal = Removal(log_start_offset=4, records=3, segments=1, size_bytes=2048)
    async with site() as browser:
        _, text, _ = await browser.get(EDIT)
        _, text, _ = await browser.post(EDIT, fields(text) | {"max_age": "1h"})
        assert "deletes up to 3 records" in text
        await browser.post(EDIT, agreed(text))
        assert changing.asked[-1] == ({"retention": {"max_age": "1h"}}, False, True)
        assert [allowed for _, dry_run, allowed in changing.asked if dry_run] == [False]


async def test_a_forged_or_broken_form_changes_nothing(site: Any, changing: Changing) -> None:
    async with site() as browser:
        for path in ("/ui/create", EDIT, PUBLISH):
            _, text, _ = await browser.get(path)
            sent = fields(text)
            assert (await browser.post(path, {**sent, "form_token": "x"}))[0] == 403
            assert (await browser.post(path, {}))[0] == 403
        _, text, _ = await browser.get(EDIT)
        token = {"form_token": fields(text)["form_token"]}
        for broken in ("[", "[1]", "[" * 3000, "7"):
            status, _, _ = await browser.post(EDIT, {**token, "settings": broken})
            assert status == 400
        assert (await browser.post("/ui/create", token))[0] == 403  # for one purpose only
        assert (await browser.get("/ui/streams/_offsets/edit"))[0] == 400
    assert (changing.asked, changing.created) == ([], [])


async def test_only_for_those_who_may(site: Any, changing: Changing, policy: Any) -> None:
    paths = ("/ui/create", EDIT, PUBLISH)
    async with site(policy) as browser:
        await browser.sign_in("eu")
        for path in paths:
            assert (await browser.get(path))[0] == 403
            assert (await browser.get(f"{path}.json"))[0] == 403
            assert (await browser.post(path, {"form_token": "x"}))[0] == 403
        _, text, _ = await browser.get("/ui/streams")
        assert "/ui/create" not in text
    async with site(policy) as browser:
        await browser.sign_in("ann")  # has no `create`
        assert [(await browser.get(path))[0] for path in paths] == [403, 200, 200]
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams")
        assert 'href="/ui/create"' in text
        _, text, _ = await browser.get("/ui/streams/orders")
        assert f'href="{EDIT}"' in text
        assert f'href="{PUBLISH}"' in text


class Appending:
    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.error: LiftlogError | None = None

    async def append(self, stream: Any, message: Any, may_administer: Any) -> Ack:
        self.messages.append((stream.name, message))
        if self.error is not None:
            raise self.error
        return Ack(stream.name, 42, duplicate=False, durability="fsync")

    async def close(self) -> None:
        pass


async def test_a_message_is_published(site: Any, changing: Changing) -> None:
    appender = Appending()
    async with site(appender=appender) as browser:
        _, text, _ = await browser.get(f"{PUBLISH}?subject=orders.eu")
        sent = fields(text)
        assert sent["subject"] == "orders.eu"
        sent |= {"key": "hex:00ff", "value": '{"a":\r\n1}', "message_id": "m-1",
                 "headers": "A: b: c\r\n\r\nX-Y:\r\nA: 2"}  # fmt: skip
        status, text, _ = await browser.post(PUBLISH, sent)
        assert status == 200, text
        assert 'href="/ui/streams/orders/records/42"' in text
        ((name, message),) = appender.messages
        assert (name, message.subject, message.key) == ("orders", "orders.eu", b"\x00\xff")
        assert (message.value, message.message_id) == (b'{"a":\n1}', "m-1")
        assert message.headers == [("A", "b: c"), ("X-Y", ""), ("A", "2")]
        await browser.post(PUBLISH, {**sent, "value": "", "tombstone": "yes"})
        assert appender.messages[-1][1].value is None
        appender.error = PublishUnknown("no ack came", subject="orders.eu")
        status, text, _ = await browser.post(PUBLISH, sent)
        assert status == 504
        assert "may be stored all the same" in text
        assert fields(text)["message_id"] == "m-1"


@pytest.mark.parametrize(
    "wrong", [{"key": "hex:0"}, {"tombstone": "yes"}, {"headers": "no colon"},
              {"headers": "a b: 1"},
              {"tombstone": "yes", "key": "k", "value": "v"}]
)  # fmt: skip
async def test_no_wrong_message_is_published(
    site: Any, changing: Changing, wrong: dict[str, str]
) -> None:
    appender = Appending()
    async with site(appender=appender) as browser:
        _, text, _ = await browser.get(PUBLISH)
        status, text, _ = await browser.post(
            PUBLISH, fields(text) | {"subject": "orders.a"} | wrong
        )
        assert status == 400
        assert 'role="alert"' in text
    assert appender.messages == []


async def test_the_twins_say_what_the_forms_do(site: Any, changing: Changing) -> None:
    async with site() as browser:
        _, text, _ = await browser.get(f"{EDIT}.json")
        assert json.loads(text)["form"]["max_age"] == "7d"
        _, text, _ = await browser.get(f"{PUBLISH}.json")
        assert json.loads(text)["subject"] == "orders.>"
