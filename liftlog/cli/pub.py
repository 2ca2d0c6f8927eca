"""`liftlog pub`: publishes over NATS and shows the acks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.nats_server import nats_credentials, nats_options, nats_servers
from liftlog.cli.lib.options import debug_option, output_format, server_options
from liftlog.cli.lib.problems import check_standard_input


@click.command(cls=Command, short_help="Publish on NATS and print the acks.")
@click.argument("subject")
@click.argument("message", required=False)
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="A message header, for example -H Nats-Expected-Last-Sequence:41. The command removes "
    "blanks around the value. Can be repeated, with different names or the same name.",
)
@click.option(
    "--key",
    metavar="KEY",
    help="Message key, for compaction by key. A key with blanks at its ends, line breaks or bytes "
    "that are not UTF-8 needs --envelope.",
)
@click.option(
    "--tombstone",
    is_flag=True,
    help="Publish a tombstone for --key instead of a MESSAGE. A compacted stream then deletes "
    "the earlier records of the key. Any other stream keeps these records, and the command "
    "reports this.",
)
@click.option(
    "--msg-id",
    metavar="ID",
    help="Message id. Within the dedupe window, messages with the same id are stored only once.",
)
@click.option(
    "--envelope",
    "use_envelope",
    is_flag=True,
    help="Put key, headers and message id into an envelope instead of NATS headers.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=1,
    metavar="N",
    help="Publish N times. {n} in MESSAGE, --key and --msg-id becomes 1, 2, 3, ...",
)
@click.option(
    "--expect-ack/--no-ack",
    default=True,
    help="Wait for every ack (default), or request no acks.",
)
@click.option(
    "--timeout", type=click.FloatRange(min=0.001), default=5.0, metavar="SECONDS",
    help="Longest wait for an ack. Default: 5.",
)  # fmt: skip
@nats_options
@server_options
@debug_option
def pub(
    subject: str,
    message: str | None,
    headers: tuple[str, ...],
    key: str | None,
    tombstone: bool,
    msg_id: str | None,
    use_envelope: bool,
    count: int,
    expect_ack: bool,
    timeout: float,
    nats_url: str | None,
    creds: Path | None,
) -> ExitCode:
    """Publish MESSAGE on the NATS subject SUBJECT, and print its ack with stream and offset.

    If MESSAGE is `-`, each line of standard input is one message. If a message is refused, or not
    acked in time, the command reports it on stderr, and the exit code is 10.

    \b
    Examples:
      liftlog pub orders.new '{"id": 1}' --msg-id order-1
      liftlog pub state.berlin sunny --key berlin
      liftlog pub state.berlin --key berlin --tombstone
      zcat events.gz | liftlog pub events.raw -
    """
    if (message is None) != tombstone:
        _wrong(
            "--tombstone takes no MESSAGE." if tombstone else "MESSAGE is required; - reads lines."
        )
    if message == "-" and count > 1:
        _wrong("--count cannot be combined with MESSAGE -.")
    if message == "-":
        check_standard_input()

    from liftlog.cli.pub_run import Job, Template
    from liftlog.client.publishing.headers import lines_of
    from liftlog.client.publishing.message import checked

    value = None if message is None else os.fsencode(message)
    raw_key = None if key is None else os.fsencode(key)
    # The publisher checks this, too, but only after it has connected to NATS.
    lines = lines_of(_parse_headers(headers))
    checked(
        subject, value, key=raw_key, headers=lines, message_id=msg_id, use_envelope=use_envelope
    )
    return Job(
        nats_servers(nats_url),
        nats_credentials(creds),
        timeout if expect_ack else None,
        Template(subject, raw_key, msg_id, lines, use_envelope),
        value,
        count,
        from_stdin=message == "-",
    ).run(output_format())


def _wrong(problem: str) -> NoReturn:
    raise click.UsageError(problem, click.get_current_context())


def _parse_headers(given: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for text in given:
        name, colon, value = text.partition(":")
        if not colon:
            _wrong(f"-H {text!r}: expected NAME:VALUE.")
        found.append((name.strip(" \t"), value.strip(" \t")))
    return found
