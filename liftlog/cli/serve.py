"""`liftlog serve`: the daemon."""

from __future__ import annotations

import gc
import logging
import os
from pathlib import Path

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.options import debug_option
from liftlog.cli.lib.problems import unwrapped
from liftlog.errors import LiftlogError

logger = logging.getLogger("liftlog.server")


@click.command(cls=Command)
@click.option(
    "--config",
    "-c",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar="LIFTLOG_CONFIG",
    help="YAML file with the settings. There is no default file. [env: LIFTLOG_CONFIG]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set one setting, for example --set nats.servers=nats://a:4222. It overrides the "
    "environment (LIFTLOG_NATS__SERVERS=...), which overrides the file. Can be repeated.",
)
@click.option(
    "--yes",
    "-y",
    "assume_yes",
    is_flag=True,
    help="Start even if new retention limits delete more than a tenth of a stream.",
)
@click.option(
    "--believe-clock",
    is_flag=True,
    help="Confirm that the clock is right. If the clock jumped ahead, the daemon now uses it to "
    "compute ages. If the clocks of a cluster's nodes differ, correct the wrong clock instead.",
)
@debug_option
def serve(
    config: Path | None, overrides: tuple[str, ...], assume_yes: bool, believe_clock: bool
) -> int:
    """Run the daemon until SIGTERM or Ctrl-C.

    After the signal the daemon accepts no more messages, commits and acks the received messages,
    and exits. A second Ctrl-C ends it at once. All acked messages are on disk.

    \b
    Examples:
      liftlog serve -c /etc/liftlog/liftlog.yaml
      liftlog serve --set nats.servers=nats://a:4222 --set 'streams={orders: {subject: "orders.>"}}'
    """
    from liftlog.settings import Settings, load_settings

    environ = dict(os.environ)

    def load() -> Settings:
        return load_settings(config, environ, overrides)

    settings = load()

    from liftlog.server.daemon import run
    from liftlog.server.life.logs import configure_logging

    logging_ = settings.logging
    configure_logging(logging_.level, logging_.format, path=logging_.file)
    try:
        # A pipe can be read only once.
        again = load if config is None or config.is_file() else None
        code = run(settings, assume_yes=assume_yes, believe_clock=believe_clock, load_again=again)
    except Exception as error:
        if not isinstance(unwrapped(error), LiftlogError):
            # A bug: its traceback is logged.
            logger.critical("daemon-failed", exc_info=True)
        raise
    # Python scans all objects several times before the process ends. The memory is returned anyway.
    gc.freeze()
    return code
