"""The command `liftlog`: its subcommands, and what every one of them does about errors."""

from __future__ import annotations

import sys
from typing import Any

import click

import liftlog
from liftlog.cli.acl import acl_commands
from liftlog.cli.backup import backup_commands
from liftlog.cli.completion import completion
from liftlog.cli.config import config_commands
from liftlog.cli.consume import consume
from liftlog.cli.doctor.command import doctor
from liftlog.cli.errors import errors_commands
from liftlog.cli.exit_codes import ExitCode, table_lines
from liftlog.cli.export import export
from liftlog.cli.groups import Commands
from liftlog.cli.health import health
from liftlog.cli.info import info
from liftlog.cli.offline.command import log_commands
from liftlog.cli.offsets import offsets_commands
from liftlog.cli.options import debug_option, debug_wanted, server_options
from liftlog.cli.problems import report, silence_closed_output
from liftlog.cli.pub import pub
from liftlog.cli.serve import serve
from liftlog.cli.stream import stream_commands
from liftlog.cli.suggestions import suggest_stream
from liftlog.cli.top import top
from liftlog.demo.command import demo, demo_spark

_EPILOG = "\b\nExit codes:\n" + "\n".join(table_lines())


class Root(Commands):
    """Runs a subcommand and turns how it ends into an exit code.

    A command returns an ExitCode, or None for success, or raises.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except (click.ClickException, click.exceptions.Exit):
            raise
        except (KeyboardInterrupt, click.Abort):
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            silence_closed_output()
            code = ExitCode.PIPE_CLOSED
        except OSError as error:
            code = report(error, debug=debug_wanted())
            silence_closed_output()  # a full disk behind stdout: what is buffered cannot go there
        except Exception as error:  # noqa: BLE001  # the last resort: words instead of a traceback
            suggest_stream(error)
            code = report(error, debug=debug_wanted())
        raise click.exceptions.Exit(code or ExitCode.OK)


@click.group(cls=Root, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(liftlog.__version__, message="%(prog)s %(version)s")
@server_options
@debug_option
def cli() -> None:
    """A durable log for NATS.

    liftlog records the messages of chosen NATS subjects on disk, acks them after fsync, and
    serves them to consumers over a socket. See it at work: `liftlog demo`.
    """


for command in (
    serve,
    stream_commands,
    consume,
    offsets_commands,
    pub,
    log_commands,
    backup_commands,
    info,
    top,
    health,
    doctor,
    config_commands,
    acl_commands,
    export,
    errors_commands,
    completion,
    demo,
    demo_spark,
):
    cli.add_command(command)
