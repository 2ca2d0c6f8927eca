"""Who sees what on the web page, who may change what, and what a forged request does: nothing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import quote

import pytest

from acl.policy import Policy
from liftlog.server.reading.turns import Asker, Turns
from liftlog.server.web import entering

# --- who may ---


async def test_without_a_session_one_is_sent_to_sign_in(
    site: Any, orders: Any, policy: Policy
) -> None:
    async with site(policy) as browser:
        status, _, answer = await browser.get("/ui/streams/orders?x=1")
        assert status == 303
        assert answer.headers["Location"] == "/ui/login?next=%2Fui%2Fstreams%2Forders%3Fx%3D1"
        for page in ("/ui/streams.json", "/ui/streams/orders.json", "/ui/health.json",
                     "/ui/streams/orders/records/1/value"):  # fmt: skip
            assert (await browser.get(page))[0] == 401


async def test_signing_in_and_out(site: Any, orders: Any, policy: Policy) -> None:
    async with site(policy) as browser:
        status, text, answer = await browser.sign_in("ann", "wrong" * 6)
        assert (status, "not valid" in text) == (401, True)
        assert "Set-Cookie" not in answer.headers
        next_path = "?next=%2Fui%2Fstreams%2Forders"
        status, _, answer = await browser.sign_in("ann", next_path=next_path)
        assert (status, answer.headers["Location"]) == (303, "/ui/streams/orders")
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Path=/ui" in cookie
        assert "Secure" not in cookie
        status, text, _ = await browser.get("/ui/streams/orders")
        assert (status, "ann" in text) == (200, True)
        token = await browser.form_token_of_logout("/ui/streams")
        assert (await browser.post("/ui/logout", {"form_token": "0" * 64}))[0] == 403
        assert (await browser.get("/ui/streams"))[0] == 200
        assert (await browser.post("/ui/logout", {"form_token": token}))[0] == 303
        assert (await browser.get("/ui/streams"))[0] == 303


async def test_the_cookie_is_secure_behind_tls(site: Any, policy: Policy) -> None:
    async with site(policy) as browser:
        token = await browser.form_token("/ui/login")
        form = {"form_token": token, "token": "ann.0123456789abcdefghijklmnop-ann"}
        _, _, answer = await browser.post("/ui/login", form, X_Forwarded_Proto="https")
        assert "Secure" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example/ui/", "https://evil.example/ui/", "/ui/..//evil.example", "/ui//evil.example",
     "/ui/streams/../../metrics", "/ui/./streams", "/ui/@evil.example", "/metrics", "/ui",
     "/ui/streams\r\nSet-Cookie: a=b", "/ui/streams?x=\r\nX-A: b", "/\\evil.example",
     "javascript:alert(1)"],
)  # fmt: skip
async def test_a_login_leads_nowhere_else(site: Any, policy: Policy, wanted: str) -> None:
    async with site(policy) as browser:
        next_path = f"?next={quote(wanted, safe='')}"
        status, _, answer = await browser.sign_in("ann", next_path=next_path)
        assert (status, answer.headers["Location"]) == (303, "/ui/streams")
        assert "X-A" not in answer.headers
        assert len(answer.headers.getall("Set-Cookie")) == 1


async def test_a_session_of_before_is_ended_and_a_stolen_form_is_none(
    site: Any, policy: Policy
) -> None:
    async with site(policy) as browser:
        token = await browser.form_token("/ui/login")
        await browser.sign_in("ann")
        secret = "0123456789abcdefghijklmnop-eu"
        status, *_ = await browser.post("/ui/login", {"form_token": token, "token": f"eu.{secret}"})
        assert status == 403, "it was made without a cookie"


async def test_a_withdrawn_token_ends_the_session(site: Any, orders: Any, policy: Policy) -> None:
    async with site(policy) as browser:
        await browser.sign_in("ann")
        assert (await browser.get("/ui/streams"))[0] == 200
        browser.pull.set_policy(Policy.load("principals: {zed: {unix_uid: 5}}"))
        assert (await browser.get("/ui/streams"))[0] == 303


async def test_guesses_are_bounded(site: Any, policy: Policy) -> None:
    async with site(policy) as browser:
        token = await browser.form_token("/ui/login")
        statuses = []
        for _ in range(12):
            form = {"form_token": token, "token": "ann.guess"}
            statuses.append((await browser.post("/ui/login", form))[0])
        assert statuses[0] == 401
        assert statuses[-1] == 429


async def test_a_part_of_a_stream(site: Any, orders: Any, broker: Any, policy: Policy) -> None:
    """Filters of a request take nothing away from what the ACL demands."""
    broker.add("payments", subject="payments.>").append([b"1"])
    async with site(policy) as browser:
        await browser.sign_in("eu")
        found = json.loads((await browser.get("/ui/streams.json"))[1])
        assert found["shape"] == ["orders"]
        for question in ("", "subject=>", "offset=1", "key=k-1", "subject=orders.us.new"):
            page = await browser.records(question)
            assert {row["subject"] for row in page["records"]} <= {"orders.eu.new"}
        assert [row["offset"] for row in (await browser.records(""))["records"]] == [5]
        for path in ("1", "1.json", "1/value", "4"):
            assert (await browser.get(f"/ui/streams/orders/records/{path}"))[0] == 404
        assert (await browser.get("/ui/streams/orders/records/5/value"))[1] == "eu"
        for path in ("payments", "payments/records", "payments.json", "absent", "_offsets"):
            assert (await browser.get(f"/ui/streams/{path}"))[0] == 403, path
        _, text, _ = await browser.get("/ui/streams/orders")
        assert "Pause" not in text


async def test_a_bearer_works_for_twins(site: Any, orders: Any, policy: Policy) -> None:
    async with site(policy) as browser:
        bearer = "Bearer ann.0123456789abcdefghijklmnop-ann"
        assert (await browser.get("/ui/streams/orders.json", Authorization=bearer))[0] == 200
        assert (await browser.get("/ui/streams.json", Authorization="Bearer ann.x"))[0] == 401


async def test_access_explains_and_tells_nothing_more(
    site: Any, orders: Any, broker: Any, policy: Policy
) -> None:
    broker.add("payments", subject="payments.>")
    async with site(policy) as browser:
        await browser.sign_in("eu")
        found = json.loads((await browser.get("/ui/access.json?stream=orders"))[1])
        assert [one["name"] for one in found["streams"]] == ["orders"]
        read = next(one for one in found["answers"] if one["operation"] == "read")
        assert (read["allowed"], read["subjects"]) == (True, ["orders.eu.>"])
        assert "rule 1 of role 'reader'" in read["explanation"]
        assert found["others"] == []
        there = json.loads((await browser.get("/ui/access.json?stream=payments"))[1])
        absent = json.loads((await browser.get("/ui/access.json?stream=absent"))[1])
        same = json.dumps(there).replace("payments", "absent")
        assert json.loads(same) == absent, "what is denied does not tell whether it exists"
        assert (await browser.get("/ui/access?stream=orders&principal=ann"))[0] == 403
    async with site(policy) as browser:
        await browser.sign_in("ann")
        found = json.loads((await browser.get("/ui/access.json?stream=orders&principal=eu"))[1])
        assert [one["principal"] for one in found["others"]] == ["ann", "eu", "nil"]
        assert [one["allowed"] for one in found["answers"]].count(True) == 1


# --- changes ---


async def test_a_change_is_asked_for_confirmed_and_done(
    site: Any, orders: Any, broker: Any, policy: Policy
) -> None:
    async with site(policy) as browser:
        await browser.sign_in("ann")
        token = await browser.form_token("/ui/streams/orders/pause")
        assert broker.administration.done == []
        status, _, answer = await browser.post(
            "/ui/streams/orders/pause", {"form_token": token}, Origin=browser.base
        )
        assert (status, answer.headers["Location"]) == (303, "/ui/streams/orders?done=pause")
        assert broker.administration.done == [("pause", "orders")]
        token = await browser.form_token("/ui/streams/orders/compact")
        await browser.post("/ui/streams/orders/compact", {"form_token": token})
        assert broker.compaction["requested"] == 1


async def test_a_forged_change_does_nothing(
    site: Any, orders: Any, broker: Any, policy: Policy
) -> None:
    path = "/ui/streams/orders/pause"
    async with site(policy) as browser:
        await browser.sign_in("ann")
        token = await browser.form_token(path)
        other = await browser.form_token("/ui/streams/orders/resume")
        good = {"form_token": token}
        assert (await browser.post(path, {}))[0] == 403
        assert (await browser.post(path, {"form_token": other}))[0] == 403
        assert (await browser.post(path, good, Origin="http://evil.example"))[0] == 403
        assert (await browser.post(path, good, Origin="null"))[0] == 403
        assert (await browser.post(path, good, Sec_Fetch_Site="cross-site"))[0] == 403
        assert (
            await browser.post(
                path,
                good,
                Sec_Fetch_Site="same-site",
                Sec_Fetch_Mode="navigate",
                Sec_Fetch_Dest="document",
            )
        )[0] == 403
        async with browser.session.post(browser.base + path, json=good) as answer:
            assert answer.status == 403
        async with browser.session.post(browser.base + path, data={"x": "y" * 20_000}) as answer:
            assert answer.status == 429
        browser.session.cookie_jar.clear()
        assert (await browser.post(path, good))[0] == 303  # to sign in
        await browser.sign_in("ann")
        assert (await browser.post(path, good))[0] == 403, "of another session"
    assert broker.administration.done == []


async def test_who_may_not_is_refused_before_anything(
    site: Any, orders: Any, broker: Any, policy: Policy
) -> None:
    async with site(policy) as browser:
        await browser.sign_in("eu")
        for action in ("pause", "resume", "compact"):
            assert (await browser.get(f"/ui/streams/orders/{action}"))[0] == 403
            assert (await browser.post(f"/ui/streams/orders/{action}", {}))[0] == 403
        await browser.sign_in("nil")
        assert (await browser.get("/ui/streams/orders"))[0] == 403
    assert broker.administration.done == []
    assert broker.compaction == {}


async def test_a_link_of_another_site_leads_here_but_only_as_a_page(
    site: Any, orders: Any, policy: Policy
) -> None:
    """The cookie is not sent with it, so our own page asks once more."""
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    async with site(policy) as browser:
        status, text, _ = await browser.get("/ui/streams/orders", **link, Sec_Fetch_Dest="document")
        assert (status, 'http-equiv="refresh"' in text) == (200, True)
        assert "attached" not in text
        assert (await browser.get("/ui/streams", **link, Sec_Fetch_Dest="iframe"))[0] == 403
    async with site() as browser:
        status, *_ = await browser.get("/ui/streams", **link, Sec_Fetch_Dest="document")
        assert status == 200
        assert (await browser.get("/ui/streams.json", Sec_Fetch_Site="cross-site"))[0] == 403
        assert (await browser.get("/ui/streams", Host="evil.example"))[0] == 403


async def test_a_slow_form_is_given_up(
    site: Any, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entering, "_FORM_SECONDS", 0.1)
    async with site() as browser:
        host, port = browser.base.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"POST /ui/streams/orders/pause HTTP/1.1\r\nHost: {host}:{port}\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            "Content-Length: 50\r\n\r\nfo".encode()
        )
        started = time.monotonic()
        assert b"408" in await reader.readline()
        assert time.monotonic() - started < 5
        writer.close()
        await writer.wait_closed()


# --- whose turn a request waits for ---


async def test_known_callers_do_not_share_the_turns_of_their_address(
    site: Any, orders: Any, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a proxy all have one address."""
    began: list[Any] = []
    run = Turns.run

    async def noted(turns: Turns, asker: Asker, work: Any) -> Any:
        began.append(asker.party)
        return await run(turns, asker, work)

    monkeypatch.setattr(Turns, "run", noted)

    async def party_of(path: str, token: str = "") -> Any:
        began.clear()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        await browser.get(path, **headers)
        return began[0]

    async with site(policy) as browser:
        for path in ("/ui/streams", "/api/v1/streams"):
            ann, wrong = "ann.0123456789abcdefghijklmnop-ann", "ann.0123456789abcdefghijklmnop"
            assert await party_of(path) == "loopback"
            await party_of(path, ann)
            assert await party_of(path, ann) == "ann"
            for _ in range(2):
                assert await party_of(path, wrong) == "loopback"
            assert await party_of(path, "no token at all") == "loopback"
        await browser.sign_in("eu")
        assert await party_of("/ui/streams") == "eu"
        assert await party_of("/ui/streams", ann) == "ann"  # the token counts, not the cookie
        assert await party_of("/livez") == "(health)"
        browser.pull.services.gate.set_policy(Policy.load("principals: {new: {unix_uid: 1}}"))
        assert await party_of("/ui/streams", ann) == "loopback"
        assert await party_of("/ui/streams") == "loopback"
