"""Handles a metadata store that has lost changes: detects the loss, and restores the changes.

The metadata of a stream in the store may be missing, or older than a version that this node has
received. The mirror then marks the stream as doubtful. A second read requires the newest state of
the store, and confirms or clears the doubt.

After a doubt is confirmed, and until the metadata are restored, no node leads the stream, and no
node elects a leader by the stored metadata. The nodes exchange the metadata that they have. If the
exchanged metadata are sufficient (`liftlog.cluster.guard`), the newest version is stored again.
This restoration may abandon a version that only one node has received. That node then adopts the
stored version, and drops its copy. If the metadata are not sufficient, an operator decides, with
`liftlog cluster restore-metadata`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from liftlog.cluster.election import LogEnd
from liftlog.cluster.guard import (
    Known,
    contradict,
    is_given_up,
    is_regressed,
    restored,
    restored_by_operator,
)
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import CorruptMetadata, LiftlogError, UnsupportedFormat
from liftlog.protocol.replication import Copies, CopiesAnswer, RestoreAnswer
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.asking import MAX_STREAMS_ASKED, ask_nodes, known_from
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_SECONDS = 0.5

Heard = dict[str, dict[str, Known]]
"""The metadata of each node that has answered, by node and stream."""


class Guard:
    """Confirms doubts about stored metadata, and restores metadata. Belongs to one event loop.

    `log_end` returns the end of a copy on this node. `stand_aside` is called with each stream whose
    stored metadata are certainly older than a version that this node has received. `give_up` is
    called with each stream for which this node must adopt the stored metadata and drop its own
    newer version.
    """

    def __init__(
        self,
        mirror: Mirror,
        node: str,
        *,
        link_to: Callable[[str], PeerLink],
        log_end: Callable[[str], LogEnd | None],
        stand_aside: Callable[[str], None],
        give_up: Callable[[str, StreamMetadata], None],
    ) -> None:
        self._mirror = mirror
        self._node = node
        self._link_to = link_to
        self._log_end = log_end
        self._stand_aside = stand_aside
        self._give_up = give_up
        self._warn = RareWarnings(logger).warn
        self._unreadable: dict[str, str] = {}
        """The streams with unreadable metadata, and the reasons. The metadata of these streams may
        be old."""

    async def run(self) -> None:
        """Check doubts until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except LiftlogError as error:
                self._warn("metadata-not-checked error=%s", error)

    async def look(self) -> None:
        """Confirm doubts, and restore metadata that can be restored without an operator. Raises
        MetadataUnavailable."""
        confirmed = await self._confirmed(sorted(self._mirror.doubtful))
        self._mirror.regressed.intersection_update({*confirmed, *self._unreadable})
        for name in confirmed:
            if name not in self._mirror.regressed:
                self._mirror.regressed.add(name)
                logger.error("metadata-set-back stream=%s", name)
                self._stand_aside(name)
        if not confirmed:
            return
        heard = await self._ask(confirmed)
        unheard = self._others() - heard.keys()
        for name in confirmed:
            try:
                stored, revision = await self._mirror.read_newest(name)
                told, known = _of(heard, name), self._mirror.known[name]
                after = restored(stored, told, unheard)
                if after is not None:
                    await self._restore(after, stored, revision)
                elif stored is not None and is_given_up(self._node, known, stored, told, unheard):
                    self._give_up(name, stored)
            except LiftlogError as error:  # the remaining streams do not wait for this stream
                self._warn("metadata-not-restored stream=%s error=%s", name, error)

    def answer(self, names: Collection[str]) -> CopiesAnswer:
        """Return this node's metadata and log ends for these streams. If `names` is empty, return
        the names of all streams. Raises MetadataUnavailable while the node cannot read the metadata
        that it has received. The other nodes must then treat this node as silent."""
        self._mirror.check_memory()
        known = self._mirror.known
        if not names:
            return CopiesAnswer({}, sorted(known))
        found: dict[str, Any] = {}
        for name in names:
            if name in known:
                log = self._log_end(name)
                ends = [None, None] if log is None else [*log]
                found[name] = [known[name].to_json().decode(), *ends]
        return CopiesAnswer(found)

    async def restore(self, *, dry_run: bool) -> RestoreAnswer:
        """Store the newest metadata that any answering node has received, if the store has older
        metadata or none. With `dry_run`, only report these metadata. Raises MetadataUnavailable."""
        names = set(self._mirror.known)
        for answer in (await self._ask_others(Copies([]))).values():
            names |= set(answer.names)
        heard = await self._ask(sorted(names))
        told = []
        for name in sorted(names):
            try:
                stored, revision = await self._mirror.read_newest_or_damaged(name)
            except UnsupportedFormat as error:  # only a newer version can read the metadata
                logger.warning("metadata-not-restored stream=%s error=%s", name, error)
                continue
            after = restored_by_operator(stored, _of(heard, name))
            if after is None:
                continue
            records = [one.record for one in _of(heard, name).values() if one is not None]
            told.append(
                {
                    "stream": name,
                    "stored_version": None if stored is None else stored.version,
                    "known_version": max(one.version for one in records),
                    "epoch": after.leader_epoch,
                    "in_sync": list(after.isr),
                    "replicas": list(after.replicas),
                    "deleted": after.deleted,
                    "contradicting": contradict(records),
                    "restored": not dry_run and await self._restore(after, stored, revision),
                }
            )
        return RestoreAnswer(told, sorted(self._others() - heard.keys()))

    # --- parts -----------------------------------------------------------------------

    async def _confirmed(self, doubtful: Iterable[str]) -> list[str]:
        found, unreadable = [], {}
        for name in doubtful:
            known = self._mirror.known.get(name)
            if known is None:
                self._mirror.doubtful.discard(name)
                continue
            try:
                # Most doubts come from late notifications. A cheap read is sufficient to clear
                # these doubts.
                stored = await self._mirror.read(name)
                if is_regressed(known, stored):
                    stored, _ = await self._mirror.read_newest(name)
            except (CorruptMetadata, UnsupportedFormat) as error:
                unreadable[name] = str(error)
                if self._unreadable.get(name) != str(error):
                    logger.error("record-not-read stream=%s error=%s", name, error)  # noqa: TRY400
                continue
            if is_regressed(known, stored):
                found.append(name)
            else:
                self._mirror.doubtful.discard(name)
        self._unreadable = unreadable
        return found

    def _others(self) -> set[str]:
        """Return all other nodes that this node's metadata name."""
        records = self._mirror.known.values()
        named = {node for one in records if not one.deleted for node in one.members}
        return (named | self._mirror.directory.nodes.keys()) - {self._node}

    async def _restore(
        self, after: StreamMetadata, stored: StreamMetadata | None, revision: int
    ) -> bool:
        if not await self._mirror.put(after, revision):
            return False  # another node was faster, or the store has newer changes
        logger.warning(
            "metadata-restored stream=%s version=%d epoch=%d in_place_of=%s",
            after.name,
            after.version,
            after.leader_epoch,
            "nothing" if stored is None else f"version {stored.version}",
        )
        return True

    async def _ask(self, names: list[str]) -> Heard:
        """Return the metadata of each node, including this node. A node whose answer is incomplete
        is left out."""
        heard: Heard = {self._node: {}}
        for node in self._others():
            heard[node] = {}
        for first in range(0, len(names), MAX_STREAMS_ASKED):
            some = names[first : first + MAX_STREAMS_ASKED]
            answers = await self._ask_others(Copies(some))
            answers[self._node] = self.answer(some)
            for node in list(heard):
                if node in answers:
                    heard[node] |= known_from(answers[node].copies)
                else:
                    del heard[node]
        return heard

    async def _ask_others(self, message: Copies) -> dict[str, CopiesAnswer]:
        return await ask_nodes(self._others(), message, self._link_to)


def _of(heard: Heard, name: str) -> Mapping[str, Known | None]:
    return {node: known.get(name) for node, known in heard.items()}
