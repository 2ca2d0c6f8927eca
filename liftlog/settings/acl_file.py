"""Reading the ACL file, within bounds, and checking it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from acl import AclError
from acl.document import MAX_CHARACTERS
from acl.policy import Policy
from liftlog.errors import ConfigError

_MAX_BYTES = 4 * MAX_CHARACTERS


def load_policy(file: Path) -> Policy:
    """Raises ConfigError that lists everything wrong with the file; it never shows a credential."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"acl.file: cannot read {file}: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise ConfigError(
            f"acl.file: every user of this machine can write to {file}", hint=f"chmod o-w {file}"
        )
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"acl.file: {file} is longer than {_MAX_BYTES} bytes")
    try:
        return Policy.load(content.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"acl.file: {file} is not UTF-8 text") from None
    except AclError as error:
        raise ConfigError(
            f"acl.file: {file}: {error}",
            hint="docs/reference/acl.md describes the format",
            findings=list(error.findings),
        ) from error
