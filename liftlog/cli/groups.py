"""A group of commands that imports a command when it is used, knows aliases, keeps its order and
guesses what a typo meant."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem


class Listed(NamedTuple):
    """A command that is not imported yet: `place` is MODULE:ATTRIBUTE."""

    place: str
    short_help: str

    def load(self) -> click.Command:
        module, _, attribute = self.place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), self.place
        return command


class Commands(click.Group):
    """`listed` are commands by name, in the order of the help. Help and the completion of their
    names import none of them."""

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
        """In the order of the table, then as they were added; not by alphabet."""
        return [*self.listed, *(name for name in self.commands if name not in self.listed)]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = self.aliases.get(name, name)
        if name in self.listed and name not in self.commands:
            self.add_command(self.listed[name].load(), name)
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            close = get_close_matches(name, [*names, *self.aliases], n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            known = ", ".join(names)
            raise click.UsageError(f"There is no command {name!r}.{guess} Known: {known}.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._short_help(name)) for name in self.list_commands(ctx)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, and options as for every command."""
        named = [
            CompletionItem(name, help=self._short_help(name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def _short_help(self, name: str) -> str:
        found = self.listed.get(name)
        return self.commands[name].get_short_help_str(60) if found is None else found.short_help
