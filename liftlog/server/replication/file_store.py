"""`FileMetaStore`: the metadata store in one file.

It is the store of a daemon on its own (`<data_dir>/records`), and of several daemons on one machine
that share a directory. Calls come from the event loop; the file is touched in one thread, and all
changes that wait while it is busy are made with one write.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from liftlog.cluster.store import (
    CasLost,
    CasUnknown,
    Entry,
    MetaStoreError,
    OnChange,
    StoreUnavailable,
)
from liftlog.log.filesystem import FileSystem, OsFileSystem
from liftlog.server.replication.records_file import (
    LOCK_SUFFIX,
    Change,
    Content,
    RecordsFile,
    locked_file,
)

logger = logging.getLogger("liftlog.server")

_POLL_SECONDS = 0.2
_RENEWALS_PER_TTL = 5
_SAFE_PART_OF_TTL = 0.8

_T = TypeVar("_T")


class FileMetaStore:
    """A MetaStore in the file `path`. Belongs to one event loop.

    `shared`: other processes of this machine change the file too. They lock `<path>.lock`, and what
    they change is seen after 0.2 s. Otherwise the caller keeps other processes away, as the lock of
    a data directory does.
    """

    def __init__(self, path: Path, *, shared: bool, fs: FileSystem | None = None) -> None:
        lock = partial(locked_file, path.with_name(path.name + LOCK_SUFFIX)) if shared else None
        self._file = RecordsFile(path, fs or OsFileSystem(), lock=lock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._waiting: list[tuple[Change, asyncio.Future[int]]] = []
        self._is_writing = False
        self._is_closed = False

    def close(self) -> None:
        """Wait for the call that the thread is in, and end it. Sessions are closed before; calls
        that come later, or wait now, raise StoreUnavailable."""
        self._is_closed = True
        self._thread.shutdown()

    # --- MetaStore ---

    async def get(self, key: str) -> Entry | None:
        return (await self.scan(key)).get(key)

    async def scan(self, prefix: str) -> dict[str, Entry]:
        content, now_ns = await self._call(self._file.read), self._file.now_ns()
        return _living(content, prefix, now_ns)

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        return await self._change(Change(key, value, revision))

    async def delete(self, key: str, revision: int) -> None:
        await self._change(Change(key, None, revision))

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        known: dict[str, Entry] = {}
        problem = ""
        while True:
            try:
                entries = await self.scan(prefix)
            except StoreUnavailable as error:
                if str(error) != problem:
                    logger.warning("metadata-store-unavailable error=%s", error)
                problem = str(error)
            else:
                problem = ""
                gone = [key for key in known if key not in entries]
                changed = {key: one for key, one in entries.items() if known.get(key) != one}
                known = entries
                for key in gone:
                    on_change(key, None)
                for key, entry in changed.items():
                    on_change(key, entry)
            await asyncio.sleep(_POLL_SECONDS)

    async def session(self, key: str, value: bytes, ttl_seconds: int) -> FileSession:
        session = FileSession(self, key, value, ttl_seconds)
        await session.begin()
        return session

    # --- inner ---

    async def put_for(self, key: str, value: bytes, revision: int, ttl_seconds: int) -> int:
        """`cas` of an entry that expires."""
        ttl_ns = ttl_seconds * 1_000_000_000
        return await self._change(Change(key, value, revision, ttl_ns))

    async def apply(self, changes: Sequence[Change]) -> list[int | MetaStoreError]:
        """Many changes with one write; see `RecordsFile.apply`."""
        return await self._call(partial(self._file.apply, changes))

    async def _call(self, work: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise _closed()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _change(self, change: Change) -> int:
        """One write for all that wait: those that come while the thread writes are made together
        with the next write."""
        if self._is_closed:
            raise _closed()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, future))
        if not self._is_writing:
            self._begin_write()
        return await future

    def _begin_write(self) -> None:
        batch, self._waiting = self._waiting, []
        if self._is_closed:
            for _, future in batch:
                if not future.done():
                    future.set_exception(_closed())
            return
        self._is_writing = True
        work = partial(self._file.apply, [change for change, _ in batch])
        written = asyncio.get_running_loop().run_in_executor(self._thread, work)
        written.add_done_callback(partial(self._written, [future for _, future in batch]))

    def _written(
        self,
        callers: Sequence[asyncio.Future[int]],
        written: asyncio.Future[list[int | MetaStoreError]],
    ) -> None:
        failure = written.exception()
        results = [failure] * len(callers) if failure is not None else written.result()
        for caller, result in zip(callers, results, strict=True):
            if caller.done():  # cancelled; the change was made all the same
                continue
            if isinstance(result, int):
                caller.set_result(result)
            else:
                assert result is not None
                caller.set_exception(result)
        self._is_writing = False
        if self._waiting:
            self._begin_write()


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the metadata store is closed: this daemon is stopping")


def _living(content: Content, prefix: str, now_ns: int) -> dict[str, Entry]:
    return {
        key: one.entry
        for key, one in content.entries.items()
        if key.startswith(prefix) and not one.has_expired(now_ns)
    }


class FileSession:
    """See `liftlog.cluster.store.NodeSession`."""

    def __init__(self, store: FileMetaStore, key: str, value: bytes, ttl_seconds: int) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._ttl_seconds = ttl_seconds
        self._revision = 0
        self._deadline = 0.0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def deadline(self) -> float:
        return self._deadline

    async def begin(self) -> None:
        """Take the key, and renew it from now on."""
        found = await self._store.get(self._key)
        await self._put(0 if found is None else found.revision)
        self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="session")

    async def close(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait({renewing})
        with contextlib.suppress(MetaStoreError):
            await self._store.delete(self._key, self._revision)

    async def _put(self, revision: int) -> None:
        sent = time.monotonic()
        self._revision = await self._store.put_for(
            self._key, self._value, revision, self._ttl_seconds
        )
        self._deadline = sent + _SAFE_PART_OF_TTL * self._ttl_seconds

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._ttl_seconds / _RENEWALS_PER_TTL)
            try:
                await self._put(self._revision)
            except (CasLost, CasUnknown):
                if not await self._is_found_again():
                    logger.error("session-taken-over key=%s", self._key)  # noqa: TRY400
                    return
            except StoreUnavailable as error:
                logger.warning("session-not-renewed key=%s error=%s", self._key, error)

    async def _is_found_again(self) -> bool:
        """After a renewal that was lost or has no known outcome: whether the next one may be made,
        which it may not once another holder wrote the key."""
        try:
            found = await self._store.get(self._key)
        except StoreUnavailable:
            return True  # the next renewal finds out
        if found is not None and found.value != self._value:
            return False
        self._revision = 0 if found is None else found.revision
        return True
