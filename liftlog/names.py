"""Names of streams and consumers: one rule for all names that come from users, files or peers.

Names become directories, metric labels and parts of NATS subjects.
"""

from __future__ import annotations

import re

from liftlog.errors import InvalidArgument

MAX_NAME_CHARS = 128
NAME_HELP = (
    f"1 to {MAX_NAME_CHARS} letters (A-Z, a-z), digits, '_' or '-', the first a letter or digit"
)

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME_CHARS - 1}}}")
_SYSTEM_NAME = re.compile(rf"_[A-Za-z0-9_-]{{1,{MAX_NAME_CHARS - 1}}}")


def is_stream_name(name: str, *, may_be_system: bool = False) -> bool:
    """Return True if `name` can be the name of a stream. Names with a leading underscore belong to
    the system. Clients can read such streams, but cannot create or delete them."""
    return _NAME.fullmatch(name) is not None or (
        may_be_system and _SYSTEM_NAME.fullmatch(name) is not None
    )


def check_stream_name(name: str, *, may_be_system: bool = False) -> None:
    """Raise InvalidArgument unless `name` can be the name of a stream."""
    if is_stream_name(name, may_be_system=may_be_system):
        return
    if is_stream_name(name, may_be_system=True):
        raise InvalidArgument(
            f"the stream name {name!r} is reserved",
            hint="names that begin with an underscore are the system's own",
        )
    raise _invalid(name, "a stream name")


def check_consumer_name(name: str) -> None:
    """Raise InvalidArgument unless `name` can be the name of a consumer."""
    if not _NAME.fullmatch(name):
        raise _invalid(name, "a consumer name")


def _invalid(name: str, what: str) -> InvalidArgument:
    shown = name if len(name) <= 40 else name[:40] + "..."
    return InvalidArgument(f"{shown!r} is not {what}", hint=NAME_HELP)
