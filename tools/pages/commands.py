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

`liftlog COMMAND --help` prints the same text. You can write `--server`, `--token`, `--output` and
`--debug` before or after the command's name.

Commands print data to stdout, and errors, warnings and remarks to stderr. The text of an error
explains the cause and the next step. `--debug` adds the traceback.

Tables are for people, and their form can change. Their numbers have separators, and you can also
type an offset as `1,234`. Output for programs has plain numbers. If the output goes to a pipe, the
command does not cut or wrap the lines of a table.

`liftlog completion bash|zsh|fish` prints a script for the shell. The shell then completes
commands, options, and the names of streams and consumers.
"""

_OUTPUT = """\
## Ranges

The value of `liftlog consume --from` (or `--offset`) is the range to read. It is either a start
alone, or a start and an exclusive end with a colon between them.

| form | reads |
|---|---|
| `start` or `earliest` | from the first record |
| `end` or `latest` | only new records |
| `42` | from offset 42 |
| `-100` | the last 100 offsets, and all later offsets |
| `+100` | all offsets after the first 100 |
| `@TIME` | from the first record with this timestamp or a later timestamp |
| `10:20`, `:20`, `10:` | offsets 10 to 19; all offsets up to 19; all offsets from 10 |
| `:end`, `-100:end`, `@-1h:end` | up to the end that the stream has when the command starts |
| `@-1h:-5m`, `@2026-01-31:2026-02-01`, `@2026-01-31:+6h` | from one time to another |

A TIME has one of these forms: a date, optionally with a time of day; a duration before now
(`-1h30m`); `now`; or seconds since 1970. A time of day without a zone is local time. After
compaction some offsets have no record, so `-100` can return fewer than 100 records.

## Output for programs

`--output json` prints one JSON document. `--output yaml` prints the same document as YAML, and
`--output jsonl` prints one object per line. `--output csv` prints a heading, and a row for each
object. `--output wide` prints a table with more columns. Later versions can add fields, but do not
remove the fields that are listed here.

`--fields` selects fields, in any format. `--template` prints one line per object. Paths have the
syntax of jq, without its functions: `settings.retention.max_age`, `value.items[0].sku`. A path can
select a value inside a map, a list, or a text that contains JSON. A missing field is empty, or
`null` in JSON.

With `json`, `jsonl` or `yaml`, an error is an object on stderr. Its key `error` contains `name`,
`code` (the number in the pull protocol, or `null`), `exit_code`, `message`, `why` and `next`.

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
| `health` | `ready`, and the daemon's report: `problems`, and over HTTP also `checks` |
| `config check` | `ok` and the `findings`, each with `path`, `problem` and `origin` |
| `config show` | the settings; with `--origin` a setting: `key`, `value`, `origin` |
| `errors ls`, `errors lookup` | an error: `code`, `name`, `exit_code`, `meaning`, `advice` |
| `offsets ls`, `offsets get` | a checkpoint, with its `lag` (if `null`, `problem` has the reason) |
| `acl who` | a `principal`, its `subjects` (`null` for all) and the `explanation` |
| `offsets seek`, `offsets rm` | `before`, `offset`, `moved_by`, `lag`, and whether it was `done` |
| `import jetstream`, `jsonl`, `parquet` | `source`, `copied`, the number of the `last` message |
| `reload`, `drain` | the `pid` and the `signal`; for `drain` also whether it `ended` |
| `context ls`, `context info` | a context, without secrets |
| `log dump` | a record batch: its header and its position |
| `log verify` | the findings in one stream |
| `log repair` | the repair steps of one stream; `done` is true if they were executed |
| `log reindex` | a missing or wrong index; `entries` is null until it is rebuilt |
| `backup create`, `info` | the backup, with its `streams` |
| `backup verify` | the backup, with `ok` and `problems` |
| `backup restore` | `data_dir`, and `streams`, each with its new `leader_epoch` and bounds |

A record:

| field | content |
|---|---|
| `offset` | the offset |
| `timestamp` | time at which the daemon received the message, in UTC |
| `timestamp_ns` | the same time, in nanoseconds since 1970 |
| `subject` | NATS subject; bytes that are not UTF-8 are written as `\\xNN` |
| `key` | text, or base64 if the key is not UTF-8; `null` if the record has no key |
| `value` | text, or base64 if the value is not UTF-8; `null` for a tombstone |
| `key_encoding`, `value_encoding` | `base64`; only present if the corresponding field is base64 |
| `headers` | values by name; a list if a name has several values. Names are case-sensitive |
| `headers_base64` | the header block; present if `headers` cannot represent each line exactly |
| `stream` | name of the stream, only in `log dump` |

An answer of `pub` has `subject`, and either `problem` or the fields of the ack: `stream`, `seq`,
and for a duplicate also `duplicate`.
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
    """Return every command with its full name; a group is before its commands."""
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
    """Convert a help text. Paragraphs after \\b, which click does not wrap, are examples and become
    a block of code."""
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
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _options(command: click.Command, *, shared: bool) -> str:
    """Return a table of options. Options that all commands share are left out, because they have a
    table of their own."""
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option) or option.expose_value == shared:
            continue
        if option.name == "version":
            continue
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        value = "" if option.is_flag else f" {_escape(option.metavar or _choices(option))}"
        rows.append(f"| {names}{value} | {_escape(option.help or '')} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) + "\n" if rows else ""


def _choices(option: click.Option) -> str:
    return " or ".join(option.type.choices) if isinstance(option.type, click.Choice) else ""


def _escape(text: str) -> str:
    """Escape text for a cell of a table, so that placeholders and wildcards are not read as
    markup."""
    escaped = text.replace("|", "\\|")
    return re.sub(r"(?<!`)(\{n\}|\*)", r"`\1`", escaped)
