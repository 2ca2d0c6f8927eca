"""The page that specifies the storage format agrees with the code."""

from __future__ import annotations

import re
from pathlib import Path

from support.disks.golden_log import BATCHES
from support.disks.logs import BASE_NS

from liftlog.log.files.erased_file import ErasedEntry
from liftlog.log.files.leases import Lease
from liftlog.log.files.manifest import Manifest, QuarantinedRange, SegmentEntry
from liftlog.log.segment.tail import ActiveState
from liftlog.records import encode_batch
from liftlog.records import format as batch_format
from liftlog.records.header import BatchHeader

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "storage-format.md").read_text()


def test_the_worked_example() -> None:
    block = PAGE.split("```hex\n")[1].split("```")[0]
    written = bytes.fromhex("".join(re.split(r"  +", line)[0] for line in block.splitlines()))
    case = next(case for case in BATCHES if case["name"] == "one record")
    assert case["arguments"]["stamps"] == [(BASE_NS, 1)]
    assert written.hex(" ", 4) == bytes(encode_batch(**case["arguments"])).hex(" ", 4)
    assert f"length: {len(written)}" in block


def test_every_attribute_bit_is_on_the_page() -> None:
    rows = dict(re.findall(r"^\| `0x(\d{4})` \| ([a-z ]+) \|", PAGE, re.MULTILINE))
    named = {
        "codec": batch_format.CODEC_MASK,
        "offset deltas": batch_format.OFFSET_DELTAS,
        "timestamp deltas": batch_format.TIMESTAMP_DELTAS,
        "subject ids": batch_format.SUBJECT_IDS,
        "keys": batch_format.KEYS,
        "headers": batch_format.HEADERS,
        "tombstones": batch_format.TOMBSTONES,
        "escaped subjects": batch_format.ESCAPED_SUBJECTS,
    }
    assert {name: int(bit, 16) for bit, name in rows.items()} == named
    assert sum(named.values()) == batch_format.KNOWN_ATTRIBUTES
    for code, codec in batch_format.CODEC_NAMES.items():
        assert f"{code} {codec}" in PAGE


def test_the_header_is_drawn_as_it_is_packed() -> None:
    drawing = re.findall(r"^ ?(\d+) +(\d+)  (\w+)", PAGE.split("## The record batch")[1], re.M)[:13]
    sizes = {"4s": 4, "I": 4, "Q": 8, "q": 8, "H": 2}
    packed = re.findall(r"4s|[IQqH]", batch_format.HEADER.format)
    position = 0
    for (at, size, _), kind in zip(drawing, packed, strict=True):
        assert (int(at), int(size)) == (position, sizes[kind])
        position += sizes[kind]
    assert {name for _, _, name in drawing} >= set(BatchHeader._fields)


def test_every_field_of_the_checkpoint_files_is_on_the_page() -> None:
    for cls in (Manifest, SegmentEntry, QuarantinedRange, ErasedEntry, ActiveState, Lease):
        for name in cls.__slots__:
            assert re.search(rf"[`\[ ]{name}[`,)]", PAGE), name
