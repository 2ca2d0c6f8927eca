from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.spark.exporting import Export, ExportedStreams


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[ExportedStreams]:
    """Yield a broker in a thread, with a stream `in` that may be compacted."""
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        yield streams


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Return the place of exports, which does not exist yet."""
    return str(tmp_path / "lake")


@pytest.fixture
def export(streams: ExportedStreams, lake: str) -> Export:
    """Return an export of the stream `in` to Parquet files."""
    return Export(streams, "in", lake)
