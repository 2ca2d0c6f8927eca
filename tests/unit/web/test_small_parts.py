"""Sessions, rates, pictures and descriptions: bounded, and gone when they should be."""

from __future__ import annotations

import re
from typing import Any

from support.repository import REPOSITORY

from liftlog.errors import StreamNotFound
from liftlog.protocol.messages import StreamInfo
from liftlog.server.access.authentication import Identity
from liftlog.server.web import sessions
from liftlog.server.web.entering import _OWN_PATH
from liftlog.server.web.formats import MAX_PARTS, WIDTH, segment_parts, spark_points
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.watching import Descriptions

TEMPLATES = REPOSITORY / "liftlog/server/web/templates"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Known:
    """A policy in which `secret` is what everybody authenticates with."""

    def __init__(self, secret: str = "s") -> None:
        self.secret = secret

    def credential(self, name: str, method: str) -> object:
        return self.secret


def identity(name: str) -> Identity:
    return Identity(name, "token", "s")


def test_a_session_ends_when_unused_too_old_or_withdrawn() -> None:
    clock, policy = Clock(), Known()
    kept: Any = Sessions(clock)
    cookie = kept.begin(identity("ann"))
    assert (kept.count(policy), kept.count(Known("changed"))) == (1, 0)
    assert kept.find(cookie, policy).identity.principal == "ann"
    assert kept.find(cookie + "x", policy) is kept.find(None, policy) is kept.find("", policy)
    clock.now += sessions.MAX_IDLE_SECONDS + 1
    assert (len(kept), kept.count(policy)) == (1, 0), "no browser comes back with it"
    assert kept.find(cookie, policy) is None
    assert len(kept) == 0

    cookie = kept.begin(identity("ann"))
    for _ in range(int(sessions.MAX_AGE_SECONDS / 1800)):
        clock.now += 1800
        assert kept.find(cookie, policy) is not None
    clock.now += 1800
    assert kept.find(cookie, policy) is None

    cookie = kept.begin(identity("ann"))
    assert kept.find(cookie, Known("changed")) is None
    assert kept.find(cookie, policy) is None, "it must not come back with the old ACL"

    cookie = kept.begin(identity("ann"))
    kept.end(cookie)
    assert kept.find(cookie, policy) is None


def test_sessions_are_bounded_and_one_principal_takes_no_place_of_others() -> None:
    policy = Known()
    kept: Any = Sessions(Clock())
    first = kept.begin(identity("ann"))
    mine = [kept.begin(identity("ann")) for _ in range(sessions.MAX_PER_PRINCIPAL)]
    assert kept.find(first, policy) is None
    assert all(kept.find(one, policy) for one in mine)
    for number in range(sessions.MAX_SESSIONS + 5):
        kept.begin(identity(f"user-{number}"))
    assert len(kept) == sessions.MAX_SESSIONS
    assert cookies_are_not_kept(kept, mine)


def cookies_are_not_kept(kept: Sessions, cookies: list[str]) -> bool:
    return not any(one.encode() in key for key in kept._sessions for one in cookies)


def test_a_form_token_is_of_one_session_and_one_purpose() -> None:
    kept, other = Sessions(), Sessions()
    token = kept.form_token("cookie", "pause orders")
    assert kept.is_form_token(token, "cookie", "pause orders")
    assert not kept.is_form_token(token, "cookie", "pause payments")
    assert not kept.is_form_token(token, "another", "pause orders")
    assert not kept.is_form_token(token, None, "pause orders")
    assert not other.is_form_token(token, "cookie", "pause orders")
    assert not kept.is_form_token("", "cookie", "pause orders")
    assert not kept.is_form_token("\udcffé", "cookie", "pause orders")


def segment(kind: str, size: int, base: int = 1) -> dict[str, Any]:
    return {"kind": kind, "size_bytes": size, "base_offset": base, "next_offset": base + 10}


def test_a_picture_of_segments_fills_the_bar_and_hides_no_damage() -> None:
    kinds = ["sealed"] * 2000 + ["damaged"] + ["sealed"] * 999 + ["active"]
    parts = segment_parts([segment(kind, 1 + i % 7, i * 10) for i, kind in enumerate(kinds)])
    assert len(parts) <= MAX_PARTS
    assert sum(part["count"] for part in parts) == len(kinds)
    assert [part["kind"] for part in parts].count("damaged") == 1
    assert parts[-1]["kind"] == "active"
    assert abs(parts[-1]["x"] + parts[-1]["width"] - WIDTH) < 1
    assert min(part["width"] for part in parts) >= 5.9
    assert segment_parts([]) == []


def test_an_empty_segment_is_seen() -> None:
    (only,) = segment_parts([segment("active", 0)])
    assert only["width"] >= 5.9


def test_a_sparkline_ends_at_the_right() -> None:
    assert spark_points([], 60) == ""
    assert spark_points([0.0, 0.0], 60).split()[-1] == "120.0,27.0"
    assert spark_points([1.0, 2.0], 60).split()[-1] == "120.0,1.0"


async def test_descriptions_are_a_second_old_at_most() -> None:
    class Broker:
        asked = 0

        async def describe_stream(self, name: str) -> StreamInfo:
            self.asked += 1
            if name == "gone":
                raise StreamNotFound("gone")
            return StreamInfo(name, "a", size_bytes=self.asked)

    clock, broker = Clock(), Broker()
    kept = Descriptions(broker, clock)  # type: ignore[arg-type]
    names = ["a", "gone", "b"]
    assert [info.name for info in await kept.of(names)] == ["a", "b"]
    assert [info.size_bytes for info in await kept.of(["b", "a"])] == [3, 1]
    assert broker.asked == 3
    clock.now += 1.01
    assert [info.size_bytes for info in await kept.of(["a"])] == [4]
    kept.forget("a")
    assert [info.size_bytes for info in await kept.of(["a"])] == [5]


def test_where_a_login_may_lead() -> None:
    for good in ("/ui/streams", "/ui/streams/orders/records?offset=5&key=a%2Fb", "/ui/health"):
        assert _OWN_PATH.fullmatch(good)
    for bad in ("//evil.example", "/ui//../\\evil", "https://evil.example/ui/", "/ui/\r\nX: y",
                "javascript:alert(1)", "/metrics", "/ui/streams#x", "/ui/streams\n"):  # fmt: skip
        assert not _OWN_PATH.fullmatch(bad), bad


def test_wide_tables_are_cards_on_a_phone() -> None:
    """A table is laid out in one way, by the style sheet; its roles stay those of a table."""
    wide = 0
    for path in sorted(TEMPLATES.glob("*.html")):
        for table in re.findall(r"<table.*?</table>", path.read_text(), re.DOTALL):
            opened = table[: table.index(">")]
            if table.count('scope="col"') <= 3 or path.name in ("group.html", "versions.html"):
                continue  # narrow, or with a layout of its own
            wide += 1
            assert re.search(r'class="[^"]*\b(cards|streams|records)\b', opened), (
                path.name,
                opened,
            )
            for cell in re.findall(r"<(?:td|th|tr|thead|tbody)\b[^>]*>", table):
                assert "role=" in cell, (path.name, cell)
            for cell in re.findall(r"<td\b[^>]*>", table):
                is_labelled = "data-label=" in cell or "colspan=" in cell or "streams" in opened
                assert is_labelled, (path.name, cell)
    assert wide > 10
