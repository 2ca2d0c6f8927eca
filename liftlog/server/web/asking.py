"""One request for a page: its viewer, its stream, and access to the parts of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from acl.rules import Operation
from liftlog.errors import InvalidArgument, LiftlogError, NotLeader, NotReady, ShuttingDown
from liftlog.protocol.messages import DescribeStream, Message, StreamAnswer, StreamInfo
from liftlog.server.access.gate import Gate
from liftlog.server.http.appending import Appender
from liftlog.server.http.callers import peer_of
from liftlog.server.http.server import Health
from liftlog.server.reading.fairness import FairLock, FairThreads, SpreadWork
from liftlog.server.requests.rights import Caller, carry_out
from liftlog.server.streams.broker import Broker
from liftlog.server.web.history import History
from liftlog.server.web.pace import Pace
from liftlog.server.web.readers import Readers
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.watching import Descriptions

MAX_TEXT = 1000
_NO_LIMIT = 2**63 - 1

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the daemon and of the web page that the views use."""

    broker: Broker
    health: Health
    gate: Gate
    scanners: FairThreads
    history: History
    descriptions: Descriptions
    readers: Readers
    sessions: Sessions
    appender: Appender
    pace: Pace
    spread: SpreadWork = field(default_factory=SpreadWork)
    searching: FairLock = field(default_factory=FairLock)
    """A lock that a search holds during each of its steps. Viewers take turns at it, because
    commits also need the time of the interpreter. So all searches together take no more time than
    one search."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """The user who sees the page. `principal` is None if no ACL is configured. `cookie` is set if
    the viewer has signed in."""

    principal: str | None
    cookie: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    request: web.Request
    viewer: Viewer
    parts: Parts

    @property
    def gate(self) -> Gate:
        """The gate that decides about access. A decision may differ after each await, because the
        ACL can be reloaded."""
        return self.parts.gate

    @property
    def peer(self) -> str:
        return peer_of(self.request)

    @property
    def party(self) -> str:
        """The party of this request. Parties take turns at the searches."""
        return self.viewer.principal or self.peer

    @property
    def stream(self) -> str:
        return self.request.match_info["stream"]

    def may(self, operation: Operation, stream: str) -> bool:
        return self.gate.may(self.viewer.principal, operation, stream)

    def authorize(self, operation: Operation) -> str:
        """Check the viewer's right on the stream of the page, and return the stream's name. Raises
        Forbidden, InvalidArgument."""
        self.gate.authorize(self.viewer.principal, operation, self.stream, peer=self.peer)
        return self.stream

    async def carry_out(self, message: Message) -> Message:
        """Send a request to the node that is responsible for it, and return the answer. The caller
        has checked that the viewer may send this request. Raises the broker's errors."""
        caller = Caller(self.viewer.principal, self.gate, self.parts.broker, self.peer)
        return await carry_out(caller, message)

    async def describe(self) -> StreamInfo:
        """Return the leader's description of the page's stream. If no leader can be reached, return
        this node's description."""
        try:
            answer = await self.carry_out(DescribeStream(self.stream))
        except (NotLeader, NotReady):
            return await self.parts.broker.describe_stream(self.stream)
        assert isinstance(answer, StreamAnswer), "the answer to describe"
        return answer.info

    async def scan(self, look: Callable[..., Result], *arguments: object) -> Result:
        """Run `look` in a thread that searches share, and return its result. Raises
        ShuttingDown."""
        loop = asyncio.get_running_loop()
        try:
            thread = self.parts.scanners.of(self.party)
            waiting = loop.run_in_executor(thread, look, *arguments)
        except RuntimeError:  # the pull server, which owns the thread, has closed
            raise ShuttingDown("the daemon is stopping") from None
        return await waiting

    def text(self, name: str) -> str:
        """Return a query parameter without blanks at its ends; empty if it is missing. Raises
        InvalidArgument if it is too long."""
        found = self.request.query.get(name, "").strip()
        if len(found) > MAX_TEXT:
            raise InvalidArgument(f"{name}: longer than {MAX_TEXT} characters")
        return found

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """Return a query parameter. Its value must be one of `known`. If it is missing, return the
        first of `known`. Raises InvalidArgument for any other value."""
        found = self.text(name) or known[0]
        if found not in known:
            raise InvalidArgument(f"{name}: expected one of {', '.join(known)}")
        return found

    def number(self, name: str, default: int, highest: int = _NO_LIMIT) -> int:
        found = self.text(name).replace(",", "")
        if not found:
            return default
        if not (found.isascii() and found.isdecimal()) or len(found) > 19 or int(found) > highest:
            most = f" of at most {highest:,}" if highest < _NO_LIMIT else ""
            raise InvalidArgument(f"{name}: expected a whole number{most}")
        return int(found)


@dataclass(frozen=True, slots=True)
class Shown:
    """The values of a page.

    The page's address plus `.json` returns `data` as JSON. The template receives no other values
    from the daemon. `extra` is only for the layout of the page: values of fields, links. `draw`
    returns further values for `extra`. It is not called for the JSON, because computing a picture
    takes more time than computing its values.

    `refused` is set if the form contained an error. The page then shows the form with the reasons,
    and the JSON address returns this error. `moved_to` is set if a form was carried out. The
    browser then continues with that page.
    """

    title: str
    data: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    refused: LiftlogError | None = None
    moved_to: str = ""
    draw: Callable[[], Awaitable[dict[str, Any]]] | None = None
