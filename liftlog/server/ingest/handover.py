"""Moves from a server that is about to stop to another server. No message is lost or duplicated.

NATS warns its clients some time before it closes their connections (lame duck mode). Until then the
old connection still works. The daemon performs these steps (see `overlap`):

1. It connects to another server and subscribes there.
2. It waits until the cluster has propagated the subscriptions.
3. It drains the old connection.
4. It uses the new connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from acl.subjects import matches, overlaps
from liftlog.errors import NatsUnavailable
from liftlog.sequencing.acks import publish_commands, published
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.connection import NatsConnection
from liftlog.server.ingest.echoes import FORGET_SECONDS, Echoes
from liftlog.server.ingest.overlap import Overlap
from liftlog.server.ingest.subscriptions import LinkSubscription, Refusals, RunHandler

logger = logging.getLogger("liftlog.server.nats")

_OVERLAP_SECONDS = 1.5
"""The time, in seconds, for which both connections are subscribed. It is longer than a cluster
needs to propagate a subscription. NATS waits 10 s by default before it closes the first
connection."""
_PAIR_SECONDS = 1.0
"""Time, in seconds, within which both copies of a message arrive."""
_DRAIN_SECONDS = 3.0
_MARK_SECONDS = 2.0
"""Time limit for a message to pass from one server of a cluster to another."""
_MARK_AGAIN_SECONDS = 0.02
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
        """If `hurry` is set, the overlap ends as soon as possible. `echoes` are the daemon's own
        messages from an earlier handover. They may still come back over `old`, and therefore also
        over `new`."""
        self._old = old
        self.new = new
        self.wanted = list(wanted)
        self._on_chunk_end = on_chunk_end
        self._hurry = hurry
        self._echoes_on_old = echoes
        self.echoes = echoes.for_next()
        """The daemon's own messages that may come back over `new`."""
        self._mark = f"_INBOX.{secrets.token_hex(11)}"
        self._mark_refused = asyncio.Event()
        self._overlap = Overlap(
            time.monotonic,
            pair_seconds=_PAIR_SECONDS,
            max_messages=_MAX_MESSAGES,
            max_held_bytes=_MAX_HELD_BYTES,
        )
        self.refused: dict[LinkSubscription, Refusals] = {}
        """Subscriptions with a subject that the new server refused, and the reasons."""
        self.doubt = ""
        """The reason why a message may have been lost; empty if no message was lost."""
        self._echoing = [
            (one, pattern)
            for one in self.wanted
            for pattern in one.subjects
            if overlaps(pattern, "_INBOX.>")
        ]

    @property
    def copies(self) -> int:
        """Number of messages that arrived over both connections."""
        return self._overlap.copies

    async def run(self) -> None:
        """Hand over, and wait until the new connection has taken over. Raises NatsUnavailable if
        the handover fails; the old connection then works as before."""
        await self._let_answers_pass()
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
                self._settle(self._old, one, self._echoes_on_old)
            raise
        try:
            await self._old.drain(self.wanted, _DRAIN_SECONDS)
        except NatsUnavailable as error:
            self.doubt = self.doubt or f"the old connection was not drained: {error}"
        finally:
            self._switch()

    def sent(self, commands: bytes) -> None:
        """Note acks that were sent over the old connection. If a stream records their subjects, the
        acks also arrive over the new connection, as if another client had sent them."""
        if not self._echoing:
            return
        for message in published(commands):
            for one in self._echoing_on(message.subject):
                self.echoes.sent(one, message)

    def _echoing_on(self, subject: bytes) -> list[LinkSubscription]:
        text = subject.decode("ascii", "replace")
        return [one for one, pattern in self._echoing if matches(pattern, text)]

    async def _let_answers_pass(self) -> None:
        """Wait until messages that the daemon sent before this handover, and that are not in
        `echoes`, can no longer arrive over the new connection. Raises NatsUnavailable.

        The old server receives these messages first, and forwards them to the new server for
        clients there. If they reach the new server after the daemon has subscribed, the new server
        also delivers them to the daemon. Servers keep the order, so the daemon sends a mark after
        these messages and waits until the mark arrives.
        """
        if not self._echoing:
            return
        try:
            await self._old.confirm(_DRAIN_SECONDS)
        except NatsUnavailable:
            if self._old.ending is None:
                raise
            return
        await self._let_mark_pass()

    async def _let_mark_pass(self) -> None:
        came = asyncio.Event()

        def take(run: MessageRun) -> None:
            for echoing in self._echoing_on(subject):
                self.echoes.without(echoing, run)
            came.set()

        subject = self._mark.encode()
        mark = LinkSubscription((self._mark,), None, take)
        if await self.new.subscribe([mark]):
            return  # NATS refuses this subscription
        try:
            await self._send_mark(subject, came)
        except TimeoutError:
            if self._old.cluster_name and self._old.cluster_name == self.new.cluster_name:
                raise NatsUnavailable("the messages sent before have not arrived there") from None
            # The two servers are not connected with each other, so the earlier messages do not
            # arrive either.
        finally:
            await self.new.drain([mark], _DRAIN_SECONDS)

    async def _send_mark(self, subject: bytes, came: asyncio.Event) -> None:
        """Send the mark until it arrives. Raises TimeoutError if it does not arrive in time, and
        NatsUnavailable if the daemon is to stop soon."""
        endings = came, self._mark_refused, self._old.ended
        async with asyncio.timeout(_MARK_SECONDS):
            for number in count():
                if any(event.is_set() for event in endings):
                    break
                if self._hurry.is_set():
                    raise NatsUnavailable("the daemon stops")
                command = publish_commands([(subject, b"%d" % number)])
                self._old.send(command)
                self.sent(command)
                # The subscription reaches the old server only after a short time.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_MARK_AGAIN_SECONDS):
                        await came.wait()

    def publish_refused(self, subject: str) -> bool:
        """Return True if the subject that NATS has refused is the mark's subject. The permissions
        in NATS may allow only replies. In this case the handover continues without the mark."""
        if subject.lower() != self._mark.lower():
            return False
        self._mark_refused.set()
        return True

    async def _wait(self) -> None:
        """Wait until the cluster has propagated the new subscriptions, or the overlap must end."""
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
                if self._overlap.is_full or len(self.echoes) > _MAX_MESSAGES:
                    self.doubt = (
                        "too many messages arrived while the daemon was subscribed at two servers"
                    )
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
        left = self._echoes_on_old.without(one, run)
        if left is not None:
            self._overlap.from_old(one, left)
            one.handler(left)

    def _from_new(self, one: LinkSubscription, run: MessageRun) -> None:
        left = self.echoes.without(one, run)
        if left is None:
            return
        if one.queue_group:  # NATS sends each message to only one member of a queue group
            one.handler(left)
        else:
            self._overlap.from_new(one, left)

    def _late(self, one: LinkSubscription, run: MessageRun) -> None:
        left = self.echoes.without(one, run)
        if left is not None and not one.queue_group:
            left = self._overlap.late(one, left)
        if left is not None:
            one.handler(left)

    def _switch(self) -> None:
        """Switch to the new connection. This method must not await: no message of the new
        connection may arrive during the switch."""
        for receiver, run in self._overlap.release():
            receiver.handler(run)
        self._on_chunk_end()
        for one in self.wanted:
            if one in self.new.sids:
                self.new.set_handler(one, partial(self._late, one))
        asyncio.get_running_loop().call_later(_PAIR_SECONDS, self._end)

    def _end(self) -> None:
        """End the overlap: no more copies are expected."""
        for one in self.wanted:
            self._settle(self.new, one, self.echoes)
        asyncio.get_running_loop().call_later(FORGET_SECONDS, self.echoes.forget_old)

    def _settle(self, connection: NatsConnection, one: LinkSubscription, echoes: Echoes) -> None:
        """Deliver messages directly to the handler of `one`, unless echoes may still come back to
        it."""
        if one in connection.sids:
            due = echoes.are_due(one)
            handler = partial(_deliver_others, connection, one, echoes) if due else one.handler
            connection.set_handler(one, handler)


def _deliver_others(
    connection: NatsConnection, one: LinkSubscription, echoes: Echoes, run: MessageRun
) -> None:
    left = echoes.without(one, run)
    if left is not None:
        one.handler(left)
    if not echoes.are_due(one):
        connection.set_handler(one, one.handler)
