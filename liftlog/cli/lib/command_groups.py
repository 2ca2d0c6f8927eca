"""Commands and groups of commands. A group imports a command only when it is used, has sections in
its help, accepts aliases, answers `help`, and corrects typing errors."""

from __future__ import annotations

import importlib
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

HELP = "help"
HELP_OPTIONS = {"-h", "--help"}
_OTHERS = "Commands"


class SharedOption(click.Option):
    """An option that every command has. The help of a command shows these options last."""


class Listed(NamedTuple):
    """A command that is not imported yet. `place` is MODULE:ATTRIBUTE; `section` is its heading in
    the help of the group."""

    place: str
    short_help: str
    section: str = _OTHERS

    def load(self) -> click.Command:
        module, _, attribute = self.place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), self.place
        return command


def _write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the options of the command itself, then the shared options. Only `liftlog --help`
    explains the shared options. In the help of a command their number would hide the command's own
    options."""
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        found = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
        if found is not None:
            (shared if isinstance(parameter, SharedOption) else own).append(found)
    if own:
        with formatter.section("Options"):
            formatter.write_dl(own)
    if not shared:
        return
    if ctx.parent is None:
        with formatter.section("Options of every command"):
            formatter.write_dl(shared)
        return
    # Lines are broken between options, not between an option and its value.
    names = " ".join(option.replace(" ", "\xa0") for option, _ in shared)
    lines = textwrap.wrap(names, formatter.width - 2, break_on_hyphens=False)
    with formatter.section("Options of every command (see `liftlog --help`)"):
        formatter.write("".join(f"  {line}\n".replace("\xa0", " ") for line in lines))


class Command(click.Command):
    """A command whose help shows the shared options last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_options(self, ctx, formatter)


class Commands(click.Group):
    """A group of commands. `listed` maps names to commands, in the order of the help. Neither help
    nor completion of names imports the commands.

    `aliases` are other names, of one or two words. Each stands for a command of this group,
    possibly with arguments.
    """

    command_class = Command

    def __init__(
        self,
        *args: Any,
        aliases: Mapping[str, str] | None = None,
        listed: Mapping[str, Listed] | None = None,
        **attributes: Any,
    ):
        super().__init__(*args, **attributes)
        self.aliases = dict(aliases or {})
        self.listed = dict(listed or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return names in the order of the table, then in the order in which they were added."""
        return [*self.listed, *(name for name in self.commands if name not in self.listed)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = self.aliases.get(name, name)
        if name in self.listed and name not in self.commands:
            self.add_command(self.listed[name].load(), name)
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0] if args else ""
        for alias in (" ".join(args[:2]), word):
            if alias in self.aliases:
                args = [*self.aliases[alias].split(), *args[alias.count(" ") + 1 :]]
                return super().resolve_command(ctx, args)
        if word == HELP:
            return HELP, _help_command(), args[1:]
        elif word and not word.startswith("-") and self.get_command(ctx, word) is None:
            self._refuse(ctx, word)
        return super().resolve_command(ctx, args)

    def _refuse(self, ctx: click.Context, word: str) -> None:
        from difflib import get_close_matches

        names = self.list_commands(ctx)
        close = get_close_matches(word, [*names, *self.aliases], n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        known = ", ".join(names)
        raise click.UsageError(f"There is no command {word!r}.{guess} Known: {known}.", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, with all names in one column."""
        sections: dict[str, list[tuple[str, str]]] = {}
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        for name in names:
            section = self.listed[name].section if name in self.listed else _OTHERS
            row = (name.ljust(width), self._short_help(name))
            sections.setdefault(section, []).append(row)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names of commands, and options as for every command."""
        from click.shell_completion import CompletionItem

        named = [
            CompletionItem(name, help=self._short_help(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def _short_help(self, name: str) -> str:
        found = self.listed.get(name)
        return self.commands[name].get_short_help_str(60) if found is None else found.short_help


def _help_command() -> click.Command:
    """Return the command `help`: `liftlog help stream ls` and `liftlog stream help ls` mean
    `liftlog stream ls --help`."""

    def show(words: tuple[str, ...]) -> None:
        context = click.get_current_context().parent
        assert context is not None
        left = list(words)
        while left and isinstance(context.command, click.Group):
            name, command, left = context.command.resolve_command(context, left)
            assert command is not None
            context = click.Context(command, info_name=name, parent=context)
        click.echo(context.get_help())

    return click.Command(HELP, callback=show, params=[click.Argument(["words"], nargs=-1)])
