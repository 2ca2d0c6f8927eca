"""Contexts: names for daemons, each with its address, login and NATS server, in a file of the user.

The file is read when a command is about to connect, so that no other command is delayed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from liftlog.errors import ConfigError, InvalidArgument
from liftlog.names import NAME_HELP, is_stream_name

FIELDS = ("server", "token", "nkey", "tls_ca", "tls_cert", "tls_key", "nats", "creds")
PATHS = ("nkey", "tls_ca", "tls_cert", "tls_key", "creds")
"""Fields with the path of a file as their value. The path is stored as an absolute path."""


class Contexts(NamedTuple):
    """The contents of the file. `found` maps the name of each context to its FIELDS, and `server`
    is always set. `current` is one of the names, or empty."""

    found: dict[str, dict[str, str]]
    current: str = ""

    def get(self, name: str) -> dict[str, str]:
        """Return the fields of a context. Raises InvalidArgument."""
        try:
            return self.found[name]
        except KeyError:
            known = ", ".join(sorted(self.found))
            raise InvalidArgument(
                f"there is no context {name!r}",
                hint=f"there are {known}" if known else "`liftlog context add NAME` adds one",
            ) from None


def file_of(environ: Mapping[str, str]) -> Path:
    """Return the path of the contexts file."""
    given = environ.get("XDG_CONFIG_HOME")
    base = Path(given) if given else Path("~/.config").expanduser()
    return base / "liftlog" / "contexts.json"


def read_contexts(file: Path) -> Contexts:
    """Return the contexts in the file. If the file does not exist, there are no contexts. Raises
    ConfigError."""
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return Contexts({})
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    try:
        return _checked(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} does not hold contexts: {error}",
            hint="correct it, or delete it and add the contexts again",
        ) from None


def _checked(found: Any) -> Contexts:
    """Check the parsed file. Raises ValueError."""
    if not isinstance(found, dict) or not isinstance(found.get("contexts"), dict):
        raise ValueError("a map with the key contexts is expected")
    contexts = found["contexts"]
    for name, fields in contexts.items():
        if (
            not isinstance(fields, dict)
            or "server" not in fields
            or not all(key in FIELDS and isinstance(value, str) for key, value in fields.items())
        ):
            raise ValueError(f"{name!r} is not a map of texts with the keys {', '.join(FIELDS)}")
    current = found.get("current", "")
    if not isinstance(current, str) or current not in (*contexts, ""):
        raise ValueError("current does not name one of the contexts")
    return Contexts(contexts, current)


def write_contexts(file: Path, contexts: Contexts) -> None:
    """Replace the file atomically, readable by its owner only. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    whole = {"current": contexts.current, "contexts": contexts.found}
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    opened = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(opened, "w") as text:
            text.write(json.dumps(whole, indent=2) + "\n")
            text.flush()
            os.fsync(text.fileno())
        beside.replace(file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def check_name(name: str) -> None:
    """Check the name of a context. Raises InvalidArgument."""
    if not is_stream_name(name):
        raise InvalidArgument(f"{name!r} is not the name of a context", hint=NAME_HELP)
