"""`FileMetaStore`: the metadata store in one file.

A daemon without a cluster uses this store (in `<data_dir>/records`). Several daemons on one machine
that share a directory also use it. Calls come from the event loop. Only one thread accesses the
file; it writes all waiting changes with one write.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from liftlog.cluster.store import (
    CLUSTER_KEY,
    Entry,
    MetaStoreError,
    OnChange,
    StoreUnavailable,
    check_size,
)
from liftlog.log.files.filesystem import FileSystem, OsFileSystem
from liftlog.server.metadata.records_file import (
    LOCK_SUFFIX,
    Change,
    Content,
    RecordsFile,
    locked_file,
)
from liftlog.server.metadata.sessions import RenewedKey

logger = logging.getLogger("liftlog.server")

_POLL_SECONDS = 0.05

_T = TypeVar("_T")


class FileMetaStore:
    """A MetaStore in the file `path`. Belongs to one event loop.

    If `shared` is true, other processes on this machine also change the file. These processes lock
    `<path>.lock`, and this store reads their changes within 0.05 s. If `shared` is false, the
    caller must exclude other processes, for example by the lock of a data directory.
    """

    def __init__(self, path: Path, *, shared: bool, fs: FileSystem | None = None) -> None:
        self._is_shared = shared
        lock = partial(locked_file, path.with_name(path.name + LOCK_SUFFIX)) if shared else None
        self._file = RecordsFile(path, fs or OsFileSystem(), lock=lock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._waiting: list[tuple[Change, asyncio.Future[int]]] = []
        self._is_writing = False
        self._is_closed = False

    def close(self) -> None:
        """Wait for the thread's current call, and end the thread. The caller must close all
        sessions before. Waiting and later calls raise StoreUnavailable."""
        self._is_closed = True
        self._thread.shutdown()

    # --- MetaStore ---

    async def get(self, key: str) -> Entry | None:
        content = await self._call(self._file.read)
        found = content.entries.get(key)
        return None if found is None or found.has_expired(self._file.now_ns()) else found.entry

    async def get_newest(self, key: str) -> Entry | None:
        return await self.get(key)  # no request is needed, because the file is the store

    async def scan(self, prefix: str) -> dict[str, Entry]:
        content, now_ns = await self._call(self._file.read), self._file.now_ns()
        return _living(content, prefix, now_ns)

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        if self._is_shared:
            check_size(key, value)
        return await self._change(Change(key, value, revision))

    async def delete(self, key: str, revision: int) -> None:
        await self._change(Change(key, None, revision))

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        known: dict[str, Entry] = {}
        seen: Content | None = None
        expires_ns = math.inf
        problem = ""
        while True:
            try:
                content, now_ns = await self._call(self._file.read), self._file.now_ns()
            except StoreUnavailable as error:
                if str(error) != problem:
                    logger.warning("metadata-store-unavailable error=%s", error)
                problem = str(error)
                seen = None
            else:
                problem = ""
                if content is seen and now_ns < expires_ns:  # the usual case
                    await asyncio.sleep(_POLL_SECONDS)
                    continue
                entries = _living(content, prefix, now_ns)
                expiring = (one.expires_ns for one in content.entries.values() if one.ttl_ns)
                expires_ns = min((at for at in expiring if at > now_ns), default=math.inf)
                seen = content
                # The id of the cluster comes first; see `one_cluster`.
                gone = sorted((key for key in known if key not in entries), key=_rank)
                changed = {key: one for key, one in entries.items() if known.get(key) != one}
                known = entries
                for key in gone:
                    on_change(key, None)
                for key in sorted(changed, key=_rank):
                    on_change(key, changed[key])
            await asyncio.sleep(_POLL_SECONDS)

    async def session(
        self, key: str, value: bytes, ttl_seconds: int, revision: int = 0
    ) -> RenewedKey:
        session = RenewedKey(self, key, value, ttl_seconds)
        await session.begin(revision)
        return session

    # --- parts ---

    async def put_for(self, key: str, value: bytes, revision: int, ttl_seconds: int) -> int:
        """Write an entry that expires. Apart from that, like `cas`."""
        ttl_ns = ttl_seconds * 1_000_000_000
        return await self._change(Change(key, value, revision, ttl_ns))

    async def apply(self, changes: Sequence[Change]) -> list[int | MetaStoreError]:
        """Make many changes with one write; see `RecordsFile.apply`."""
        return await self._call(partial(self._file.apply, changes))

    async def _call(self, work: Callable[[], _T]) -> _T:
        if self._is_closed:
            raise _closed()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _change(self, change: Change) -> int:
        """Make a change. If changes arrive while the thread writes, the next write contains all of
        them."""
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
            if caller.done():  # the caller was cancelled, but the change was made
                continue
            if isinstance(result, int):
                caller.set_result(result)
            else:
                assert result is not None
                caller.set_exception(result)
        self._is_writing = False
        if self._waiting:
            self._begin_write()


def _rank(key: str) -> bool:
    return key != CLUSTER_KEY


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the metadata store is closed: this daemon is stopping")


def _living(content: Content, prefix: str, now_ns: int) -> dict[str, Entry]:
    return {
        key: one.entry
        for key, one in content.entries.items()
        if key.startswith(prefix) and not one.has_expired(now_ns)
    }
