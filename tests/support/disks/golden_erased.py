"""The golden streams with erased records, and damage of the files that list the offsets.

`erased` has the records of `sketched`; three of its erasures are in one chunk of offsets. `far` has
erased records on both sides of a border between chunks. `golden_reads` writes both.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

from crc32c import crc32c
from support.disks.golden_log import BOOT_ID, DATA_DIR, GOLDEN, INCARNATION, STREAM, Case
from support.disks.logs import BASE_NS, FakeClock, environment
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import (
    ROLL_ON_DEMAND,
    Row,
    add,
    sketch_segments,
)

from liftlog.log import DataDir, EncodedBatch, Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erased_file import (
    CHUNK_OFFSETS,
    ErasedEntry,
    bitmap,
    encode_half,
    parse_bitmap,
)
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.records import encode_batch

BORDER = CHUNK_OFFSETS
_HALF_BYTES = 4096
_FOREIGN = INCARNATION[::-1]

Damage = tuple[str, str, list[Case]]


def erase_three_times(log: Log) -> None:
    """Erase a dense range, scattered records, and some of the newest ones; no two of the erasures
    are in one file."""
    scattered = sorted(random.Random(39).sample(range(150, 345), 30))
    dense = [(54, 56), (95, 115), (261, 265)]
    for ranges in (dense, [(one, one + 1) for one in scattered], [(300, 346)]):
        log.structure.erase(ErasedSet.of_ranges(ranges))
    assert len(log.view.manifest.erased) == 3


def far_files() -> dict[str, bytes]:
    """Return files with records around the offset 2^24. The last four offsets of the second erased
    file do not count, as after a truncation."""
    fs = SimFileSystem()
    fs.make_directory(STREAM.parent)
    data_dir = DataDir(DATA_DIR, environment(fs, FakeClock()))
    with mock.patch("uuid.UUID.hex", INCARNATION):
        log = Log.create(STREAM, data_dir.environment, ROLL_ON_DEMAND, metadata={}, boot_id=BOOT_ID)
    _append_up_to(log, BORDER - 20)
    for number in range(8):
        stamp = BASE_NS + number * 1000
        values = [b"%d.%d" % (number, i) for i in range(5)]
        add(log, [[Row(stamp, "orders.eu", b"k%d" % i, one, b"") for i, one in enumerate(values)]])
    log.writer.roll()
    log.structure.erase(ErasedSet.of_ranges([(BORDER - 9, BORDER - 8), (BORDER - 4, BORDER + 10)]))
    first, second = log.view.manifest.erased
    shown = ErasedSet.of_ranges([(BORDER + 6, BORDER + 10)])
    state = log._state
    with state.lock:
        state.store(
            log.view.manifest.with_changes(erased=(first, replace(second, next_offset=BORDER + 6))),
            erased=(log.view.erased or shown) - shown,
        )
    sketch_segments(log, fs)
    log.commit_up_to(log.sync())
    log.close()
    return files_of(fs)


def _append_up_to(log: Log, next_offset: int) -> None:
    """Append a batch of one record that covers all offsets below `next_offset`."""
    first = log.log_end_offset
    raw = encode_batch(
        base_offset=first,
        leader_epoch=log.leader_epoch,
        commit_group=log.writer.commit_group,
        stamps=[(BASE_NS - 1000, 1)],
        subjects=[b"orders.eu"],
        values=[b"first"],
        offsets=[first],
        last_offset=next_offset - 1,
    )
    log.append([EncodedBatch(raw, first, next_offset, 1, BASE_NS - 1000, BASE_NS - 1000)])
    log.commit_up_to(log.sync())


def files_of(fs: SimFileSystem) -> dict[str, bytes]:
    """Return the files of the stream, without the acked-end slot."""
    after = fs.kill()
    return {
        name: after.read(STREAM / name)
        for name in after.list_directory(STREAM)
        if not name.startswith("acked")
    }


# --- damage ---


def damage_of_erased_files() -> Iterator[Damage]:
    yield "nothing, with erased records", "erased", []
    yield "nothing, far away", "far", []
    yield from _damaged_halves()
    yield from _other_files()


def _second_file() -> tuple[ErasedEntry, bytes]:
    """Return an erased file of the stream `erased`, and its content."""
    entry = _listed("erased")[1]
    return entry, (GOLDEN / "erased/streams/orders" / entry.file_name).read_bytes()


def _damaged_halves() -> Iterator[Damage]:
    entry, raw = _second_file()
    name = entry.file_name

    def put(at: int, new: bytes) -> Case:
        return {"file": name, "position": at, "hex": new.hex()}

    def flip(at: int) -> Case:
        return put(at, bytes([raw[at] ^ 1]))

    for at in (0, 9, 33, 61, 64, entry.size_bytes - 1):
        yield f"an erased file, byte {at}", "erased", [flip(at)]
        yield f"the second half of an erased file, byte {at}", "erased", [flip(_HALF_BYTES + at)]
    yield "both halves of an erased file", "erased", [flip(70), flip(_HALF_BYTES + 64)]
    yield "an erased file whose first page is torn", "erased", [put(0, bytes(_HALF_BYTES))]
    yield "an erased file of zeros", "erased", [put(0, bytes(len(raw)))]
    for size in (0, 30, entry.size_bytes - 1, entry.size_bytes, len(raw) - 1):
        yield f"an erased file of {size} bytes", "erased", [{"file": name, "size": size}]
    yield "an erased file that is missing", "erased", [{"file": name, "remove": True}]
    yield (
        "an erased file, and one half of another",
        "far",
        [
            {"file": one.file_name, "position": at, "hex": "00"}
            for one, places in zip(_listed("far"), ((0, _HALF_BYTES), (0,)), strict=True)
            for at in places
        ],
    )


def _other_files() -> Iterator[Damage]:
    """Yield files with the right name and other content."""
    entry, raw = _second_file()
    name, half = entry.file_name, raw[: entry.size_bytes]

    def instead(other: bytes) -> list[Case]:
        made = _twice(other)
        put = {"file": name, "position": 0, "hex": made.hex()}
        return [put, {"file": name, "size": len(made)}]

    bits = bitmap([1, 5, 9])
    same = parse_bitmap(half[64:])
    yield (
        "an erased file of another stream",
        "erased",
        instead(encode_half(bits, entry.first_offset, _FOREIGN)),
    )
    yield (
        "another erased file of this stream",
        "erased",
        instead(encode_half(bits, entry.first_offset, INCARNATION)),
    )
    yield (
        "an erased file of another stream with these offsets",
        "erased",
        instead(encode_half(same, entry.first_offset, _FOREIGN)),
    )
    yield (
        "an erased file with these offsets elsewhere",
        "erased",
        instead(encode_half(same, entry.first_offset + 1, INCARNATION)),
    )
    # Halves that match an entry of the manifest, but have contradictory content.
    for what, made in (
        ("of a later version", _with_header(half, 4, "<H", 2)),
        ("with another count", _with_header(half, 16, "<Q", entry.count + 1)),
        ("with another length", _with_header(half, 24, "<Q", len(half))),
        ("without a bitmap", _with_body(half, bytes(len(half) - 64))),
        ("with another magic", _with_header(half, 0, "<B", 0x4D)),
    ):
        yield (
            f"an erased file {what}",
            "erased",
            [
                *instead(made),
                *_listing(name, crc32c(made)),
            ],
        )


def _listed(stream: str) -> tuple[ErasedEntry, ...]:
    manifest = read_manifest(OsFileSystem(), GOLDEN / stream / "streams/orders")
    assert manifest is not None
    return manifest.erased


def _twice(half: bytes) -> bytes:
    return half.ljust(-(-len(half) // _HALF_BYTES) * _HALF_BYTES, b"\0") + half


def _with_header(half: bytes, at: int, kind: str, value: int) -> bytes:
    made = bytearray(half)
    struct.pack_into(kind, made, at, value)
    struct.pack_into("<I", made, 60, crc32c(bytes(made[:60])))
    return bytes(made)


def _with_body(half: bytes, body: bytes) -> bytes:
    return _with_header(half[:64] + body, 36, "<I", crc32c(body))


def _listing(name: str, check: int) -> list[Case]:
    """Return cases in which both manifests have another checksum of an erased file."""
    directory = GOLDEN / "erased/streams/orders"
    changes: list[Case] = []
    for manifest in ("manifest", "manifest.copy"):
        content = json.loads((directory / manifest).read_bytes().split(b"\n", 1)[1])
        [listed] = [
            one
            for one in content["erased"]
            if name == f"{one['first_offset']:020d}.{one['number']}.erased"
        ]
        listed["crc32c"] = check
        body = json.dumps(content).encode()
        made = b"liftlog manifest 2 crc32c=%08x\n" % crc32c(body) + body
        changes.append({"file": manifest, "position": 0, "hex": made.hex()})
        changes.append({"file": manifest, "size": len(made)})
    return changes
