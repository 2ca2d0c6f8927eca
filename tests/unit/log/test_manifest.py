"""The manifest file: reading returns what was written, for any content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from liftlog.log import OsFileSystem
from liftlog.log.files.manifest import (
    MANIFEST_NAME,
    Manifest,
    QuarantinedRange,
    SegmentEntry,
    read_manifest,
)

SEGMENTS = (
    SegmentEntry(1, 0, 4096, 100, 99, 1_700_000_000_000_000_000),
    SegmentEntry(100, 3, 2**40, 2**62, 2**31, 2**62, 1_800_000_000_000_000_000),
    SegmentEntry(2**62),
)


@pytest.mark.parametrize("segments", [(), SEGMENTS[:1], SEGMENTS])
@pytest.mark.parametrize(
    "metadata", [{}, {"segments": [], "text": '"segments":[]', "ä": {"segments": []}}]
)
def test_it_is_plain_json_and_read_as_it_was(
    tmp_path: Path, segments: tuple[SegmentEntry, ...], metadata: dict[str, Any]
) -> None:
    manifest = Manifest(
        incarnation="0" * 32,
        leader_epoch=2,
        log_start_offset=1,
        reserved_offset=7,
        segments=segments,
        epochs=((1, 1), (2, 50)),
        quarantined=(QuarantinedRange(5, 7, "a.log", 64, 128, '"segments":[]'),),
        tombstones_removed_below=3,
        metadata=metadata,
    )
    manifest.write(OsFileSystem(), tmp_path)
    assert read_manifest(OsFileSystem(), tmp_path) == manifest
    body = (tmp_path / MANIFEST_NAME).read_bytes().partition(b"\n")[2]
    content = json.loads(body)
    assert body == json.dumps(content, separators=(",", ":"), sort_keys=True).encode()
    assert [one["file"] for one in content["segments"]] == [one.file_name for one in segments]
