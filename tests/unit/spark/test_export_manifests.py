"""Manifests of an export: as their page describes them, damaged, old, and forged."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import CorruptMetadata, UnsupportedFormat
from liftlog.spark.export import newest
from liftlog.spark.export.snapshot import decode_manifest, encode_manifest


def test_a_manifest_that_is_damaged(streams: ExportedStreams, export: Export, lake: str) -> None:
    streams.put("in", [Put("a", b"1"), Put("a", b"2")])
    export()
    path = Path(lake, "_manifest", f"{1:020d}.json")
    good = path.read_bytes()
    for position in range(0, len(good), 7):
        bad = bytearray(good)
        bad[position] ^= 0x04
        path.write_bytes(bad)
        with pytest.raises(CorruptMetadata):
            newest(lake)
    for length in range(0, len(good), 97):
        path.write_bytes(good[:length])
        with pytest.raises(CorruptMetadata):
            newest(lake)
    with pytest.raises(CorruptMetadata, match="--full"):
        export()
    summary = export(full=True, discard_rows=True, mode="compacted")
    (warning,) = summary.warnings
    assert "the table is replaced" in warning
    assert summary.sequence == 2
    assert table(lake) == [(2, b"a", b"2")]
    for n in range(3):  # and it does not keep what is not needed forever
        streams.put("in", [Put("a", b"%d" % n)])
        assert export(keep_seconds=0.0).warnings == ()
    assert not path.exists()
    assert len(os.listdir(f"{lake}/_runs")) == 2


def test_the_manifest_as_its_page_says(streams: ExportedStreams, export: Export, lake: str) -> None:
    """Read by code that uses only docs/reference/export.md."""
    streams.put("in", [Put("a", b"1"), Put("a", b"2"), Put(None, b"3")])
    export()
    raw = max(Path(lake, "_manifest").glob("[0-9]*.json")).read_bytes()
    manifest = json.loads(raw)
    body, _, _ = raw.partition(b',\n"crc32c"')
    assert manifest["crc32c"] == f"{crc32c(body):08x}"
    page = Path(__file__).parents[3].joinpath("docs/reference/export.md").read_text()
    assert set(manifest) <= set(re.findall(r"`(\w+)`", page))
    assert [*manifest][-1] == "crc32c"
    rows = 0
    for file in manifest["files"]:
        assert set(file) <= set(re.findall(r"`(\w+)`", page))
        path = Path(lake, file["path"])
        offsets = pq.read_table(path).column("offset").to_pylist()
        assert (path.stat().st_size, len(offsets)) == (file["size_bytes"], file["rows"])
        assert (min(offsets), max(offsets)) == (file["min_offset"], file["max_offset"])
        rows += len(offsets)
    assert rows == manifest["rows"] == 2
    info = streams.log("in")
    assert manifest["incarnation"] == info.incarnation
    assert (manifest["from_offset"], manifest["to_offset"]) == (1, 4)
    # A reader ignores what it does not know.
    more = body + b',\n"more":1'
    assert decode_manifest(more + b',\n"crc32c":"%08x"}\n' % crc32c(more), "m").rows == 2
    newer = body.replace(b'"version":1', b'"version":3')
    with pytest.raises(UnsupportedFormat, match="version 3"):
        decode_manifest(newer + b',\n"crc32c":"%08x"}\n' % crc32c(newer), "m")


def test_a_manifest_from_before_there_were_buckets(
    streams: ExportedStreams, export: Export, lake: str
) -> None:
    streams.put("in", [Put(f"k{n}", b"1") for n in range(9)])
    export()
    path = Path(lake, "_manifest", f"{1:020d}.json")
    body, _, _ = path.read_bytes().replace(b',"bucket":[0,1]', b"").partition(b',\n"crc32c"')
    assert b"bucket" not in body
    path.write_bytes(body + b',\n"crc32c":"%08x"}\n' % crc32c(body))
    assert [file.bucket for file in newest(lake).files] == [(0, 1)]
    streams.put("in", [Put("k3", b"2"), Put("k4", None)])
    export(partition_bytes=1000)
    assert len(newest(lake).files) > 1
    assert [(offset, value) for offset, _, value in table(lake)] == [
        *((n, b"1") for n in (1, 2, 3, 6, 7, 8, 9)),
        (10, b"2"),
    ]


@pytest.mark.parametrize("bucket", [(0, 3), (2, 2), (-1, 2), (0, 0), (0, -4), ("0", 1), (0, True)])
def test_buckets_that_make_no_sense(
    streams: ExportedStreams, export: Export, lake: str, bucket: Any
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    snapshot = newest(lake)
    bad = encode_manifest(replace(snapshot, files=(replace(snapshot.files[0], bucket=bucket),)))
    with pytest.raises(CorruptMetadata):
        decode_manifest(bad, "m")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x.parquet", "a/../../x", "a b", ""])
def test_paths_that_lead_out_of_the_table(
    streams: ExportedStreams, export: Export, lake: str, path: str
) -> None:
    streams.put("in", [Put("a", b"1")])
    export()
    snapshot = newest(lake)
    (file,) = snapshot.files
    bad = encode_manifest(replace(snapshot, files=(replace(file, path=path),)))
    with pytest.raises(CorruptMetadata):
        decode_manifest(bad, "m")
