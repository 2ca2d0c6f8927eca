"""`liftlog consumer`: add, list, show, edit, pause, resume, reset and delete consumers with
acks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import (
    connect_to_server,
    debug_option,
    duration_of,
    output_format,
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
from liftlog.cli.lib.problems import confirmed, note
from liftlog.cli.lib.ranges import Position, position_of, resolve_position
from liftlog.cli.lib.suggestions import complete_stream
from liftlog.cli.lib.text import plural, printable, show_span, show_time
from liftlog.errors import InvalidArgument

if TYPE_CHECKING:
    from liftlog.client import ConsumerInfo, ConsumerOptions, SyncClient
    from liftlog.client.reading.read_options import Start
    from liftlog.client.working.settings import Deliver

_HEADINGS = ("CONSUMER", "WAITING", "PENDING", "REDELIVERED", "WORKERS", "ACK FLOOR", "STATE")
_NS = 1_000_000_000
_NEWEST = ("last", "last-per-subject")
_MOST_SHOWN = 10

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@click.group(
    cls=Commands,
    name="consumer",
    aliases={"list": "ls", "create": "add", "show": "info", "update": "edit", "delete": "rm"},
)
@server_options
@debug_option
def consumer_commands() -> None:
    """Create, list, show, change and delete consumers with acks.

    The workers of a consumer share its messages. A message that no worker acks in time is
    delivered again. Workers use `liftlog consume --worker`, a client library, or JetStream's
    clients over NATS. For other kinds of consumers, see `liftlog offsets` (consumers with a
    checkpoint) and `liftlog group` (consumers that share a stream by key).
    """


def _settings(command: Decorated) -> Decorated:
    """Add the options of `add` and `edit`."""
    for option in reversed(
        (
            click.option(
                "--ack-wait",
                metavar="DURATION",
                help="Time after which a message without an ack is delivered again. Default: 30s.",
            ),
            click.option(
                "--backoff",
                metavar="DURATION,...",
                help="The waits after the first delivery, the second delivery, and so on, "
                "instead of --ack-wait. The last wait applies to all later deliveries.",
            ),
            click.option(
                "--max-deliver",
                type=click.IntRange(min=-1),
                metavar="N",
                help="Largest number of deliveries of a message; -1: no limit. Default: -1.",
            ),
            click.option(
                "--max-ack-pending",
                type=click.IntRange(min=-1),
                metavar="N",
                help="Largest number of messages that are delivered and not done; -1: 1,000,000. "
                "Default: 1000.",
            ),
            click.option(
                "--subject",
                "subjects",
                multiple=True,
                metavar="PATTERN",
                help="Only messages whose subject matches this pattern, with NATS wildcards. Can "
                "be repeated: messages that match any of the patterns.",
            ),
            click.option(
                "--inactive",
                metavar="DURATION",
                help="Delete the consumer if no worker has used it for this time.",
            ),
            click.option("--description", metavar="TEXT", help="A text for people."),
        )
    ):
        command = option(command)
    return command


def _options(
    ack_wait: str | None,
    backoff: str | None,
    max_deliver: int | None,
    max_ack_pending: int | None,
    subjects: tuple[str, ...],
    inactive: str | None,
    description: str | None,
) -> ConsumerOptions:
    """Return the options that were given. Raises InvalidArgument."""
    found: ConsumerOptions = {}
    if ack_wait is not None:
        found["ack_wait"] = duration_of("--ack-wait", ack_wait)
    if backoff is not None:
        found["backoff"] = [duration_of("--backoff", one) for one in backoff.split(",") if one]
    if max_deliver is not None:
        found["max_deliver"] = max_deliver
    if max_ack_pending is not None:
        found["max_ack_pending"] = max_ack_pending
    if subjects:
        found["filters"] = subjects
    if inactive is not None:
        found["inactive"] = duration_of("--inactive", inactive)
    if description is not None:
        found["description"] = description
    return found


@consumer_commands.command(short_help="Create a consumer with acks.")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@click.option(
    "--from",
    "start",
    default="start",
    metavar="POSITION",
    help="The position at which the consumer begins: start, end, an offset, +N (after the first "
    "N), -N (the last N), @TIME, last, or last-per-subject. Default: start.",
)
@_settings
@server_options
@debug_option
def add(stream: str, name: str, start: str, **settings: Any) -> None:
    """Create the consumer NAME of STREAM.

    If the consumer exists with these settings, nothing changes. If it exists with other settings,
    the exit code is 6.

    \b
    Examples:
      liftlog consumer add orders billing --ack-wait 1m --max-deliver 5
      liftlog consumer add orders mail --from end --subject 'orders.eu.>' --backoff 1s,10s,5m
    """
    options = _options(**settings)
    with connect_to_server() as client:
        deliver = _deliver(client, stream, start)
        if start != "start":
            options["deliver"] = deliver
        _show(client.create_consumer(stream, name, **options))


def _deliver(client: SyncClient, stream: str, start: str) -> Deliver:
    """Return the start of a consumer. Raises UsageError, OffsetOutOfRange."""
    if start in _NEWEST:
        return "last" if start == "last" else "last_per_subject"
    context = click.get_current_context()
    parameter = next(one for one in context.command.params if one.name in ("start", "position"))
    position: Position = position_of(context, parameter, start)
    return deliver_of(resolve_position(client, stream, position))


def deliver_of(start: Start) -> Deliver:
    """Convert the start of a reader to the start of a new consumer at the same position."""
    if isinstance(start, datetime | int):
        return start
    return "new" if start == "latest" else "all"


@consumer_commands.command(name="ls")
@click.argument("stream", shell_complete=complete_stream)
@server_options
@debug_option
def list_consumers(stream: str) -> None:
    """List the consumers with acks of STREAM.

    WAITING is the number of messages that the consumer has not delivered yet. PENDING is the number
    of messages that it has delivered and that are not done.

    \b
    Examples:
      liftlog consumer ls orders
      liftlog consumer ls orders -o json
    """
    style = output_format()
    with connect_to_server() as client:
        found = client.list_consumers(stream)
    if quiet():
        write_lines([printable(one.name) for one in found])
    elif style != "table":
        write_objects([one.to_wire() for one in found], style)
    elif found:
        rows = [
            (
                printable(one.name),
                f"{one.num_pending:,}",
                f"{one.num_ack_pending:,}",
                f"{one.num_redelivered:,}",
                str(one.num_waiting),
                f"{one.ack_floor:,}",
                _state(one),
            )
            for one in found
        ]
        print_table(_HEADINGS, rows, right=(1, 2, 3, 4, 5))
    else:
        note(f"{printable(stream)} has no consumers with acks.")


@consumer_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@server_options
@debug_option
def info(stream: str, name: str) -> None:
    """Show the consumer NAME of STREAM.

    The exit code is 5 if the consumer does not exist.

    \b
    Examples:
      liftlog consumer info orders billing
      liftlog consumer info orders billing -o json | jq .exhausted
    """
    with connect_to_server() as client:
        _show(client.describe_consumer(stream, name))


@consumer_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@_settings
@server_options
@debug_option
def edit(stream: str, name: str, **settings: Any) -> None:
    """Change settings of the consumer NAME of STREAM. Other settings do not change.

    New subjects apply to messages that the consumer has not delivered yet.

    \b
    Example:
      liftlog consumer edit orders billing --ack-wait 5m --max-deliver 10
    """
    options = _options(**settings)
    if not options:
        raise click.UsageError("Name a setting to change.", click.get_current_context())
    with connect_to_server() as client:
        _show(client.update_consumer(stream, name, **options))


@consumer_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@click.argument("duration")
@server_options
@debug_option
def pause(stream: str, name: str, duration: str) -> None:
    """Deliver no messages of a consumer for DURATION.

    Acks still count during the pause. A restart of the daemon does not end the pause.

    \b
    Example:
      liftlog consumer pause orders billing 2h
    """
    seconds = duration_of("DURATION", duration)
    with connect_to_server() as client:
        _show(client.pause_consumer(stream, name, seconds))


@consumer_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@server_options
@debug_option
def resume(stream: str, name: str) -> None:
    """End the pause of the consumer NAME of STREAM.

    \b
    Example:
      liftlog consumer resume orders billing
    """
    with connect_to_server() as client:
        _show(client.resume_consumer(stream, name))


@consumer_commands.command()
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@click.argument("position")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def reset(stream: str, name: str, position: str, assume_yes: bool) -> ExitCode:
    """Make the consumer NAME of STREAM begin again at POSITION.

    The daemon deletes the acks and delivery counts of its messages. The settings do not change.
    POSITION is start, end, an offset, +N (after the first N), -N (the last N), @TIME, last or
    last-per-subject.

    \b
    Examples:
      liftlog consumer reset orders billing @-1h
      liftlog consumer reset orders billing end --yes
    """
    with connect_to_server() as client:
        before = client.describe_consumer(stream, name)
        deliver = _deliver(client, stream, position)
        question = (
            f"Let {printable(name)} begin again? The acks of its messages are forgotten, and "
            f"{plural(before.num_ack_pending, 'pending message')} with them."
        )
        if not assume_yes and not confirmed(question):
            note("Nothing was changed.")
            return ExitCode.FAILED
        _show(client.reset_consumer(stream, name, deliver))
    return ExitCode.OK


@consumer_commands.command(name="rm")
@click.argument("stream", shell_complete=complete_stream)
@click.argument("name")
@click.option("--yes", "-y", "assume_yes", is_flag=True, help="Do not ask.")
@server_options
@debug_option
def remove(stream: str, name: str, assume_yes: bool) -> ExitCode:
    """Delete the consumer NAME of STREAM. The messages of the stream stay.

    \b
    Example:
      liftlog consumer rm orders billing --yes
    """
    style = output_format()
    with connect_to_server() as client:
        before = client.describe_consumer(stream, name)
        question = (
            f"Delete {printable(name)} of {printable(stream)}, with "
            f"{plural(before.num_ack_pending, 'pending message')}?"
        )
        if not assume_yes and not confirmed(question):
            note("Nothing was deleted.")
            return ExitCode.FAILED
        client.delete_consumer(stream, name)
    if style == "table":
        say(f"deleted: {printable(name)} of {printable(stream)}")
    else:
        write_object({"stream": stream, "name": name, "deleted": True}, style)
    return ExitCode.OK


def _state(found: ConsumerInfo) -> str:
    if found.pause_remaining_ns:
        return f"paused, {show_span(found.pause_remaining_ns / _NS)} left"
    return "active"


def _show(found: ConsumerInfo) -> None:
    style = output_format()
    if quiet():
        write_lines([printable(found.name)])
    elif style != "table":
        write_object(found.to_wire(), style)
    else:
        print_pairs([(key, printable(value)) for key, value in _facts(found)])


def _facts(found: ConsumerInfo) -> list[tuple[str, str]]:
    config = found.config
    waits = config.get("backoff") or [config.get("ack_wait", 0)]
    filters = config.get("filter_subjects") or [config.get("filter_subject") or "all"]
    most = int(config.get("max_deliver", -1))
    pending = int(config.get("max_ack_pending", -1))
    facts = [
        ("consumer", f"{found.name} of {found.stream}"),
        ("state", _state(found)),
        ("waiting", plural(found.num_pending, "message")),
        ("pending", plural(found.num_ack_pending, "message")),
        ("redelivered", plural(found.num_redelivered, "message")),
        ("waiting workers", str(found.num_waiting)),
        ("next offset", f"{found.next_offset:,}"),
        ("ack floor", f"{found.ack_floor:,}"),
        ("deliveries", f"{found.deliveries:,}"),
        ("subjects", ", ".join(map(str, filters))),
        ("ack wait", ", ".join(_seconds(one) for one in waits)),
        ("max deliver", str(most) if most > 0 else "no limit"),
        ("max ack pending", f"{pending:,}" if pending > 0 else "1,000,000"),
        ("created", show_time(found.created_ns)),
    ]
    if found.exhausted:
        shown = ", ".join(str(one) for one in found.exhausted[-_MOST_SHOWN:])
        more = len(found.exhausted) - _MOST_SHOWN
        shown += f" and {more:,} before" if more > 0 else ""
        facts.append(("out of deliveries", shown))
    others = [key for key in ("deliver_subject", "description") if config.get(key)]
    return facts + [(key.replace("_", " "), str(config[key])) for key in others]


def _seconds(ns: Any) -> str:
    return f"{int(ns) / _NS:g} s"


def created_for(client: SyncClient, stream: str, name: str, start: Start) -> ConsumerInfo:
    """Return the consumer of a worker; create it at `start` if it does not exist. Raises
    InvalidArgument for a consumer that delivers to a subject of NATS."""
    from liftlog.errors import ConsumerNotFound

    try:
        found = client.describe_consumer(stream, name)
    except ConsumerNotFound:
        deliver = deliver_of(start)
        options: ConsumerOptions = {} if deliver == "all" else {"deliver": deliver}
        return client.create_consumer(stream, name, **options)
    if found.config.get("deliver_subject"):
        raise InvalidArgument(
            f"the consumer {name!r} pushes its messages to {found.config['deliver_subject']}",
            hint="subscribe there, or use a pull consumer",
        )
    return found
