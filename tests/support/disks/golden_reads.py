"""The golden files for readers of the storage format: the content of the golden streams, and the
errors that a reader must report for damaged ones. The tests of the connector in Java use them, too.

`python tests/support/disks/golden_reads.py` rewrites them; do so only for a new case or a new
format version.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[2]))

from crc32c import crc32c
from support.disks.golden_erased import (
    Damage,
    damage_of_erased_files,
    erase_three_times,
    far_files,
    files_of,
)
from support.disks.golden_log import (
    BATCHES,
    BOOT_ID,
    DATA_DIR,
    GOLDEN,
    INCARNATION,
    STREAM,
    Case,
    from_json,
    to_json,
)
from support.disks.logs import BASE_NS, FakeClock, environment
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import (
    MINUTE_NS,
    ROLL_ON_DEMAND,
    Row,
    add,
    compact_once,
    sketch_segments,
)

from liftlog.errors import LiftlogError
from liftlog.log import DataDir, Log
from liftlog.log.erased import read_listed
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import Manifest, SegmentEntry, read_manifest
from liftlog.log.segment.index import SparseIndex, index_path
from liftlog.log.segment.sketch import Probe, Sketch, read_sketch, read_value_checks
from liftlog.log.segment.subject_index import read_subject_index
from liftlog.records import decode_batch, encode_batch, iter_batches, parse_header
from liftlog.records.columns.batch_columns import decode_columns
from liftlog.records.columns.heads import WantedSubjects
from liftlog.records.format import HEADER_SIZE
from liftlog.spark.file_transport import FileTransport
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read

STREAMS = ("data", "sketched", "erased", "far")
RARE, NEVER = "orders.rare", "orders.never"
SUBJECTS = ("orders.eu", "orders.us", RARE, NEVER)
KEYS = (b"k3", b"k99")
FIRST = f"{1:020d}"  # of the stream `data`
SKETCHED = f"{61:020d}"  # the second segment, which has a subject index


# --- damaged batches ---


def sealed(raw: bytes | bytearray) -> bytes:
    """Return a batch with matching checksums, whatever its other bytes are."""
    made = bytearray(raw)
    struct.pack_into("<I", made, 56, crc32c(made[HEADER_SIZE:]))
    struct.pack_into("<I", made, 60, crc32c(made[:60]))
    return bytes(made)


def batch_named(name: str) -> bytes:
    return bytes(
        encode_batch(**next(case["arguments"] for case in BATCHES if case["name"] == name))
    )


def with_field(raw: bytes, at: int, kind: str, value: int, *, seal: bool = True) -> bytes:
    made = bytearray(raw)
    struct.pack_into(kind, made, at, value)
    return sealed(made) if seal else bytes(made)


def damaged_batches() -> list[Case]:
    """Return batches that every reader must refuse, with the name and the text of the error."""
    plain, stamps, subjects = (
        batch_named("several records"),
        batch_named("stamps"),
        batch_named("subjects"),
    )
    holes, headers = batch_named("compacted"), batch_named("headers")
    packed = from_json(json.loads((GOLDEN / "compressed.json").read_text()))[0]["batch"]
    body = HEADER_SIZE
    made = {
        "a bit of the header": with_field(plain, 9, "<B", plain[9] ^ 1, seal=False),
        "a bit of the header's checksum": with_field(plain, 60, "<B", plain[60] ^ 1, seal=False),
        "the last bit of the header": with_field(plain, 59, "<B", plain[59] ^ 128, seal=False),
        "the first bit of the body": with_field(plain, 64, "<B", plain[64] ^ 1, seal=False),
        "the last bit of the body": with_field(
            plain, len(plain) - 1, "<B", plain[-1] ^ 128, seal=False
        ),
        "another magic": with_field(plain, 0, "<B", 0x4D),
        "nothing": b"",
        "less than a header": plain[:63],
        "a header alone": plain[:64],
        "without its last byte": plain[:-1],
        "a later version": with_field(plain, 3, "<B", 2),
        "the reserved field": with_field(plain, 48, "<Q", 1),
        "an unknown attribute": with_field(plain, 44, "<H", 0x0800),
        "an unknown codec": with_field(plain, 44, "<H", 3),
        "a length below that of a header": with_field(plain, 4, "<I", 56),
        "a length that is no multiple of 8": with_field(plain, 4, "<I", len(plain) - 4),
        "more records than offsets": with_field(plain, 16, "<I", 1),
        "more records than bytes": with_field(
            with_field(plain, 16, "<I", 60_000), 20, "<I", 60_000
        ),
        "more subjects than bytes": with_field(plain, body, "<I", 1 << 30),
        "no subject": with_field(plain, body, "<I", 0),
        "two subjects, and no column of them": with_field(plain, body, "<I", 2),
        "a subject that is not there": with_field(subjects, subject_ids(subjects), "<H", 2),
        "subjects of which one ends before it begins": with_field(subjects, body + 12, "<I", 9),
        "values that begin after 0": with_field(plain, values_at(plain), "<I", 1),
        "a value that ends before it begins": with_field(plain, values_at(plain) + 4, "<I", 9),
        "values behind the end": with_field(plain, values_at(plain) + 12, "<I", 80),
        "values that end early": with_field(
            with_field(plain, values_at(plain) + 12, "<I", 0), values_at(plain) + 4, "<Q", 0
        ),
        "offsets that descend": with_field(holes, body, "<I", 6),
        "an offset behind the last one": with_field(holes, body + 4, "<I", 9),
        "a column of times, and no room for it": with_field(plain, 44, "<H", 0x0020),
        "a column of keys, and no room for it": with_field(plain, 44, "<H", 0x0080),
        "headers, and no attribute of them": with_field(headers, 44, "<H", 0),
        "times, and no attribute of them": with_field(stamps, 44, "<H", 0),
        "another length before compression": with_field(packed, body, "<I", 64),
        "an impossible length before compression": with_field(packed, body, "<I", 1 << 31),
        "another compressed length": with_field(packed, body + 4, "<I", 8),
        "a compressed body of other bytes": with_field(packed, body + 20, "<Q", 2**64 - 1),
    }
    return [to_json({"name": name, "batch": raw, **refusal(raw)}) for name, raw in made.items()]


def subject_ids(raw: bytes) -> int:
    """Return the position of the ids in the batch `subjects`, after the dictionary of `x` and
    `y.z`."""
    return raw.index(struct.pack("<3H", 0, 1, 0), HEADER_SIZE + 24)


def values_at(raw: bytes) -> int:
    """Return the position of the values' ends in the batch `several records`."""
    return raw.index(struct.pack("<4I", 0, 3, 3, 8))


def refusal(raw: bytes) -> dict[str, str]:
    """Return the error of a reader that uses all columns of a batch."""
    try:
        batch = decode_batch(raw)
        decode_columns(batch)
        batch.subjects(), batch.keys(), batch.values(), batch.headers(), batch.offsets()
    except LiftlogError as error:
        # The text after it comes from the package of the codec.
        message = error.message.split(": Decompression failed")[0]
        return {"error": error.name, "message": message}
    raise AssertionError("the batch is read")


# --- a stream with all files beside its segments ---


def files() -> dict[str, dict[str, bytes]]:
    """The files of the streams that this module writes."""
    return {"sketched": sketched_files(), "erased": sketched_files(erase=True), "far": far_files()}


def sketched_files(*, erase: bool = False) -> dict[str, bytes]:
    """Return the files of a stream with three segments: a compacted one, one with batches that have
    all kinds of parts, and an active one. The first two have a sketch and a subject index. With
    `erase`, some records are erased."""
    fs = SimFileSystem()
    fs.make_directory(STREAM.parent)
    data_dir = DataDir(DATA_DIR, environment(fs, FakeClock()))
    with mock.patch("uuid.UUID.hex", INCARNATION):
        log = Log.create(STREAM, data_dir.environment, ROLL_ON_DEMAND, metadata={}, boot_id=BOOT_ID)
    for number in range(3):
        add(log, [[keyed(BASE_NS + number * 1000, number, i) for i in range(20)]])
    log.writer.roll()
    assert compact_once(log, fs) is not None
    log.writer.begin_epoch(log.leader_epoch + 2)
    for rows in second_segment():
        add(log, [rows])
    log.writer.roll()
    add(log, [[Row(BASE_NS + 200 * MINUTE_NS, "orders.eu", None, b"active", b"")]])
    sketch_segments(log, fs, with_subjects=True)
    log.commit_up_to(log.sync())
    if erase:
        erase_three_times(log)
    log.close()
    return files_of(fs)


def second_segment() -> Iterator[list[Row]]:
    for number in range(6):
        stamp = BASE_NS + (number + 1) * MINUTE_NS
        if number == 2:  # values without separate checksums
            yield [Row(stamp, "orders.us", None, b"%4d" % i * 11, b"") for i in range(120)]
        elif number == 3:  # too few bytes of values for a separate head
            yield [Row(stamp, "orders.eu", None, b"small %d" % i, b"") for i in range(4)]
        else:
            yield [
                Row(
                    stamp + i % 2 * 1000,
                    RARE if number in (0, 1) and i == 7 else ("orders.eu", "orders.us")[i % 2],
                    b"k%d" % i if number == 1 else None,
                    b"%d.%d " % (number, i) * 100,
                    b"NATS/1.0\r\nTrace: %d\r\n\r\n" % i if number == 4 else b"",
                )
                for i in range(40)
            ]


def keyed(stamp: int, number: int, i: int) -> Row:
    value = None if number == 1 and i == 5 else b"%d of %d;" % (i, number) * 60
    return Row(stamp, ("orders.eu", "orders.us")[i % 2], b"k%d" % (i % 8), value, b"")


# --- the content of streams ---


def streams() -> dict[str, Any]:
    return {name: described(GOLDEN / name / "streams/orders") for name in STREAMS}


def described(directory: Path) -> dict[str, Any]:
    fs = OsFileSystem()
    manifest = read_manifest(fs, directory)
    assert manifest is not None
    sealed_ones = manifest.segments[:-1]
    return {
        "manifest": described_manifest(manifest),
        "indexes": {
            one.file_name: described_index(directory, one, manifest) for one in sealed_ones
        },
        "sketches": {
            one.file_name: described_sketch(directory, one, found)
            for one in sealed_ones
            if (found := read_sketch(fs, directory / one.file_name, one, manifest.lineage))
        },
        "subjects": {
            one.file_name: found
            for one in sealed_ones
            if (found := described_subjects(directory, one, manifest))
        },
        "erased": erased_ranges(fs, directory, manifest),
        "times": [[ns, offset_at(directory, ns)] for ns in times(directory, manifest)],
        "records": [list(one) for one in records(directory, manifest)],
    }


def described_manifest(manifest: Manifest) -> dict[str, Any]:
    return {
        "lineage": manifest.lineage,
        "incarnation": manifest.incarnation,
        "leader_epoch": manifest.leader_epoch,
        "log_start_offset": manifest.log_start_offset,
        "high_watermark": manifest.high_watermark,
        "cleaned_below": manifest.cleaned_below,
        "replicated": manifest.replicated,
        "committed": [one.file_name for one in manifest.committed_segments],
        "segments": [
            [one.file_name, one.base_offset, one.generation, one.next_offset, one.size_bytes,
             one.max_timestamp_ns]
            for one in manifest.segments
        ],
        "quarantined": [
            [one.first_offset, one.next_offset, one.segment, one.position, one.end_position,
             one.is_loss]
            for one in manifest.quarantined
        ],
        "epochs": manifest.epochs,
        "erased": [
            [one.file_name, one.first_offset, one.next_offset, one.count, one.size_bytes,
             one.crc32c]
            for one in manifest.erased
        ],
    }  # fmt: skip


def erased_ranges(fs: OsFileSystem, directory: Path, manifest: Manifest) -> list[tuple[int, int]]:
    found, problems = read_listed(fs, directory, manifest.erased)
    assert not problems
    return [] if found is None else found.ranges()


def described_index(directory: Path, entry: SegmentEntry, manifest: Manifest) -> dict[str, Any]:
    raw = index_path(directory / entry.file_name).read_bytes()
    index = SparseIndex.from_bytes(raw, entry, manifest.incarnation)
    assert index is not None
    found, position = [], -1
    while (one := index.after_position(position)) is not None:
        found.append([one.offset, one.position])
        position = one.position
    batches = list(iter_batches((directory / entry.file_name).read_bytes(), verify=False))
    stamps = sorted({batch.header.max_timestamp_ns for batch in batches})
    begins = [batch.header.base_offset for batch in batches]
    asked = [entry.base_offset - 1, *begins, entry.next_offset]
    floors = [[offset, *index.floor(offset)[:2]] for offset in asked]
    return {
        "entries": found,
        "floors": [one for i, one in enumerate(floors) if not i or one[1:] != floors[i - 1][1:]],
        "floors of times": [[ns + 1, *index.floor_time(ns + 1)[:2]] for ns in stamps],
    }


def described_sketch(directory: Path, entry: SegmentEntry, sketch: Sketch) -> dict[str, Any]:
    everything = sketch.blocks(Probe())
    borders = everything.borders.tolist()
    sizes = everything.sizes_bytes.tolist()
    middle = BASE_NS + 4 * MINUTE_NS

    def blocks(probe: Probe) -> list[bool]:
        found: list[bool] = sketch.blocks(probe).may_match.tolist()
        return found

    checks = read_value_checks(OsFileSystem(), directory / entry.file_name, sketch.value_checks)
    assert checks is not None
    return {
        "blocks": [list(one) for one in zip(borders[:-1], borders[1:], sizes, strict=True)],
        "subjects": {name: blocks(Probe(subject=name.encode())) for name in SUBJECTS},
        "keys": [[key.hex(), blocks(Probe(key=key))] for key in KEYS],
        "from the minute 4": blocks(Probe(not_before_ns=middle)),
        "before the minute 4": blocks(Probe(not_after_ns=middle - 1)),
        "parts": [list(one) for one in sketch.parts.tolist()],
        "value checks": checks.tolist(),
    }


def described_subjects(
    directory: Path, entry: SegmentEntry, manifest: Manifest
) -> dict[str, list[list[int]]] | None:
    """Return the runs of each subject: first and last offset, and number of records."""
    fs = OsFileSystem()
    index = read_subject_index(fs, directory / entry.file_name, entry, manifest.lineage)
    if index is None:
        return None
    found = {}
    for name in SUBJECTS:
        runs = index.runs_of(WantedSubjects((name.encode(),), None), 10)
        assert runs is not None
        found[name] = [
            [entry.base_offset + first, entry.base_offset + last, count]
            for start, stop in runs
            for first, last, _, _, _, count, *_ in index.runs[start:stop].tolist()
        ]
    return found


def times(directory: Path, manifest: Manifest) -> list[int]:
    """Return times near the timestamps of some records, one nanosecond apart."""
    stamps = sorted({one[1] for one in records(directory, manifest)})
    some = [*stamps[:3], stamps[len(stamps) // 2], *stamps[-2:]]
    return sorted({ns + more for ns in some for more in (-1, 0, 1)})


def offset_at(directory: Path, ns: int) -> int:
    with FileTransport(parse_options({"path": str(directory)})) as transport:
        return transport.offset_at(ns)


def records(directory: Path, manifest: Manifest) -> Iterator[tuple[Any, ...]]:
    """The records of the sealed segments as they were written, also those in quarantined ranges:
    offset, time, subject, key, headers, and the size and CRC-32C of the value. A key or a value
    that does not exist is null."""
    for entry in manifest.segments[:-1]:
        raw = (directory / entry.file_name).read_bytes()
        for batch in iter_batches(raw[: entry.size_bytes]):
            columns = (batch.subjects(), batch.keys(), batch.headers(), batch.values())
            rows = zip(batch.offsets(), batch.timestamps_ns(), *columns, strict=True)
            for offset, stamp, subject, key, headers, value in rows:
                yield (
                    offset,
                    stamp,
                    subject,
                    None if key is None else key.hex(),
                    headers.hex(),
                    None if value is None else len(value),
                    None if value is None else crc32c(value),
                )


# --- damaged streams ---

Change = dict[str, Any]


def put(file: str, position: int, raw: bytes) -> Change:
    return {"file": file, "position": position, "hex": raw.hex()}


def damage() -> list[Case]:
    """Return changes to the files of a stream, each with the lost offsets that a read reports if it
    may skip them, and the error that it reports otherwise."""
    made = [
        *damage_of_segments(),
        *damage_of_manifests(),
        *damage_beside_segments(),
        *damage_of_erased_files(),
    ]
    return [
        {"name": name, "stream": stream, "changes": changes, **report(stream, changes)}
        for name, stream, changes in made
    ]


def stored(stream: str, file: str) -> bytes:
    return (GOLDEN / stream / "streams/orders" / file).read_bytes()


def flipped(stream: str, file: str, position: int, bits: int = 1) -> Change:
    return put(file, position, bytes([stored(stream, file)[position] ^ bits]))


def places(stream: str, file: str) -> list[int]:
    """Return the positions of a segment's batches."""
    raw, found, at = stored(stream, file), [], 0
    while at < len(raw) and raw[at : at + 3] == b"LLB":
        found.append(at)
        at += parse_header(raw, at).length
    return found


def damage_of_segments() -> Iterator[Damage]:
    first = f"{FIRST}.log"
    at = places("data", first)
    raw = stored("data", first)
    body = HEADER_SIZE + 3
    yield "nothing", "data", []
    yield "the header of a batch", "data", [flipped("data", first, at[10] + 20)]
    yield "the body of a batch", "data", [flipped("data", first, at[10] + body)]
    yield "the last byte of a batch", "data", [flipped("data", first, at[11] - 1, 128)]
    yield "the first batch", "data", [flipped("data", first, at[2] + body)]
    yield "the last batch of a segment", "data", [flipped("data", first, at[-1] + 20)]
    yield (
        "two batches, and one between them",
        "data",
        [flipped("data", first, at[10] + 20), flipped("data", first, at[12] + body)],
    )
    yield (
        "two neighbours",
        "data",
        [flipped("data", first, at[10] + 20), flipped("data", first, at[11] + 20)],
    )
    for name in ("the header of a batch", "the body of a batch"):
        place = at[10] + (20 if name == "the header of a batch" else body)
        changes = [flipped("data", first, place), {"file": f"{FIRST}.index", "remove": True}]
        yield f"{name}, without an index", "data", changes
    yield "a page of zeros", "data", [put(first, 0, bytes(4096))]
    yield "a page of zeros in the middle", "data", [put(first, 1024, bytes(4096))]
    same = next(i for i in range(4, len(at) - 1) if at[i + 1] - at[i] == at[7] - at[6] and i > 7)
    whole = raw[at[same] : at[same + 1]]
    yield "a good batch in the place of another", "data", [put(first, at[6], whole)]
    older = with_field(raw[at[10] : at[11]], 40, "<I", 0)
    yield "a batch of an epoch that is over", "data", [put(first, at[10], older)]
    wrong = with_field(raw[at[10] : at[11]], 8, "<Q", parse_header(raw, at[10]).base_offset + 1)
    yield "a batch with another offset", "data", [put(first, at[10], wrong)]
    yield "a segment that is cut", "data", [{"file": first, "size": at[-3] + 30}]
    yield "a segment that is missing", "data", [{"file": first, "remove": True}]
    later = with_field(raw[at[10] : at[11]], 44, "<H", 0x0800)
    yield "a batch of an unknown format", "data", [put(first, at[10], later)]


def damage_of_manifests() -> Iterator[Damage]:
    raw = stored("data", "manifest")
    line = raw.index(b"\n")
    names = ("manifest", "manifest.copy")
    later = b"liftlog manifest 3"
    middle = [flipped("data", name, line + 40) for name in names]
    yield "the manifest", "data", middle[:1]
    yield "the copy of the manifest", "data", middle[1:]
    yield "both manifests", "data", middle
    yield "no manifest but the copy", "data", [{"file": "manifest", "remove": True}]
    yield "the first line of the manifest", "data", [put("manifest", 0, b"L")]
    yield "the first line of both", "data", [put(name, 0, b"L") for name in names]
    yield "the checksum of both", "data", [flipped("data", name, line - 1, 3) for name in names]
    yield "a manifest of a later version", "data", [put("manifest", 0, later)]
    yield "manifests of a later version", "data", [put(name, 0, later) for name in names]
    yield "manifests without an end", "data", [{"file": name, "size": 20} for name in names]
    body = raw[line + 1 :].replace(b'"base_offset"', b'"bose_offset"')
    lacking = b"liftlog manifest 1 crc32c=%08x\n" % crc32c(body) + body
    yield "manifests that lack a field", "data", [put(name, 0, lacking) for name in names]


def damage_beside_segments() -> Iterator[Damage]:
    for stem, suffixes in ((FIRST, ["index"]), (SKETCHED, ["index", "sketch", "subjects"])):
        stream = "data" if suffixes == ["index"] else "sketched"
        for suffix in suffixes:
            file = f"{stem}.{suffix}"
            size = len(stored(stream, file))
            for at in sorted({0, 4, 13, 20, 47, size // 3, size // 2, size - 1}):
                yield f"the {suffix} of {stream}, byte {at}", stream, [flipped(stream, file, at)]
            yield f"the {suffix} of {stream}, cut", stream, [{"file": file, "size": size - 4}]
            yield f"the {suffix} of {stream}, empty", stream, [{"file": file, "size": 0}]
            yield f"the {suffix} of {stream}, removed", stream, [{"file": file, "remove": True}]
    log = f"{SKETCHED}.log"
    at = places("sketched", log)
    raw = stored("sketched", log)
    for number in (0, 2, 5):
        batch = decode_batch(raw, at[number])
        data, ends = batch.value_column()
        values = at[number] + len(batch.raw) - len(data)
        seven, eight = values + ends[7], values + ends[8]
        for name, place in (
            ("the header", at[number] + 20),
            ("the head", at[number] + HEADER_SIZE + 20),
            ("a value", seven),
            ("the next value", eight),
        ):
            yield (
                f"{name} in the batch {number} of sketched",
                "sketched",
                [flipped("sketched", log, place)],
            )


def report(stream: str, changes: list[Change]) -> dict[str, Any]:
    """Return the report of the reader in Python."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "orders"
        directory.mkdir()
        for path in (GOLDEN / stream / "streams/orders").iterdir():
            (directory / path.name).write_bytes(path.read_bytes())
        for change in changes:
            apply(directory / change["file"], change)
        lost: list[list[int]] = []
        try:
            rows(directory, lost, fail="false")
        except LiftlogError as error:
            return {"lost": None, "error": told(error, directory)}
        try:
            rows(directory, [], fail="true")
        except LiftlogError as error:
            return {"lost": lost, "error": told(error, directory)}
    assert not lost
    return {"lost": [], "error": None}


def apply(path: Path, change: Change) -> None:
    if "remove" in change:
        path.unlink()
        return
    raw = path.read_bytes()
    if "size" in change:
        path.write_bytes(raw[: change["size"]])
        return
    at, new = change["position"], bytes.fromhex(change["hex"])
    path.write_bytes(raw[:at] + new + raw[at + len(new) :])


def rows(directory: Path, lost: list[list[int]], *, fail: str) -> None:
    options = parse_options({"path": str(directory), "stream": "orders", "failOnDataLoss": fail})
    for wanted in plan(options):
        for _ in read(options, wanted, on_loss=lambda a, b, _: lost.append([a, b])):
            pass


def told(error: LiftlogError, directory: Path) -> dict[str, str]:
    return {
        "name": error.name,
        "reason": error.message.replace(str(directory), "DIRECTORY"),
        "hint": error.hint,
    }


def main() -> None:
    for stream, content in files().items():
        for name, raw in content.items():
            path = GOLDEN / stream / "streams/orders" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
    for name, described_ones in (
        ("damaged-batches", damaged_batches()),
        ("streams", streams()),
        ("damage", damage()),
    ):
        (GOLDEN / f"{name}.json").write_text(lines(described_ones))


def lines(content: Any) -> str:
    """Return JSON with one line for each case, or for each value of each stream."""
    if isinstance(content, list):
        return "[\n" + ",\n".join([json.dumps(case) for case in content]) + "\n]\n"
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    main()
