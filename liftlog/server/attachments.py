"""Which streams receive messages from NATS, and by which subscriptions."""

from __future__ import annotations

from collections.abc import Mapping

from liftlog.server.ingest.nats_link import LinkSubscription, NatsLink, RunHandler
from liftlog.server.intake import Intake
from liftlog.server.stream_host import SYSTEM, StreamHost


class Attachments:
    """Belongs to the event loop. Before there is a link nothing is attached."""

    def __init__(self, hosts: Mapping[str, StreamHost], intake: Intake) -> None:
        self._hosts = hosts
        self._intake = intake
        self._link: NatsLink | None = None
        self._subscriptions: dict[str, LinkSubscription] = {}
        self._own_receivers: dict[str, RunHandler] = {}

    # --- attaching ---

    def receive_for(self, name: str, receive: RunHandler) -> None:
        """Attach a stream of the system's own. Call it before `set_link`."""
        self._own_receivers[name] = receive

    def set_link(self, link: NatsLink) -> None:
        """Streams are attached through this link from now on."""
        self._link = self._intake.link = link
        for host in self._hosts.values():
            self.want(host)

    def want(self, host: StreamHost) -> None:
        """Subscribe for a stream as soon as there is a connection."""
        if self._link is None or not self.is_attachable(host):
            return
        receive = self._own_receivers.get(host.name) or self._intake.receiver(host)
        self._subscriptions[host.name] = self._link.want(
            host.settings.subject, host.settings.queue_group, receive
        )

    async def attach(self, host: StreamHost) -> None:
        """Returns when NATS has confirmed what is wanted. Raises NatsUnavailable."""
        wanted = self._subscriptions.get(host.name)
        if self._link is not None and wanted is not None:
            await self._link.attach(wanted)

    async def detach(self, host: StreamHost) -> None:
        """Returns when nothing more comes."""
        wanted = self._subscriptions.pop(host.name, None)
        if self._link is not None and wanted is not None:
            await self._link.unwant(wanted)

    async def drain(self) -> None:
        """Detach everything; what NATS had sent has been received on return."""
        if self._link is not None:
            await self._link.drain()

    # --- how it stands ---

    def is_attachable(self, host: StreamHost) -> bool:
        """Whether it is to receive messages: what the system has for itself may get none."""
        return host.origin != SYSTEM or host.name in self._own_receivers

    def is_attached(self, host: StreamHost) -> bool:
        """Whether NATS delivers to the stream, for all that is known."""
        return self.connected and self._is_confirmed(host)

    @property
    def all_confirmed(self) -> bool:
        """Every stream's subscription is confirmed."""
        return all(map(self._is_confirmed, filter(self.is_attachable, self._hosts.values())))

    def _is_confirmed(self, host: StreamHost) -> bool:
        wanted = self._subscriptions.get(host.name)
        return wanted is not None and wanted.confirmed

    @property
    def connected(self) -> bool:
        return self._link is not None and self._link.connected

    @property
    def server_version(self) -> str:
        """Empty without a connection."""
        return self._link.server_version if self._link is not None else ""
