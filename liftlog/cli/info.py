"""`liftlog info`: shows the daemon's description of itself."""

from __future__ import annotations

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.conditions import conditions_of
from liftlog.cli.lib.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.lib.output import print_pairs, write_object
from liftlog.cli.lib.text import printable, show_span, show_time


@click.command(cls=Command)
@server_options
@debug_option
def info() -> None:
    """Show name, version, uptime, NATS and limits of the daemon.

    \b
    Examples:
      liftlog info
      liftlog info --server tls://logs.example:9292 --tls-ca ca.pem
    """
    style = output_format()
    with connect_to_server() as client:
        address, found = client.address, client.metadata()
    if style != "table":
        write_object(found.to_wire(), style)
        return
    nats = found.nats
    version = nats.get("server_version")
    state = "connected" if nats.get("connected") else "not connected"
    if nats.get("url"):
        state += f" to {nats['url']}"
    pairs = [
        ("name", found.name),
        ("address", address),
        ("version", f"{found.version} ({found.commit})" if found.commit else found.version),
        ("server id", found.server_id),
        ("started", f"{show_time(found.started_ns)} ({show_span(found.uptime_seconds)} ago)"),
        ("nats", f"{state} (server {version})" if version else state),
        ("streams", f"{found.stream_count:,}"),
        ("limits", "\n".join(f"{name}: {value}" for name, value in found.limits.items())),
        ("features", " ".join(found.features)),
    ]
    pairs += [(one.label, one.words) for one in conditions_of(found)]
    print_pairs([(label, printable(text, keep_newlines=True)) for label, text in pairs])
