"""The reference page of all errors, made from their classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from liftlog import errors
from liftlog.cli.errors import local_errors, told
from liftlog.cli.lib.exit_codes import exit_code_of_kind
from liftlog.client.publishing import results
from liftlog.errors import LiftlogError

_HEAD = """\
# Errors

<!-- Made by `make pages`; a test fails when this page is out of date. -->

All errors are classes of `liftlog.errors`, and subclasses of `LiftlogError`. Each error has a
`name`, a `message` for people, and `details`, a mapping for programs. Some errors also have a
`hint`, which describes the next step. If `retriable` is true, the same request can succeed later.

Commands print the message and the hint on stderr. The tables show the exit code of a command that
ends with the error; see also [all exit codes](cli.md#exit-codes).
"""

_WIRE = """\
## Errors of the daemon

Each of these errors has a code: a number that no later version uses for another error. The [pull
socket](protocol.md#error-codes) sends the code, and the [HTTP port](http.md#errors) sends the name.
"""

_LOCAL = """\
## Errors that stay in one process

These errors occur in a client, in a command, or inside the daemon. They have no code. If such an
error occurs while the daemon handles a request, the daemon answers `INTERNAL`, and logs the
details.
"""

_PUBLISHER = """\
## Errors of the publisher

These errors are classes of [`liftlog.client.publisher`](publisher.md#errors), and subclasses of
`PublishFailed`.
"""

_REFUSALS = """\
## Refusals on NATS

If a publisher asks for an ack, the answer can be an error in JetStream's form:
`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 2"},...}`. The codes are
listed in [Control headers](../how-to/acks.md#control-headers-with-acks-on) and
[Other refusals](../how-to/acks.md#other-refusals).
"""

PUBLISHER_ERRORS = (
    results.PublishRefused,
    results.PublishUnknown,
    results.NotPublished,
    results.OrderBroken,
)


def render() -> str:
    """The page as Markdown."""
    return "\n".join([_HEAD, *_sections(), _REFUSALS])


def _sections() -> Iterator[str]:
    wire = [errors.WIRE_ERRORS[code] for code in sorted(errors.WIRE_ERRORS)]
    yield from (_WIRE, _table(wire, numbered=True))
    yield from (_LOCAL, _table(local_errors()))
    yield from (_PUBLISHER, _table(PUBLISHER_ERRORS, exits=False))


def _table(
    kinds: Iterable[type[LiftlogError]], *, numbered: bool = False, exits: bool = True
) -> str:
    """Return a table of errors. With `exits`, it has a column with the exit codes of commands."""
    columns = ["code"] * numbered + ["name", "class"] + ["exit code"] * exits
    columns += ["retriable", "meaning", "what to do"]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for kind in kinds:
        cells = [str(kind.code)] * numbered + [f"`{kind.name}`", f"`{kind.__name__}`"]
        cells += [str(exit_code_of_kind(kind).value)] * exits
        cells += ["yes" if kind.retriable else "no", *told(kind)]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
