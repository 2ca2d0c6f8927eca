"""Writes that a disk lost or wrote to the wrong place: complete, valid batches that do not belong
there.

Every page (and every batch) of a log is replaced by one of another place of the log, of another
log, or by its earlier content. In each case, no reader gets a record at a wrong offset or twice,
each lost offset is reported, no other record is lost, and all tools that read the files report the
same.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from support.disks.logs import BASE_NS, create, environment
from support.rounds import rounds

from liftlog.client.reading.batches import FetchAnswer
from liftlog.errors import CorruptRange
from liftlog.log import ActiveState, EncodedBatch, Log, LogConfig, OsFileSystem, open_log
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.offline.files import find_streams
from liftlog.log.offline.verify import DAMAGE, verify_stream
from liftlog.log.rewrite import ScrubJob, scrub
from liftlog.log.segment.walk import find_new_damage
from liftlog.protocol.messages import FetchHeader
from liftlog.records import encode_batch, parse_header
from liftlog.records.columns.selection import parse_selection
from liftlog.sequencing import DedupeWindow
from liftlog.server.reading.filtering import scan_log
from liftlog.server.reading.scan import Scan
from liftlog.server.streams.dedupe_restoring import restore_dedupe
from liftlog.spark.file_transport import FileTransport
from liftlog.spark.options import parse_options
from liftlog.spark.transport import Losses, ScanRange

PAGE = 4096
CONFIG = LogConfig(segment_max_bytes=4 * PAGE, segment_max_age_ns=None)
FS = OsFileSystem()
LARGE = 1 << 20
Values = dict[int, bytes]


class Stored(NamedTuple):
    directory: Path
    values: Values
    files: list[tuple[Path, int]]
    end: int
    clean: ActiveState
    batch_bytes: int
    foreign: Path
    """A segment of another log."""


def message_id(offset: int) -> bytes:
    return b"id-%07d" % offset


def append(log: Log, count: int, size: int, name: bytes, *, commit: bool = True) -> Values:
    """Append `count` batches of one record of `size` bytes each, in one group."""
    batches, values = [], {}
    for offset in range(log.log_end_offset, log.log_end_offset + count):
        block = b"NATS/1.0\r\nNats-Msg-Id: " + message_id(offset) + b"\r\n\r\n"
        value = b"%s %d " % (name, offset)
        make = partial(
            encode_batch,
            base_offset=offset,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(BASE_NS, 1)],
            subjects=[b"a"],
            headers=[block],
        )
        data = make(values=[value])
        value += bytes(size - len(data))
        data = make(values=[value])
        data = make(values=[value[: len(value) - (len(data) - size)]])
        assert len(data) == size
        values[offset] = value[: len(value) - (len(make(values=[value])) - size)]
        batches.append(EncodedBatch(data, offset, offset + 1, 1, BASE_NS, BASE_NS))
    log.append(batches)
    if commit:
        log.commit_up_to(log.sync())
    return values


def reopen(directory: Path, clean: ActiveState | None, boot: str = "boot-1") -> Log:
    return open_log(directory, environment(FS), CONFIG, clean=clean, boot_id=boot)[0]


@pytest.fixture(scope="module", params=[256, 512, 264])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Two sealed segments and an active one, in two leader epochs, and a second log with other
    offsets. Batches of 256 and 512 bytes fill pages completely, batches of 264 bytes do not."""
    size, place = int(request.param), tmp_path_factory.mktemp("stored")
    other = create(FS, config=CONFIG, directory=place / "other")
    other.truncate_prefix(5000)
    append(other, 4 * PAGE // size, size, b"other")
    foreign = other.segments[0].path
    other.close()
    directory = place / "orders"
    log = create(FS, config=CONFIG, directory=directory)
    values: Values = {}
    for number in range(8):
        if number == 3:
            log.close()
            log = reopen(directory, None)
        values |= append(log, PAGE // size, size, b"ours")
    assert log.leader_epoch == 2
    log.writer.roll()
    values |= append(log, 2 * PAGE // size, size, b"ours")
    end, files = log.log_end_offset, [(one.path, one.size_bytes) for one in log.segments]
    assert len(files) == 3
    state = log.close()
    assert state is not None
    return Stored(directory, values, files, end, state, size, foreign)


# --- readers ---


Answer = tuple[int, int, bytes]
"""First offset, next offset, batches."""


def sliced(log: Log, offset: int, max_bytes: int) -> Answer | None:
    """Answer like the daemon, from the files."""
    piece = log.read(offset, max_bytes)
    if piece is None:
        return None
    with piece:
        return piece.first_offset, piece.next_offset, piece.pread()


def filtered(log: Log, offset: int, max_bytes: int) -> Answer | None:
    """Answer like the daemon for a client with a filter."""
    if offset >= log.high_watermark:
        return None
    selection = parse_selection(subjects=[">"], keys=None, headers=None, readable=None)
    scanned = scan_log(log, Scan(offset, None, max_bytes, selection))
    return scanned.first_offset, scanned.next_offset, scanned.body


def read(log: Log, ask: Callable[[Log, int, int], Answer | None], max_bytes: int) -> Reading:
    """Read with the checks of a client. Returns the delivered records and the reported ranges."""
    found: Values = {}
    told: list[range] = []
    offset = log.log_start_offset
    while True:
        try:
            answer = ask(log, offset, max_bytes)
            if answer is None:
                return Reading(found, told)
            first, following, body = answer
            header = FetchHeader(
                offset=offset,
                first_offset=first,
                next_offset=following,
                record_count=following - first,
                high_watermark=log.high_watermark,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
                leader_epoch=log.leader_epoch,
                incarnation=log.incarnation,
                body_length=len(body),
            )
            for batch in FetchAnswer("orders", header, memoryview(body)).batches():
                for record in batch.records():
                    assert record.offset not in found, f"{record.offset} came twice"
                    found[record.offset] = record.value or b""
        except CorruptRange as damage:
            first, following = damage.first_offset, damage.next_offset
            told.append(range(first, following))
        assert offset < following
        offset = following


class Reading(NamedTuple):
    found: Values
    told: list[range]


READERS: list[Callable[[Log], Reading]] = [
    partial(read, ask=sliced, max_bytes=LARGE),
    partial(read, ask=sliced, max_bytes=PAGE + 1),
    partial(read, ask=sliced, max_bytes=1),
    partial(read, ask=filtered, max_bytes=LARGE),
]


def spark_misses(log: Log, end_offset: int, values: Values) -> set[int]:
    """Return the offsets that Spark does not find in the sealed files, and reports as lost."""
    transport = FileTransport(parse_options({"path": str(log.directory)}))
    wanted = ScanRange("orders", log.view.manifest.lineage, log.leader_epoch, 1, end_offset)
    found: Values = {}
    for batch in transport.batches(wanted, Losses("orders", fail=False)):
        for record in batch.records():
            assert record.offset not in found
            assert record.value == values[record.offset]
            found[record.offset] = record.value
    return {offset for offset in values if offset < end_offset} - set(found)


def verified(log: Log) -> set[int]:
    """Return the offsets that `liftlog log verify` reports as damaged."""
    (stream,) = find_streams(log.directory)
    found = verify_stream(stream).of_kind(DAMAGE)
    return {o for one in found for o in range(one.first_offset or 0, one.next_offset or 0)}


def scrubbed(log: Log) -> set[int]:
    """Return the damaged offsets that scrubbing finds in the sealed segments."""
    found = []
    for segment in log.segments[:-1]:
        job = ScrubJob(
            str(log.directory),
            segment.entry(),
            log.view.manifest.quarantined,
            log.view.manifest.epochs,
        )
        found += scrub(job, log.environment.fs).damaged
    return offsets_of(found)


def offsets_of(ranges: Iterable[QuarantinedRange]) -> set[int]:
    return {o for one in ranges for o in range(one.first_offset, one.next_offset)}


def check(stored: Stored, log: Log, what: str) -> set[int]:
    """Check all readers. Returns the lost offsets."""
    everything, known = set(stored.values), offsets_of(log.view.manifest.quarantined)
    sealed_end = log.segments[-1].base_offset
    offline = {
        "repair": offsets_of(find_new_damage(FS, log.directory, log.view.manifest, None)),
        "scrub": scrubbed(log),
        "verify": {offset for offset in verified(log) if offset < sealed_end},
        "Spark": spark_misses(log, sealed_end, stored.values) - known,
    }
    gone: set[int] | None = None
    for reader in READERS:
        found, told = reader(log)
        for offset, value in found.items():
            assert stored.values.get(offset) == value, f"{what}: {offset} is {value[:20]!r}"
        missing = everything - set(found)
        reported = known | {offset for one in told for offset in one}
        assert missing <= reported, f"{what}: vanished silently: {sorted(missing - reported)}"
        assert gone in (None, missing), f"{what}: {gone} and {missing}"
        gone = missing
    assert gone is not None
    unknown = {offset for offset in gone - known if offset < sealed_end}
    for name, damaged in offline.items():
        assert damaged == unknown, f"{what}: {name}"
    dedupe = DedupeWindow(window_ns=10**18, max_ids=10**6)
    restore_dedupe(log, dedupe, BASE_NS + 1)
    seen = {offset: dedupe.lookup(dedupe.mark(message_id(offset))) for offset in everything}
    for offset, found_at in seen.items():
        assert found_at == (None if offset in gone else offset), f"{what}: the id of {offset}"
    assert log.log_end_offset >= stored.end
    # The reader that met the damage has quarantined it.
    assert offsets_of(log.view.manifest.quarantined) & everything == gone, what
    assert everything - set(READERS[0](log).found) == gone, f"{what}: after it was quarantined"
    return gone


# --- what is put where ---


class Misplaced(NamedTuple):
    path: Path
    position: int
    content: bytes
    what: str


def places(stored: Stored, size: int) -> list[tuple[Path, int]]:
    return [
        (path, position)
        for path, end in stored.files
        for position in range(0, end - size + 1, size)
    ]


def misplaced(stored: Stored, size: int, count: int) -> Iterator[Misplaced]:
    chance = random.Random(f"{size} {stored.batch_bytes}")
    targets = places(stored, size)
    sources = [*targets, (stored.foreign, 0), (stored.foreign, size)]
    pairs = [(target, source) for target in targets for source in sources if target != source]
    if len(pairs) > count:
        pairs = chance.sample(pairs, count)
    for (path, position), (from_path, from_position) in pairs:
        content = from_path.read_bytes()[from_position : from_position + size]
        what = f"{from_path.name}@{from_position} over {path.name}@{position}"
        yield Misplaced(path, position, content, what)
    for path, position in chance.sample(targets, min(len(targets), 6)):
        yield Misplaced(path, position, bytes(size), f"nothing at {path.name}@{position}")


def put(stored: Stored, one: Misplaced, directory: Path) -> set[int]:
    """Make `directory` the log with this change. Returns the offsets of the affected batches."""
    shutil.copytree(stored.directory, directory)
    raw = bytearray(one.path.read_bytes())
    end = one.position + len(one.content)
    hit: set[int] = set()
    position = 0
    while position < len(raw):
        header = parse_header(raw, position)
        following = position + header.length
        low, high = max(position, one.position), min(following, end)
        if low < high and raw[low:high] != one.content[low - one.position : high - one.position]:
            hit.update(range(header.base_offset, header.next_offset))
        position = following
    raw[one.position : end] = one.content
    (directory / one.path.name).write_bytes(raw)
    return hit


@pytest.mark.long
@pytest.mark.parametrize("stop", ["clean", "killed", "power cut", "without indexes"])
@pytest.mark.parametrize("unit", ["page", "batch"])
def test_misplaced(stored: Stored, unit: str, stop: str, tmp_path: Path) -> None:
    size = PAGE if unit == "page" else stored.batch_bytes
    for number, one in enumerate(misplaced(stored, size, rounds(2))):
        directory = tmp_path / f"{number}"
        hit = put(stored, one, directory)
        if stop == "without indexes":
            for path in directory.glob("*.index"):
                path.unlink()
        clean = stored.clean if stop in ("clean", "without indexes") else None
        log = reopen(directory, clean, "boot-2" if stop == "power cut" else "boot-1")
        gone = check(stored, log, f"{one.what}, {stop}")
        assert gone == hit, f"{one.what}, {stop}: {sorted(gone)} are gone, hit were {sorted(hit)}"
        log.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("stop", ["clean", "killed", "without indexes"])
def test_a_tail_that_was_cut_comes_back(stop: str, tmp_path: Path) -> None:
    """The bytes after the last acked record were cut, and other records were acked in their place;
    then this write is lost. Offsets and checksums are right, and only the leader epoch is too
    old."""
    log = create(FS, config=CONFIG, directory=tmp_path / "orders")
    values = append(log, PAGE // 256, 256, b"ours")
    append(log, PAGE // 256, 256, b"never acked", commit=False)
    path = log.segments[0].path
    stale = path.read_bytes()[PAGE : 2 * PAGE]
    log.close_files()
    with path.open("r+b") as file:
        file.seek(PAGE + 9)
        file.write(b"torn")  # so that it is cut
    log = reopen(log.directory, None)
    assert log.log_end_offset == 17
    values |= append(log, 3 * PAGE // 256, 256, b"ours")
    end = log.log_end_offset
    log.writer.roll()
    values |= append(log, 5, 256, b"ours")
    stored_end, state = log.log_end_offset, log.close()
    assert state is not None
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(stale)
    if stop == "without indexes":
        for index in log.directory.glob("*.index"):
            index.unlink()
    log = reopen(log.directory, None if stop == "killed" else state)
    one = Stored(log.directory, values, [], stored_end, state, 256, path)
    assert check(one, log, stop) == set(range(17, 33))
    assert end == 65
    log.close()
