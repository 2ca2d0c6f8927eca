"""`liftlog log repair` and `reindex`: say what they would do, and do it when asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.options import debug_option, output_format, output_option
from liftlog.cli.output import write_lines, write_objects
from liftlog.cli.problems import Problem, note, warn
from liftlog.cli.questions import confirmed
from liftlog.cli.stream_settings import parse_assignments
from liftlog.cli.text import plural
from liftlog.errors import CorruptMetadata

if TYPE_CHECKING:
    from liftlog.log.manifest import Manifest
    from liftlog.log.offline.files import StreamDirectory
    from liftlog.log.offline.findings import Finding
    from liftlog.log.offline.indexes import StaleIndex
    from liftlog.log.offline.repair import PlannedRepair

_DIRECTORY = click.Path(path_type=Path)


@click.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@click.option(
    "--subject",
    "-s",
    metavar="SUBJECT",
    help="NATS subject of the stream, where its settings are lost with its manifest.",
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting of the stream whose manifest is lost, as for `stream create`. Can be repeated.",
)
@output_option
@debug_option
def repair(
    directory: Path,
    dry_run: bool,
    assume_yes: bool,
    subject: str | None,
    assignments: tuple[str, ...],
) -> ExitCode:
    """Mend the log under DIR while no daemon uses it.

    Reads every byte and says what it would do, then asks. Damaged ranges are quarantined: readers
    are told which offsets are gone and read on behind them. A torn tail that was never acked is
    cut off. A lost manifest is made anew from the segments, as far as they prove it; its stream's
    settings have to be given then, by --subject and --set. No record that can be read is dropped.

    A copy of all that is changed or removed is kept in `repaired/` of the data directory. With
    --dry-run nothing is written, and the exit code is 8 if there is something to repair.

    \b
    Examples:
      liftlog log repair /var/lib/liftlog --dry-run
      liftlog log repair /var/lib/liftlog/streams/orders --subject 'orders.>' --yes
    """
    from liftlog.log.lock import exclusive
    from liftlog.log.offline.files import find_streams

    streams = find_streams(directory)
    data_dir = streams[0].data_dir if streams else None
    metadata = _metadata(subject, assignments)
    if metadata is not None and len(streams) != 1:
        raise click.UsageError(
            "The settings are those of one stream: give its own directory as DIR.",
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
    from liftlog.settings import parse_stream_settings

    settings = parse_assignments(assignments)
    if subject is not None:
        settings["subject"] = subject
    checked = parse_stream_settings(settings).to_yaml_dict()
    return {"settings": checked, "origin": "api", "possible_losses": []}


def _plan(
    streams: list[StreamDirectory], metadata: dict[str, Any] | None
) -> tuple[list[PlannedRepair], bool]:
    """The plans, and whether there are streams that cannot be repaired as things stand."""
    from liftlog.log.offline.repair import SAY_SETTINGS, plan_repair, salvaged_settings

    planned, refused = [], False
    for stream in streams:
        try:
            planned.append(plan_repair(stream, metadata))
        except CorruptMetadata as error:
            refused = True
            if len(streams) == 1:
                salvaged = salvaged_settings(stream.path) if error.hint == SAY_SETTINGS else ""
                if salvaged:
                    error.hint += f". The damaged manifest says, but do not trust it: {salvaged}"
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
        kept = f"; what was there before lies in {one.kept_in}" if one.kept_in else ""
        verdict = f"{left} left, see `liftlog log verify`" if one.damage_left else "repaired"
        write_lines([f"{one.stream.name}: {verdict}{kept}"])


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Recovery logs as in a daemon; here the steps say it."""
    logger = logging.getLogger("liftlog.log")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@click.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only report which indexes are missing or wrong.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@output_option
@debug_option
def reindex(directory: Path, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Rebuild missing and wrong indexes under DIR.

    Compares the index of every sealed segment with the batch headers, reports the indexes that
    disagree, then asks. An index holds nothing that the segment does not, so no copy is kept. A
    daemon rebuilds an index that is missing or fails its check by itself; this command also finds
    indexes that are intact and wrong. Refused beside a running daemon.

    \b
    Examples:
      liftlog log reindex /var/lib/liftlog --dry-run
      liftlog log reindex /var/lib/liftlog --yes
    """
    from liftlog.log.filesystem import OsFileSystem
    from liftlog.log.lock import exclusive
    from liftlog.log.manifest import read_manifest
    from liftlog.log.offline.files import find_streams, give_to_owner
    from liftlog.log.offline.indexes import find_stale_indexes, rebuild_index

    streams, fs = find_streams(directory), OsFileSystem()
    stale: list[tuple[StreamDirectory, Manifest, StaleIndex]] = []
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
        note("Every index is right.")
    elif not dry_run:
        note(f"Rebuilt {_these_indexes(len(stale))}.")
    return ExitCode.DAMAGED if dry_run and stale else ExitCode.OK


def _these_indexes(count: int) -> str:
    return "this index" if count == 1 else f"these {count} indexes"
