"""Fetches names from the daemon, to correct a typing error and for the shell's completion."""

from __future__ import annotations

from collections.abc import Sequence

import click

from liftlog.cli.lib.options import connect_to_server, find_asked
from liftlog.errors import LiftlogError, StreamNotFound

_SECONDS = 1.0
"""Time limit in seconds. Users should not wait longer for a suggestion or a completion."""


def stream_names() -> list[str]:
    """Return the names of the streams that the caller may see; empty if the daemon does not
    answer."""
    try:
        with connect_to_server(
            connect_timeout=_SECONDS, request_timeout=_SECONDS, reconnect_for=0
        ) as client:
            return [one.name for one in client.list_streams()]
    except (LiftlogError, OSError, click.ClickException):
        return []


def consumer_names() -> list[str]:
    """Return the names of the consumers with a checkpoint; empty if the daemon does not answer."""
    try:
        with connect_to_server(
            connect_timeout=_SECONDS, request_timeout=_SECONDS, reconnect_for=0
        ) as client:
            return sorted({one.consumer for one in client.list_checkpoints()})
    except (LiftlogError, OSError, click.ClickException):
        return []


def suggest_stream(error: BaseException) -> None:
    """If `error` reports an unknown stream, add the most similar name to its hint."""
    if not isinstance(error, StreamNotFound) or error.hint != StreamNotFound.default_hint:
        return
    asked = find_asked()
    close = closest(asked, stream_names()) if asked else None
    if close is not None:
        error.hint = f"did you mean {close!r}? {error.hint}"


def closest(word: str, known: Sequence[str]) -> str | None:
    """Return the known name that is most similar to `word`, without regard to case; None if there
    is no similar name."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def complete_stream(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the streams whose names begin with this text, for the shell's completion."""
    with context.scope(cleanup=False):  # click does not set the current context during completion
        return [name for name in stream_names() if name.startswith(incomplete)]


def complete_consumer(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the consumers whose names begin with this text, for the shell's completion."""
    with context.scope(cleanup=False):
        return [name for name in consumer_names() if name.startswith(incomplete)]
