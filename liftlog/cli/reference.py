"""The reference page of the command line, made from the commands themselves.

python -m liftlog.cli.reference > docs/reference/cli.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from liftlog.cli.exit_codes import MEANINGS
from liftlog.cli.main import cli

_HEAD = """\
# Command line

<!-- Made by `python -m liftlog.cli.reference`; a test fails when this page is out of date. -->

`liftlog COMMAND --help` prints what stands here. `--server`, `--token`, `--output` and `--debug`
can stand before or after the command's name.

Data goes to stdout; errors, warnings and remarks go to stderr. An error says what happened and
what to do next; `--debug` adds the traceback.

Tables are for people and may change. Behind a pipe no line of a table is cut or wrapped.

Completion for bash (zsh and fish have `zsh_source` and `fish_source`):
`eval "$(_LIFTLOG_COMPLETE=bash_source liftlog)"`
"""

_OUTPUT = """\
## Output for programs

`--output json` prints one JSON document, `--output jsonl` one object per line. Fields may be
added; those named here stay.

| command | one object is |
|---|---|
| `consume`, `log dump --values` | a record |
| `pub` | what one message was answered |
| `stream ls`, `stream info`, `stream create`, `stream for` | a stream: settings and offsets |
| `stream pause`, `stream resume`, `stream read-only` | the stream |
| `stream update` | `differences`, `removal` by retention, `dry_run`, and the `stream` |
| `stream truncate` | how many `records` go at most, and the bounds |
| `stream lease ls`, `acquire`, `renew` | a lease on [`low`, `high`) |
| `info` | the daemon |
| `offsets ls`, `offsets get` | a checkpoint, with its `lag` (`null` where `problem` says why) |
| `offsets seek`, `offsets rm` | `before`, `offset`, `moved_by`, `lag`, and whether it was `done` |
| `log dump` | a record batch: its header and where it lies |
| `log verify` | what was found in one stream |
| `log repair` | the steps that one stream needs or needed; `done` says whether they were taken |
| `log reindex` | an index that is made anew |

A record:

| field | holds |
|---|---|
| `offset` | the offset |
| `timestamp`, `timestamp_ns` | when the daemon received it: UTC, and nanoseconds since 1970 |
| `subject` | NATS subject; what is not UTF-8 is written as `\\\\xNN` |
| `key`, `value` | text; base64 if it is not UTF-8; `null` for no key and for a tombstone |
| `key_encoding`, `value_encoding` | `base64`, only there if the field beside it is base64 |
| `headers` | values by name; a list of values where a name occurs more than once |
| `stream` | name of the stream, only in `log dump` |

An answer of `pub` has `subject` and either the fields of the ack (`stream`, `seq`, perhaps
`duplicate`) or `problem`.
"""


def render() -> str:
    """The page as Markdown."""
    sections = [_HEAD, "## Exit codes\n", _exit_codes(), _OUTPUT, "## Options of every command\n"]
    sections.append(_options(cli, shared=True))
    for path, command in commands():
        sections.append(f"## {path}\n")
        sections.append(_command(path, command))
    return "\n".join(sections)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name; groups stand before what is in them."""
    yield from _commands("liftlog", cli)


def _commands(prefix: str, group: click.Group) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        path = f"{prefix} {name}"
        yield path, command
        if isinstance(command, click.Group):
            yield from _commands(path, command)


def _exit_codes() -> str:
    rows = [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


def _command(path: str, command: click.Command) -> str:
    parts = [(command.help or "").strip() + "\n"]
    if not isinstance(command, click.Group):
        arguments = " ".join(_metavar(p) for p in command.params if isinstance(p, click.Argument))
        parts.insert(0, f"```\n{path} [OPTIONS] {arguments}".rstrip() + "\n```\n")
    options = _options(command, shared=False)
    if options:
        parts.append(options)
    return "\n".join(parts)


def _metavar(argument: click.Parameter) -> str:
    name = argument.metavar or (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def _options(command: click.Command, *, shared: bool) -> str:
    """A table of options; the shared ones stand once for all commands."""
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.expose_value == shared:
            continue
        if option.name == "version":
            continue
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        value = "" if option.is_flag else f" {option.metavar or _choices(option)}"
        rows.append(f"| {names}{value} | {_escape(option.help or '')} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n" if rows else ""


def _choices(option: click.Option) -> str:
    return " or ".join(option.type.choices) if isinstance(option.type, click.Choice) else ""


def _escape(text: str) -> str:
    """For a cell: placeholders and wildcards are no markup."""
    escaped = text.replace("|", "\\|")
    return re.sub(r"(?<!`)(\{n\}|\*)", r"`\1`", escaped)


if __name__ == "__main__":
    sys.stdout.write(render())
