"""`liftlog stream lease`: protects the present records of a stream from deletion for a limited
time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    duration_of,
    output_format,
    server_options,
)
from liftlog.cli.lib.output import print_table, say, write_object, write_objects
from liftlog.cli.lib.problems import note
from liftlog.cli.lib.ranges import OffsetType, plain_number
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import printable
from liftlog.errors import InvalidArgument

if TYPE_CHECKING:
    from liftlog.client import LeaseInfo

_TTL_HELP = "Duration of the lease, unless it is renewed: 90s, 10m, at most 1h."


@click.group(
    cls=Commands,
    name="lease",
    aliases={"list": "ls", "add": "acquire", "create": "acquire", "rm": "release"},
)
@server_options
@debug_option
def lease_commands() -> None:
    """Keep the records that a long read needs.

    Retention and compaction do not remove records that a lease protects. A lease ends when it is
    released, when its time has passed, or when the disk is full.
    """


@lease_commands.command(name="ls")
@click.argument("name", shell_complete=complete_stream)
@server_options
@debug_option
def list_leases(name: str) -> None:
    """List the leases on the stream NAME.

    \b
    Example:
      liftlog stream lease ls orders
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.list_leases(name)
    if style != "table":
        write_objects([lease.to_wire() for lease in found], style)
    elif found:
        rows = [
            (
                printable(lease.lease_id) or "-",
                f"{lease.low:,}",
                f"{lease.high:,}",
                _remaining(lease),
                printable(lease.holder),
            )
            for lease in found
        ]
        print_table(("ID", "FROM", "BELOW", "ENDS IN", "HOLDER"), rows, right=(1, 2, 3))
    else:
        note(f"There are no leases on {printable(name)}.")


@lease_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.option(
    "--from",
    "start",
    default="earliest",
    metavar="OFFSET",
    help="The first offset of the lease; earliest: the first offset that retention would keep. "
    "[default: earliest]",
)
@click.option("--ttl", default="60s", metavar="DURATION", help=f"{_TTL_HELP} [default: 60s]")
@click.option(
    "--holder", default="", metavar="TEXT", help="Name of the holder, for people who list leases."
)
@server_options
@debug_option
def acquire(name: str, start: str, ttl: str, holder: str) -> None:
    """Lease records of the stream NAME, up to its current end.

    The command prints the id of the lease.

    \b
    Examples:
      liftlog stream lease acquire orders --ttl 10m --holder 'nightly copy'
      liftlog stream lease acquire orders --from 120000 -o json | jq -r .lease_id
    """
    start = plain_number(start)
    if start != "earliest" and not (start.isascii() and start.isdigit()):
        raise InvalidArgument(f"--from {start}: expected an offset or earliest")
    where: int | str = start if start == "earliest" else int(start)
    with connect_to_server() as client:
        _show(client.acquire_lease(name, where, ttl=duration_of("--ttl", ttl), holder=holder))


@lease_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.argument("lease_id")
@click.option("--ttl", default="60s", metavar="DURATION", help=f"{_TTL_HELP} [default: 60s]")
@click.option(
    "--from",
    "low",
    type=OffsetType(),
    metavar="OFFSET",
    help="Release the offsets below this one.",
)
@server_options
@debug_option
def renew(name: str, lease_id: str, ttl: str, low: int | None) -> None:
    """Extend a lease on the stream NAME.

    \b
    Example:
      liftlog stream lease renew orders "$LEASE" --ttl 10m --from 150000
    """
    with connect_to_server() as client:
        _show(client.renew_lease(name, lease_id, ttl=duration_of("--ttl", ttl), low=low))


@lease_commands.command()
@click.argument("name", shell_complete=complete_stream)
@click.argument("lease_id")
@server_options
@debug_option
def release(name: str, lease_id: str) -> None:
    """Release a lease on the stream NAME.

    If the lease has already ended, nothing changes.

    \b
    Example:
      liftlog stream lease release orders "$LEASE"
    """
    style = output_format()
    with connect_to_server() as client:
        client.release_lease(name, lease_id)
    if style == "table":
        say(f"released: {printable(name)} {printable(lease_id)}")
    else:
        write_object({"stream": name, "lease_id": lease_id, "released": True}, style)


def _remaining(lease: LeaseInfo) -> str:
    return f"{lease.remaining_ms / 1000:.0f} s"


def _show(lease: LeaseInfo) -> None:
    style = output_format()
    if style == "table":
        say(
            f"{printable(lease.lease_id)} holds {printable(lease.stream)} "
            f"from offset {lease.low:,} up to (not including) {lease.high:,} "
            f"for {_remaining(lease)}"
        )
    else:
        write_object(lease.to_wire(), style)
