"""`liftlog log reindex`: indexes that are missing or wrong, made anew when asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.options import debug_option, output_format, output_option
from liftlog.cli.output import write_lines, write_objects
from liftlog.cli.problems import Problem, note
from liftlog.cli.questions import confirmed

if TYPE_CHECKING:
    from liftlog.cli.offline.files import StreamDirectory
    from liftlog.log.manifest import Manifest
    from liftlog.log.segment import Segment

_DIRECTORY = click.Path(path_type=Path)


@dataclass(slots=True)
class _StaleIndex:
    stream: StreamDirectory
    manifest: Manifest
    segment: Segment
    reason: str
    entries: int | None = None
    """How many the new one has; None as long as there is none."""

    @property
    def file_name(self) -> str:
        return self.segment.path.with_suffix(".index").name

    def to_object(self) -> dict[str, Any]:
        return {
            "stream": self.stream.name,
            "index": self.file_name,
            "reason": self.reason,
            "entries": self.entries,
        }


@click.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--dry-run", is_flag=True, help="Only say which indexes are missing or wrong.")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@output_option
@debug_option
def reindex(directory: Path, dry_run: bool, assume_yes: bool) -> ExitCode:
    """Make missing and wrong indexes under DIR anew.

    Compares the index of every sealed segment with the batch headers and says which ones do not
    agree, then asks. An index holds nothing that the segment does not, so no copy is kept. A daemon
    makes an index that is missing or fails its check anew by itself; this finds those too that are
    intact and wrong. Refused beside a running daemon.

    \b
    Examples:
      liftlog log reindex /var/lib/liftlog --dry-run
      liftlog log reindex /var/lib/liftlog --yes
    """
    from liftlog.cli.offline.files import find_streams, give_to_owner
    from liftlog.log.filesystem import OsFileSystem
    from liftlog.log.lock import exclusive
    from liftlog.log.manifest import read_manifest
    from liftlog.log.repair.indexes import find_stale_indexes, rebuild_index

    streams, fs = find_streams(directory), OsFileSystem()
    stale = []
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
            stale += [_StaleIndex(stream, manifest, one.segment, one.reason) for one in found]
        if output_format() == "table":
            write_lines([f"{one.stream.name}: {one.file_name}: {one.reason}" for one in stale])
        if not dry_run and stale:
            if not assume_yes and not confirmed(f"Make {_these_indexes(stale)} anew?"):
                note("Nothing was changed.")
                return ExitCode.FAILED
            for one in stale:
                one.entries = rebuild_index(fs, one.segment, one.manifest)
                give_to_owner(one.stream.path)
    if output_format() != "table":
        write_objects([one.to_object() for one in stale], output_format())
    elif not stale:
        note("Every index is right.")
    elif not dry_run:
        note(f"Made {_these_indexes(stale)} anew.")
    return ExitCode.DAMAGED if dry_run and stale else ExitCode.OK


def _these_indexes(stale: list[_StaleIndex]) -> str:
    return "this index" if len(stale) == 1 else f"these {len(stale)} indexes"
