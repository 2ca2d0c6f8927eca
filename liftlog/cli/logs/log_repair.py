"""The work of `liftlog log repair` and `reindex`: prints the planned changes, and makes them after
a confirmation."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import output_format, parse_assignments
from liftlog.cli.lib.output import write_lines, write_objects
from liftlog.cli.lib.problems import Problem, confirmed, note, warn
from liftlog.cli.lib.text import plural
from liftlog.errors import CorruptMetadata, InvalidArgument
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.lock import exclusive
from liftlog.log.files.manifest import Manifest, read_manifest
from liftlog.log.offline.files import StreamFiles, find_streams, give_to_owner
from liftlog.log.offline.rebuild import StaleIndex, find_stale_indexes, rebuild_index
from liftlog.log.offline.repair import (
    SAY_SETTINGS,
    PlannedRepair,
    plan_repair,
    salvaged_settings,
)
from liftlog.log.offline.verify import Finding
from liftlog.server.metadata.records import read_stored_record
from liftlog.settings import parse_stream_settings


def repair(
    directory: Path,
    dry_run: bool,
    assume_yes: bool,
    subject: str | None,
    assignments: tuple[str, ...],
) -> ExitCode:
    streams = find_streams(directory)
    data_dir = streams[0].data_dir if streams else None
    metadata = _metadata(subject, assignments)
    if metadata is not None and len(streams) != 1:
        raise click.UsageError(
            "--subject and --set are for one stream: DIR must be the directory of that stream.",
            click.get_current_context(),
        )
    with exclusive(data_dir, read_only=dry_run), _quiet_log():
        planned, refused = _plan(streams, metadata)
        wanted = [one for one in planned if one.steps]
        if output_format() == "table":
            write_lines(list(_plan_lines(wanted)))
        if not dry_run and wanted:
            if not assume_yes and not confirmed("Do this now?"):
                note("Nothing was changed.")
                return ExitCode.FAILED
            for one in wanted:
                one.carry_out()
    _tell(planned, dry_run=dry_run)
    damaged = refused or any(one.damage_left for one in wanted) or (dry_run and wanted)
    return ExitCode.DAMAGED if damaged else ExitCode.OK


def _metadata(subject: str | None, assignments: tuple[str, ...]) -> dict[str, Any] | None:
    if subject is None and not assignments:
        return None

    settings = parse_assignments(assignments)
    if subject is not None:
        settings["subject"] = subject
    checked = parse_stream_settings(settings).to_yaml_dict()
    return {"settings": checked, "origin": "api", "possible_losses": []}


def _recorded(stream: StreamFiles) -> dict[str, Any] | None:
    """Return the settings in the stream's metadata record, to replace a lost manifest."""
    if stream.data_dir is None:
        return None
    record = read_stored_record(OsFileSystem(), stream.data_dir, stream.name)
    if record is None:
        return None
    try:
        checked = parse_stream_settings(record.settings, exists=True).to_yaml_dict()
    except InvalidArgument:
        return None
    return {"settings": checked, "origin": "api", "possible_losses": []}


def _plan(
    streams: list[StreamFiles], metadata: dict[str, Any] | None
) -> tuple[list[PlannedRepair], bool]:
    """Return the plans, and a boolean: True if some streams cannot be repaired in their present
    state."""

    planned, refused = [], False
    for stream in streams:
        try:
            planned.append(plan_repair(stream, metadata))
        except CorruptMetadata as error:
            recorded = _recorded(stream) if error.hint == SAY_SETTINGS else None
            if recorded is not None:
                planned.append(plan_repair(stream, recorded))
                note(f"{stream.name}: settings from its record: {json.dumps(recorded['settings'])}")
                continue
            refused = True
            if len(streams) == 1:
                salvaged = salvaged_settings(stream.path) if error.hint == SAY_SETTINGS else ""
                if salvaged:
                    error.hint += (
                        f". The damaged manifest contains this, which may be wrong: {salvaged}"
                    )
                raise
            warn(f"{error.message}: repair it by itself, {stream.path}")
    return planned, refused


def _plan_lines(wanted: list[PlannedRepair]) -> Iterator[str]:
    for one in wanted:
        yield f"{one.stream.name}: {plural(len(one.steps), 'step')}"
        for step in one.steps:
            yield f"  {step.kind:<10} {_where(step)}{step.text}"


def _where(step: Finding) -> str:
    where = step.segment
    if step.position is not None:
        where += f" at {step.position}"
    if step.first_offset is not None and step.next_offset is not None:
        where += f": offsets {step.first_offset}..{step.next_offset - 1}"
    return f"{where}: " if where else ""


def _tell(planned: list[PlannedRepair], *, dry_run: bool) -> None:
    style = output_format()
    if style != "table":
        write_objects([one.to_object() for one in planned], style)
        return
    wanted = [one for one in planned if one.steps]
    if not wanted:
        note("There is nothing to repair.")
        return
    for one in wanted:
        if dry_run:
            continue
        left = plural(one.damage_left or 0, "damage")
        kept = f"; the files as they were before are in {one.kept_in}" if one.kept_in else ""
        verdict = f"{left} left, see `liftlog log verify`" if one.damage_left else "repaired"
        write_lines([f"{one.stream.name}: {verdict}{kept}"])


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Silence the log messages of recovery, because the steps of the repair report the same."""
    logger = logging.getLogger("liftlog.log")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def reindex(directory: Path, dry_run: bool, assume_yes: bool) -> ExitCode:
    streams, fs = find_streams(directory), OsFileSystem()
    stale: list[tuple[StreamFiles, Manifest, StaleIndex]] = []
    entries: dict[Path, int] = {}
    with exclusive(streams[0].data_dir if streams else None, read_only=dry_run):
        for stream in streams:
            manifest = read_manifest(fs, stream.path)
            if manifest is None:
                raise Problem(
                    f"stream {stream.name} has no manifest",
                    ExitCode.DAMAGED,
                    hint=f"`liftlog log repair {stream.path}` makes a new one",
                )
            found = find_stale_indexes(fs, stream.path, manifest)
            stale += [(stream, manifest, one) for one in found]
        if output_format() == "table":
            write_lines([f"{at.name}: {one.path.name}: {one.reason}" for at, _, one in stale])
        if not dry_run and stale:
            if not assume_yes and not confirmed(f"Rebuild {_these_indexes(len(stale))}?"):
                note("Nothing was changed.")
                return ExitCode.FAILED
            for stream, manifest, one in stale:
                entries[one.path] = rebuild_index(fs, one.segment, manifest)
                give_to_owner(stream.path)
    if output_format() != "table":
        rows = [
            {
                "stream": stream.name,
                "index": one.path.name,
                "reason": one.reason,
                "entries": entries.get(one.path),
            }
            for stream, _, one in stale
        ]
        write_objects(rows, output_format())
    elif not stale:
        note("All indexes are correct.")
    elif not dry_run:
        note(f"Rebuilt {_these_indexes(len(stale))}.")
    return ExitCode.DAMAGED if dry_run and stale else ExitCode.OK


def _these_indexes(count: int) -> str:
    return "this index" if count == 1 else f"these {count} indexes"
