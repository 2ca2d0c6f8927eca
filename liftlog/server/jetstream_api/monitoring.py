"""`/jsz`: the page of nats-server's monitoring port that describes streams and consumers. Programs
that scale workers, such as KEDA, and exporters of metrics read it.

The page contains the streams that the section `nats` of the ACL allows clients of NATS to read. In
a cluster each node describes the streams of all nodes, because the readers of the page request only
one address.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from aiohttp import web

from liftlog.errors import LiftlogError, Unauthenticated
from liftlog.server.http.callers import Callers, HostNames, asks
from liftlog.server.http.failures import failure
from liftlog.server.jetstream_api.answers import API_LEVEL, time_text
from liftlog.server.jetstream_api.methods import ApiCounters
from liftlog.server.jetstream_api.overview import Overview, Overviews, Seen

_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False", ""))
"""The words of Go's `strconv.ParseBool`; an empty value means false."""


class Wanted(NamedTuple):
    """The query of a request."""

    account: str
    offset: int
    has_accounts: bool
    has_streams: bool
    has_consumers: bool
    has_config: bool


def parse_query(query: Mapping[str, str]) -> Wanted:
    """Parse the query of a request. Raises ValueError with nats-server's words. Unknown parameters
    are ignored, as in nats-server."""
    consumers = _flag(query, "consumers")
    streams = _flag(query, "streams") or consumers
    account = query.get("acc", "")
    accounts = _flag(query, "accounts") or streams or bool(account)
    return Wanted(
        account or "$G",
        _number(query, "offset"),
        accounts,
        streams,
        consumers,
        _flag(query, "config"),
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "")
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    shown = json.dumps(value[:40])
    raise ValueError(
        f"Error decoding boolean for '{name}': strconv.ParseBool: parsing {shown}: invalid syntax"
    )


def _number(query: Mapping[str, str], name: str) -> int:
    value = query.get(name, "") or "0"
    if not _NUMBER.fullmatch(value):
        shown = json.dumps(value[:40])
        raise ValueError(f"Error decoding int for '{name}': parsing {shown}: invalid syntax")
    return max(int(value), 0)


def compose(
    overview: Overview,
    wanted: Wanted,
    counters: ApiCounters,
    server_id: str,
    may_see: Callable[[str], bool],
) -> dict[str, Any]:
    """Return the page. The settings of streams that the caller may not see are left out."""
    states = [one.info["state"] for one in overview.streams]
    size = sum(state["bytes"] for state in states)
    usage = {"memory": 0, "storage": size, "reserved_memory": 0, "reserved_storage": 0}
    calls = {"level": API_LEVEL, "total": counters.requests.total(), "errors": counters.errors}
    page: dict[str, Any] = {
        **usage,
        "accounts": 1,
        "ha_assets": 0,
        "api": calls,
        "server_id": server_id,
        "now": time_text(time.time_ns()),
        "config": {"max_memory": 0, "max_storage": -1, "store_dir": ""},
        "streams": len(states),
        "consumers": sum(len(one.consumers) for one in overview.streams),
        "messages": sum(state["messages"] for state in states),
        "bytes": size,
        "total": 1,
    }
    if overview.missing:
        page["missing_streams"] = overview.missing
    if wanted.has_accounts and not wanted.offset:
        account: dict[str, Any] = {"name": wanted.account, "id": wanted.account, **usage}
        account |= {"accounts": 0, "ha_assets": 0, "api": calls}
        if wanted.has_streams:
            account["stream_detail"] = [
                _stream(one, wanted, may_see(one.info["config"]["name"]))
                for one in overview.streams
            ]
        page["account_details"] = [account]
    return page


def _stream(seen: Seen, wanted: Wanted, may_see: bool) -> dict[str, Any]:
    info = seen.info
    found: dict[str, Any] = {
        "name": info["config"]["name"],
        "created": info["created"],
        "cluster": {"leader": seen.leader},
    }
    if wanted.has_config and may_see:
        found["config"] = info["config"]
    found["state"] = {**info["state"], "consumer_count": len(seen.consumers)}
    if wanted.has_consumers:
        found["consumer_detail"] = [
            _consumer(one, seen.leader, wanted.has_config and may_see) for one in seen.consumers
        ]
    return found


def _consumer(info: Mapping[str, Any], leader: str, has_config: bool) -> dict[str, Any]:
    found = {name: value for name, value in info.items() if name not in ("type", "config")}
    found.setdefault("cluster", {"leader": leader})
    if has_config:
        found["config"] = info["config"]
    return found


class MonitoringPage:
    """The page, mounted on the HTTP port. Belongs to the event loop.

    Like the metrics, the figures need no token. The settings of a stream and its consumers are only
    shown to callers that may read the stream.
    """

    def __init__(
        self, overviews: Callable[[], Overviews | str], callers: Callers, hosts: HostNames
    ) -> None:
        """`overviews` returns the overviews. While the API is not available, it returns the reason
        as a text."""
        self._overviews = overviews
        self._callers = callers
        self._hosts = hosts

    def recognized(self, request: web.Request) -> str | None:
        return self._callers.recognized(request)

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/jsz", self._page)]

    async def close(self) -> None:
        pass

    async def _page(self, request: web.Request) -> web.Response:
        try:
            self._hosts.check(request)
            may_see = await self._rights(request)
        except LiftlogError as error:
            return failure(error)
        overviews = self._overviews()
        if isinstance(overviews, str):
            return web.Response(status=503, text=f"{overviews}\n")
        try:
            wanted = parse_query(request.query)
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        found, parts = await overviews.get(), overviews.parts
        page = compose(found, wanted, parts.counters, parts.broker.server_id, may_see)
        return web.json_response(page, dumps=lambda page: json.dumps(page, indent=2))

    async def _rights(self, request: web.Request) -> Callable[[str], bool]:
        """Return a function that returns True if the caller may see the settings of a stream.
        Raises Unauthenticated for a wrong token, Forbidden."""
        try:
            principal = await self._callers.principal(request)
        except Unauthenticated:
            if "Authorization" in request.headers:
                raise
            await asks(request, None)
            return lambda stream: False
        await asks(request, principal)
        return lambda stream: self._callers.gate.may(principal, "read", stream)
