"""`log repair` and `log reindex`: what they say, ask, refuse and leave behind."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.disks.stored_logs import FIRST_SEGMENT, STREAM, StoredLog, fingerprint, flip

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.cluster.transitions import create
from liftlog.errors import CorruptRange
from liftlog.log import OsFileSystem
from liftlog.log.files.manifest import SegmentEntry, read_manifest
from liftlog.log.segment.index import SparseIndex
from liftlog.records import iter_batches
from liftlog.records.format import HEADER_SIZE
from liftlog.server.metadata.records_file import Change, RecordsFile
from liftlog.settings import parse_stream_settings

PER_BATCH = 10


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StoredLog]:
    """Offsets 1..60 in batches of ten, in segments of a few batches."""
    stored = StoredLog(tmp_path / "data", segment_max_bytes=12_000)
    for batch in range(6):
        stored.append([b"value %d %d" % (batch, n) * 40 for n in range(PER_BATCH)])
    assert stored.log.segment_count > 1
    yield stored
    stored.environment.pool.close()


def run(command: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", command, *arguments])


def readable(log: StoredLog) -> list[int]:
    """All offsets that a reader gets, in order."""
    offsets: list[int] = []
    offset = log.log.log_start_offset
    while True:
        try:
            piece = log.log.read(offset, 1 << 20)
        except CorruptRange as lost:
            offset = lost.next_offset
            continue
        if piece is None:
            return offsets
        with piece:
            for batch in iter_batches(piece.pread()):
                offsets += batch.trim(offset).offsets()
            offset = piece.next_offset


def damage_second_batch(log: StoredLog) -> None:
    position, header = log.positions()[1]
    assert header.base_offset == 11
    flip(log.directory / FIRST_SEGMENT, position + HEADER_SIZE + 40)


def test_a_dry_run_names_the_damage_and_writes_nothing(log: StoredLog) -> None:
    log.close()
    damage_second_batch(log)
    before = fingerprint(log.data_dir)
    result = run("repair", "--dry-run", str(log.data_dir))
    assert result.exit_code == ExitCode.DAMAGED
    assert "offsets 11..20: the body checksum does not match" in result.stdout
    assert fingerprint(log.data_dir) == before


def test_without_a_terminal_it_must_be_told_yes(log: StoredLog) -> None:
    log.close()
    damage_second_batch(log)
    result = run("repair", str(log.data_dir))
    assert result.exit_code == ExitCode.USAGE
    assert "--yes" in result.stderr
    assert run("verify", str(log.data_dir)).exit_code == ExitCode.DAMAGED


def test_after_it_the_loss_is_known_and_the_log_goes_on(log: StoredLog) -> None:
    log.close()
    damage_second_batch(log)
    manifest = (log.directory / "manifest").read_bytes()
    result = run("repair", "--yes", str(log.directory))
    assert result.exit_code == ExitCode.OK, result.output
    assert "orders: repaired" in result.stdout
    (kept,) = (log.data_dir / "repaired").iterdir()
    assert str(kept) in result.stdout
    assert (kept / "manifest").read_bytes() == manifest
    assert run("verify", "--allow-known", str(log.data_dir)).exit_code == ExitCode.OK

    again = StoredLog(log.data_dir, segment_max_bytes=12_000)
    again.append([b"new"])
    assert [offset for offset in range(1, 62) if offset not in range(11, 21)] == readable(again)
    again.close()
    assert "nothing to repair" in run("repair", "--yes", str(log.data_dir)).stderr


def test_a_whole_log_is_not_touched(log: StoredLog) -> None:
    log.close()
    before = fingerprint(log.directory)
    result = run("repair", "--yes", str(log.data_dir))
    assert (result.exit_code, result.stdout) == (ExitCode.OK, "")
    assert fingerprint(log.directory) == before
    assert not (log.data_dir / "repaired").exists()


@pytest.mark.parametrize(
    "arguments", [("repair", "--yes"), ("repair", "--dry-run"), ("reindex", "--yes")]
)
def test_beside_a_daemon_it_is_refused(log: StoredLog, arguments: tuple[str, ...]) -> None:
    (log.directory / FIRST_SEGMENT).with_suffix(".index").unlink()
    for directory in (log.data_dir, log.directory):
        result = run(*arguments, str(directory))
        assert result.exit_code == ExitCode.TRY_AGAIN
        assert f"in use by process {os.getpid()}" in result.stderr
    assert not (log.directory / FIRST_SEGMENT).with_suffix(".index").exists()
    log.close()


@pytest.mark.parametrize("name", ["manifest", "manifest.copy"])
def test_one_damaged_copy_of_the_manifest_needs_no_settings(log: StoredLog, name: str) -> None:
    log.close()
    before = (log.directory / "manifest").read_bytes()
    (log.directory / name).write_bytes(before[:-9])
    assert run("repair", "--dry-run", str(log.data_dir)).exit_code == ExitCode.DAMAGED
    result = run("repair", "--yes", str(log.data_dir))
    assert result.exit_code == ExitCode.OK, result.output
    assert "the other copy is used" in result.stdout
    assert run("verify", str(log.data_dir)).exit_code == ExitCode.OK
    assert (log.directory / name).read_bytes() == before


def test_a_lost_manifest_needs_the_settings(log: StoredLog) -> None:
    log.close()
    for name in ("manifest", "manifest.copy"):
        manifest = log.directory / name
        manifest.write_bytes(manifest.read_bytes().replace(b'"epochs"', b'"epoch5"'))
    result = run("repair", "--yes", str(log.data_dir))
    assert result.exit_code == ExitCode.DAMAGED
    assert "--subject" in result.stderr
    assert "the damaged manifest" not in result.stderr  # it holds no settings
    result = run(
        "repair", "--yes", "-s", "orders.>", "--set", "retention.max_age=7d", str(log.data_dir)
    )
    assert result.exit_code == ExitCode.OK, result.output
    again = StoredLog(log.data_dir, segment_max_bytes=12_000)
    assert again.report.clean
    assert again.log.incarnation == log.log.incarnation
    assert again.log.view.manifest.metadata["settings"]["subject"] == "orders.>"
    assert again.log.view.manifest.metadata["settings"]["retention"]["max_age"] == "7d"
    again.append([b"new"])
    assert readable(again) == list(range(1, 62))
    again.close()


@pytest.mark.parametrize("damage", ["none", "file", "record", "settings", "deleted"])
def test_a_lost_manifest_gets_the_settings_of_the_record(log: StoredLog, damage: str) -> None:
    settings = parse_stream_settings({"subject": "orders.>", "acks": "off"}).to_yaml_dict()
    if damage == "settings":
        settings["subject"] = ""
    name, incarnation = log.log.name, log.log.incarnation
    record = create(name, incarnation, settings, ["local"], starts={"local": 1})
    if damage == "deleted":
        record = replace(record, deleted=True)
    path = log.data_dir / "records"
    value = b"[]" if damage == "record" else record.to_json()
    RecordsFile(path, OsFileSystem(), lock=None).apply([Change(f"stream.{name}", value, 0)])
    if damage == "file":
        path.write_bytes(path.read_bytes()[:-1])
    log.close()
    for lost in ("manifest", "manifest.copy"):
        (log.directory / lost).unlink()
    result = run("repair", "--yes", str(log.data_dir))
    if damage != "none":
        assert result.exit_code == ExitCode.DAMAGED
        assert "--subject" in result.stderr
        return
    assert result.exit_code == ExitCode.OK, result.output
    assert "settings from its record" in result.stderr
    again = StoredLog(log.data_dir, segment_max_bytes=12_000)
    assert again.log.view.manifest.metadata["settings"] == settings
    assert readable(again) == list(range(1, 61))
    again.close()


def test_json_tells_each_step(log: StoredLog) -> None:
    log.close()
    damage_second_batch(log)
    result = run("repair", "--yes", "--output", "jsonl", str(log.data_dir))
    (told,) = map(json.loads, result.stdout.splitlines())
    assert (told["stream"], told["done"], told["damage_left"]) == (STREAM, True, 0)
    (step,) = told["steps"]
    assert (step["kind"], step["first_offset"], step["next_offset"]) == ("quarantine", 11, 21)
    assert told["kept_in"].startswith(str(log.data_dir / "repaired" / STREAM))


# --- indexes ---


def wrong_index(log: StoredLog) -> bytes:
    """Passes its check, names the segment, and one of its entries leads nowhere."""
    index = SparseIndex(1)
    index.maybe_add(1, 0, 1)
    index.maybe_add(4, 5000, 2)
    return index.to_bytes(*first_segment(log))


def first_segment(log: StoredLog) -> tuple[SegmentEntry, str]:
    manifest = read_manifest(OsFileSystem(), log.directory)
    assert manifest is not None
    return manifest.segments[0], manifest.incarnation


@pytest.mark.parametrize("kind", ["missing", "damaged", "wrong", "too short"])
def test_reindex_makes_a_bad_index_anew(log: StoredLog, kind: str) -> None:
    log.close()
    path = (log.directory / FIRST_SEGMENT).with_suffix(".index")
    right = path.read_bytes()
    assert len(right) > 32
    if kind == "missing":
        path.unlink()
    elif kind == "damaged":
        flip(path, 5)
    else:
        path.write_bytes(
            wrong_index(log) if kind == "wrong" else SparseIndex(1).to_bytes(*first_segment(log))
        )
    before = fingerprint(log.data_dir)
    dry = run("reindex", "--dry-run", str(log.data_dir))
    assert (dry.exit_code, fingerprint(log.data_dir)) == (ExitCode.DAMAGED, before)
    assert path.name in dry.stdout
    before = fingerprint(log.directory)
    refused = run("reindex", str(log.data_dir))
    assert (refused.exit_code, fingerprint(log.directory)) == (ExitCode.USAGE, before)
    assert "no terminal to ask on: use --yes" in refused.stderr
    done = run("reindex", "--yes", "-o", "json", str(log.data_dir))
    assert done.exit_code == ExitCode.OK
    (made,) = json.loads(done.stdout)
    assert (made["index"], made["entries"]) == (path.name, (len(right) - 40) // 16)
    assert path.read_bytes() == right
    assert "All indexes are correct" in run("reindex", str(log.data_dir)).stderr


def test_reindex_leaves_right_indexes_alone(log: StoredLog) -> None:
    log.close()
    before = fingerprint(log.directory)
    assert run("reindex", str(log.data_dir)).exit_code == ExitCode.OK
    assert fingerprint(log.directory) == before


def test_reindex_sends_to_repair_where_there_is_no_manifest(log: StoredLog) -> None:
    log.close()
    (log.directory / "manifest").unlink()
    (log.directory / "manifest.copy").unlink()
    result = run("reindex", str(log.data_dir))
    assert result.exit_code == ExitCode.DAMAGED
    assert "liftlog log repair" in result.stderr
