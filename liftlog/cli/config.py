"""`liftlog config`: init, check, show, schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_format, output_option
from liftlog.cli.lib.output import print_table, to_json, write_object, write_objects, write_text
from liftlog.cli.lib.problems import Problem, note, warn
from liftlog.cli.lib.text import plural, printable
from liftlog.errors import ConfigError

if TYPE_CHECKING:
    from liftlog.settings import Settings
    from liftlog.settings.checks import Caution
    from liftlog.settings.load import Sources

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def settings_options(command: Decorated) -> Decorated:
    """Add --config and --set, as for `liftlog serve`."""
    command = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set one setting, as for `liftlog serve`. Can be repeated.",
    )(command)
    return click.option(
        "--config",
        "-c",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="LIFTLOG_CONFIG",
        help="YAML file with the settings. [env: LIFTLOG_CONFIG]",
    )(command)


@click.group(cls=Commands, name="config")
@output_option
@debug_option
def config_commands() -> None:
    """Write, check and explain the daemon's configuration."""


@config_commands.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@debug_option
def init(file: Path | None) -> None:
    """Write a new configuration file with comments.

    The file has every setting with its meaning and default, as a comment. Without FILE, the command
    prints the content. The command never overwrites an existing file.

    \b
    Example:
      liftlog config init liftlog.yaml
    """
    from liftlog.settings.generated import render_template

    text = render_template()
    if file is None:
        write_text(text)
        return
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise Problem(f"{file} exists", ExitCode.CONFLICT, hint="name another file") from None
    note(f"{file} written; after your changes run: liftlog config check -c {file}")


@config_commands.command()
@settings_options
@output_option
@debug_option
def check(config: Path | None, overrides: tuple[str, ...]) -> ExitCode:
    """Check file, environment and --set, as `liftlog serve` does.

    The check includes the ACL file and the certificate that the settings name. The command reports
    all errors at once, each with its path and its source. If there are errors, the exit code is 3.
    The command prints warnings for settings that are valid but probably a mistake, for example
    tokens on a network without TLS, or an expired certificate.

    \b
    Examples:
      liftlog config check -c /etc/liftlog/liftlog.yaml
      liftlog config check -c /etc/liftlog/liftlog.yaml && systemctl restart liftlog
    """
    style = output_format()
    try:
        settings, _ = _load(config, overrides)
        warnings = list(map(str, _cautions(settings)))
    except ConfigError as error:
        if style == "table":
            raise
        findings = error.details.get("findings")
        listed = findings if isinstance(findings, list) else [error.message]
        write_object({"ok": False, "findings": _plain(listed), "warnings": []}, style)
        return ExitCode.CONFIG
    if style == "table":
        names = ", ".join(settings.streams) or "none"
        for one in warnings:
            warn(one)
        click.echo(f"ok: {plural(len(settings.streams), 'stream')} configured ({names})")
    else:
        write_object({"ok": True, "findings": [], "warnings": warnings}, style)
    return ExitCode.OK


def _plain(findings: list[Any]) -> list[Any]:
    """Convert the findings of an ACL check, which are tuples, to plain values."""
    return [one if isinstance(one, (dict, str)) else str(one) for one in findings]


def _cautions(settings: Settings) -> Iterator[Caution]:
    """Yield the warnings about these settings. Raises ConfigError for an ACL file or a certificate
    that keeps the daemon from starting."""
    from liftlog.settings.checks import cautions
    from liftlog.settings.load import load_policy

    yield from cautions(settings, load_policy(settings.acl.file) if settings.acl.file else None)
    if settings.pull.tls.cert is not None:
        from liftlog.server.pull.certificates import check_pull_tls

        found = check_pull_tls(settings.pull.tls)
        if found is not None:
            yield found


@config_commands.command()
@click.option("--origin", is_flag=True, help="One line per setting, with the source of its value.")
@click.option(
    "--all", "show_all", is_flag=True, help="With --origin: include settings at their default."
)
@settings_options
@output_option
@debug_option
def show(origin: bool, show_all: bool, config: Path | None, overrides: tuple[str, ...]) -> None:
    """Show the settings that `liftlog serve` would use.

    The output is YAML, unless --output names another format. Passwords, tokens and the credentials
    in URLs are hidden. --origin shows the source of each value: the line of the file, the
    variable, the option, or `default`.

    \b
    Examples:
      liftlog config show -c /etc/liftlog/liftlog.yaml
      liftlog config show --origin --set nats.servers=nats://a:4222
    """
    style = output_format()
    settings, sources = _load(config, overrides)
    if not origin:
        write_object(settings.to_yaml_dict(), "yaml" if style == "table" else style)
        return
    rows = list(_leaves(settings.to_yaml_dict(), sources, ()))
    if not show_all:
        rows = [row for row in rows if row["origin"] != "default"]
    if style != "table":
        write_objects(rows, style)
    elif rows:
        shown = [(row["key"], _shown(row["value"]), printable(row["origin"])) for row in rows]
        print_table(("SETTING", "VALUE", "FROM"), shown)
    else:
        note("All settings are at their defaults; --all shows them.")


def _load(config: Path | None, overrides: tuple[str, ...]) -> tuple[Settings, Sources]:
    from liftlog.settings.load import load_with_sources

    return load_with_sources(config, os.environ, overrides)


def _leaves(
    values: dict[str, Any], sources: Sources, at: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    from liftlog.settings.keys import dotted

    for key, value in values.items():
        path = (*at, key)
        if isinstance(value, dict):
            yield from _leaves(value, sources, path)
        else:
            origin = sources.origin_of_setting(path) or "default"
            yield {"key": dotted(path), "value": value, "origin": origin}


def _shown(value: Any) -> str:
    return printable(value if isinstance(value, str) else to_json(value))


@config_commands.command()
@output_option
@debug_option
def schema() -> None:
    """Print the JSON schema of the configuration file.

    Editors use the schema to check and complete the file. `liftlog config check` finds more errors
    than the schema.

    \b
    Example, for the YAML language server:
      liftlog config schema > liftlog.schema.json
      # yaml-language-server: $schema=liftlog.schema.json
    """
    from liftlog.settings.generated import json_schema

    style = output_format()
    write_object(json_schema(), "json" if style == "table" else style)
