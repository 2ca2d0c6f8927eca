"""`NatsKvMetaStore`: the metadata store of a cluster in a key-value bucket of JetStream.

Only a write with an expected sequence has a certain result, because it requires a majority of the
NATS servers that hold the bucket. A read may be outdated: a NATS leader that was deposed continues
to answer reads for some seconds. So if the result of a read must be certain, a write confirms it
(`get_newest`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Sequence

from liftlog.cluster.store import (
    CasLost,
    CasUnknown,
    Entry,
    MetaStoreError,
    OnChange,
    StoreUnavailable,
    check_size,
)
from liftlog.errors import ConfigError, MetadataUnavailable
from liftlog.sequencing.run import MessageRun
from liftlog.server.metadata.kv_bucket import (
    IN_PROCESS,
    MARKER_SECONDS,
    NO_CLUSTER,
    WRONG_SEQUENCE,
    Bucket,
    Refused,
)
from liftlog.server.metadata.kv_link import KvLink, NobodyAnswers, NotAllowed, Unanswered
from liftlog.server.metadata.kv_reads import ANSWER_SECONDS, BucketReads
from liftlog.server.metadata.kv_setup import (
    CREATE_SECONDS,
    BucketSetup,
    NotEnoughServers,
    no_jetstream,
    permissions,
)
from liftlog.server.metadata.kv_view import BucketView, Changes
from liftlog.server.metadata.membership import create_cluster
from liftlog.server.metadata.sessions import RenewedKey
from liftlog.server.vitals.rare_warnings import RareWarnings
from liftlog.settings import NatsSettings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_SECONDS = 10.0
"""Interval, in seconds, of the checks for changes without a received notice. It is longer than the
time for which a deposed NATS leader still answers reads."""
_NOTICE_SECONDS = 1.0
_RETRY_SECONDS = 0.5
_SCANS_IN_DOUBT = 2
"""Number of scans of the bucket if notices may have been missed. One scan is not sufficient,
because a deposed server may answer it."""
_FULL_SCAN_SECONDS = 300.0
_LAG_SECONDS = 0.1
_ATTEMPTS = 10
_NO_SERVICE_SECONDS = 10.0

_SEQUENCE = "Nats-Expected-Last-Subject-Sequence"
_OF_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
_TTL = "Nats-TTL"  # the header's value is in whole seconds

Headers = Sequence[tuple[str, str]]


class _Doubtful(MetaStoreError):
    """A server has refused a write because its sequence for the key is `found`, and not the
    expected sequence."""

    def __init__(self, message: str, found: int | None) -> None:
        super().__init__(message)
        self.found = found


class NatsKvMetaStore:
    """A MetaStore. Belongs to one event loop.

    `node` names the barrier key that this store writes; see `get_newest`. Changes are as durable as
    JetStream's: with `sync_interval: always` in nats-server, each change survives a power cut of
    all servers.
    """

    def __init__(
        self, settings: NatsSettings, servers: Sequence[str], cluster: str, node: str
    ) -> None:
        self.bucket = Bucket(cluster)
        self._barrier = f"barrier.{node}"
        self._link = KvLink(
            settings,
            servers,
            self.bucket.notices,
            on_notices=self._noticed,
            on_connected=self._doubt,
        )
        self._reads = BucketReads(self._link, self.bucket)
        self._setup = BucketSetup(self._link, self.bucket, self._reads)
        self._view = BucketView()
        self._watchers: dict[object, tuple[str, OnChange]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._view_grew = asyncio.Event()
        self._scans_due = _SCANS_IN_DOUBT
        self._scanned_at = 0.0
        self._written = 0
        self._warn = RareWarnings(logger).warn
        self.times_set_back = 0
        """Number of times that the bucket was found in an older state."""

    async def open(self) -> None:
        """Connect, and check the bucket. Waits until JetStream answers. Raises ConfigError for
        permanent problems: no JetStream, no bucket, no permission, or a bucket with a different
        configuration."""
        self._link.start()
        await self._link.wait_connected(ANSWER_SECONDS)
        began = time.monotonic()
        while True:
            try:
                await self._setup.check(self._write_barrier)
                return
            except NobodyAnswers as error:
                if time.monotonic() - began > _NO_SERVICE_SECONDS:
                    raise no_jetstream() from error
                self._warn("metadata-store-awaited error=%s", error)
            except (StoreUnavailable, CasUnknown) as error:  # the result is irrelevant
                self._warn("metadata-store-awaited error=%s", error)
            await asyncio.sleep(_RETRY_SECONDS)
            await self._link.wait_connected(ANSWER_SECONDS)

    async def create(self, replicas: int, cluster_id: str = "") -> bool:
        """Create the bucket and the entry of the cluster, for `liftlog cluster init`. Returns False
        if both exist. Called instead of `open`. If the bucket of an existing cluster was lost,
        `cluster_id` is the id of that cluster. Raises ConfigError, CasUnknown, StoreUnavailable."""
        bucket = self.bucket
        self._link.start()
        until = time.monotonic() + CREATE_SECONDS
        await self._link.wait_connected(ANSWER_SECONDS)
        while True:
            try:
                made = await self._setup.create(replicas)
                return await create_cluster(self, cluster_id) or made
            except NotAllowed as error:
                raise ConfigError(str(error), hint=permissions(bucket)) from error
            except NobodyAnswers as error:
                if time.monotonic() > until:
                    raise no_jetstream() from error
            except NotEnoughServers as error:
                if time.monotonic() > until or error.details["code"] == NO_CLUSTER:
                    raise
            except (CasUnknown, StoreUnavailable):
                if time.monotonic() > until:  # this time is longer than an election takes
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    async def close(self) -> None:
        """End the connection. The caller must close all sessions before. Waiting and later calls
        raise StoreUnavailable or CasUnknown."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        await self._link.close()

    # --- MetaStore ---

    async def get(self, key: str) -> Entry | None:
        return (await self._reads.find(key)).entry

    async def get_newest(self, key: str) -> Entry | None:
        """Return the newest entry of a key. To confirm a read, the store writes the barrier key.
        The write has the condition that the key that was read still has the same sequence."""
        for _ in range(_ATTEMPTS):
            found = await self._reads.find(key)
            try:
                if await self._is_at(key, found.sequence):
                    return found.entry
            except CasUnknown as error:
                raise StoreUnavailable(f"{key} was read and not confirmed: {error}") from error
            await asyncio.sleep(_LAG_SECONDS)  # the key has changed, or this server lags
        raise StoreUnavailable(f"{key} changes all the time, or a NATS server that lags answers")

    async def scan(self, prefix: str) -> dict[str, Entry]:
        found, _ = await self._reads.scan(prefix)
        entries = {key: one.entry for key, one in found.items() if key.startswith(prefix)}
        return {key: entry for key, entry in entries.items() if entry is not None}

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        return await self._put(key, value, revision, [])

    async def put_for(self, key: str, value: bytes, revision: int, ttl_seconds: int) -> int:
        """Write an entry that expires. Apart from that, like `cas`."""
        return await self._put(key, value, revision, [(_TTL, str(max(1, ttl_seconds)))])

    async def delete(self, key: str, revision: int) -> None:
        marker = [("KV-Operation", "DEL"), (_TTL, str(MARKER_SECONDS))]
        await self._compare_and_set(key, b"", revision, marker)

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._keep_looking())
        for key, entry in self._view.entries(prefix).items():
            on_change(key, entry)
        watcher = object()
        self._watchers[watcher] = (prefix, on_change)
        try:
            await asyncio.get_running_loop().create_future()  # waits until it is cancelled
        finally:
            del self._watchers[watcher]

    async def session(
        self, key: str, value: bytes, ttl_seconds: int, revision: int = 0
    ) -> RenewedKey:
        session = RenewedKey(self, key, value, ttl_seconds)
        await session.begin(revision)
        return session

    # --- writes ---

    async def _put(self, key: str, value: bytes, revision: int, headers: Headers) -> int:
        check_size(key, value)
        expected = revision
        for _ in range(_ATTEMPTS):
            try:
                return await self._compare_and_set(key, value, expected, headers)
            except CasLost:
                if revision:
                    raise
                # For JetStream, a key that has expired or was deleted still exists for a while.
                found = await self._reads.find(key)
                if found.value is not None or found.sequence == expected:
                    raise
                expected = found.sequence
        raise CasLost(f"{key} is created and deleted all the time")

    async def _compare_and_set(
        self, key: str, value: bytes, expected: int, headers: Headers = ()
    ) -> int:
        """Write a key if it is at the sequence `expected`. Returns the new sequence. Raises
        CasLost, CasUnknown, StoreUnavailable.

        While NATS changes its leader, the old and the new leader may both receive the write. The
        refusal of one leader may arrive before the ack of the other. Therefore:

        - Each write has an id, by which JetStream recognises a repetition.
        - A refusal counts only if the server has a newer sequence than `expected`. This proves that
          another write came first.
        - In all other cases the write is sent again. It takes effect only once.
        """
        conditions = [
            (_SEQUENCE, str(expected)),
            ("Nats-Msg-Id", secrets.token_hex(12)),
            *headers,
        ]
        is_unknown = False
        for attempt in range(_ATTEMPTS):
            try:
                return await self._write(key, value, conditions)
            except _Doubtful as doubt:
                if doubt.found is not None and doubt.found > expected:
                    raise CasLost(f"{key} is at another revision: {doubt}") from doubt
                await asyncio.sleep(_LAG_SECONDS * (attempt + 1) / 2)
                found = doubt.found
            except StoreUnavailable as error:
                if not is_unknown:
                    raise
                raise CasUnknown(f"it is not known whether {key} was written: {error}") from error
            is_unknown = True
        if found is not None and await self._is_at(key, found):
            raise CasLost(f"{key} is at revision {found}, not {expected}")
        raise CasUnknown(f"it is not known whether {key} was written: servers disagree")

    async def _is_at(self, key: str, sequence: int) -> bool:
        """Return True if the key is at this sequence now. Raises CasUnknown, StoreUnavailable."""
        headers = [
            (_SEQUENCE, str(sequence)),
            (_OF_SUBJECT, self.bucket.subject(key)),
        ]
        try:
            await self._write_barrier(headers)
        except _Doubtful:
            return False
        return True

    async def _write_barrier(self, conditions: Headers = ()) -> int:
        """Like `_write`, for an entry that is never read."""
        return await self._write(self._barrier, b"{}", [*conditions, (_TTL, str(MARKER_SECONDS))])

    async def _write(self, key: str, value: bytes, headers: Headers) -> int:
        """Write a key under the conditions in `headers`. Returns the new sequence. Raises
        _Doubtful, CasUnknown, StoreUnavailable."""
        newest = max(self._written, self._view.highest)
        try:
            revision, is_new = await self._link.ask(
                self.bucket.subject(key),
                value,
                self.bucket.revision,
                headers=[*headers, ("Nats-Expected-Stream", self.bucket.stream)],
                seconds=ANSWER_SECONDS,
            )
        except Refused as error:
            if error.code == WRONG_SEQUENCE or error.code in IN_PROCESS:
                raise _Doubtful(str(error), error.found_sequence) from error
            if not error.is_certain:
                raise CasUnknown(f"JetStream failed to write {key}: {error}") from error
            raise StoreUnavailable(f"JetStream refused to write {key}: {error}") from error
        except Unanswered as error:
            raise CasUnknown(f"it is not known whether {key} was written: {error}") from error
        if is_new and revision <= newest:
            self._has_gone_back(revision, newest)
        self._written = max(self._written, revision)
        return revision

    def _has_gone_back(self, revision: int, newest: int) -> None:
        logger.error(
            "metadata-store-set-back bucket=%s revision=%d known=%d advice=%s",
            self.bucket.name,
            revision,
            newest,
            "it was restored from an older copy, or made again: keep the nodes running, their "
            "records are newer",
        )
        self.times_set_back += 1
        self._written = 0
        self._view.set_back()
        self._doubt()

    # --- changes ---

    def _doubt(self) -> None:
        """Request an early scan, because changes may have been missed."""
        self._scans_due = _SCANS_IN_DOUBT
        self._look_now.set()

    def _noticed(self, run: MessageRun) -> None:
        headers = run.headers or (b"",) * len(run)
        for subject, block, payload in zip(run.subjects, headers, run.payloads, strict=True):
            notice = self.bucket.notice(subject, block, payload)
            if notice is None:
                continue
            had_missed = self._view.has_missed
            self._report(self._view.note(notice))
            if self._view.has_missed and not had_missed:
                self._doubt()
        self._view_grew.set()

    def _report(self, changes: Changes) -> None:
        for prefix, on_change in list(self._watchers.values()):
            for key, entry in changes.items():
                if key.startswith(prefix):
                    try:
                        on_change(key, entry)
                    except Exception:  # the connection and other watchers continue
                        logger.exception("watch-failed key=%s", key)

    async def _keep_looking(self) -> None:
        while True:
            self._look_now.clear()
            try:
                await self._look()
            except StoreUnavailable as error:
                self._warn("metadata-store-unavailable error=%s", error)
                pause = _RETRY_SECONDS
            except Exception:  # a supervisor
                logger.exception("metadata-look-failed")
                pause = _LOOK_SECONDS
            else:
                pause = _LOOK_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look_now.wait()

    async def _look(self) -> None:
        """Update the view with all writes so far. Raises StoreUnavailable."""
        state = await self._reads.state()
        is_complete = state.messages == self._view.messages
        try:
            barrier = await self._write_barrier()
        except CasUnknown as error:
            raise StoreUnavailable(str(error)) from error
        is_due = self._scans_due or time.monotonic() - self._scanned_at > _FULL_SCAN_SECONDS
        if not is_due and is_complete and await self._has_come(barrier):
            return
        found, state = await self._reads.scan("")
        self._scans_due = max(0, self._scans_due - 1)
        self._scanned_at = time.monotonic()
        self._report(self._view.scanned(found, state.last_sequence))

    async def _has_come(self, sequence: int) -> bool:
        """Return True if notices of all changes up to `sequence` have arrived."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NOTICE_SECONDS):
                while self._view.highest < sequence:
                    self._view_grew.clear()
                    await self._view_grew.wait()
        return self._view.highest >= sequence and not self._view.has_missed


async def make_store(
    settings: NatsSettings, cluster: str, replicas: int, cluster_id: str = ""
) -> bool:
    """Create the bucket of a cluster; see `NatsKvMetaStore.create`. Raises ConfigError, and
    MetadataUnavailable if JetStream does not answer."""
    store = NatsKvMetaStore(settings, settings.servers, cluster, "init")
    try:
        return await store.create(replicas, cluster_id)
    except (CasUnknown, StoreUnavailable) as error:
        raise MetadataUnavailable(
            str(error), hint="check nats.servers and the servers, and run the command again"
        ) from error
    finally:
        await store.close()
