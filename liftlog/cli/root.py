"""The command `liftlog`: its subcommands, and their common handling of errors."""

from __future__ import annotations

import sys
from typing import Any

import click

from liftlog.cli.lib.command_groups import HELP_OPTIONS, Commands, Listed
from liftlog.cli.lib.exit_codes import ExitCode, table_lines
from liftlog.cli.lib.options import (
    ERROR_STYLE,
    debug_option,
    debug_wanted,
    error_style,
    error_style_of,
    server_options,
)
from liftlog.cli.lib.problems import Problem, report, silence_closed_output
from liftlog.cli.lib.suggestions import closest, suggest_stream
from liftlog.commit import version_and_commit

_SECTIONS = {
    "Streams and records": {
        "stream": (
            "cli.stream:stream_commands",
            "Create, list, describe, change, lease and delete streams.",
        ),
        "pub": ("cli.pub:pub", "Publish on NATS and print the acks."),
        "consume": (
            "cli.consuming.consume:consume",
            "Print the records of STREAM, and wait for more until Ctrl-C.",
        ),
        "tail": ("cli.consuming.consume:tail", "Print the last records of STREAM."),
        "get": ("cli.consuming.get:get", "Print the record of STREAM at OFFSET."),
        "erase": (
            "cli.erasing.erase:erase_commands",
            "Erase records, list erasures, remove and prove them.",
        ),
        "import": (
            "cli.imports.import_records:import_commands",
            "Copy messages from JetStream or elsewhere into a stream.",
        ),
        "export": ("cli.exports.export:export", "Export a stream as a table."),
        "export-vacuum": (
            "cli.exports.export_vacuum:export_vacuum",
            "Remove old snapshots of an exported table.",
        ),
    },
    "Consumers": {
        "consumer": (
            "cli.consuming.consumer:consumer_commands",
            "Create, list, show, change and delete consumers with acks.",
        ),
        "offsets": (
            "cli.consuming.offsets:offsets_commands",
            "List, show, move and delete the checkpoints of consumers.",
        ),
        "group": (
            "cli.consuming.group:group_commands",
            "List, show, move and delete consumer groups.",
        ),
    },
    "Daemon": {
        "serve": ("cli.serve:serve", "Run the daemon until SIGTERM or Ctrl-C."),
        "info": (
            "cli.info:info",
            "Show name, version, uptime, NATS and limits of the daemon.",
        ),
        "health": ("cli.health:health", "Show whether the daemon is ready."),
        "top": ("cli.top:top", "Watch rates, sizes and lags of the streams."),
        "reload": (
            "cli.daemon_signals:reload",
            "Make the daemon on this machine read its files again.",
        ),
        "drain": (
            "cli.daemon_signals:drain",
            "Stop the daemon on this machine, and wait for its end.",
        ),
        "cluster": (
            "cli.clustering.cluster:cluster_commands",
            "Prepare a cluster, and show and move its replicas.",
        ),
        "config": (
            "cli.config:config_commands",
            "Write, check and explain the daemon's configuration.",
        ),
        "acl": ("cli.acl:acl_commands", "Check an ACL file, explain it, hash tokens."),
        "doctor": (
            "cli.doctor.command:doctor",
            "Check this machine and the configuration for problems.",
        ),
    },
    "Files of the daemon": {
        "log": ("cli.logs.log_files:log_commands", "Inspect the files of a log, and repair them."),
        "backup": (
            "cli.logs.backup:backup_commands",
            "Back up a data directory, while the daemon runs.",
        ),
    },
    "This command": {
        "context": (
            "cli.context:context_commands",
            "Manage names for daemons, with an address and a login.",
        ),
        "docs": ("cli.docs:docs", "Show a page of the documentation, or list them."),
        "errors": ("cli.errors:errors_commands", "Explain errors by number or name."),
        "completion": ("cli.completion:completion", "Print the completion script for SHELL."),
    },
    "Demonstrations": {
        "demo": (
            "demo.command:demo",
            "Demonstrate liftlog: publish, ack, kill -9, restart, read.",
        ),
        "demo-cluster": (
            "demo.command:demo_cluster",
            "Demonstrate a cluster: kill the leader, and lose no message.",
        ),
    },
}
COMMANDS = {
    name: Listed(f"liftlog.{place}", text, section)
    for section, found in _SECTIONS.items()
    for name, (place, text) in found.items()
}
ALIASES = {
    "export vacuum": "export-vacuum",
    "ls": "stream ls",
    "streams": "stream ls",
    "publish": "pub",
    "sub": "consume --from end",
    "subscribe": "consume --from end",
    "stream view": "consume --until-end",
    "stream get": "get",
    "ctx": "context",
    "purge": "stream truncate",
    "status": "info",
}
"""Names that users know from other tools."""
_EPILOG = "\b\nExit codes:\n" + "\n".join(table_lines())


class Root(Commands):
    """The command `liftlog`: runs a subcommand and converts its result to an exit code.

    A subcommand returns an ExitCode, or None for success, or raises an error.
    """

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        style = error_style_of(args)
        try:
            context = super().make_context(info_name, args, parent, **extra)
        except click.ClickException as error:
            raise _reported(error, style) from None
        context.meta[ERROR_STYLE] = style
        return context

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[:1] == ["export"] and len(args) > 1:
            if any(one == "--to" or one.startswith("--to=") for one in args):
                # Exports the stream, whatever its name.
                return click.Group.resolve_command(self, ctx, args)
            if args[1] == "vacuum":
                _, command, rest = super().resolve_command(ctx, args)
                return " ".join(args[:2]), command, rest  # the name as it was typed
            if not HELP_OPTIONS & set(args) and closest(args[1], ["vacuum"]):
                raise click.UsageError(
                    f"Did you mean 'liftlog export vacuum'? To export the stream {args[1]!r}, say "
                    "where: --to DIR.",
                    ctx,
                )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except click.exceptions.Exit:
            raise
        except click.ClickException as error:
            raise _reported(error, error_style()) from None
        except (KeyboardInterrupt, click.Abort):
            code = ExitCode.INTERRUPTED
        except BrokenPipeError:
            silence_closed_output()
            code = ExitCode.PIPE_CLOSED
        except OSError as error:
            code = report(error, debug=debug_wanted())
            silence_closed_output()  # stdout is on a full disk: buffered data cannot be written
        except Exception as error:  # noqa: BLE001  # the last resort: words instead of a traceback
            suggest_stream(error)
            code = report(error, debug=debug_wanted())
        raise click.exceptions.Exit(code or ExitCode.OK)


def _reported(
    error: click.ClickException, style: str
) -> click.ClickException | click.exceptions.Exit:
    """Report an error in the command line. click prints the error for people, and this function
    prints it for programs."""
    if style == "table":
        return error
    problem = Problem(error.format_message(), ExitCode(error.exit_code))
    return click.exceptions.Exit(report(problem, style=style))


@click.group(
    cls=Root,
    listed=COMMANDS,
    aliases=ALIASES,
    epilog=_EPILOG,
    context_settings={"help_option_names": sorted(HELP_OPTIONS)},
)
@click.version_option(version_and_commit(), message="%(prog)s %(version)s")
@server_options
@debug_option
def cli() -> None:
    """A durable log for NATS.

    liftlog records the messages of chosen NATS subjects on disk, acks them after fsync, and
    serves them to consumers over a socket. See it at work: `liftlog demo`.
    """
