"""Names of streams and consumers: checked before anything else is done with what a peer sent."""

from __future__ import annotations

import re

from liftlog.errors import InvalidArgument
from liftlog.protocol.limits import MAX_NAME_CHARS

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME_CHARS - 1}}}")
_SYSTEM_NAME = re.compile(rf"_[A-Za-z0-9_-]{{1,{MAX_NAME_CHARS - 1}}}")


def check_stream_name(name: str, *, may_be_system: bool = False) -> None:
    """Raises InvalidArgument unless `name` can be a stream's.

    Names with a leading underscore are the system's own: they can be read, never created
    or deleted from outside.
    """
    if _NAME.fullmatch(name):
        return
    if _SYSTEM_NAME.fullmatch(name):
        if may_be_system:
            return
        raise InvalidArgument(
            f"the stream name {name!r} is reserved",
            hint="names that begin with an underscore are the system's own",
        )
    raise _invalid(name, "a stream name")


def check_consumer_name(name: str) -> None:
    """Raises InvalidArgument unless `name` can be a consumer's."""
    if not _NAME.fullmatch(name):
        raise _invalid(name, "a consumer name")


def _invalid(name: str, what: str) -> InvalidArgument:
    shown = name if len(name) <= 40 else name[:40] + "..."
    return InvalidArgument(
        f"{shown!r} is not {what}",
        hint=f"1 to {MAX_NAME_CHARS} of A-Z a-z 0-9 _ -, the first a letter or digit",
    )
