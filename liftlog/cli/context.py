"""`liftlog context`: add, choose, list, show and remove names for daemons and their logins."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.contexts import (
    FIELDS,
    PATHS,
    Contexts,
    check_name,
    file_of,
    read_contexts,
    write_contexts,
)
from liftlog.cli.lib.options import (
    DEFAULT_SERVER,
    debug_option,
    full_address,
    given_value,
    output_format,
    output_option,
    quiet,
    server_options,
)
from liftlog.cli.lib.output import (
    print_pairs,
    print_table,
    say,
    write_lines,
    write_object,
    write_objects,
)
from liftlog.cli.lib.problems import note, warn
from liftlog.cli.lib.text import printable

_HIDDEN = "(hidden)"


@click.group(
    cls=Commands,
    name="context",
    aliases={
        "list": "ls",
        "save": "add",
        "create": "add",
        "edit": "add",
        "select": "use",
        "show": "info",
        "delete": "rm",
    },
)
@output_option
@debug_option
def context_commands() -> None:
    """Manage names for daemons, with an address and a login.

    Commands use the context of --context or LIFTLOG_CONTEXT, or otherwise the context that you have
    chosen with `use`. --server overrides every context. LIFTLOG_SERVER overrides every context
    except the context of --context. The contexts are stored in ~/.config/liftlog/contexts.json,
    which only you can read.
    """


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    found = read_contexts(file_of(os.environ)).found
    return [name for name in found if name.startswith(incomplete)]


@context_commands.command()
@click.argument("name")
@click.option("--nats", metavar="URL", help="NATS server that `liftlog pub` uses.")
@click.option(
    "--creds",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="NATS credentials file for `liftlog pub`.",
)
@click.option("--use", "use_it", is_flag=True, help="Choose the context at once.")
@server_options
@debug_option
def add(name: str, nats: str | None, creds: str | None, use_it: bool) -> None:
    """Add the context NAME, or replace it.

    The context contains --server, --token, --nkey and the --tls options of this command line.
    Prefer --nkey, because a token is stored in clear text. The first context is chosen at once.

    \b
    Examples:
      liftlog context add local --server localhost:9292
      liftlog context add prod --server tls://logs.example --nkey ~/ops.nk --use
    """
    from liftlog.client.connecting.target import Address

    check_name(name)
    given = {field: given_value(field) for field in FIELDS} | {"nats": nats, "creds": creds}
    fields = {field: value for field, value in given.items() if value}
    fields["server"] = ",".join(map(full_address, fields.get("server", DEFAULT_SERVER).split(",")))
    for address in fields["server"].split(","):
        Address.parse(address)
    for field in PATHS:
        if field in fields:
            fields[field] = str(Path(fields[field]).expanduser().absolute())
            if not Path(fields[field]).is_file():
                warn(f"{fields[field]} is not a file at the moment")
    file = file_of(os.environ)
    before = read_contexts(file)
    current = name if use_it or not before.current else before.current
    write_contexts(file, Contexts(before.found | {name: fields}, current))
    say(f"{printable(name)} is {printable(fields['server'])}" + _chosen_words(name, current))


def _chosen_words(name: str, current: str) -> str:
    return ", and chosen" if name == current else f"; {current} stays chosen"


@context_commands.command()
@click.argument("name", shell_complete=_complete)
@output_option
@debug_option
def use(name: str) -> None:
    """Choose the context NAME for the commands that follow.

    \b
    Example:
      liftlog context use prod
    """
    file = file_of(os.environ)
    found = read_contexts(file)
    fields = found.get(name)
    write_contexts(file, Contexts(found.found, name))
    say(f"{printable(name)} is chosen: {printable(fields['server'])}")
    for variable in ("LIFTLOG_CONTEXT", "LIFTLOG_SERVER"):
        if os.environ.get(variable):
            warn(f"{variable} is set and wins over it: unset {variable}")
            break


@context_commands.command(name="ls")
@output_option
@debug_option
def list_contexts() -> None:
    """List the contexts. The chosen context has a star.

    \b
    Example:
      liftlog context ls
    """
    style, found = output_format(), read_contexts(file_of(os.environ))
    if quiet():
        write_lines([printable(name) for name in found.found])
    elif style != "table":
        write_objects([_object(found, name) for name in found.found], style)
    elif found.found:
        rows = [
            (
                "*" if name == found.current else "",
                printable(name),
                printable(fields["server"]),
                _login(fields),
                printable(_without_login(fields.get("nats", ""))),
            )
            for name, fields in found.found.items()
        ]
        print_table(("", "NAME", "SERVER", "LOGIN", "NATS"), rows)
    else:
        note("There are no contexts. Add one: liftlog context add local --server localhost:9292")


def _login(fields: dict[str, str]) -> str:
    names = {"nkey": "nkey", "token": "token", "tls_cert": "certificate"}
    return " ".join(word for field, word in names.items() if field in fields)


def _without_login(url: str) -> str:
    """Return the URL without the password that a NATS URL may contain."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc="***@" + parts.netloc.rpartition("@")[2]).geturl()


def _object(found: Contexts, name: str) -> dict[str, object]:
    """Return a context as an object, without secrets."""
    fields = dict(found.found[name])
    if "token" in fields:
        fields["token"] = _HIDDEN
    if "nats" in fields:
        fields["nats"] = _without_login(fields["nats"])
    return {"name": name, "current": name == found.current, **fields}


@context_commands.command()
@click.argument("name", required=False, shell_complete=_complete)
@output_option
@debug_option
def info(name: str | None) -> None:
    """Show the context NAME, or the chosen one. Secrets are not shown.

    \b
    Example:
      liftlog context info prod
    """
    found, style = read_contexts(file_of(os.environ)), output_format()
    wanted = name or found.current
    found.get(wanted)
    shown = _object(found, wanted)
    if style != "table":
        write_object(shown, style)
    else:
        print_pairs([(key.replace("_", " "), printable(str(text))) for key, text in shown.items()])


@context_commands.command()
@click.argument("name", shell_complete=_complete)
@output_option
@debug_option
def rm(name: str) -> None:
    """Remove the context NAME. The command has no effect on the daemon.

    \b
    Example:
      liftlog context rm prod
    """
    file = file_of(os.environ)
    found = read_contexts(file)
    found.get(name)
    left = {other: fields for other, fields in found.found.items() if other != name}
    current = "" if found.current == name else found.current
    write_contexts(file, Contexts(left, current))
    say(f"{printable(name)} removed" + ("; none is chosen now" if not current else ""))
