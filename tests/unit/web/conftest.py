"""The web page over HTTP, on real logs and a real ACL, without NATS."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.daemons.http_port import http_port
from support.daemons.local_checkpoints import NoGroups
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.protocol.described import DaemonInfo
from liftlog.protocol.messages import StreamInfo
from liftlog.server.pull import PullServer
from liftlog.server.web import browsing


def secret_of(principal: str) -> str:
    return f"0123456789abcdefghijklmnop-{principal}"


class Administration:
    def __init__(self, broker: Any) -> None:
        self.done: list[tuple[str, str]] = []
        self._broker = broker
        self.leases = self

    def live(self, name: str) -> list[Any]:
        return []

    async def pause(self, name: str) -> StreamInfo:
        self.done.append(("pause", name))
        return await self._broker.describe_stream(name)

    async def resume(self, name: str) -> StreamInfo:
        self.done.append(("resume", name))
        return await self._broker.describe_stream(name)

    async def update_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the test says what becomes of it")

    def daemon_info(self, may_read: Callable[[str], bool], *_: Any) -> DaemonInfo:
        names = self._broker.stream_names()
        return DaemonInfo(name="test", stream_count=sum(map(may_read, names)))


class NoCheckpoints:
    groups = NoGroups()

    def page(self, may_read: Any, **_: Any) -> tuple[list[Any], None]:
        return [], None


class WebBroker(LogBroker):
    checkpoints = NoCheckpoints()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._administration = Administration(self)

    @property
    def administration(self) -> Any:
        return self._administration


class Browser:
    """Keeps cookies, follows nothing."""

    def __init__(self, base: str, pull: PullServer) -> None:
        self.base, self.pull = base, pull
        jar = aiohttp.CookieJar(unsafe=True)
        self.session = aiohttp.ClientSession(cookie_jar=jar)

    async def get(self, path: str, **headers: str) -> tuple[int, str, Any]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.get(
            self.base + path, headers=sent, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer

    async def post(self, path: str, form: dict[str, str], **headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(
            self.base + path, data=form, headers=sent, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer

    async def records(self, question: str) -> dict[str, Any]:
        status, text, _ = await self.get(f"/ui/streams/orders/records.json?{question}")
        assert status == 200, text
        return dict(json.loads(text))

    async def form_token(self, path: str) -> str:
        _, text, _ = await self.get(path)
        action = re.escape(path.partition("?")[0])
        found = re.search(
            rf'action="{action}[^"]*">\s*<input type="hidden" name="form_token" value="(\w+)"', text
        )
        assert found is not None, text
        return found[1]

    async def form_token_of_logout(self, path: str) -> str:
        _, text, _ = await self.get(path)
        found = re.search(r'action="/ui/logout"><input [^>]*value="(\w+)"', text)
        assert found is not None, text
        return found[1]

    async def sign_in(self, principal: str, secret: str = "", next_path: str = "") -> Any:
        path = "/ui/login" + next_path
        token = await self.form_token(path)
        secret = secret or secret_of(principal)
        return await self.post(path, {"form_token": token, "token": f"{principal}.{secret}"})


Site = Callable[..., AbstractAsyncContextManager[Browser]]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    broker = WebBroker(tmp_path)
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def long_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a busy machine does not cut a search of a few records short."""
    monkeypatch.setattr(browsing, "_SEARCH_SECONDS", 30.0)
    monkeypatch.setattr(browsing, "_SHOWN_SECONDS", 30.0)


@pytest.fixture
def site(broker: WebBroker) -> Site:
    @asynccontextmanager
    async def start(policy: Policy | None = None, appender: Any = None) -> AsyncIterator[Browser]:
        async with pull_server(broker, policy=policy) as (pull, _):
            async with http_port(pull, appender=appender) as (_, base, _):
                browser = Browser(base, pull)
                try:
                    yield browser
                finally:
                    await browser.session.close()

    return start


@pytest.fixture(scope="session")
def policy() -> Policy:
    """`ann` may do all, `eu` reads what is on orders.eu.>, `nil` nothing."""
    ann, eu, nil = (hash_token(secret_of(name)) for name in ("ann", "eu", "nil"))
    return Policy.load(
        f"""
principals:
  ann: {{token_hash: "{ann}"}}
  eu: {{token_hash: "{eu}"}}
  nil: {{token_hash: "{nil}"}}
roles:
  owner: [{{allow: [read, commit, admin, delete], streams: ["*"]}}]
  reader: [{{allow: [read], streams: ["orders"], subjects: ["orders.eu.>"]}}]
bindings: {{ann: [owner], eu: [reader]}}
"""
    )


@pytest.fixture
def orders(broker: Any) -> Any:
    stream = broker.add("orders", subject="orders.>")
    stream.append([b'{"n":1}', b"plain", None], keys=[b"k-1", b"\xff\x00", b"k-1"])
    stream.append([b"us"], subject=b"orders.us.new")
    stream.append([b"eu"], subject=b"orders.eu.new")
    return stream
