"""The commit of the running sources."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_DIGITS = 12
_HASH = re.compile(r"[0-9a-f]{40}")


@cache
def commit() -> str:
    """The first 12 hexadecimal digits of the commit, with `-dirty` if the build contained other
    changes; "" if it is not known.

    A built distribution contains the commit. In a clone of the repository, the function reads the
    checked-out commit from the files of git, and does not detect changed files.
    """
    package = Path(__file__).parent
    try:
        return (package / "COMMIT").read_text().strip()
    except OSError:
        return checked_out(package.parent)


def checked_out(clone: Path) -> str:
    """Return the commit that is checked out in the repository at `clone`; "" if `clone` is not a
    repository."""
    try:
        directory = clone / ".git"
        if directory.is_file():  # of a worktree: gitdir: /some/where/.git/worktrees/name
            directory = clone / directory.read_text().removeprefix("gitdir:").strip()
        head = (directory / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return _shown(head)
        name = head.removeprefix("ref: ")
        common = directory / "commondir"
        places = [directory]
        if common.exists():
            places.append(directory / common.read_text().strip())
        for place in places:
            if (place / name).exists():
                return _shown((place / name).read_text().strip())
            packed = place / "packed-refs"
            for line in packed.read_text().splitlines() if packed.exists() else ():
                if line.endswith(f" {name}"):
                    return _shown(line.split(" ", 1)[0])
    except (OSError, UnicodeDecodeError):
        pass  # a damaged repository counts as missing
    return ""


def _shown(commit: str) -> str:
    return commit[:_DIGITS] if _HASH.fullmatch(commit) else ""


def version_and_commit() -> str:
    """Return version and commit for people, such as `0.1.0 (4e8744ceae56)`."""
    from liftlog import __version__

    return f"{__version__} ({commit()})" if commit() else __version__
