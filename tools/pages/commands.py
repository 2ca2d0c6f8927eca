"""The reference page of the command line, made from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from liftlog.cli.lib.exit_codes import MEANINGS
from liftlog.cli.root import cli

_HEAD = """\
# Command line

<!-- Made by `make pages`; a test fails when this page is out of date. -->

`liftlog COMMAND --help` prints the same text. `--server`, `--token`, `--output` and `--debug`
can be given before or after the command's name.

Data goes to stdout; errors, warnings and remarks go to stderr. An error says what happened and
what to do next; `--debug` adds the traceback.

Tables are for people and can change. Their numbers have separators, and where an offset is
expected, `1,234` can be typed too; output for programs has plain numbers. When output goes to a
pipe, lines of a table are not cut or wrapped.

`liftlog completion bash|zsh|fish` prints a script with which the shell completes commands, options,
and the names of streams and consumers.
"""

_OUTPUT = """\
## What to read

`liftlog consume --from` (or `--offset`) takes where to start and, after a colon, where to stop; the
stop is exclusive.

| form | reads |
|---|---|
| `start` or `earliest`, `end` or `latest` | from the first record, or only new records |
| `42` | from offset 42 |
| `-100`, `+100` | the last 100 offsets and all later ones; all after the first 100 |
| `@TIME` | from the first record stamped at or after it |
| `10:20`, `:20`, `10:` | offsets 10 to 19; up to 19; the same as `10` |
| `:end`, `-100:end`, `@-1h:end` | up to the end of the stream when the command starts |
| `@-1h:-5m`, `@2026-01-31:2026-02-01`, `@2026-01-31:+6h` | from one time to another |

A TIME is a date, optionally with a time of day (local unless it names a zone), a time ago
(`-1h30m`), `now`, or seconds since 1970. After compaction some offsets have no record, so `-100`
can find fewer records.

## Output for programs

`--output json` prints one JSON document, `--output yaml` the same as YAML, `--output jsonl` one
object per line, `--output csv` a row for each, with a heading. `--output wide` is a table with more
columns. New fields can be added; the fields listed here stay.

`--fields` chooses fields, in any format; `--template` makes a line of each object. A path is one
of jq, without its functions: `settings.retention.max_age`, `value.items[0].sku`. It leads into
maps, lists and texts that hold JSON. What is not there is empty, or `null` in JSON.

With `json`, `jsonl` or `yaml` an error is an object on stderr: `error` holds `name`, `code` (the
number of the pull protocol, or `null`), `exit_code`, `message`, `why` and `next`.

| command | one object is |
|---|---|
| `consume`, `log dump --values` | a record |
| `pub` | the answer to one message |
| `stream ls`, `stream info`, `stream create`, `stream for` | a stream: settings and offsets |
| `stream pause`, `stream resume`, `stream read-only` | the stream |
| `stream update` | `differences`, `removal` by retention, `dry_run`, and the `stream` |
| `stream truncate` | the maximum number of `records` to delete, and the bounds |
| `stream lease ls`, `acquire`, `renew` | a lease on [`low`, `high`) |
| `info` | the daemon |
| `top` | a stream: its rates, and the `lag` of its `slowest` consumer |
| `doctor` | a check: `status` (`ok`, `warning`, `failed`, `skipped`), `detail`, `advice` |
| `health` | `ready`, and the daemon's report, with `problems` and, over HTTP, `checks` |
| `config check` | `ok` and the `findings`, each with `path`, `problem` and `origin` |
| `config show` | the settings; with `--origin` a setting: `key`, `value`, `origin` |
| `errors ls`, `errors lookup` | an error: `code`, `name`, `exit_code`, `meaning`, `advice` |
| `offsets ls`, `offsets get` | a checkpoint, with its `lag` (if it is `null`, `problem` says why) |
| `acl who` | a `principal`, its `subjects` (`null` for all) and the `explanation` |
| `offsets seek`, `offsets rm` | `before`, `offset`, `moved_by`, `lag`, and whether it was `done` |
| `import jetstream`, `jsonl`, `parquet` | `source`, `copied`, the number of the `last` message |
| `reload`, `drain` | the `pid`, the `signal`, and of `drain` whether it `ended` |
| `context ls`, `context info` | a context, without secrets |
| `log dump` | a record batch: its header and its position |
| `log verify` | the findings in one stream |
| `log repair` | the steps that one stream needs or needed; `done` says whether they were done |
| `log reindex` | an index that is missing or wrong; `entries` is null until it is rebuilt |
| `backup create`, `info` | the backup, with its `streams` |
| `backup verify` | the same, with `ok` and `problems` |
| `backup restore` | `data_dir`, and `streams`, each with its new `leader_epoch` and bounds |

A record:

| field | holds |
|---|---|
| `offset` | the offset |
| `timestamp`, `timestamp_ns` | when the daemon received it: UTC, and nanoseconds since 1970 |
| `subject` | NATS subject; bytes that are not UTF-8 are written as `\\\\xNN`, also by a copy |
| `key`, `value` | text; base64 if it is not UTF-8; `null` for no key and for a tombstone |
| `key_encoding`, `value_encoding` | `base64`; only present if the corresponding field is base64 |
| `headers` | values by name; a list if a name has several values. Names are case-sensitive |
| `headers_base64` | the header block; only present if `headers` does not hold each line as it is |
| `stream` | name of the stream, only in `log dump` |

An answer of `pub` has `subject`, and either the fields of the ack (`stream`, `seq`, and
`duplicate` if it is one) or `problem`.
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
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        path = f"{prefix} {name}"
        yield path, command
        if isinstance(command, click.Group):
            yield from _commands(path, command)


def _exit_codes() -> str:
    rows = [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


def _command(path: str, command: click.Command) -> str:
    parts = [_help(command.help or "")]
    if not isinstance(command, click.Group):
        arguments = " ".join(_metavar(p) for p in command.params if isinstance(p, click.Argument))
        parts.insert(0, f"```\n{path} [OPTIONS] {arguments}".rstrip() + "\n```\n")
    options = _options(command, shared=False)
    if options:
        parts.append(options)
    return "\n".join(parts)


def _help(text: str) -> str:
    """Paragraphs that click leaves as they are, marked by \\b, are examples: a block of code."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, *lines = paragraph.split("\n")[1:]
            code = "\n".join(line.removeprefix("  ") for line in lines)
            paragraph = f"{title}\n\n```\n{code}\n```"
        parts.append(paragraph)
    return "\n\n".join(parts) + "\n"


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
