"""`liftlog completion`: scripts that let a shell complete commands, options and stream names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option
from liftlog.cli.lib.output import write_text
from liftlog.cli.lib.problems import Problem

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_LIFTLOG_COMPLETE"


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(_SHELLS))
@debug_option
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    The script completes commands, options, and the names of streams and consumers. It requests the
    names from the daemon at LIFTLOG_SERVER. If the daemon does not answer within a second, it
    offers no names.

    \b
    Examples:
      liftlog completion bash > ~/.local/share/bash-completion/completions/liftlog
      liftlog completion zsh > "${fpath[1]}/_liftlog"
      liftlog completion fish > ~/.config/fish/completions/liftlog.fish
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise Problem(f"there is no completion for {shell}", ExitCode.USAGE)
    root = context.find_root().command
    write_text(kind(root, {}, "liftlog", _VARIABLE).source() + "\n")
