"""One request for a page: who asks, for what; and what the page is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from acl.rules import Operation
from liftlog.errors import InvalidArgument, ShuttingDown
from liftlog.server.access.gate import Gate
from liftlog.server.http.access import peer_of
from liftlog.server.http.server import Health
from liftlog.server.http.spread_work import Turns
from liftlog.server.web.descriptions import Descriptions
from liftlog.server.web.rates import Rates
from liftlog.server.web.seams import Door, ShownBroker
from liftlog.server.web.sessions import Sessions

MAX_TEXT = 1000

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Parts:
    """Of the daemon and of the web page, for the views."""

    broker: ShownBroker
    health: Health
    door: Door
    rates: Rates
    descriptions: Descriptions
    sessions: Sessions
    turns: Turns = field(default_factory=Turns)


@dataclass(frozen=True, slots=True)
class Viewer:
    """`principal` None: no ACL is configured. `cookie` is set for whoever is signed in with it."""

    principal: str | None
    cookie: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    request: web.Request
    viewer: Viewer
    parts: Parts

    @property
    def gate(self) -> Gate:
        """Of this moment: behind an await it may be another one."""
        return self.parts.door.gate

    @property
    def peer(self) -> str:
        return peer_of(self.request)

    @property
    def stream(self) -> str:
        return self.request.match_info["stream"]

    def may(self, operation: Operation, stream: str) -> bool:
        return self.gate.may(self.viewer.principal, operation, stream)

    def authorize(self, operation: Operation) -> str:
        """Returns the stream of the page. Raises Forbidden, InvalidArgument."""
        self.gate.authorize(self.viewer.principal, operation, self.stream, peer=self.peer)
        return self.stream

    async def scan(self, look: Callable[..., Result], *arguments: object) -> Result:
        """In the thread in which scans take turns. Raises ShuttingDown."""
        loop = asyncio.get_running_loop()
        try:
            turns = self.parts.door.scanners.of(self.viewer.principal or self.peer)
            waiting = loop.run_in_executor(turns, look, *arguments)
        except RuntimeError:  # the pull server, whose thread it is, has closed
            raise ShuttingDown("the daemon is stopping") from None
        return await waiting

    def text(self, name: str) -> str:
        """A query parameter without the blanks around it; empty when it is not there."""
        found = self.request.query.get(name, "").strip()
        if len(found) > MAX_TEXT:
            raise InvalidArgument(f"{name}: longer than {MAX_TEXT} characters")
        return found

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """A query parameter; the first of `known` when it is not there."""
        found = self.text(name) or known[0]
        if found not in known:
            raise InvalidArgument(f"{name}: expected one of {', '.join(known)}")
        return found

    def number(self, name: str, default: int, highest: int = 2**63 - 1) -> int:
        found = self.text(name).replace(",", "")
        if not found:
            return default
        if not (found.isascii() and found.isdecimal()) or len(found) > 19 or int(found) > highest:
            raise InvalidArgument(f"{name}: expected a whole number of at most {highest:,}")
        return int(found)


@dataclass(frozen=True, slots=True)
class Shown:
    """`data` is what the `.json` twin answers, and all that the template is given of the daemon.
    `extra` is for the form of the page alone: what stands in which field, links."""

    title: str
    data: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
