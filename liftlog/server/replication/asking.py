"""Asks many nodes at once for their copies of streams. The content of an answer is not trusted
until it is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from liftlog.cluster.election import LogEnd
from liftlog.cluster.guard import Known
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import ConnectionLost, LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.replication import Copies, CopiesAnswer
from liftlog.server.replication.peer_link import PeerLink

_ANSWER_SECONDS = 3.0
MAX_STREAMS_ASKED = 64
"""Maximum number of streams in one request."""


async def ask_nodes(
    nodes: Iterable[str], message: Copies, link_to: Callable[[str], PeerLink]
) -> dict[str, CopiesAnswer]:
    """Ask all nodes at once. Returns the answers that arrive in time."""
    asked = sorted(nodes)
    answers = await asyncio.gather(*(_ask(link_to(node), message) for node in asked))
    return {node: answer for node, answer in zip(asked, answers, strict=True) if answer is not None}


async def _ask(link: PeerLink, message: Copies) -> CopiesAnswer | None:
    done: asyncio.Future[CopiesAnswer | None] = asyncio.get_running_loop().create_future()

    def answered(exchange: Exchange) -> None:
        answer = exchange.answer
        if not done.done():
            done.set_result(answer if isinstance(answer, CopiesAnswer) else None)

    exchange = Exchange(on_done=answered)
    link.request(message, exchange)
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await done
    except (TimeoutError, ConnectionLost):
        link.give_up(exchange)
        return None


def known_from(copies: Mapping[str, Any]) -> dict[str, Known]:
    """Parse the copies that another node has reported. A metadata record that cannot be parsed
    counts as missing on that node, because the data of another node is not trusted."""
    found = {}
    for name, told in copies.items():
        try:
            text, epoch, end = told
            record = StreamMetadata.from_json(text.encode())
            log = LogEnd(epoch, end) if type(epoch) is type(end) is int else None
        except (LiftlogError, TypeError, ValueError, AttributeError):
            continue
        if record.name == name:
            found[name] = Known(record, log)
    return found
