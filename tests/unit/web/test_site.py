"""Pages and their twins, behind the gate: who sees what, and what the input of others does."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from liftlog.errors import CorruptRange
from liftlog.server.web import site as web_site
from liftlog.server.web.pages import overview
from liftlog.server.web.pages import records as records_page

SECRET = "0123456789abcdefghijklmnop"
BAD = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"


async def test_every_page_and_its_twin(site: Any, orders: Any) -> None:
    pages = ("/ui/streams", "/ui/streams/orders", "/ui/streams/orders/records",
             "/ui/streams/orders/records/1", "/ui/streams/orders/charts", "/ui/consumers",
             "/ui/streams/orders/groups/billing", "/ui/streams/orders/workers/billing",
             "/ui/charts", "/ui/access",
             "/ui/health", "/ui/cluster")  # fmt: skip
    async with site() as browser:
        for page in pages:
            status, text, answer = await browser.get(page)
            assert (status, answer.content_type) == (200, "text/html"), page
            assert f'href="{page}.json"' in text
            assert text.count("<h1") == 1
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "unsafe" not in answer.headers["Content-Security-Policy"]
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            status, text, answer = await browser.get(f"{page}.json")
            assert (status, answer.content_type) == (200, "application/json"), page
            assert isinstance(json.loads(text), dict)
        for start in ("/", "/ui", "/ui/"):
            status, _, answer = await browser.get(start)
            assert (status, answer.headers["Location"]) == (303, "/ui/streams")


async def test_no_link_leads_nowhere(site: Any, orders: Any) -> None:
    orders.append([b"x"] * 200)
    left, seen = ["/ui/streams", "/ui/login"], set()
    async with site() as browser:
        while left:
            page = left.pop()
            where = str(URL(browser.base + page).relative())
            if where in seen or len(seen) > 150:
                continue
            seen.add(where)
            status, text, answer = await browser.get(where)
            assert status in (200, 303), where
            if answer.content_type == "text/html":
                links = re.findall(r'(?:href|src)="([^"#]+)"', text)
                left += [str(URL(browser.base + where).join(URL(unescape(one))).relative())
                         for one in links]  # fmt: skip
    assert len(seen) > 40


async def test_what_the_twins_say(site: Any, orders: Any) -> None:
    async with site() as browser:
        found = json.loads((await browser.get("/ui/streams.json"))[1])
        assert found["totals"]["streams"] == found["matching"] == 1
        assert found["streams"][0]["high_watermark"] == 6
        found = json.loads((await browser.get("/ui/streams/orders.json"))[1])
        assert (found["records"], len(found["segments"]), found["may_administer"]) == (5, 1, True)
        assert found["segments"][0]["kind"] == "active"
        found = json.loads((await browser.get("/ui/streams/orders/records/1.json"))[1])
        assert found["record"]["value"] == '{"n":1}'
        assert found["content"]["view"] == "json"


async def test_static_files_are_a_few(site: Any) -> None:
    async with site() as browser:
        for name, media in (("live.js", "text/javascript"), ("liftlog.css", "text/css")):
            status, text, answer = await browser.get(f"/ui/static/{name}")
            assert (status, answer.content_type) == (200, media)
            assert answer.headers["Cache-Control"] == "max-age=300"
            assert "http://" not in text.replace("http://www.w3.org", "")
        for name in ("..%2Fsite.py", "site.py", "%2Fetc%2Fpasswd", ".."):
            assert (await browser.get(f"/ui/static/{name}"))[0] in (404, 303)


# --- records ---


async def test_a_tombstone_has_no_size_and_text_is_wrapped(site: Any, orders: Any) -> None:
    async with site() as browser:
        _, text, _ = await browser.get("/ui/streams/orders/records/3")
        assert re.search(r"Value size</dt><dd><span [^>]*>none<", text)
        _, text, _ = await browser.get("/ui/streams/orders/records/1")
        assert 'class="content content-wrapped"' in text
        _, text, _ = await browser.get("/ui/streams/orders/records/1?view=hex")
        assert 'class="content"' in text


@pytest.mark.parametrize(
    ("question", "offsets"),
    [("", [5, 4, 3, 2, 1]), ("offset=4", [4, 5]), ("offset=99", []), ("offset=0", [1, 2, 3, 4, 5]),
     ("subject=orders.*.new", [5, 4]), ("subject=orders.us.>", [4]), ("key=k-1", [3, 1]),
     ("key=hex:ff00", [2]), ("key=k-1&offset=2", [3]), ("key=nobody", []),
     ("time=1h", [5, 4, 3, 2, 1]), ("until=1h", []), ("time=2100-01-01", []),
     ("header=Nobody", []), ("order=oldest", [1, 2, 3, 4, 5]),
     ("order=oldest&subject=orders.*.new", [4, 5]), ("order=oldest&until=1h", []),
     ("order=newest&offset=3", [3, 2, 1]), ("order=newest&offset=0", []),
     ("order=newest&offset=99", [5, 4, 3, 2, 1]), ("above=4", [5, 4]), ("above=6", []),
     ("above=9", []), ("above=3&key=k-1", [3]), ("value=PLAIN", [2]), ("value=u", [5, 4]),
     ("value=n&kind=json", [1]), ("value=n%3D1&kind=json", [1]), ("value=n%3D2&kind=json", []),
     ("value=^..$&kind=regex", [5, 4]), ("value=.&kind=regex&subject=orders.eu.*", [5])],
)  # fmt: skip
async def test_which_records(site: Any, orders: Any, question: str, offsets: list[int]) -> None:
    async with site() as browser:
        found = await browser.records(question)
    assert [row["offset"] for row in found["records"]] == offsets
    assert found["at_end"]


@pytest.mark.parametrize(
    "question",
    ["offset=x", "offset=-1", "offset=" + "9" * 30, "offset=٣", "time=soon", "subject=a..b",
     "limit=7", "view=html", "key=hex:zz", "header=a%20b", "key=" + "x" * 1001, "until=soon",
     "time=1h&until=2h", "order=up", "kind=x", "value=(&kind=regex", "value=%3D&kind=json",
     "above=-1"],
)  # fmt: skip
async def test_questions_that_are_none(site: Any, orders: Any, question: str) -> None:
    async with site() as browser:
        status, text, _ = await browser.get(f"/ui/streams/orders/records.json?{question}")
        assert (status, json.loads(text)["error"]["name"]) == (400, "INVALID_ARGUMENT")
        status, text, answer = await browser.get(f"/ui/streams/orders/records?{question}")
        assert (status, answer.content_type) == (400, "text/html")


async def test_an_expression_without_re2(
    site: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    async with site() as browser:
        status, text, _ = await browser.get("/ui/streams/orders/records?value=q{9}&kind=regex")
    assert status == 400
    assert "pip install &#39;liftlog[search]&#39;" in text


async def test_paging_shows_each_record_once(site: Any, broker: Any) -> None:
    stream = broker.add("orders", subject="orders.>")
    for start in range(0, 300, 60):
        stream.append([b"v%d" % i for i in range(start, start + 60)])
    async with site() as browser:
        found, offset = [], 1
        while True:
            page = await browser.records(f"offset={offset}&limit=25")
            found += [row["offset"] for row in page["records"]]
            offset = page["next_offset"]
            if page["at_end"]:
                break
        assert found == list(range(1, 301))
        newest = await browser.records("limit=25")
        assert [row["offset"] for row in newest["records"]] == list(range(300, 275, -1))
        found, question = [], "limit=25"
        while not page["at_end"] or not found:
            page = await browser.records(question)
            found += [row["offset"] for row in page["records"]]
            question = f"limit=25&order=newest&offset={page['next_offset']}"
        assert found == list(range(300, 0, -1))


async def test_damage_is_told_and_stepped_over(site: Any, orders: Any, monkeypatch: Any) -> None:
    real = orders.log.read

    def read(offset: int, *some: Any, **options: Any) -> Any:
        if offset <= 3:
            raise CorruptRange("the records [2, 4) are lost", first_offset=2, next_offset=4)
        return real(offset, *some, **options)

    monkeypatch.setattr(orders.log, "read", read)
    async with site() as browser:
        found = await browser.records("offset=2")
        assert [row["kind"] for row in found["records"]] == ["damage", "record", "record"]
        _, text, _ = await browser.get("/ui/streams/orders/records?offset=2")
        assert "are lost" in text
        status, text, _ = await browser.get("/ui/streams/orders/records/2")
        assert status == 410
        assert 'href="4"' in text


async def test_a_search_that_finds_nothing_ends(
    site: Any, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says where it can go on."""
    from liftlog.server.reading import filtering, walking
    from liftlog.server.web import browsing

    stream = broker.add("orders", subject="orders.>")
    for _ in range(6):
        stream.append([b"x" * 1000] * 50)
    monkeypatch.setattr(filtering, "SCAN_BYTES", 60_000)
    monkeypatch.setattr(browsing, "_SEARCH_SECONDS", 0.0)
    async with site() as browser:
        monkeypatch.setattr(walking, "_WINDOW_BYTES", 60_000)
        for order in ("oldest", "newest"):
            found = await browser.records(f"subject=nobody&order={order}")
            assert (found["records"], found["at_end"]) == ([], False)
            assert 1 < found["next_offset"] < 301
            assert 0 < found["searched"] < 1
            _, text, _ = await browser.get(
                f"/ui/streams/orders/records?subject=nobody&order={order}"
            )
            assert "Continue search" in text


async def test_no_slice_is_kept(site: Any, broker: Any, orders: Any) -> None:
    async with site() as browser:
        for question in ("", "key=k-1", "offset=3", "limit=25"):
            await browser.records(question)
        await browser.get("/ui/streams/orders/records/2")
        await browser.get("/ui/streams/orders/records/2/value")
    assert broker.unreleased == 0


async def test_the_value_is_saved_not_shown(site: Any, broker: Any) -> None:
    broker.add("orders", subject="orders.>").append([BAD.encode()])
    async with site() as browser:
        status, text, answer = await browser.get("/ui/streams/orders/records/1/value")
    assert (status, text) == (200, BAD)
    assert answer.content_type == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment;")


async def test_what_somebody_published_stays_text(site: Any, broker: Any) -> None:
    raw = BAD.encode()
    headers = b"NATS/1.0\r\nX-" + raw.replace(b":", b"") + b": " + raw + b"\r\n\r\n"
    stream = broker.add("orders", subject=f"orders.{BAD}")
    stream.append([raw, json.dumps({BAD: BAD}).encode()], subject=b"orders." + raw,
                  keys=[raw, raw], headers=[headers, b""])  # fmt: skip
    pages = ["/ui/streams", "/ui/streams/orders", "/ui/streams/orders/records/1"]
    pages += [f"/ui/streams/orders/records?view={view}" for view in ("auto", "text", "json", "hex")]
    pages += [f"/ui/streams/orders/records/2?view={view}" for view in ("json", "msgpack")]
    quoted = "%3Cscript%3E%22'%3E%3Cimg%20src%3Dx"
    pages += [f"/ui/streams?q={quoted}", f"/ui/streams/orders/records?key={quoted}",
              f"/ui/streams/orders/records?subject={quoted}", f"/ui/streams/{quoted}",
              f"/ui/streams/orders?done={quoted}", f"/ui/access?stream={quoted}",
              f"/ui/login?next={quoted}"]  # fmt: skip
    async with site() as browser:
        for page in pages:
            _, text, _ = await browser.get(page)
            assert "<script>" not in text, page
            assert "<img src=x" not in text, page
            assert ">49<" not in text, page


@pytest.mark.parametrize("odd", ["%ED%A0%80", "%FF%FE", "%00", "%0d%0aX-A:%201", "%F4%90%80%80"])
async def test_odd_characters_in_a_question(site: Any, orders: Any, odd: str) -> None:
    async with site() as browser:
        for asked in ("streams?q=ODD", "streams/orders/records?key=ODD", "streams/ODD",
                      "streams/orders/records?subject=ODD", "access?stream=ODD",
                      "streams/orders/records/ODD", "static/ODD", "login?next=ODD"):  # fmt: skip
            page = asked.replace("ODD", odd)
            status, _, answer = await browser.get(f"/ui/{page}")
            assert status in (200, 400, 404), page
            assert "X-A" not in answer.headers


async def test_halves_of_characters(site: Any, broker: Any) -> None:
    broker.add("orders", subject="orders.>").append([b'{"a": "\\ud800"}'])
    async with site() as browser:
        for page in ("records", "records/1", "records/1.json", "records?view=json"):
            assert (await browser.get(f"/ui/streams/orders/{page}"))[0] == 200


# --- many ---


async def test_many_streams_come_a_page_at_a_time(site: Any, broker: Any) -> None:
    for number in range(120):
        broker.add(f"s-{number:03d}", subject=f"plant.{number}")
    async with site() as browser:
        found = json.loads((await browser.get("/ui/streams.json?page=3"))[1])
        assert (found["pages"], found["totals"]["streams"]) == (3, 120)
        assert found["shape"] == [f"s-{number:03d}" for number in range(100, 120)]
        found = json.loads((await browser.get("/ui/streams.json?page=99"))[1])
        assert found["page"] == 3
        found = json.loads((await browser.get("/ui/streams.json?q=PLANT.7"))[1])
        assert found["matching"] == 11
        for sort in overview.SORTS:
            assert (await browser.get(f"/ui/streams?sort={sort}"))[0] == 200
        assert (await browser.get("/ui/streams?sort=x"))[0] == 400


async def test_a_bounded_number_at_once(
    site: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from liftlog.server.web import site as module

    monkeypatch.setattr(module, "MAX_REQUESTS", 0)
    monkeypatch.setattr(module, "MAX_OF_VIEWER", 0)
    async with site() as browser:
        assert (await browser.get("/ui/streams"))[0] == 429
        assert (await browser.get("/ui/streams.json"))[0] == 429


async def test_the_searches_of_one_viewer_refuse_no_page_and_nothing_of_another(
    site: Any, orders: Any, policy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 searches of one viewer used to take the places of all pages of all viewers."""
    release, searching = asyncio.Event(), 0
    step = records_page.browse

    async def browse(asked: Any, *arguments: Any) -> Any:
        nonlocal searching
        if asked.viewer.principal == "ann":
            searching += 1
            await release.wait()
        return await step(asked, *arguments)

    monkeypatch.setattr(records_page, "browse", browse)
    ann, eu = (
        {"Authorization": f"Bearer {name}.0123456789abcdefghijklmnop-{name}"}
        for name in ("ann", "eu")
    )
    async with site(policy) as browser:
        search = "/ui/streams/orders/records.json?value=n"
        searches = [asyncio.create_task(browser.get(search, **ann)) for _ in range(24)]
        async with asyncio.timeout(20):
            while sum(one.done() for one in searches) + searching < 24:
                await asyncio.sleep(0.01)
        assert searching == 8
        for headers in (ann, eu):
            for page in ("/ui/streams", "/ui/streams/orders", "/ui/health"):
                assert (await browser.get(page, **headers))[0] == 200
        for _ in range(3):
            assert (await browser.get(search, **eu))[0] == 200
        release.set()
        statuses = [(await one)[0] for one in searches]
    assert (statuses.count(200), statuses.count(429)) == (8, 16)


async def test_while_the_daemon_starts(
    site: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.daemons.http_port import Healthy

    monkeypatch.setattr(Healthy, "is_serving", False)
    async with site() as browser:
        assert (await browser.get("/ui/streams"))[0] == 503
        assert (await browser.get("/ui/streams/orders.json"))[0] == 503
        assert (await browser.get("/ui/health"))[0] == 200


async def test_while_the_daemon_stops(site: Any, orders: Any) -> None:
    """The pull server, whose thread looks at records, closes before the HTTP port does."""
    async with site() as browser:
        browser.pull.services.scanners.shutdown()
        for page in ("records", "records.json", "records/1"):
            status, text, _ = await browser.get(f"/ui/streams/orders/{page}")
            assert status == 503
            assert "stopping" in text


async def test_a_defect_is_masked(
    site: Any, orders: Any, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(name: str) -> None:
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(broker, "describe_stream", fails)
    async with site() as browser:
        for page in ("/ui/streams/orders", "/ui/streams/orders.json"):
            status, text, _ = await browser.get(page)
            assert status == 500
            assert "secret of" not in text


def test_every_page_is_in_the_documentation() -> None:
    document = (Path(__file__).parents[3] / "docs/how-to/web-page.md").read_text()
    for page in web_site.PAGES:
        if page.template != "confirm.html":
            shown = page.path.replace("{stream}", "NAME").replace("{offset}", "OFFSET")
            shown = shown.replace("{consumer}", "CONSUMER").replace("{group}", "GROUP")
            shown = shown.replace("{worker}", "CONSUMER")
            assert f"| `{shown}` |" in document
