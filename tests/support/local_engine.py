"""The work of an export in this process, in plain Python: the real tasks, and a merge to compare
that of Spark with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from liftlog.spark.columns import schema_of
from liftlog.spark.export.job import Tell
from liftlog.spark.export.merging import MergeWork, adopt
from liftlog.spark.export.scanning import (
    RangeResult,
    ScanWork,
    decode_result,
    encode_result,
    scan_range,
)
from liftlog.spark.export.snapshot import DataFile, Kind
from liftlog.spark.export.store import open_store
from liftlog.spark.transport import ScanRange

Row = dict[str, object]


class LocalEngine:
    def __init__(self) -> None:
        self.cancelled = False

    def scan(self, work: ScanWork, ranges: Sequence[ScanRange], tell: Tell) -> list[RangeResult]:
        return [decode_result(encode_result(scan_range(work, wanted))) for wanted in ranges]

    def merge(self, work: MergeWork, tell: Tell) -> list[DataFile]:
        winners: dict[tuple[str, object], Row] = {}
        for file in work.inputs:
            for row in rows_of([Path(work.table, file.path)]):
                offset, key = row["offset"], row["key"]
                assert isinstance(offset, int)
                if offset < work.log_start_offset:
                    continue
                group = ("alone", offset) if key is None else ("key", key)
                other = winners.get(group)
                if other is None or int(str(other["offset"])) < offset:
                    winners[group] = row
        rows = [row for row in winners.values() if row["key"] is None or row["value"] is not None]
        return [*self._written(work, "keyed", rows), *self._written(work, "keyless", rows)]

    def _written(self, work: MergeWork, kind: Kind, rows: Sequence[Row]) -> list[DataFile]:
        """As Spark leaves it: two files, one of them empty, and files of its own beside them."""
        store = open_store(work.table)
        produced = f"{work.directory}/merged-{kind}"
        store.make_directory(produced)
        schema = schema_of(work.columns)
        chosen = [row for row in rows if (row["key"] is None) == (kind == "keyless")]
        for name, part in (("part-0", chosen), ("part-1", [])):
            with store.writing(f"{produced}/{name}.parquet") as file:
                pq.write_table(pa.Table.from_pylist(part, schema=schema), file)
        with store.writing(f"{produced}/_SUCCESS"):
            pass
        return adopt(store, produced, work.directory, kind)

    def cancel(self) -> None:
        self.cancelled = True


def rows_of(paths: Sequence[str | Path]) -> list[Row]:
    """Read without the help of what wrote them."""
    return [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
