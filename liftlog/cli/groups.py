"""A group of commands that knows aliases, keeps its order and guesses what a typo meant."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import click


class Commands(click.Group):
    def __init__(self, *args: Any, aliases: Mapping[str, str] | None = None, **attributes: Any):
        super().__init__(*args, **attributes)
        self.aliases = dict(aliases or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they were added, not by alphabet

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, self.aliases.get(name, name))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None:
            close = get_close_matches(name, [*self.commands, *self.aliases], n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            known = ", ".join(self.commands)
            raise click.UsageError(f"There is no command {name!r}.{guess} Known: {known}.", ctx)
        return super().resolve_command(ctx, args)
