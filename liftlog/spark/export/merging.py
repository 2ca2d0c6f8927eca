"""What of a table is written anew when newer values come, and how. Knows nothing of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from liftlog.spark.columns import OFFSET
from liftlog.spark.export.snapshot import DataFile, Kind
from liftlog.spark.export.store import Store, join


@dataclass(frozen=True, slots=True)
class MergeWork:
    """Rows in, the newest of each key out, into new files in `directory`.

    Of rows with the same key the one with the largest offset wins; tombstones that win, and rows
    below `log_start_offset`, are left out. Rows without a key are all kept.
    """

    table: str
    directory: str
    columns: tuple[str, ...]
    log_start_offset: int
    inputs: tuple[DataFile, ...]


def sort_out(
    old: Sequence[DataFile], staged: Sequence[DataFile], log_start_offset: int
) -> tuple[list[DataFile], list[DataFile]]:
    """Of the files of the snapshot before, those that stay as they are, and what has to be merged.

    Keyed files are merged when there is anything to merge them with. What retention has reached
    goes here as well, so that the result is what a full export would be.
    """
    stay, merge = [], list(staged)
    for file in old:
        if file.max_offset < log_start_offset:
            continue
        reached = file.min_offset < log_start_offset
        if reached or (file.kind != "keyless" and (staged or file.kind != "keyed")):
            merge.append(file)
        else:
            stay.append(file)
    return stay, merge


def adopt(store: Store, produced: str, directory: str, kind: Kind) -> list[DataFile]:
    """Take over the Parquet files in `produced`, which others have written: durable, and under
    names of ours. Files without rows stay behind."""
    found = []
    for name in store.names(produced):
        if not name.endswith(".parquet") or name.startswith(("_", ".")):
            continue  # checksums and marks of Hadoop's
        source = join(produced, name)
        with store.opened(source) as file:
            described = pq.read_metadata(file)
        if not described.num_rows:
            continue
        target = join(directory, f"{kind}-{uuid.uuid4().hex}.parquet")
        store.adopt(source, target)
        size = store.size(target)
        assert size is not None
        first, last = _offset_bounds(described)
        found.append(DataFile(target, kind, described.num_rows, size, first, last))
    return found


def _offset_bounds(described: pq.FileMetaData) -> tuple[int, int]:
    """From the statistics of the row groups; if there are none, what is safe."""
    place = described.schema.names.index(OFFSET)
    columns = [
        described.row_group(number).column(place).statistics
        for number in range(described.num_row_groups)
    ]
    if any(one is None or not one.has_min_max for one in columns):
        return 0, 2**63 - 1
    return min(one.min for one in columns), max(one.max for one in columns)
