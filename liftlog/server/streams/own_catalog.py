"""The catalog of a daemon on its own: it leads every stream that it has.

The directories and manifests are the truth, and the records follow them (ADR 39).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from liftlog.errors import LiftlogError, StreamNotFound
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.records import StreamRecords
from liftlog.settings import StreamSettings


class OwnCatalog:
    """See `Catalog`. Belongs to the event loop."""

    recorded: Mapping[str, StreamSettings] = {}

    def __init__(self, hosts: Mapping[str, StreamHost], records: StreamRecords) -> None:
        self._hosts = hosts
        self._records = records

    def names(self) -> Iterable[str]:
        return ()

    def knows(self, name: str) -> bool:
        return name in self._hosts

    def was_deleted(self, name: str) -> bool:
        return False

    def addresses(self) -> list[str]:
        return []

    # --- who answers ---

    def leads(self, name: str) -> bool:
        return True

    def leads_elsewhere(self, name: str) -> bool:
        return False

    def may_answer(self, name: str) -> bool:
        return True

    def answerer(self, name: str) -> str | None:
        return None

    def other_leaders(self) -> Mapping[str, str]:
        return {}

    def not_leader(self, name: str) -> LiftlogError:
        return StreamNotFound(f"there is no stream {name!r}")

    def check_leads(self, name: str) -> None:
        """It leads them all."""

    def check_end_is_known(self, name: str) -> None:
        """Nothing was read of another leader."""

    def may_read_copy(self, name: str, replica: str) -> bool:
        return False

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """There is no other one."""

    def check_epoch(self, name: str, epoch: int) -> None:
        """There is none."""

    # --- changes ---

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        await apply()
        await self._records.changed(host.log)

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        before = host.log.log_start_offset
        freed = await apply()
        if host.log.log_start_offset > before:
            await self._records.truncated(host.log, offset)
        return freed

    async def side_confirmed(self, name: str) -> None:
        """They are stored here before this is asked."""
