"""Moves from a server that is about to stop to another one without losing or duplicating messages.

NATS warns its clients some time before it closes their connections (lame duck mode). Until then
the old connection works as before. The daemon connects to another server, subscribes there, waits
until the cluster knows the subscriptions, drains the old connection, and then uses the new one. See
`overlap`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from acl.subjects import matches, overlaps
from liftlog.errors import NatsUnavailable
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.echoes import FORGET_SECONDS, Echoes
from liftlog.server.ingest.overlap import Overlap
from liftlog.server.ingest.subscriptions import LinkSubscription, Refusals, RunHandler
from liftlog.stream.acks import published
from liftlog.stream.run import MessageRun

logger = logging.getLogger("liftlog.server.nats")

_OVERLAP_SECONDS = 1.5
"""The time for which both are subscribed: longer than a cluster needs to propagate a subscription.
NATS waits 10 s by default before it closes the first connection."""
_PAIR_SECONDS = 1.0
"""Both copies of a message arrive within this time."""
_DRAIN_SECONDS = 3.0
_MAX_MESSAGES = 500_000
_MAX_HELD_BYTES = 64 * 1024 * 1024


class Handover:
    """One handover of all subscriptions from `old` to `new`."""

    def __init__(
        self,
        old: NatsConnection,
        new: NatsConnection,
        wanted: Sequence[LinkSubscription],
        on_chunk_end: Callable[[], None],
        hurry: asyncio.Event,
        echoes: Echoes,
    ) -> None:
        """Once `hurry` is set, the overlap ends as soon as possible. `echoes` outlives this: they
        may come during the next one."""
        self._old = old
        self.new = new
        self.wanted = list(wanted)
        self._on_chunk_end = on_chunk_end
        self._hurry = hurry
        self._echoes = echoes
        self._overlap = Overlap(
            time.monotonic,
            pair_seconds=_PAIR_SECONDS,
            max_messages=_MAX_MESSAGES,
            max_held_bytes=_MAX_HELD_BYTES,
        )
        self.refused: dict[LinkSubscription, Refusals] = {}
        """Subscriptions that the new server refused, or parts of them, with the reasons."""
        self.doubt = ""
        """Why a message may have been lost; empty if none was."""
        self._echoing = [
            (one, pattern)
            for one in self.wanted
            for pattern in one.subjects
            if overlaps(pattern, "_INBOX.>")
        ]

    @property
    def copies(self) -> int:
        """How many messages arrived over both connections."""
        return self._overlap.copies

    async def run(self) -> None:
        """Returns when the new connection has taken over. Raises NatsUnavailable if it failed; then
        the old connection works as before."""
        await self._take_answers()
        shared = [one for one in self.wanted if one in self._old.sids and not one.queue_group]
        for one in shared:
            self._old.set_handler(one, partial(self._from_old, one))
        try:
            self.refused = await self.new.subscribe(self.wanted, self._handler_on_new)
            await self._wait()
            if self.new.ending is not None:
                raise NatsUnavailable(f"the new connection has ended: {self.new.ending}")
        except BaseException:
            for one in shared:
                self._settle(self._old, one)
            raise
        try:
            await self._old.drain(self.wanted, _DRAIN_SECONDS)
        except NatsUnavailable as error:
            self.doubt = self.doubt or f"the old connection was not drained: {error}"
        finally:
            self._switch()

    def sent(self, commands: bytes) -> None:
        """Acks left over the old connection: for the new one they come from another client."""
        if not self._echoing:
            return
        for answer in published(commands):
            text = answer[0].decode("ascii", "replace")
            for one, pattern in self._echoing:
                if matches(pattern, text):
                    self._echoes.sent(one, answer)

    async def _take_answers(self) -> None:
        """Wait until the old server has taken what was sent before this handover, and is not in
        `echoes`: it would come back over the new connection. Raises NatsUnavailable."""
        if not self._echoing:
            return
        try:
            await self._old.confirm(_DRAIN_SECONDS)
        except NatsUnavailable:
            if self._old.ending is None:
                raise

    async def _wait(self) -> None:
        """Wait until the cluster knows the new subscriptions."""
        deadline = time.monotonic() + _OVERLAP_SECONDS
        waiting = [
            asyncio.ensure_future(event.wait())
            for event in (self._old.ended, self.new.ended, self._hurry)
        ]
        try:
            while (left := deadline - time.monotonic()) > 0:
                done, _ = await asyncio.wait(
                    waiting, timeout=min(left, 0.1), return_when=asyncio.FIRST_COMPLETED
                )
                if self._overlap.is_full or len(self._echoes) > _MAX_MESSAGES:
                    self.doubt = "too much came while two servers were subscribed to"
                if done or self.doubt:
                    break
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if self._old.ending is not None:
            self.doubt = f"the old connection ended too soon: {self._old.ending}"

    # --- messages ---

    def _handler_on_new(self, one: LinkSubscription) -> RunHandler:
        return partial(self._from_new, one)

    def _from_old(self, one: LinkSubscription, run: MessageRun) -> None:
        left = self._echoes.without(one, run)
        if left is not None:
            self._overlap.from_old(one, left)
            one.handler(left)

    def _from_new(self, one: LinkSubscription, run: MessageRun) -> None:
        left = self._echoes.without(one, run)
        if left is None:
            return
        if one.queue_group:  # each message goes to only one member
            one.handler(left)
        else:
            self._overlap.from_new(one, left)

    def _late(self, one: LinkSubscription, run: MessageRun) -> None:
        left = self._echoes.without(one, run)
        if left is not None and not one.queue_group:
            left = self._overlap.late(one, left)
        if left is not None:
            one.handler(left)

    def _switch(self) -> None:
        """Has no await: no message of the new connection may arrive in between."""
        for receiver, run in self._overlap.release():
            receiver.handler(run)
        self._on_chunk_end()
        for one in self.wanted:
            if one in self.new.sids:
                self.new.set_handler(one, partial(self._late, one))
        asyncio.get_running_loop().call_later(_PAIR_SECONDS, self._end)

    def _end(self) -> None:
        """No more copies are expected."""
        for one in self.wanted:
            self._settle(self.new, one)
        asyncio.get_running_loop().call_later(FORGET_SECONDS, self._echoes.forget_old)

    def _settle(self, connection: NatsConnection, one: LinkSubscription) -> None:
        """Deliver without a detour, unless echoes may still come."""
        if one in connection.sids:
            due = self._echoes.are_due(one)
            handler = partial(self._without_echoes, connection, one) if due else one.handler
            connection.set_handler(one, handler)

    def _without_echoes(
        self, connection: NatsConnection, one: LinkSubscription, run: MessageRun
    ) -> None:
        left = self._echoes.without(one, run)
        if left is not None:
            one.handler(left)
        if not self._echoes.are_due(one):
            connection.set_handler(one, one.handler)
