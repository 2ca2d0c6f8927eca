"""`log dump` prints what is in the files."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.disks.stored_logs import FIRST_SEGMENT, STAMP_NS, StoredLog, flip

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.records.format import HEADER_SIZE

HEADER_BLOCK = b"NATS/1.0\r\nTrace: 1\r\n\r\n"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StoredLog]:
    stored = StoredLog(tmp_path)
    stored.append([b"one", b"\xff\xfe"])
    stored.append([b"three", None], keys=[b"k", b"k"], headers=[HEADER_BLOCK, b""])
    stored.append([b"five"])
    yield stored
    stored.environment.pool.close()


def run(log: StoredLog, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", "dump", str(log.data_dir), *arguments])


def objects(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_batches_for_people(log: StoredLog) -> None:
    log.close()
    result = run(log)
    assert result.exit_code == ExitCode.OK
    assert result.stderr == ""
    stream, segment, *batches = result.output.splitlines()
    assert stream.startswith(f"stream orders  incarnation {log.log.incarnation}")
    assert segment.startswith(f"segment {FIRST_SEGMENT}")
    assert segment.endswith("active")
    assert [line.split("offsets ")[1].split()[0] for line in batches] == ["1..2", "3..4", "5..5"]
    assert batches[1].endswith("keys,headers,tombstones")


def test_batches_as_lines_of_json(log: StoredLog) -> None:
    log.close()
    first, second, third = objects(run(log, "-o", "jsonl"))
    position, header = log.positions()[1]
    assert second == {
        "stream": "orders",
        "segment": FIRST_SEGMENT,
        "position": position,
        "length": header.length,
        "base_offset": 3,
        "last_offset": 4,
        "record_count": 2,
        "base_timestamp_ns": STAMP_NS,
        "max_timestamp_ns": STAMP_NS,
        "leader_epoch": header.leader_epoch,
        "commit_group": header.commit_group,
        "attributes": ["keys", "headers", "tombstones"],
        "body_crc32c": f"{header.body_crc32c:08x}",
    }
    assert first["position"] == 0
    assert third["base_offset"] == 5


@pytest.mark.parametrize("style", ["json", "jsonl"])
def test_records_as_consume_prints_them(log: StoredLog, style: str) -> None:
    log.close()
    result = run(log, "--values", "--output", style)
    found = objects(result) if style == "jsonl" else json.loads(result.stdout)
    assert [one["offset"] for one in found] == [1, 2, 3, 4, 5]
    assert [one["value"] for one in found] == ["one", "//4=", "three", None, "five"]
    assert found[1]["value_encoding"] == "base64"
    assert [one["key"] for one in found] == [None, None, "k", "k", None]
    assert found[2]["headers"] == {"Trace": "1"}
    assert {one["stream"] for one in found} == {"orders"}


def test_records_for_people(log: StoredLog) -> None:
    log.close()
    lines = run(log, "--values").output.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("    ")][:2] == [
        "one",
        "fffe>",
    ]
    assert any("<tombstone>" in line for line in lines)


def test_from_an_offset_and_up_to_a_limit(log: StoredLog) -> None:
    log.close()
    found = objects(run(log, "--values", "-o", "jsonl", "--from", "2", "-n", "3"))
    assert [one["offset"] for one in found] == [2, 3, 4]
    found = objects(run(log, "-o", "jsonl", "-n", "1"))
    assert [one["base_offset"] for one in found] == [1]
    lines = run(log, "--from", "4", "-n", "1").output.splitlines()
    assert len(lines) == 3
    assert "offsets 3..4" in lines[2]
    result = run(log, "--values", "-o", "json", "-n", "1")
    assert [one["offset"] for one in json.loads(result.stdout)] == [1]


def test_segments_below_the_offset_are_not_read(tmp_path: Path) -> None:
    log = StoredLog(tmp_path, segment_max_bytes=300)
    for number in range(6):
        log.append([b"%d" % number * 50] * 3)
    log.close()
    assert log.log.segment_count > 2
    flip(log.directory / FIRST_SEGMENT, HEADER_SIZE + 40)
    result = run(log, "--values", "-o", "jsonl", "--from", "16")
    assert result.exit_code == ExitCode.OK
    assert [one["offset"] for one in objects(result)] == [16, 17, 18]
    log.environment.pool.close()


def test_damage_is_told_on_stderr_and_the_rest_printed(log: StoredLog) -> None:
    log.close()
    position, _ = log.positions()[1]
    flip(log.directory / FIRST_SEGMENT, position + HEADER_SIZE + 60)
    result = run(log, "--values", "-o", "jsonl")
    assert result.exit_code == ExitCode.DAMAGED
    assert [one["offset"] for one in objects(result)] == [1, 2, 5]
    assert "offsets 3..4 damaged: the body checksum does not match" in result.stderr


def test_a_tail_that_is_not_whole_is_only_mentioned(log: StoredLog) -> None:
    log.append([b"x" * 200], commit=False)
    position, _ = log.positions()[-1]
    with (log.directory / FIRST_SEGMENT).open("r+b") as file:
        file.truncate(position + 80)
    result = run(log, "-o", "jsonl")
    assert result.exit_code == ExitCode.OK
    assert len(objects(result)) == 3
    assert "not a whole batch yet" in result.stderr
    log.crash()


def test_without_a_manifest(log: StoredLog) -> None:
    log.close()
    (log.directory / "manifest").unlink()
    (log.directory / "manifest.copy").unlink()
    result = run(log)
    assert "no readable manifest" in result.output
    assert "offsets 5..5" in result.output


def test_a_missing_segment_is_told(tmp_path: Path) -> None:
    log = StoredLog(tmp_path, segment_max_bytes=300)
    for number in range(6):
        log.append([b"%d" % number * 50] * 3)
    log.close()
    second = log.log.segments[1]
    second.path.unlink()
    result = run(log, "-o", "jsonl")
    assert result.exit_code == ExitCode.DAMAGED
    last = log.log.segments[2].base_offset - 1
    assert f"offsets {second.base_offset}..{last} damaged: the file is missing" in result.stderr
    log.environment.pool.close()
