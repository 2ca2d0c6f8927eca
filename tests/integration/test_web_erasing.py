"""The form of the web page that erases records, used without JavaScript on a real daemon."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration
PAGE = "/ui/streams/orders/erase"


@pytest.fixture
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": {"orders": {"subject": "orders.>"}}}) as daemon:
        with RawNats(server.port) as raw:
            for number in range(12):
                subject = f"orders.{'ab'[number % 2]}"
                publish(raw, subject, b"<b>secret</b>", Liftlog_Key=f"k{number % 3}")
        yield daemon
        assert_no_traceback(daemon)


def post(daemon: Daemon, fields: dict[str, str]) -> tuple[int, str]:
    """Send a form; follow the redirection after a successful change."""
    url = f"http://{daemon.http_address}{PAGE}"
    request = urllib.request.Request(
        url,
        urllib.parse.urlencode(fields).encode(),
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{daemon.http_address}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def form(text: str, label: str) -> dict[str, str]:
    found = text[text.index(f'aria-label="{label}"') :]
    found = found[: found.index("</form>")]
    inputs = re.findall(r'<input (?!type="checkbox")[^>]*name="([^"]+)" value="([^"]*)"', found)
    return {name: unescape(value) for name, value in inputs}


def twin(daemon: Daemon, query: str = "") -> Any:
    status, text = daemon.get(f"{PAGE}.json{query}")
    assert status == 200, text
    return json.loads(text)


def test_a_preview_then_the_erasure(daemon: Daemon) -> None:
    status, text = daemon.get("/ui/streams/orders")
    assert f'href="{PAGE}"' in text
    status, text = daemon.get(PAGE)
    assert status == 200
    fields = form(text, "Records to erase")
    status, text = post(daemon, {**fields, "subject": "orders.b", "offsets": "3-900", "now": "yes"})
    assert status == 200
    assert "5 records would be erased" in text
    assert 'to <span class="figure">12</span>, in 5 ranges' in text
    assert "<code>orders.b</code>" in text
    assert [one.offset for one in records_of(daemon, "orders", 1)][:12] == list(range(1, 13))
    agreed = form(text, "Confirmation")
    with RawNats(int(daemon_port(daemon))) as raw:
        publish(raw, "orders.b", b"later")
    status, text = post(daemon, {**agreed, "reason": "<i>request</i> 17"})
    assert status == 200
    assert "5 records were erased" in text
    assert "&lt;i&gt;request&lt;/i&gt; 17" in text
    left = [1, 2, 3, 5, 7, 9, 11, 13]
    assert [one.offset for one in records_of(daemon, "orders", 1)] == left
    until(lambda: twin(daemon)["erasures"][0]["left"] == 0)
    found = twin(daemon)
    assert found["erasure_count"] == 1
    assert (found["erasures"][0]["count"], found["erasures"][0]["reason"]) == (
        5,
        "<i>request</i> 17",
    )
    status, text = post(daemon, {**fields, "subject": "orders.b", "offsets": "4"})
    assert "No record matches" in text


def daemon_port(daemon: Daemon) -> str:
    found = re.search(r"nats://[^:\"]+:(\d+)", daemon.config_path.read_text())
    assert found is not None
    return found[1]


def test_wrong_fields_are_shown_with_the_reason(daemon: Daemon) -> None:
    fields = form(daemon.get(PAGE)[1], "Records to erase")
    for wrong, said in (
        ({}, "fill in at least one field"),
        ({"offsets": "7-5"}, "is neither an offset nor a range"),
        ({"subject": "a..b"}, "not a subject pattern"),
        ({"header": "a b"}, "is not the name of a header"),
        ({"key": "hex:0"}, "is not valid hex"),
        ({"since": "soon"}, "expected a time"),
        ({"offsets": "1", "reason": "x" * 300}, "longer than 256"),
    ):
        status, text = post(daemon, {**fields, **wrong})
        assert status == 400, wrong
        assert said in unescape(text).lower() or said in unescape(text), wrong
        for name, value in wrong.items():
            assert form(text, "Records to erase")[name] == value
    status, _ = post(daemon, {**fields, "form_token": "another", "offsets": "1"})
    assert status == 403
    assert twin(daemon)["erasures"] == []
    assert daemon.get("/ui/streams/none/erase")[0] == 404
