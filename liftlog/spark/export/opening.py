"""The kind of store and of table that a place and a format ask for.

What only one kind needs (pyarrow, deltalake) is imported when that kind is opened.
"""

from __future__ import annotations

from liftlog.spark.export.request import ExportRequest
from liftlog.spark.export.store import LocalStore, Store, is_url, local_path, no_atomic_manifest
from liftlog.spark.export.table import Table


def open_store(where: str) -> Store:
    """For a directory or a URL. Raises InvalidArgument."""
    if is_url(where):
        from liftlog.spark.export.remote_store import RemoteStore

        return RemoteStore(where)
    return LocalStore(local_path(where))


def open_table(request: ExportRequest) -> Table:
    """Raises LiftlogError."""
    if request.format == "delta":
        from liftlog.spark.export.delta import DeltaLakeTable

        return DeltaLakeTable(request.to, open_store(request.to), request.stream, request.columns)
    from liftlog.spark.export.manifests import ManifestTable

    if is_url(request.to):
        raise no_atomic_manifest(request.to, "an object store has no hard links")
    return ManifestTable(request.to, LocalStore(local_path(request.to)))
