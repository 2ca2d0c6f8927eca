"""`liftlog import`: copies messages from other systems into a stream, each message once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.nats_server import nats_credentials, nats_options, nats_servers
from liftlog.cli.lib.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.lib.output import say, write_object
from liftlog.cli.lib.problems import note
from liftlog.cli.lib.shapes import parse_path, parse_template
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable

if TYPE_CHECKING:
    from liftlog.cli.imports.import_run import Source
    from liftlog.cli.imports.import_sources import Form, Mapper

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@click.group(
    cls=Commands, name="import", aliases={"js": "jetstream", "json": "jsonl", "lines": "jsonl"}
)
@server_options
@debug_option
def import_commands() -> None:
    """Copy messages from JetStream or elsewhere into a stream.

    The sources are JetStream, lines of JSON, and Parquet.

    The command stores each message once, and in order. If a run is interrupted, start the command
    again: it continues, and stores no message twice. For this purpose, each record has the headers
    Copied-From and Copied-Sequence. During a run, no other client can publish on the stream.
    Subscribers of the subjects receive the copies.
    """


def _target_options(command: Decorated) -> Decorated:
    """Add the options that all import commands share."""
    command = debug_option(server_options(nats_options(command)))
    command = click.option(
        "--dry-run",
        "-n",
        is_flag=True,
        help="Show the message at which the copy would begin, and copy nothing.",
    )(command)
    command = click.option(
        "--envelope",
        "use_envelope",
        is_flag=True,
        help="Put keys and headers into an envelope. Use this for keys and headers that NATS "
        "headers cannot represent.",
    )(command)
    return click.option(
        "--source",
        "source_name",
        metavar="NAME",
        help="Name of the source in the header Copied-From. A later run finds its records by "
        "this name. Default: jetstream/NAME, or the name of the first file.",
    )(command)


def _mapping_options(command: Decorated) -> Decorated:
    """Add the options that map a row to a message."""
    command = click.option(
        "--value",
        metavar="FIELD",
        help="The field with the value. Default: the whole row, as JSON; with another --form, "
        "the value in the row.",
    )(command)
    command = click.option(
        "--key",
        metavar="TEXT",
        help="Key: the name of a field, or a text in which {{.FIELD}} is replaced by a field.",
    )(command)
    return click.option(
        "--subject",
        "-s",
        metavar="TEXT",
        help="Subject to publish on. {{.FIELD}} is replaced by a field: 'orders.{{.country}}'.",
    )(command)


@import_commands.command()
@click.argument("source_stream", metavar="NAME")
@click.argument("stream", shell_complete=complete_stream)
@click.option(
    "--source-nats",
    metavar="URL",
    help="NATS server to copy from, if the command publishes on another server.",
)
@click.option(
    "--source-creds",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="NATS credentials file for --source-nats.",
)
@click.option(
    "--key-from-subject",
    is_flag=True,
    help="Use the subject also as the key, and copy the deleted keys of a key-value bucket as "
    "tombstones.",
)
@click.option(
    "--strip",
    default="",
    metavar="PREFIX",
    help="Remove this prefix from subjects: '$KV.'.",
)
@_target_options
def jetstream(
    source_stream: str,
    stream: str,
    source_nats: str | None,
    source_creds: str | None,
    key_from_subject: bool,
    strip: str,
    **target: Any,
) -> None:
    """Copy the JetStream stream NAME into STREAM.

    The copy ends at the last message that NAME has when the copy begins.

    First change the JetStream stream so that it does not record these subjects. Otherwise it also
    stores the copies. `liftlog docs migrate-from-jetstream` has all steps.

    \b
    Examples:
      liftlog import jetstream ORDERS orders
      liftlog import jetstream KV_prices KV_prices --key-from-subject --source-nats nats://old:4222
      liftlog import jetstream KV_prices prices --key-from-subject --strip '$KV.'
    """
    from liftlog.cli.imports.import_sources import JetStream

    servers = nats_servers(target["nats_url"]) if source_nats is None else [source_nats]
    creds = source_creds or target["creds"]
    source = JetStream(
        servers, None if creds is None else str(creds), source_stream, key_from_subject, strip
    )
    _run(source, stream, f"jetstream/{source_stream}", **target)


@import_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--form",
    type=click.Choice(["rows", "records", "copied"]),
    default="rows",
    help="Content of a line. rows (default): a value. records: a record as `liftlog consume -o "
    "jsonl` prints it. copied: a message of a program that copies from another system.",
)
@_mapping_options
@_target_options
def jsonl(
    stream: str,
    files: tuple[str, ...],
    form: Form,
    subject: str | None,
    key: str | None,
    value: str | None,
    **target: Any,
) -> None:
    """Copy lines of JSON from FILEs into STREAM.

    If FILE is -, the command reads standard input. Each line is one message. A later run continues
    after the number of the last copied line. So a file may grow between runs, but its existing
    lines must not change.

    \b
    Examples:
      liftlog import jsonl orders old.jsonl -s 'orders.{{.country}}' --key id
      liftlog import jsonl copy - --form records < records.jsonl
    """
    from liftlog.cli.imports.import_sources import Lines

    mapper = _mapper(subject, key, value, needs_subject=form == "rows")
    needs_json = mapper.needs_fields or "{{" in (subject or "")
    name = "stdin" if files[0] == "-" else Path(files[0]).name
    _run(Lines(files, form, mapper, needs_json), stream, name, **target)


@import_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@_mapping_options
@_target_options
def parquet(
    stream: str,
    files: tuple[str, ...],
    subject: str | None,
    key: str | None,
    value: str | None,
    **target: Any,
) -> None:
    """Copy the rows of Parquet FILEs into STREAM, each as JSON.

    The command needs pyarrow: pip install 'liftlog[arrow]'.

    \b
    Examples:
      liftlog import parquet orders part-*.parquet -s 'orders.{{.country}}' --key id
      liftlog import parquet orders export.parquet -s orders.all --value payload
    """
    from liftlog.cli.imports.import_sources import Parquet

    mapper = _mapper(subject, key, value, needs_subject=True)
    _run(Parquet(files, mapper), stream, Path(files[0]).name, **target)


def _mapper(
    subject: str | None, key: str | None, value: str | None, *, needs_subject: bool
) -> Mapper:
    """Create the mapper from the options. Raises UsageError, InvalidArgument."""
    from liftlog.cli.imports.import_sources import Mapper

    if needs_subject and not subject:
        raise click.UsageError(
            "--subject is required: what to publish on.", click.get_current_context()
        )
    return Mapper(
        None if subject is None else _subject_maker(subject),
        None if key is None else _key_maker(key),
        None if value is None else parse_path(value),
    )


def _subject_maker(text: str) -> Callable[[Any], str]:
    return parse_template(text) if "{{" in text else lambda row: text


def _key_maker(text: str) -> Callable[[Any], bytes]:
    from liftlog.cli.imports.import_sources import bytes_of

    find = parse_template(text) if "{{" in text else parse_path(text).find
    return lambda row: bytes_of(find(row))


def _run(
    source: Source,
    stream: str,
    default_name: str,
    *,
    dry_run: bool,
    use_envelope: bool,
    nats_url: str | None,
    creds: Path | None,
    source_name: str | None,
) -> None:
    from liftlog.cli.imports.import_run import Import

    name = source_name or default_name
    with connect_to_server() as client:
        job = Import.of(client, stream, source, name)
    before = job.copied
    if before:
        note(f"{printable(name)} continues after number {before}.")
    if not dry_run:
        try:
            job.run(
                nats_servers(nats_url),
                nats_credentials(creds),
                use_envelope=use_envelope,
            )
        except KeyboardInterrupt:
            note(f"{plural(job.count, 'message')} copied. Run it again to continue.")
            raise
    style = output_format()
    if style != "table":
        shown = {"source": name, "stream": stream, "copied": job.count, "last": job.copied}
        write_object(shown | {"dry_run": dry_run}, style)
    elif dry_run:
        say(f"{printable(name)} would begin at number {before + 1}")
    else:
        last = f"; the last one is number {job.copied} of {printable(name)}" if job.copied else ""
        say(f"{plural(job.count, 'message')} copied into {printable(stream)}{last}")
