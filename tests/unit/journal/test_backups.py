"""A backup has the journal as it was before the streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disks.logs import environment

from liftlog.log import DataDir, OsFileSystem
from liftlog.log.backup import create_backup, restore_backup
from liftlog.log.backup import creating as creating_module
from liftlog.server.journal import Change, ConsumerKey, StateVersion
from liftlog.server.journal.opening import JOURNAL, create_store, open_store
from liftlog.server.journal.storing import JournalStore

ONE = ConsumerKey("a1", "one")


def write(store: JournalStore, *changes: Change) -> None:
    prepared = store.prepare(changes)
    store.write(prepared)
    store.written(prepared)
    store.sync_begins()
    store.sync()
    store.synced()


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_restored_journal_goes_on(tmp_path: Path, is_closed: bool) -> None:
    """Copied while the daemon runs, and after its end."""
    data_dir = DataDir(tmp_path / "data", environment(OsFileSystem()))
    data_dir.open()
    store = create_store(data_dir)
    write(store, Change.snapshot(ONE, StateVersion(1, 1), b"settings", b"state"))
    write(store, Change.delta(ONE, StateVersion(1, 2), b"delta"))
    if is_closed:
        data_dir.close({JOURNAL: state} if (state := store.close()) else None)
    create_backup(data_dir.path, tmp_path / "backup", created_ns=1)
    if not is_closed:
        write(store, Change.delta(ONE, StateVersion(1, 3), b"after the backup"))
        store.close()
        data_dir.close(None)
    restore_backup(tmp_path / "backup", tmp_path / "restored", now_seconds=1_800_000_000)
    restored = DataDir(tmp_path / "restored", environment(OsFileSystem()))
    restored.open()
    for number in (1, 2):  # the second start reads what the first one has written
        found = open_store(restored)
        assert found is not None
        stored = found.read(ONE, found.ledger.entries[ONE])
        assert (stored.settings, stored.state) == (b"settings", b"state")
        assert [delta for _, delta in stored.deltas] == [b"delta", b"more"][:number]
        assert not stored.is_uncertain
        write(found, Change.delta(ONE, StateVersion(2, number), b"more"))
        restored.keep_clean(JOURNAL, found.close())
    restored.close(None)


def test_the_journal_is_copied_before_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Orders", "orders", "_offsets", JOURNAL):
        (tmp_path / "data" / "streams" / name).mkdir(parents=True)
    copied: list[str] = []
    monkeypatch.setattr(
        creating_module, "look", lambda fs, data_dir, name, *others: copied.append(name)
    )
    create_backup(tmp_path / "data", tmp_path / "backup", created_ns=1)
    assert copied == [JOURNAL, "_offsets", "Orders", "orders"]
