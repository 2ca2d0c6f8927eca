"""`log verify` tells damage from what is only unfinished, by offset."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.disks.stored_logs import (
    FIRST_SEGMENT,
    STREAM,
    StoredLog,
    fingerprint,
    flip,
    make_batch,
)

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.log.offline.files import ReadOnlyFileSystem, find_streams
from liftlog.log.offline.verify import DAMAGE, KNOWN, NOTE, Finding, verify_stream
from liftlog.records.format import HEADER_SIZE

BATCHES = 6
PER_BATCH = 10


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StoredLog]:
    """Six batches of ten records, offsets 1..60, in one segment."""
    stored = StoredLog(tmp_path)
    for batch in range(BATCHES):
        stored.append([b"value %d %d" % (batch, n) for n in range(PER_BATCH)])
    yield stored
    stored.environment.pool.close()


def findings(log: StoredLog, kind: str | None = None) -> list[Finding]:
    (stream,) = find_streams(log.data_dir)
    found = verify_stream(stream).findings
    return found if kind is None else [finding for finding in found if finding.kind == kind]


def ranges(log: StoredLog, kind: str = DAMAGE) -> list[tuple[int | None, int | None]]:
    return [(finding.first_offset, finding.next_offset) for finding in findings(log, kind)]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", "verify", *arguments])


@pytest.mark.parametrize("ending", ["close", "crash", "run on"])
def test_a_whole_log_is_ok(log: StoredLog, ending: str) -> None:
    if ending == "close":
        log.close()
    elif ending == "crash":
        log.crash()
    assert findings(log) == []
    result = run(str(log.data_dir))
    assert result.exit_code == ExitCode.OK
    assert result.output.startswith(
        "orders: ok  (1 segment, 6 batches, 60 records, 1.4 KiB, offsets 1..60)"
    )
    if ending == "run on":
        log.close()


def test_stream_data_and_streams_directory_are_all_understood(log: StoredLog) -> None:
    log.close()
    for directory in (log.data_dir, log.data_dir / "streams", log.directory):
        (stream,) = find_streams(directory)
        assert stream.name == STREAM
        assert stream.data_dir == log.data_dir


def test_an_empty_stream_is_ok(tmp_path: Path) -> None:
    stored = StoredLog(tmp_path)
    assert findings(stored) == []
    stored.close()
    assert "no offsets" in run(str(tmp_path)).output


@pytest.mark.parametrize("number", range(BATCHES))
def test_a_bad_body_costs_its_batch_and_no_other(log: StoredLog, number: int) -> None:
    log.close()
    position, header = log.positions()[number]
    flip(log.directory / FIRST_SEGMENT, position + HEADER_SIZE + 40)
    assert ranges(log) == [(header.base_offset, header.next_offset)]
    (stream,) = find_streams(log.data_dir)
    assert verify_stream(stream).batch_count == BATCHES - 1


@pytest.mark.parametrize("field", range(0, HEADER_SIZE, 4))
@pytest.mark.parametrize("number", [0, 3, BATCHES - 1])
def test_a_bad_header_costs_its_batch_and_no_other(log: StoredLog, field: int, number: int) -> None:
    log.close()
    position, header = log.positions()[number]
    flip(log.directory / FIRST_SEGMENT, position + field)
    assert ranges(log) == [(header.base_offset, header.next_offset)]


def test_two_bad_bodies_are_two_findings(log: StoredLog) -> None:
    log.close()
    positions = log.positions()
    for number in (1, 4):
        flip(log.directory / FIRST_SEGMENT, positions[number][0] + HEADER_SIZE + 8)
    assert ranges(log) == [(11, 21), (41, 51)]


def test_two_bad_headers_without_an_index_may_be_one_finding(log: StoredLog) -> None:
    """What lies between them cannot be distinguished from batches inside a value."""
    log.close()
    positions = log.positions()
    for number in (1, 4):
        flip(log.directory / FIRST_SEGMENT, positions[number][0] + 8)
    assert ranges(log) == [(11, 51)]


def test_the_command_names_the_offsets(log: StoredLog) -> None:
    log.close()
    position, _ = log.positions()[2]
    flip(log.directory / FIRST_SEGMENT, position + 100)
    result = run(str(log.directory))
    assert result.exit_code == ExitCode.DAMAGED
    assert "offsets 21..30: the body checksum does not match" in result.output
    result = run(str(log.directory), "--output", "jsonl")
    assert result.exit_code == ExitCode.DAMAGED
    (finding,) = json.loads(result.stdout)["findings"]
    assert (finding["kind"], finding["first_offset"], finding["next_offset"]) == (DAMAGE, 21, 31)
    assert finding["position"] == position


# --- the end of the active segment ---


def test_a_torn_tail_that_was_never_acked_is_a_note(log: StoredLog) -> None:
    log.append([b"x" * 100] * 5, commit=False)
    position, header = log.positions()[-1]
    log.crash()
    whole = (log.directory / FIRST_SEGMENT).read_bytes()
    for cut in range(8, header.length, 40):
        (log.directory / FIRST_SEGMENT).write_bytes(whole[: position + cut])
        (finding,) = findings(log)
        assert (finding.kind, finding.first_offset, finding.position) == (NOTE, 61, position)
        assert run(str(log.data_dir)).exit_code == ExitCode.OK


def test_a_torn_tail_in_allocated_space_is_a_note_too(log: StoredLog) -> None:
    log.append([b"x" * 100] * 5, commit=False)
    position, header = log.positions()[-1]
    with (log.directory / FIRST_SEGMENT).open("r+b") as file:
        file.seek(position + 100)
        file.write(b"\0" * (header.length - 100))
    (finding,) = findings(log)
    assert (finding.kind, finding.first_offset) == (NOTE, 61)
    log.crash()


def test_a_tail_that_was_acked_is_damage(log: StoredLog) -> None:
    position, _ = log.positions()[-1]
    log.crash()
    with (log.directory / FIRST_SEGMENT).open("r+b") as file:
        file.truncate(position + 100)
    assert ranges(log) == [(51, 61)]


@pytest.mark.parametrize("zeros", [False, True])
def test_an_acked_end_that_is_simply_gone_is_damage(log: StoredLog, zeros: bool) -> None:
    position, _ = log.positions()[-2]
    log.crash()
    with (log.directory / FIRST_SEGMENT).open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(position)
        if zeros:  # as a file system does that lost the data and kept the size
            file.truncate(size)
    (finding,) = findings(log, DAMAGE)
    assert (finding.first_offset, finding.next_offset) == (41, 61)
    assert "was acked" in finding.text


def test_the_clean_marker_counts_without_a_slot(log: StoredLog) -> None:
    """After a reboot the slot may be gone."""
    log.close()
    position, _ = log.positions()[-1]
    (log.directory / "acked").unlink()
    with (log.directory / FIRST_SEGMENT).open("r+b") as file:
        file.truncate(position)
    assert ranges(log) == [(51, 61)]


# --- several segments ---


@pytest.fixture
def rolled(tmp_path: Path) -> Iterator[StoredLog]:
    """Offsets 1..60 in several small segments."""
    stored = StoredLog(tmp_path, segment_max_bytes=700)
    for batch in range(BATCHES):
        stored.append([b"value %d %d" % (batch, n) for n in range(PER_BATCH)])
    assert stored.log.segment_count >= 3
    yield stored
    stored.environment.pool.close()


def test_sealed_segments_are_ok(rolled: StoredLog) -> None:
    assert findings(rolled) == []
    rolled.close()
    assert findings(rolled) == []


def test_a_missing_sealed_segment_is_damage(rolled: StoredLog) -> None:
    rolled.close()
    second, third = rolled.log.segments[1:3]
    second.path.unlink()
    assert ranges(rolled) == [(second.base_offset, third.base_offset)]


def test_a_sealed_segment_that_is_too_short_is_damage(rolled: StoredLog) -> None:
    rolled.close()
    first, second = rolled.log.segments[:2]
    position, header = rolled.positions()[-1]
    with first.path.open("r+b") as file:
        file.truncate(position + 10)
    assert ranges(rolled) == [(header.base_offset, second.base_offset)]
    with first.path.open("r+b") as file:
        file.truncate(position)
    assert ranges(rolled) == [(header.base_offset, second.base_offset)]


def test_bytes_past_the_end_of_a_sealed_segment_are_ignored(rolled: StoredLog) -> None:
    rolled.close()
    with rolled.log.segments[0].path.open("ab") as file:
        file.write(b"rubbish")
    assert findings(rolled) == []


def test_a_missing_active_segment_is_damage(rolled: StoredLog) -> None:
    rolled.crash()
    active = rolled.log.segments[-1]
    active.path.unlink()
    assert ranges(rolled) == [(active.base_offset, 61)]


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_bad_index_is_a_note(rolled: StoredLog, how: str) -> None:
    rolled.close()
    index = rolled.log.segments[0].path.with_suffix(".index")
    if how == "gone":
        index.unlink()
    else:
        flip(index, 3)
    (finding,) = findings(rolled)
    assert finding.kind == NOTE
    assert "index" in finding.text


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_without_a_manifest_the_segments_are_still_judged(rolled: StoredLog, how: str) -> None:
    rolled.close()
    for name in ("manifest", "manifest.copy"):
        manifest = rolled.directory / name
        if how == "gone":
            manifest.unlink()
        else:
            flip(manifest, 60)
    second = rolled.log.segments[1]
    flip(second.path, HEADER_SIZE + 50)
    first_finding, *rest = findings(rolled)
    assert first_finding.kind == DAMAGE
    assert "manifest" in first_finding.text
    assert [(one.first_offset, one.segment) for one in rest] == [
        (second.base_offset, second.path.name)
    ]


def test_a_stream_that_is_just_being_created_is_a_note(tmp_path: Path) -> None:
    directory = tmp_path / "streams" / "young"
    directory.mkdir(parents=True)
    for _ in range(2):
        (stream,) = find_streams(tmp_path)
        (finding,) = verify_stream(stream).findings
        assert finding.kind == NOTE
        (directory / FIRST_SEGMENT).touch()


def test_known_losses_are_told_and_can_be_allowed(log: StoredLog) -> None:
    position, _ = log.positions()[2]
    log.crash()
    flip(log.directory / FIRST_SEGMENT, position + 100)
    again = StoredLog(log.data_dir)
    assert again.report.events
    again.append([b"goes on"])
    again.close()
    assert ranges(again, KNOWN) == [(21, 31)]
    assert findings(again, DAMAGE) == []
    result = run(str(log.data_dir))
    assert result.exit_code == ExitCode.DAMAGED
    assert "offsets 21..30" in result.output
    assert run(str(log.data_dir), "--allow-known").exit_code == ExitCode.OK


def test_damage_below_the_logs_start_is_a_note(log: StoredLog) -> None:
    log.log.structure.remove_before(35, 0)
    log.close()
    position, _ = log.positions()[1]
    flip(log.directory / FIRST_SEGMENT, position + 100)
    assert ranges(log, NOTE) == [(11, 21)]
    assert findings(log, DAMAGE) == []


# --- hostile bytes ---


def test_foreign_batches_inside_a_damaged_value_are_not_taken_for_ours(tmp_path: Path) -> None:
    for padding in range(8):  # one of them puts the foreign batches at a multiple of 8
        log = StoredLog(tmp_path / str(padding))
        log.append([b"first"])
        foreign = bytes(make_batch(log.log, [b"evil"] * 3, base_offset=3))
        foreign += bytes(make_batch(log.log, [b"evil"] * 3, base_offset=6))
        log.append([b"." * padding + foreign + b"." * 200] * 2)
        log.append([b"third"] * 10)
        log.append([b"fourth"])
        log.close()
        positions = log.positions()
        assert foreign in (log.directory / FIRST_SEGMENT).read_bytes()
        flip(log.directory / FIRST_SEGMENT, positions[1][0] + 4)
        assert ranges(log) == [(2, 4)], padding
        log.environment.pool.close()


def test_behind_damage_before_a_torn_tail_ours_is_still_found(tmp_path: Path) -> None:
    """No chain reaches the end of the data: the longest one counts."""
    log = StoredLog(tmp_path)
    log.append([b"first"])
    foreign = bytes(make_batch(log.log, [b"evil"], base_offset=3))
    log.append([foreign + b"." * 200] * 2)
    log.append([b"third"] * 10)
    log.append([b"fourth"] * 10)
    log.append([b"torn"] * 10, commit=False)
    positions = log.positions()
    log.crash()
    flip(log.directory / FIRST_SEGMENT, positions[1][0] + 4)
    with (log.directory / FIRST_SEGMENT).open("r+b") as file:
        file.truncate(positions[-1][0] + 50)
    assert ranges(log) == [(2, 4)]
    assert ranges(log, NOTE) == [(24, None)]
    log.environment.pool.close()


def test_in_a_sealed_segment_the_index_shows_the_way(tmp_path: Path) -> None:
    log = StoredLog(tmp_path, segment_max_bytes=60_000)
    for number in range(16):  # 5 KB each: every batch has its entry in the index
        log.append([b"%d" % number * 500] * 10)
    log.close()
    assert log.log.segment_count > 1
    positions = log.positions()
    for number in (1, 4, 5, 7):
        flip(log.directory / FIRST_SEGMENT, positions[number][0] + 8)
    assert ranges(log) == [(11, 21), (41, 51), (51, 61), (71, 81)]
    log.environment.pool.close()


# --- it only reads ---


def test_nothing_is_written(rolled: StoredLog) -> None:
    rolled.crash()
    rolled.log.segments[0].path.with_suffix(".index").unlink()
    flip(rolled.log.segments[1].path, 100)
    before = fingerprint(rolled.data_dir)
    assert run(str(rolled.data_dir)).exit_code == ExitCode.DAMAGED
    CliRunner().invoke(cli, ["log", "dump", "--values", str(rolled.data_dir)])
    assert fingerprint(rolled.data_dir) == before


def test_the_file_system_refuses_to_write(tmp_path: Path) -> None:
    files = ReadOnlyFileSystem()
    (tmp_path / "a").write_bytes(b"x")
    for attempt in (
        lambda: files.open(tmp_path / "b", create=True),
        lambda: files.unlink(tmp_path / "a"),
        lambda: files.rename(tmp_path / "a", tmp_path / "b"),
        lambda: files.make_directory(tmp_path / "c"),
        lambda: files.remove_directory(tmp_path),
    ):
        with pytest.raises(OSError, match="Read-only"):
            attempt()
    file = files.open(tmp_path / "a")
    with pytest.raises(OSError):
        file.pwritev([b"y"], 0)
    file.close()
    assert (tmp_path / "a").read_bytes() == b"x"


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.touch()])
def test_what_holds_no_log_is_not_found(tmp_path: Path, make: object) -> None:
    path = tmp_path / "x"
    make(path)  # type: ignore[operator]
    result = run(str(path))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "next:" in result.stderr


@pytest.mark.parametrize("name", ["manifest", "manifest.copy"])
def test_one_of_two_manifests_is_damaged(rolled: StoredLog, name: str) -> None:
    rolled.close()
    flip(rolled.directory / name, 60)
    (finding,) = findings(rolled)
    assert finding.kind == DAMAGE
    assert finding.text.startswith(f"{name} cannot be read")
    assert finding.text.endswith("the other copy is used")
