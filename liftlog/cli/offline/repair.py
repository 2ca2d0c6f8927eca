"""`liftlog log repair`: says what it would do, and does it when asked."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.options import debug_option, output_format, output_option
from liftlog.cli.output import write_lines, write_objects
from liftlog.cli.problems import note, warn
from liftlog.cli.questions import confirmed
from liftlog.cli.stream_settings import parse_assignments
from liftlog.cli.text import plural
from liftlog.errors import CorruptMetadata

if TYPE_CHECKING:
    from liftlog.cli.offline.files import StreamDirectory
    from liftlog.log.repair.repairing import Repair, Step

_DIRECTORY = click.Path(path_type=Path)


@dataclass(slots=True)
class _Planned:
    stream: StreamDirectory
    repair: Repair
    steps: list[Step]
    kept_in: Path | None = None
    damage_left: int | None = None

    def to_object(self) -> dict[str, Any]:
        return {
            "stream": self.stream.name,
            "steps": [step.to_object() for step in self.steps],
            "done": self.damage_left is not None,
            "kept_in": None if self.kept_in is None else str(self.kept_in),
            "damage_left": self.damage_left,
        }


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
    from liftlog.cli.offline.files import find_streams
    from liftlog.log.lock import exclusive

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
                _carry_out(one)
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
) -> tuple[list[_Planned], bool]:
    """What is to be done, and whether there are streams that cannot be mended as things stand."""
    from liftlog.log.filesystem import OsFileSystem
    from liftlog.log.repair.repairing import SAY_SETTINGS, Repair
    from liftlog.log.shared_states import read_known_states

    fs = OsFileSystem()
    planned, refused = [], False
    for stream in streams:
        states = read_known_states(fs, stream.data_dir, stream.name)
        repair = Repair(stream.path, states, metadata)
        try:
            planned.append(_Planned(stream, repair, repair.plan(fs)))
        except CorruptMetadata as error:
            refused = True
            if len(streams) == 1:
                if error.hint == SAY_SETTINGS:
                    error.hint += _salvaged_settings(stream.path)
                raise
            warn(f"{error.message}: repair it by itself, {stream.path}")
    return planned, refused


def _salvaged_settings(directory: Path) -> str:
    """What a manifest that fails its check says of the settings, for an operator to judge."""
    from liftlog.log.manifest import MANIFEST_NAME

    try:
        _, _, body = (directory / MANIFEST_NAME).read_bytes().partition(b"\n")
        settings = json.dumps(json.loads(body)["metadata"]["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f". The damaged manifest says, but do not trust it: {settings}"


def _plan_lines(wanted: list[_Planned]) -> Iterator[str]:
    for one in wanted:
        yield f"{one.stream.name}: {plural(len(one.steps), 'step')}"
        for step in one.steps:
            yield f"  {step.kind:<10} {_where(step)}{step.text}"


def _where(step: Step) -> str:
    where = step.segment
    if step.position is not None:
        where += f" at {step.position}"
    if step.first_offset is not None and step.next_offset is not None:
        where += f": offsets {step.first_offset}..{step.next_offset - 1}"
    return f"{where}: " if where else ""


def _carry_out(one: _Planned) -> None:
    from liftlog.cli.offline.files import give_to_owner
    from liftlog.cli.offline.verify import DAMAGE, verify_stream
    from liftlog.log.filesystem import OsFileSystem
    from liftlog.log.repair.keeping import KeepingFileSystem

    stream = one.stream
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    beside = stream.path.parent if stream.data_dir is None else stream.data_dir / "repaired"
    fs = KeepingFileSystem(OsFileSystem(), beside / f"{stream.name}-{stamp}")
    one.steps = one.repair.run(fs)
    one.kept_in = fs.directory if fs.kept else None
    give_to_owner(stream.path)
    one.damage_left = len(verify_stream(stream).of_kind(DAMAGE))


def _tell(planned: list[_Planned], *, dry_run: bool) -> None:
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
