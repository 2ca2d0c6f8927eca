"""`liftlog erase ls`, `show`, `remove` and `prove`: lists erasures and the bytes that are left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    output_format,
    quiet,
    server_options,
)
from liftlog.cli.lib.output import (
    print_pairs,
    print_table,
    say,
    write_lines,
    write_object,
    write_objects,
)
from liftlog.cli.lib.problems import note
from liftlog.cli.lib.progress import count_progress
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable, show_size, show_time

if TYPE_CHECKING:
    from liftlog.client import SyncClient
    from liftlog.protocol.described import ErasureInfo

_HEADINGS = ("ID", "TIME", "RECORDS", "LEFT", "BY", "REASON")
_FILE_HEADINGS = ("FILE", "LISTED", "SIZE", "RECORDS", "FIRST", "PROBLEM")
_SECONDS = 3600.0
"""Time limit of a request, in seconds. A proof reads much of the stream."""
_FIRST_LOOK_SECONDS, _LOOK_SECONDS = 0.1, 1.0
_MOST_REASONS = 10
_NOT_COVERED = (
    "This says nothing about free blocks of the disk, the page cache, snapshots of file systems, "
    "backups, exports, other streams, and consumers that have read the records."
)


@click.command(cls=Command, name="ls", short_help="List erasures of STREAM.")
@click.argument("stream", shell_complete=complete_stream)
@server_options
@debug_option
def list_erasures(stream: str) -> None:
    """List the erasures of STREAM, the newest first, at most 1,000.

    RECORDS is the number of erased records. LEFT is the number of erased records whose bytes are
    still in the files of the stream.

    \b
    Examples:
      liftlog erase ls orders
      liftlog erase ls orders -o jsonl
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.list_erasures(stream)
    if quiet():
        write_lines([one.erasure_id for one in found])
    elif style != "table":
        write_objects([one.to_wire() for one in found], style)
    elif found:
        rows = [
            (
                one.erasure_id,
                show_time(one.time_ns),
                f"{one.count:,}",
                f"{one.left:,}",
                printable(one.principal) or "-",
                printable(one.reason) or "-",
            )
            for one in found
        ]
        print_table(_HEADINGS, rows, right=(2, 3))
    else:
        note(f"No records of {printable(stream)} were erased.")


@click.command(cls=Command, short_help="Show an erasure, and what is left of it.")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("erasure_id", metavar="ID")
@server_options
@debug_option
def show(stream: str, erasure_id: str) -> None:
    """Show the erasure ID of STREAM: principal, records, reason, and bytes that are still in files.

    \b
    Example:
      liftlog erase show orders 5f2c9a10e7b34d68
    """
    style = output_format()
    with connect_to_server() as client:
        (found,) = client.list_erasures(stream, erasure_id)
    if style != "table":
        write_object(found.to_wire(), style)
        return
    ranges = [f"{low:,} to {high - 1:,}" for low, high in found.ranges]
    pairs = [
        ("id", found.erasure_id),
        ("time", show_time(found.time_ns)),
        ("by", printable(found.principal) or "-"),
        ("reason", printable(found.reason) or "-"),
        ("records", f"{found.count:,}"),
    ]
    if found.first_offset is not None and found.last_offset is not None:
        span = f"{found.first_offset:,} to {found.last_offset:,}"
        pairs.append(("offsets", f"{span}, in {plural(found.range_count or 1, 'range')}"))
    pairs.append(("requested", "; ".join(ranges) or "-"))
    pairs.append(("filter", f"a filter with the hash {found.selector}" if found.selector else "-"))
    left = f"{plural(found.left, 'record')}, about {show_size(found.left_bytes)}"
    pairs.append(("left", left if found.left else "nothing in the listed files"))
    pairs += [("", reason) for reason in found.reasons]
    if found.is_removing:
        pairs.append(("", "the bytes are being removed"))
    print_pairs(pairs)


@click.command(cls=Command, short_help="Remove the bytes of erased records at once.")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("erasure_id", metavar="[ID]", default="")
@server_options
@debug_option
def remove(stream: str, erasure_id: str) -> ExitCode:
    """Remove the bytes of erased records of STREAM at once: of the erasure ID, or of all erasures.

    The command waits until the bytes are removed. After Ctrl-C the daemon continues. The exit code
    is 1 if some bytes are still in files.

    \b
    Examples:
      liftlog erase remove orders
      liftlog erase remove orders 5f2c9a10e7b34d68
    """
    style = output_format()
    with connect_to_server() as client:
        client.remove_erased(stream, erasure_id)
        left = wait_until_removed(client, stream, erasure_id)
    if style != "table":
        write_object({"name": stream, "erasure": erasure_id, "left": left}, style)
    return ExitCode.FAILED if left else ExitCode.OK


@click.command(cls=Command, short_help="Search all files of STREAM for erased records.")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("erasure_id", metavar="[ID]", default="")
@server_options
@debug_option
def prove(stream: str, erasure_id: str) -> ExitCode:
    """Search all files of STREAM for the records of the erasure ID, or of all erasures.

    The daemon parses every file in the directory of the stream, also files that the manifest does
    not list, and the copies that repairs have kept. The command prints each file that still has one
    of the records, and each file that could not be parsed. If there is such a file, the exit code
    is 1.

    \b
    Examples:
      liftlog erase prove orders
      liftlog erase prove orders 5f2c9a10e7b34d68 -o json
    """
    style = output_format()
    with connect_to_server(request_timeout=_SECONDS) as client:
        found = client.prove_erasure(stream, erasure_id)
    if style != "table":
        files = [one.to_wire() for one in found.files]
        write_object({**found._asdict(), "files": files, "clean": found.is_clean}, style)
    else:
        if found.files:
            rows = [
                (
                    printable(one.file),
                    "yes" if one.is_listed else "no",
                    show_size(one.size_bytes),
                    f"{one.found:,}",
                    "-" if one.first_offset is None else f"{one.first_offset:,}",
                    one.problem or "-",
                )
                for one in found.files
            ]
            print_table(_FILE_HEADINGS, rows, right=(2, 3, 4))
        files_read = f"{plural(found.file_count, 'file')} with {show_size(found.size_bytes)}"
        what = plural(found.records, "erased record")
        if found.found:
            say(f"{found.found:,} of {what} are still in the files: {files_read} were searched")
        elif found.files:
            say(f"No file has one of {what}, except for what could not be parsed: {files_read}")
        else:
            say(f"No file has one of {what}: {files_read} were searched")
        note(_NOT_COVERED)
    return ExitCode.OK if found.is_clean else ExitCode.FAILED


def wait_until_removed(client: SyncClient, stream: str, erasure_id: str) -> int:
    """Wait until the bytes of an erasure, or of all, are gone, or until the daemon has removed what
    it can. Prints why some bytes are left, and returns the number of their records. Ctrl-C ends the
    wait only."""
    pause = _FIRST_LOOK_SECONDS
    try:
        with count_progress("removing") as tell:
            told = ""
            while True:
                found = client.list_erasures(stream, erasure_id)
                count, left = sum(one.count for one in found), sum(one.left for one in found)
                tell(count - left, count)
                problem = next((one.problem for one in found if one.problem), "")
                if problem not in ("", told):
                    told = problem
                    note(f"The daemon tries again: {told}")
                if not any(one.left and one.is_removing for one in found):
                    break
                time.sleep(pause)
                pause = min(2 * pause, _LOOK_SECONDS)
    except KeyboardInterrupt:
        where = (
            f"show {printable(stream)} {erasure_id}" if erasure_id else f"ls {printable(stream)}"
        )
        note(
            "The records are erased, and the daemon goes on removing their bytes: see "
            f"`liftlog erase {where}`."
        )
        raise
    _tell_left(found, left)
    return left


def _tell_left(found: list[ErasureInfo], left: int) -> None:
    if not left:
        note("Their bytes are gone from the listed files; `liftlog erase prove` checks all files.")
        return
    note(f"The bytes of {plural(left, 'record')} are left:")
    for reason in [reason for one in found if one.left for reason in one.reasons][:_MOST_REASONS]:
        note(f"  {reason}")
