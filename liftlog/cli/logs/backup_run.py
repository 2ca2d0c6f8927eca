"""The work of `liftlog backup`: one function for each of its commands."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import output_format
from liftlog.cli.lib.output import print_table, write_object
from liftlog.cli.lib.problems import Problem, note, warn
from liftlog.cli.lib.progress import byte_progress
from liftlog.cli.lib.suggestions import closest
from liftlog.cli.lib.text import plural, printable, show_size, show_time
from liftlog.cli.logs.backup_ends import Ends, ask_ends
from liftlog.log.backup import (
    Backup,
    add_to_data_dir,
    create_backup,
    read_backup,
    restore_backup,
    verify_backup,
)
from liftlog.log.backup.restoring import check_addable, check_target
from liftlog.log.data_dir import BACKUP_NAME, STREAMS_NAME, make_durable_directory
from liftlog.log.files.filesystem import OsFileSystem, ReadOnlyFileSystem
from liftlog.log.files.lock import exclusive
from liftlog.log.offline.files import existing_part, find_streams, give_to_owner, stored_bytes
from liftlog.log.offline.verify import DAMAGE, verify_stream
from liftlog.server.metadata.membership import read_node_file

_MOST_NAMED = 5


def create(data_dir: Path, backup: Path, names: tuple[str, ...], wait_seconds: float) -> ExitCode:
    streams = data_dir / STREAMS_NAME
    if not streams.is_dir():
        raise Problem(
            f"{data_dir} is not a data directory",
            ExitCode.NOT_FOUND,
            hint="give the daemon's data_dir: it has a folder `streams`",
        )
    there = [path.name for path in streams.iterdir()]
    wanted = _known_names(names, there)
    total = stored_bytes(
        [path for path in streams.iterdir() if wanted is None or path.name in wanted]
    )
    _check_room(backup, total)
    ends = ask_ends(data_dir, wanted or there, wait_seconds)
    with _no_halves(backup), byte_progress(total) as advance:
        reached: dict[str, int] = {}

        def tell(stream: str, done: int, of: int) -> None:
            advance(stream, max(done - reached.get(stream, 0), 0))
            reached[stream] = done

        found = create_backup(
            data_dir,
            backup,
            created_ns=time.time_ns(),
            streams=wanted,
            committed=ends.committed,
            progress=tell,
        )
    _show(found, f"{backup}: {_summary(found)}")
    if wanted is None:
        _tell_elsewhere(ends)
    return _tell_problems(found)


def _tell_elsewhere(ends: Ends) -> None:
    if not ends.elsewhere:
        return
    named = [f"{name} (on {', '.join(nodes)})" for name, nodes in ends.elsewhere.items()]
    more = f", and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    note(
        f"Node {ends.node} has no replica of {plural(len(named), 'stream')} of the cluster: "
        f"{printable(', '.join(named[:_MOST_NAMED]))}{more}. Back up these nodes, too."
    )


def _known_names(names: tuple[str, ...], there: list[str]) -> frozenset[str] | None:
    for name in names:
        if name not in there:
            close = closest(name, there)
            found = f"there are {', '.join(sorted(there))}" if there else "there are no streams"
            hint = f"did you mean {close!r}?" if close else found
            raise Problem(f"there is no stream {name!r}", ExitCode.NOT_FOUND, hint=hint)
    return frozenset(names) or None


def _check_room(target: Path, size_bytes: int) -> None:
    above = existing_part(target)
    free = shutil.disk_usage(above).free
    if free < size_bytes:
        raise Problem(
            f"{above} has {show_size(free)} left, but {show_size(size_bytes)} are needed",
            ExitCode.TRY_AGAIN,
        )


@contextmanager
def _no_halves(backup: Path) -> Iterator[None]:
    """Remove the files of a `create` that failed or was interrupted. A killed `create` leaves these
    files behind. They do not count as a backup, because the file `backup` is missing."""

    existed = backup.exists()
    empty = not existed or not any(backup.iterdir())
    try:
        yield
    except BaseException:
        if empty and not (backup / BACKUP_NAME).exists():
            shutil.rmtree(backup / STREAMS_NAME if existed else backup, ignore_errors=True)
        raise


def info(backup: Path) -> None:
    found = _read(backup)
    created = show_time(found.created_ns)
    _show(found, f"made {created} by liftlog {found.version}: {_summary(found)}")
    _tell_problems(found)


def verify(backup: Path, quick: bool) -> ExitCode:
    style, fs = output_format(), ReadOnlyFileSystem()
    with byte_progress(_read(backup).size_bytes) as advance:
        found, findings = verify_backup(backup, fs=fs, read=partial(advance, "checking"))
    problems = [{"stream": f.stream, "file": f.file, "problem": f.problem} for f in findings]
    if not problems and not quick:
        problems = _bad_records(backup)
    if style != "table":
        write_object(
            {"ok": not problems, "streams": len(found.streams), "problems": problems}, style
        )
    else:
        for one in problems:
            click.echo(printable(f"{one['stream']}: {one['file']}: {one['problem']}"))
        verdict = plural(len(problems), "problem") if problems else "ok"
        click.echo(f"{backup}: {verdict}, {_summary(found)}")
    return ExitCode.DAMAGED if problems else ExitCode.OK


def _bad_records(backup: Path) -> list[dict[str, str]]:
    """Return the damage of the source that its daemon had not found before."""

    return [
        {"stream": stream.name, "file": finding.segment, "problem": finding.text}
        for stream in find_streams(backup)
        for finding in verify_stream(stream).of_kind(DAMAGE)
    ]


def restore(
    backup: Path, data_dir: Path, names: tuple[str, ...], *, add: bool, dry_run: bool
) -> ExitCode:
    fs = ReadOnlyFileSystem()
    content = _read(backup)
    wanted = _known_names(names, [one.name for one in content.streams])
    chosen = [one for one in content.streams if wanted is None or one.name in wanted]
    total = sum(one.size_bytes for one in chosen)
    if add:
        check_addable(OsFileSystem(), data_dir, wanted or frozenset())
    else:
        check_target(OsFileSystem(), data_dir)
    _check_room(data_dir, total)
    if dry_run:
        bad = verify_backup(backup, fs=fs)[1]
        for one in bad:
            warn(f"{one.stream}: {one.file}: {one.problem}")
        _show(content, f"would restore {_summary(content)}")
        return ExitCode.DAMAGED if bad else ExitCode.OK
    make_durable_directory(OsFileSystem(), data_dir)
    now, files = int(time.time()), OsFileSystem()
    with exclusive(data_dir), byte_progress(total) as advance:
        copied = partial(advance, "restoring")
        if add:
            restored = add_to_data_dir(
                backup, data_dir, now_seconds=now, streams=wanted or frozenset(), copied=copied
            )
        else:
            restored = restore_backup(
                backup, data_dir, now_seconds=now, streams=wanted, copied=copied
            )
        is_of_node = add and read_node_file(files, data_dir) is not None
        give_to_owner(data_dir)
    if output_format() != "table":
        rows = [{name: getattr(one, name) for name in one.__slots__} for one in restored]
        write_object({"data_dir": str(data_dir), "streams": rows}, output_format())
    else:
        for line in restored:
            records = plural(max(line.end_offset - line.log_start_offset, 0), "offset")
            click.echo(f"{line.name}: {records}, continues at {line.end_offset} in a new epoch")
        if is_of_node:
            note("Next: `liftlog cluster adopt -c FILE`, before the node starts.")
    return ExitCode.OK


def _read(backup: Path) -> Backup:

    if not backup.is_dir():
        raise Problem(
            f"{backup} is not a directory",
            ExitCode.NOT_FOUND,
            hint="give the directory that `liftlog backup create` made",
        )
    return read_backup(ReadOnlyFileSystem(), backup)


def _summary(found: Backup) -> str:
    files = sum(len(one.files) for one in found.streams)
    return (
        f"{plural(len(found.streams), 'stream')}, {plural(files, 'file')}, "
        f"{show_size(found.size_bytes)}"
    )


def _show(found: Backup, title: str) -> None:
    style = output_format()
    if style != "table":
        write_object(_object(found), style)
        return
    rows = [
        (
            one.name,
            f"{one.log_start_offset:,}",
            f"{one.end_offset:,}",
            show_size(one.size_bytes),
            str(len(one.damaged) or ""),
        )
        for one in found.streams
    ]
    if rows:
        print_table(("STREAM", "START", "END", "SIZE", "DAMAGED"), rows, right=(1, 2, 3, 4))
    note(title)


def _object(found: Backup) -> dict[str, Any]:
    """Return the description of a backup without its list of files."""
    streams = [
        {
            "name": one.name,
            "incarnation": one.incarnation,
            "leader_epoch": one.leader_epoch,
            "log_start_offset": one.log_start_offset,
            "end_offset": one.end_offset,
            "size_bytes": one.size_bytes,
            "damaged": list(one.damaged),
            "may_lack": one.may_lack,
        }
        for one in found.streams
    ]
    return {
        "created": show_time(found.created_ns),
        "created_ns": found.created_ns,
        "version": found.version,
        "size_bytes": found.size_bytes,
        "streams": streams,
    }


def _tell_problems(found: Backup) -> ExitCode:
    for stream in found.streams:
        for problem in stream.damaged:
            warn(f"{stream.name}: {problem}; it is not in the backup")
        if stream.may_lack:
            warn(
                f"{stream.name}: the backup ends at offset {stream.end_offset}, and may lack the "
                f"last acked messages: {stream.may_lack}"
            )
    if any(one.damaged for one in found.streams):
        return ExitCode.DAMAGED
    if any(one.may_lack for one in found.streams):
        note("Back up again while the daemon runs, or on the node that leads these streams.")
        return ExitCode.BEHIND
    return ExitCode.OK
