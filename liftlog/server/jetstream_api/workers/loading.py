"""Loads consumers with acks from the journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from liftlog.errors import Forbidden, LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.admission import Admission, NameLocks
from liftlog.server.jetstream_api.workers.building import Builder
from liftlog.server.jetstream_api.workers.changes import StreamChanges
from liftlog.server.jetstream_api.workers.shared import Shared
from liftlog.server.jetstream_api.workers.stored import load
from liftlog.server.jetstream_api.workers.updates import settings_of
from liftlog.server.journal import ConsumerKey

logger = logging.getLogger("liftlog.server.jetstream_api")

_LOADED_AT_ONCE = 64
_MOST_DECODED_BYTES = 64 * 1024
"""Maximum size, in bytes, of a state that is decoded in the event loop. Decoding a larger state
takes more than 20 ms, so a thread decodes it."""


class Loader:
    """Loads consumers from the journal. Belongs to the event loop."""

    def __init__(
        self,
        builder: Builder,
        admission: Admission,
        changes_of: Callable[[Shared, StreamHost], StreamChanges],
        enter: Callable[[AckedConsumer], None],
    ) -> None:
        """`changes_of` raises LiftlogError if another node leads the stream. `enter` is called with
        each loaded consumer."""
        self.broken: dict[tuple[str, str], tuple[ConsumerKey, str]] = {}
        """The consumers that could not be loaded, by stream and name, and the reasons."""
        self.denied: set[tuple[str, str]] = set()
        """The consumers in `broken` that failed only because of the ACL. They can be loaded when
        the ACL permits it."""
        self._builder = builder
        self._admission = admission
        self._changes_of = changes_of
        self._enter = enter

    def problem_of(self, host: StreamHost | None, name: str) -> tuple[ConsumerKey, str] | None:
        """Return the reason why a consumer of a stream could not be loaded; None if the consumer
        has no problem. Drops failures of a deleted stream of the same name."""
        found = None if host is None else self.broken.get((host.name, name))
        if host is not None and found is not None and found[0][0] != host.log.incarnation:
            del self.broken[host.name, name]
            return None
        return found

    async def load_all(
        self,
        shared: Shared,
        host: StreamHost,
        names: Sequence[str],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        for at in range(0, len(names), _LOADED_AT_ONCE):
            some = names[at : at + _LOADED_AT_ONCE]
            await asyncio.gather(*[self.load(shared, host, one, is_wanted) for one in some])

    async def load(
        self, shared: Shared, host: StreamHost, name: str, is_wanted: Callable[[], bool]
    ) -> None:
        """Load a consumer. If the load fails, the consumer's name remains reserved, because a new
        consumer of this name would replace the stored state. Does nothing if `is_wanted` returns
        False: another load with a newer state may then follow."""
        try:
            await self._load(shared, host, name, is_wanted)
            self.broken.pop((host.name, name), None)
        except (LiftlogError, JetStreamError, ValueError, KeyError) as error:
            if not is_wanted():
                return
            place, key = (host.name, name), ConsumerKey(host.log.incarnation, name)
            why = (
                f"the state of the consumer is unreadable: {error}; delete it, and create it again"
            )
            if isinstance(error, Forbidden):
                self.denied.add(place)
                why = f"the consumer is not loaded until the ACL permits it to read: {error}"
            if self.broken.get(place) != (key, why):
                logger.exception("consumer-not-loaded stream=%s name=%s", *place)
            self.broken[place] = key, why

    async def load_denied(
        self, shared: Shared, hosts: Mapping[str, StreamHost], locks: NameLocks
    ) -> None:
        """Try again to load the consumers in `denied`, because the ACL may permit it now."""
        denied, self.denied = self.denied, set()
        for stream, name in denied:
            async with locks.hold(stream, name):
                host = hosts.get(stream)
                if host is not None and self.problem_of(host, name) is not None:

                    def is_wanted(host: StreamHost = host, name: str = name) -> bool:
                        return self.problem_of(host, name) is not None

                    await self.load(shared, host, name, is_wanted)

    def forget(self, stream: str) -> None:
        """Drop the failures of a stream that this node does not lead any more."""
        for key in [one for one in self.broken if one[0] == stream]:
            del self.broken[key]

    async def _load(
        self, shared: Shared, host: StreamHost, name: str, is_wanted: Callable[[], bool]
    ) -> None:
        stored = await shared.journal.load(ConsumerKey(host.log.incarnation, name))
        if stored is None or not is_wanted():
            return
        if stored.size_bytes > _MOST_DECODED_BYTES:
            loaded = await asyncio.to_thread(load, stored, name)
            if not is_wanted():
                return
        else:
            loaded = load(stored, name)
        spec, state = loaded.spec, loaded.state
        cursor, policy = self._builder.cursor(spec, host, is_local=loaded.origin.is_local)
        try:
            await self._builder.begin(cursor, spec, host, state.next_offset, loaded.chosen_end)
            if not is_wanted():
                cursor.close()
                return
            changes = self._changes_of(shared, host)
        except BaseException:
            cursor.close()
            raise
        place = self._admission.enter_again(host.name, is_durable=spec.is_durable)
        consumer = self._builder.consumer(shared, host, loaded, cursor, policy, place, changes)
        self._enter(consumer)
        consumer.machine.log_truncated(host.log.log_end_offset)
        consumer.take_over()
        # The daemon may have stopped just after it had stored the settings of an update.
        settings = settings_of(spec, host.name)
        consumer.machine.update(settings, shared.clock.now_ns())
