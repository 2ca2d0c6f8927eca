"""The newest snapshot, for those who read it: no Spark needed, and no daemon."""

from __future__ import annotations

from liftlog.spark.export.manifests import ManifestTable
from liftlog.spark.export.opening import open_store
from liftlog.spark.export.snapshot import Snapshot
from liftlog.spark.export.store import LocalStore, join
from liftlog.spark.export.table import DELTA_LOG


def newest(directory: str) -> Snapshot | None:
    """The newest snapshot of the table in `directory`; None before the first export.

    Its files stay for an hour after the next snapshot (`--keep`), those of a Delta table until
    somebody vacuums it. Raises CorruptMetadata.
    """
    store = open_store(directory)
    if not isinstance(store, LocalStore) or store.names(DELTA_LOG):
        from liftlog.spark.export.delta import newest_in

        return newest_in(directory, store)
    return ManifestTable(directory, store).newest()


def paths(directory: str) -> list[str]:
    """The files of the newest snapshot, for any reader of Parquet."""
    snapshot = newest(directory)
    return [] if snapshot is None else paths_of(directory, snapshot)


def paths_of(directory: str, snapshot: Snapshot) -> list[str]:
    root = open_store(directory).uri
    return [join(root, file.path) for file in snapshot.files]
