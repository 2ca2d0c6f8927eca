from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.spark.exporting import Export, ExportedStreams


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[ExportedStreams]:
    """A broker in a thread, with a stream `in` that may be compacted."""
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in")
        yield streams


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Where exports go; not there yet."""
    return str(tmp_path / "lake")


@pytest.fixture
def export(streams: ExportedStreams, lake: str) -> Export:
    """Of the stream `in`, into Parquet files."""
    return Export(streams, "in", lake)
