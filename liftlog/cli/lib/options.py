"""Options that many commands share, and their values. --server, --output and others can be given
before or after the name of the command."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftlog.cli.lib.command_groups import SharedOption
from liftlog.cli.lib.contexts import Contexts, file_of, read_contexts
from liftlog.cli.lib.shapes import Path, parse_fields, parse_template
from liftlog.errors import InvalidArgument

if TYPE_CHECKING:
    from liftlog.client import SyncClient
    from liftlog.tls import ClientTls

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_SERVER = "tcp://127.0.0.1:9292"
OUTPUTS = ("table", "wide", "json", "jsonl", "yaml", "csv")
TLS_FILES = ("ca", "cert", "key")
FOR_PROGRAMS = ("json", "jsonl", "yaml")
ERROR_STYLE = "liftlog.error_style"
_ASKED = "liftlog.asked"
_CONTEXTS = "liftlog.contexts"


def _shared(*names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """Create an option whose value applies to the whole command line. If it is given several times,
    the last value counts.

    The code that uses the value reads the environment itself: click would prefer the environment
    variable to an option that stands before the name of the subcommand.
    """

    def keep(context: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is not None and value is not False:
            context.meta[f"liftlog.{parameter.name}"] = value

    return click.option(*names, cls=SharedOption, expose_value=False, callback=keep, **attributes)


def given_value(name: str) -> Any:
    """Return the value on the command line; None if it is not given."""
    return click.get_current_context().meta.get(f"liftlog.{name}")


def _kept(name: str, variable: str) -> Any:
    """Return a value of the daemon's address or login, from the command line, the context or the
    environment."""
    value = given_value(name)
    if value is None:
        value = _context_in_use().get(name)
    return value if value is not None else os.environ.get(variable) or None


def context_value(name: str, *, explicit: bool = False) -> str | None:
    """Return a field of the context in use. With `explicit`, only a context that the command line
    names is used."""
    if explicit and given_value("context") is None:
        return None
    return _context_in_use().get(name)


def _context_in_use() -> dict[str, str]:
    """Return the fields of the context in use; empty if there is none. A context that was chosen
    earlier is ignored if the command names a server, because a login must only be sent to its own
    server."""
    meta = click.get_current_context().meta
    name = meta.get("liftlog.context")
    if name is None:
        if "liftlog.server" in meta or os.environ.get("LIFTLOG_SERVER"):
            return {}
        name = os.environ.get("LIFTLOG_CONTEXT") or None
    found = meta.get(_CONTEXTS)
    if found is None:
        found = meta[_CONTEXTS] = read_contexts(file_of(os.environ))
    assert isinstance(found, Contexts)
    if name is None and not found.current:
        return {}
    return found.get(name or found.current)


def filter_options(command: Decorated) -> Decorated:
    """Add --subject, --key and --header, each repeatable: `subjects`, `keys`, `headers`."""
    command = click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Only records with this header. Can be repeated: records with all of the headers.",
    )(command)
    command = click.option(
        "--key",
        "keys",
        multiple=True,
        metavar="KEY",
        help="Only records with this key. Can be repeated: records with any of the keys.",
    )(command)
    return click.option(
        "--subject",
        "subjects",
        multiple=True,
        metavar="PATTERN",
        help="Only records whose subject matches this pattern, with NATS wildcards. Can be "
        "repeated: records that match any of the patterns.",
    )(command)


def output_option(command: Decorated) -> Decorated:
    """Add --output, --fields, --template and --quiet."""
    command = _shared(
        "--quiet",
        "-q",
        is_flag=True,
        help="Do not print remarks and confirmations. Print only the names of listed objects.",
    )(command)
    command = _shared(
        "--template",
        metavar="TEXT",
        help="Print one line per object; {{.FIELD}} is replaced by a field: '{{.name}} has "
        "{{.record_count}} records'.",
    )(command)
    command = _shared(
        "--fields",
        metavar="LIST",
        help="Only these fields of each object, separated by commas, in any output format. A "
        "path such as settings.acks or value.items[0].sku names a value inside a map, a list or "
        "a text in JSON.",
    )(command)
    return _shared(
        "--output",
        "-o",
        type=click.Choice(OUTPUTS),
        help="Output format: table and wide are for people, json and yaml are one document, "
        "jsonl is one JSON object per line, csv has a heading. [env: LIFTLOG_OUTPUT; default: "
        "table]",
    )(command)


def server_options(command: Decorated) -> Decorated:
    """Add --server, --context, --token, --nkey, --output, and --tls-... for addresses tls://..."""
    command = output_option(command)
    command = _shared(
        "--context",
        metavar="NAME",
        help="Use the address and login of this context, which `liftlog context add` has stored. "
        "[env: "
        "LIFTLOG_CONTEXT; default: the context of `liftlog context use`]",
    )(command)
    for name, what in (
        ("key", "Private key file of the client certificate."),
        ("cert", "Client certificate file, for a daemon that requires one."),
        ("ca", "File with the CA certificates to trust. Default: the certificates of the system."),
    ):
        command = _shared(
            f"--tls-{name}",
            metavar="FILE",
            help=f"{what} [env: LIFTLOG_TLS_{name.upper()}]",
        )(command)
    command = _shared(
        "--token",
        metavar="TOKEN",
        help="Token of a principal in the daemon's ACL file. Prefer the environment variable: "
        "other users can see the command line. [env: LIFTLOG_TOKEN]",
    )(command)
    command = _shared(
        "--nkey",
        metavar="FILE",
        help="File with the seed of a user's nkey, plain or .creds. The client signs the login "
        "with the seed, and never sends the seed. [env: LIFTLOG_NKEY]",
    )(command)
    return _shared(
        "--server",
        metavar="URL",
        help="The daemon's pull address, HOST:PORT, tls://HOST:PORT or unix:///PATH. "
        f"[env: LIFTLOG_SERVER; default: {DEFAULT_SERVER}]",
    )(command)


def debug_option(command: Decorated) -> Decorated:
    return _shared("--debug", is_flag=True, help="Show the traceback of an error.")(command)


def debug_wanted() -> bool:
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get("liftlog.debug"))


def quiet() -> bool:
    """True if only data and errors are to be printed."""
    context = click.get_current_context(silent=True)
    return bool(context and context.meta.get("liftlog.quiet"))


def error_style_of(arguments: Sequence[str]) -> str:
    """Return the format of errors, `table` for people or one of FOR_PROGRAMS. The function searches
    the words of the command line for it, because the command line may have errors that prevent
    parsing."""
    chosen = os.environ.get("LIFTLOG_OUTPUT", "")
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if word == "--":
            break
        if word in ("-o", "--output"):
            chosen = following
        elif word.startswith("--output="):
            chosen = word.partition("=")[2]
        elif word.startswith("-o") and not word.startswith("--"):
            chosen = word[2:].removeprefix("=")
    return chosen if chosen in FOR_PROGRAMS else "table"


def error_style() -> str:
    """Return the format of errors of the running command."""
    context = click.get_current_context(silent=True)
    return str(context.meta.get(ERROR_STYLE, "table")) if context else "table"


def shared_value(name: str, variable: str) -> str | None:
    """Return the value of a shared option or of its environment variable."""
    found = _kept(name, variable)
    return None if found is None else str(found)


def want_json() -> None:
    """Act as if --output json had been given last."""
    click.get_current_context().meta["liftlog.output"] = "json"


def output_format() -> str:
    """Return the output format: `template` or `fields` if the user chose one of these, else one of
    OUTPUTS. For `wide` the result is `table`, and `wide_wanted` returns True."""
    chosen = _chosen_output()
    if chosen_template() is not None:
        return "template"
    if chosen not in ("table", "wide"):
        return chosen
    return "fields" if chosen_fields() else "table"


def chosen_fields() -> list[Path]:
    """Return the fields of --fields; empty without it. Raises InvalidArgument."""
    context = click.get_current_context(silent=True)
    text = context.meta.get("liftlog.fields") if context else None
    return [] if text is None else _parsed_fields(str(text))


def chosen_template() -> Callable[[Any], str] | None:
    """Return the function that converts an object to its line, if --template was given. Raises
    InvalidArgument."""
    context = click.get_current_context(silent=True)
    text = context.meta.get("liftlog.template") if context else None
    return None if text is None else parse_template(str(text))


@lru_cache(maxsize=1)
def _parsed_fields(text: str) -> list[Path]:
    return parse_fields(text)


def wide_wanted() -> bool:
    """True if tables show all their columns."""
    return _chosen_output() == "wide"


def _chosen_output() -> str:
    chosen = str(given_value("output") or os.environ.get("LIFTLOG_OUTPUT") or "table")
    if chosen not in OUTPUTS:
        raise click.UsageError(
            f"LIFTLOG_OUTPUT={chosen!r} is not one of {', '.join(OUTPUTS)}.",
            click.get_current_context(),
        )
    return chosen


def connect_to_server(default: str = DEFAULT_SERVER, **options: Any) -> SyncClient:
    """Connect to the daemon that --server and --token name, or else to the one at `default`;
    `options` are the options of `connect_sync`."""
    from liftlog.client.opening import connect_sync

    context = click.get_current_context()
    context.meta.setdefault(_ASKED, context.params.get("stream") or context.params.get("name"))
    address = ",".join(
        map(full_address, str(_kept("server", "LIFTLOG_SERVER") or default).split(","))
    )
    token = _kept("token", "LIFTLOG_TOKEN")
    nkey = _kept("nkey", "LIFTLOG_NKEY")
    return connect_sync(address, token=token, nkey=nkey, tls=_tls_for(address), **options)


def connect_at(address: str, **options: Any) -> SyncClient:
    """Connect to the daemon at `address`, for an address that no option names. The login comes from
    the command line or the environment. The login of a context is not used, because it belongs to
    the context's own server."""
    from liftlog.client.opening import connect_sync

    token = given_value("token") or os.environ.get("LIFTLOG_TOKEN") or None
    nkey = given_value("nkey") or os.environ.get("LIFTLOG_NKEY") or None
    return connect_sync(address, token=token, nkey=nkey, tls=_tls_for(address), **options)


def full_address(text: str) -> str:
    """Expand the short forms `host:9292`, `host` and `/run/x.sock`; other addresses stay
    unchanged."""
    word = text.strip()
    if not word or "://" in word:
        return word
    return f"unix://{word}" if word.startswith("/") else f"tcp://{word}"


def find_asked() -> str | None:
    """Return the stream that the command line names, if a daemon was asked about that stream."""
    context = click.get_current_context(silent=True)
    asked = context.meta.get(_ASKED) if context else None
    return asked if isinstance(asked, str) else None


def duration_of(option: str, text: str) -> float:
    """Parse a duration to seconds. Raises InvalidArgument, which names the option."""
    from liftlog.settings import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidArgument(f"{option} {text}: {error}") from None


def _tls_for(address: str) -> ClientTls:
    context = click.get_current_context()
    if not address.startswith("tls://"):
        # An environment variable may be meant for other addresses, while an option is meant for
        # this address.
        given = [name for name in TLS_FILES if f"liftlog.tls_{name}" in context.meta]
        if given:
            raise click.UsageError(
                f"--tls-{given[0]} is for a server tls://HOST:PORT, not {address!r}.", context
            )
        return None
    from liftlog.tls import client_context

    ca, cert, key = (_kept(f"tls_{name}", f"LIFTLOG_TLS_{name.upper()}") for name in TLS_FILES)
    return client_context(ca, cert=cert, key=key)


# In YAML `>` alone is an empty block of text, and `*` an alias.
_NOT_YAML = tuple(">|*&!%@`")


def split_nodes(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str]:
    """Split the value of an option into names of nodes (callback of click)."""
    names = [] if value is None else [name.strip() for name in value.split(",")]
    if not all(names):
        raise click.BadParameter("expected names of nodes, separated by commas")
    return names


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """`retention.max_age=7d` -> {"retention": {"max_age": "7d"}}; values are read as YAML.

    Raises InvalidArgument for anything else. The daemon checks keys and
    values.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        path = key.strip().split(".")
        if not equals or "" in path:
            raise InvalidArgument(
                f"--set {assignment}: expected KEY=VALUE",
                hint="for example --set retention.max_messages=1000",
            )
        section = settings
        for part in path[:-1]:
            inner = section.setdefault(part, {})
            if not isinstance(inner, dict):
                raise InvalidArgument(f"--set {key}: {part!r} was given a value before")
            section = inner
        section[path[-1]] = _value(key, text)
    return settings


def _value(key: str, text: str) -> Any:
    if text.strip().startswith(_NOT_YAML):
        return text.strip()
    from acl.document import read_document

    document = read_document(text)
    if document.findings:
        raise InvalidArgument(f"--set {key}: {document.findings[0][2]}")
    value = document.value
    # YAML converts dates and the like, but settings have no such types, and a subject may look like
    # one.
    plain = value is None or isinstance(value, (str, bool, int, float, list, dict))
    return value if plain else text
