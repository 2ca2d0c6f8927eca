"""Handles options that are named like a setting, in commands with --set: the error explains how to
set the setting with --set. NATS's own commands have options with these names."""

from __future__ import annotations

import click

from liftlog.cli.lib.command_groups import Command

WORDS_OF_NATS = {
    "max_msgs": "retention.max_messages",
    "max_msg_size": "max_message_bytes",
    "dupe_window": "dedupe_window",
}


class SettingsCommand(Command):
    """A command with --set KEY=VALUE for settings of a stream."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            key = setting_called(error.option_name)
            if key is None:
                raise
            raise click.UsageError(
                f"No such option {error.option_name!r}. Settings are given with --set: "
                f"--set {key}=VALUE.",
                ctx,
            ) from None


def setting_called(option: str) -> str | None:
    """Return the key of the setting that an option such as `--max-age` most probably means."""
    from liftlog.settings.keys import fields_of, section_of
    from liftlog.settings.stream import StreamSettings

    word = option.lstrip("-").replace("-", "_")
    if word in WORDS_OF_NATS:
        return WORDS_OF_NATS[word]
    keys = []
    for key, info in fields_of(StreamSettings):
        section = section_of(info)
        keys += [key] if section is None else [f"{key}.{name}" for name, _ in fields_of(section)]
    found = [key for key in keys if key.split(".")[-1] == word]
    # If two settings have this name, retention's is meant.
    return min(found, key=lambda key: not key.startswith("retention."), default=None)
