"""Describes all streams and consumers that clients of NATS may read, on all nodes of the
cluster."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from acl.policy import Policy
from acl.rules import OVER_NATS
from liftlog.errors import LiftlogError, NotReady
from liftlog.server.jetstream_api.answers import JetStreamError, to_text
from liftlog.server.jetstream_api.methods import METHODS, Parts, Request
from liftlog.server.jetstream_api.own_requests import OwnRequests
from liftlog.server.vitals.slices import Slices

_AT_ONCE = 8
"""Maximum number of streams that are described at a time."""
_NODE_SECONDS = 2.0
_SHARE = 10.0
_AGE_SECONDS = (1.0, 15.0)
"""Shortest and longest time, in seconds, for which a description is reused."""


class Seen(NamedTuple):
    """One stream, in the form of the answers to STREAM.INFO and CONSUMER.LIST."""

    info: Mapping[str, Any]
    leader: str
    consumers: list[dict[str, Any]]


class Overview(NamedTuple):
    """The streams that clients of NATS may read, and the names of the streams that no node has
    described."""

    streams: list[Seen]
    missing: list[str]


class Overviews:
    """Describes all streams of the daemon or its cluster. It belongs to the event loop.

    A description is reused for about ten times as long as it took to compose. So even continuous
    requests use at most a tenth of the event loop's time.
    """

    def __init__(self, parts: Parts, requests: OwnRequests, node_prefix: Callable[[str], str]):
        """`node_prefix` returns the prefix of the subjects on which a node takes the requests that
        other nodes forward."""
        self.parts = parts
        self._requests = requests
        self._node_prefix = node_prefix
        self._one_at_a_time = asyncio.Lock()
        self._found = Overview([], [])
        self._policy: Policy | None = None
        self._good_until = 0.0

    async def get(self) -> Overview:
        async with self._one_at_a_time:
            began, policy = time.monotonic(), self.parts.gate.policy
            if began >= self._good_until or policy is not self._policy:
                self._found = await self._look()
                ended = time.monotonic()
                least, most = _AGE_SECONDS
                self._good_until = ended + min(max((ended - began) * _SHARE, least), most)
                self._policy = policy
            return self._found

    async def _look(self) -> Overview:
        gate, catalog = self.parts.gate, self.parts.broker.catalog
        names = [
            one for one in self.parts.broker.stream_names() if gate.may(OVER_NATS, "read", one)
        ]
        free, slices = asyncio.Semaphore(_AT_ONCE), Slices()

        async def one(name: str) -> Seen | None:
            async with free:
                await slices.pause()
                try:
                    node = catalog.answerer(name)
                    return await self._seen(name, node)
                except (LiftlogError, JetStreamError, ValueError, KeyError):
                    return None

        found = await asyncio.gather(*map(one, names))
        missing = [name for name, seen in zip(names, found, strict=True) if seen is None]
        return Overview([seen for seen in found if seen is not None], missing)

    async def _seen(self, name: str, node: str | None) -> Seen:
        """Describe a stream that `node` leads; None stands for this node."""
        info = await self._answer(node, "STREAM.INFO", name, {})
        consumers: list[dict[str, Any]] = []
        while True:
            body = {"offset": len(consumers)}
            page = await self._answer(node, "CONSUMER.LIST", name, body)
            consumers += page["consumers"]
            if not page["consumers"] or len(consumers) >= page["total"]:
                return Seen(info, node or self._own_name, consumers)

    @property
    def _own_name(self) -> str:
        settings = self.parts.broker.settings
        return settings.name if settings.cluster is None else settings.cluster.node

    async def _answer(
        self, node: str | None, method: str, stream: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the answer to a request about a stream. Raises LiftlogError, JetStreamError, and
        ValueError if the answer is not JSON."""
        payload = to_text(body)
        if node is None:
            request = Request(self.parts, (stream,), b"", payload, time.monotonic())
            found = await METHODS[method].perform(request)
            assert found is not None, "only methods that send records return nothing"
            return found
        subject = f"{self._node_prefix(node)}{method}.{stream}"
        answer = json.loads(await self._requests.ask(subject, payload, seconds=_NODE_SECONDS))
        if "error" in answer:
            raise NotReady(f"node {node} does not describe stream {stream}")
        return dict(answer)
