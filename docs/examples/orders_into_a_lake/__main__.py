"""`python -m orders_into_a_lake`, in docs/examples: its options and its exit code."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import report
from liftlog.errors import LiftlogError
from liftlog.spark.export.session import check_installed
from orders_into_a_lake.queries import check_matplotlib


@click.command()
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
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and print where they are.")
def main(orders: int, chart: Path | None, keep: bool) -> None:
    """Publish, compact and export the orders of a shop, and query the lake with Spark SQL.

    Starts its own nats-server, daemon and local Spark, and stops them at the end. Exits with 0 if
    the lake holds exactly what the shop's books say; otherwise it names what differs.
    """
    sys.exit(run(orders, chart, keep))


def run(orders: int, chart: Path | None, keep: bool) -> ExitCode:
    try:
        check_installed()
        check_matplotlib()
        from orders_into_a_lake.scenario import run_demo

        return run_demo(orders, chart=chart, keep=keep)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except (LiftlogError, OSError) as error:
        return report(error)


if __name__ == "__main__":
    main()
