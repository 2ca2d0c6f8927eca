"""The command `liftlog`: its subcommands, and what every one of them does about errors."""

from __future__ import annotations

import sys
from typing import Any

import click

import liftlog
from liftlog.cli.exit_codes import ExitCode, table_lines
from liftlog.cli.groups import Commands, Listed
from liftlog.cli.options import debug_option, debug_wanted, server_options
from liftlog.cli.problems import report, silence_closed_output
from liftlog.cli.suggestions import suggest_stream

COMMANDS = {
    "serve": Listed("liftlog.cli.serve:serve", "Run the daemon until SIGTERM or Ctrl-C."),
    "stream": Listed(
        "liftlog.cli.stream:stream_commands",
        "Create, list, describe, change, hold and delete streams.",
    ),
    "consume": Listed(
        "liftlog.cli.consume:consume",
        "Print the records of STREAM, and wait for more until Ctrl-C.",
    ),
    "offsets": Listed(
        "liftlog.cli.offsets:offsets_commands",
        "List, show, move and delete the checkpoints of consumers.",
    ),
    "group": Listed(
        "liftlog.cli.group:group_commands", "List, show, move and delete consumer groups."
    ),
    "pub": Listed("liftlog.cli.pub:pub", "Publish on NATS and print the acks."),
    "log": Listed(
        "liftlog.cli.log_files:log_commands", "Inspect the files of a log, and repair them."
    ),
    "backup": Listed(
        "liftlog.cli.backup:backup_commands", "Back up a data directory, while the daemon runs."
    ),
    "info": Listed(
        "liftlog.cli.info:info", "Show the daemon: name, version, uptime, NATS, limits."
    ),
    "cluster": Listed(
        "liftlog.cli.cluster:cluster_commands",
        "Prepare a cluster; show and move its replicas.",
    ),
    "top": Listed("liftlog.cli.top:top", "Watch rates, sizes and lags of the streams."),
    "health": Listed("liftlog.cli.health:health", "Show whether the daemon is ready."),
    "doctor": Listed(
        "liftlog.cli.doctor.command:doctor",
        "Check this machine and the configuration for problems.",
    ),
    "config": Listed(
        "liftlog.cli.config:config_commands",
        "Write, check and explain the daemon's configuration.",
    ),
    "acl": Listed("liftlog.cli.acl:acl_commands", "Check an ACL file, explain it, hash tokens."),
    "export": Listed("liftlog.cli.export:export", "Export a stream as a table."),
    "errors": Listed("liftlog.cli.errors:errors_commands", "Explain errors by number or name."),
    "completion": Listed(
        "liftlog.cli.completion:completion",
        "Print the completion script for SHELL.",
    ),
    "demo": Listed(
        "liftlog.demo.command:demo",
        "See it work: publish, ack, kill -9, restart, read back.",
    ),
    "demo-cluster": Listed(
        "liftlog.demo.command:demo_cluster",
        "See a cluster work: kill the leader, lose nothing.",
    ),
    "demo-spark": Listed(
        "liftlog.demo.command:demo_spark",
        "See it work with Spark: from NATS into a lake, and SQL.",
    ),
}
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


@click.group(
    cls=Root,
    listed=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(liftlog.__version__, message="%(prog)s %(version)s")
@server_options
@debug_option
def cli() -> None:
    """A durable log for NATS.

    liftlog records the messages of chosen NATS subjects on disk, acks them after fsync, and
    serves them to consumers over a socket. See it at work: `liftlog demo`.
    """
