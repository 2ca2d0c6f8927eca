"""Opens the journal, or creates it for the first consumer. Blocking work runs in threads.

The journal is a log in the directory `streams/_deliveries`. It is not a stream: clients cannot list
it, read it, publish to it or change it. In its manifest, the format version of its records replaces
a stream's settings. Versions of liftlog without consumers treat the journal as a stream with an
unknown setting. They report it, and do not change it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from liftlog.errors import LiftlogError, NewerFormat
from liftlog.log import DataDir, FileSystem, Log, LogConfig, LogEnvironment, OsFileSystem
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import read_manifest
from liftlog.log.files.shared_descriptors import SharedDescriptors
from liftlog.server.commits.writing import WriterPool
from liftlog.server.journal.content import read_content
from liftlog.server.journal.journal import Journal
from liftlog.server.journal.records import VERSION
from liftlog.server.journal.storing import SEGMENT_BYTES, JournalStore
from liftlog.server.metadata.records import StreamRecords
from liftlog.settings.consumers import ConsumerSettings

logger = logging.getLogger("liftlog.server.journal")

JOURNAL = "_deliveries"
"""Name of the directory."""

_FORM = "deliveries"
_UNSYNCED_LOSSES = "unsynced_losses"
_CONFIG = LogConfig(segment_max_bytes=SEGMENT_BYTES, segment_max_age_ns=None)


async def open_journal(
    data_dir: DataDir, pool: WriterPool, settings: ConsumerSettings
) -> Journal | None:
    """Open the journal. Returns None if it does not exist. Raises StorageError, DiskFull,
    CorruptMetadata. Raises NewerFormat if a newer version of liftlog has written the journal. An
    error leaves the files unchanged."""
    store = await asyncio.to_thread(open_store, data_dir)
    return None if store is None else _journal(store, pool, settings)


async def create_journal(
    data_dir: DataDir, pool: WriterPool, settings: ConsumerSettings
) -> Journal:
    """Create the journal for the first consumer of this daemon. Durable on return. Raises
    StorageError, DiskFull."""
    return _journal(await asyncio.to_thread(create_store, data_dir), pool, settings)


async def close_journal(
    data_dir: DataDir, journal: Journal, records: StreamRecords | None = None
) -> None:
    """Close the journal before `data_dir` is closed. If the journal has no consumers, remove its
    name from the file `records`, and then remove the journal. Versions of liftlog without consumers
    can then use the data directory again."""
    state = await journal.close()
    if state is not None and not journal.ledger and not journal.ledger.lost:
        if records is not None:
            await records.removed(JOURNAL)
        await asyncio.to_thread(data_dir.delete_log, JOURNAL)
    else:
        data_dir.keep_clean(JOURNAL, state)


def _journal(store: JournalStore, pool: WriterPool, settings: ConsumerSettings) -> Journal:
    return Journal(store, pool, flush_interval_seconds=settings.flush_interval_seconds)


# --- blocking ---


def open_store(data_dir: DataDir) -> JournalStore | None:
    """Open the log of the journal in this thread; see `open_journal`."""
    started = time.monotonic()
    environment = _own_environment(data_dir.environment)
    path = data_dir.stream_path(JOURNAL)
    data_dir.remove_unfinished(JOURNAL)
    with storage_errors(f"reading the manifest of {JOURNAL}"):
        if not environment.fs.exists(path):
            return None
        manifest = read_manifest(environment.fs, path)
    if manifest is not None:
        _check_form(manifest.metadata)
    log, report = data_dir.open_log(JOURNAL, _CONFIG, environment=environment)
    try:
        store = load_store(log)
    except LiftlogError:
        data_dir.keep_clean(JOURNAL, log.close())
        raise
    logger.info(
        "journal-opened clean=%s consumers=%d uncertain=%d bytes=%d seconds=%.2f",
        report.clean,
        len(store.ledger.entries),
        len(store.ledger.uncertain()),
        store.size_bytes,
        time.monotonic() - started,
    )
    return store


def create_store(data_dir: DataDir) -> JournalStore:
    """Create the log of the journal in this thread; see `create_journal`."""
    log = data_dir.create_log(
        JOURNAL,
        _CONFIG,
        initial_offset=1,
        metadata=new_metadata(),
        environment=_own_environment(data_dir.environment),
    )
    return load_store(log)


def new_metadata() -> dict[str, Any]:
    return {"settings": {_FORM: VERSION}, "origin": "system"}


def load_store(log: Log) -> JournalStore:
    """Read and verify an open log. Raises StorageError, NewerFormat."""
    metadata = log.view.manifest.metadata
    _check_form(metadata)
    known = metadata.get(_UNSYNCED_LOSSES, ())
    content = read_content(log, known)
    found = sorted(one for one in content.unsynced_losses if one >= log.log_start_offset)
    if found != sorted(known):
        log.structure.set_metadata({**metadata, _UNSYNCED_LOSSES: found})
    return JournalStore(log, content.ledger)


def _check_form(metadata: Mapping[str, Any]) -> None:
    form = metadata.get("settings", {}).get(_FORM)
    if form != VERSION:
        raise NewerFormat(
            f"the journal of consumers has the format {form!r}, and this version reads {VERSION}",
            hint="install the version that wrote the journal",
        )


def _own_environment(shared: LogEnvironment) -> LogEnvironment:
    """Return an environment in which each file keeps its own descriptor. If descriptors were
    shared, a file could not be written during its sync."""
    fs: FileSystem = OsFileSystem() if isinstance(shared.fs, SharedDescriptors) else shared.fs
    own = LogEnvironment.create(
        fs, shared.clock, max_open_files=8, cached_indexes=8, synced=shared.synced
    )
    return replace(own, age_clock_ns=shared.age_clock_ns)
