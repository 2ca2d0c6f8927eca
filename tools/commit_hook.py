"""A build hook of hatchling: the wheel and the sdist carry the commit that they were built from.

If the sources come without their repository, as in a container build, `LIFTLOG_COMMIT` contains the
commit.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add `liftlog/COMMIT`, unless the commit is not known. An editable installation gets no
        such file, because `liftlog.commit` reads the repository."""
        if version == "editable":
            return
        found = commit_of(Path(self.root))
        if found:
            path = Path(mkdtemp()) / "COMMIT"
            path.write_text(f"{found}\n")
            build_data["force_include"][str(path)] = "liftlog/COMMIT"


def commit_of(root: Path) -> str:
    """Return the commit of the sources at `root` or of the repository around them, with `-dirty` if
    a file differs from it; "" if there is none. In an unpacked sdist, return the commit of the
    sdist."""
    named = os.environ.get("LIFTLOG_COMMIT", "")
    if named:
        return named if re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", named) else ""
    built = root / "liftlog" / "COMMIT"
    if built.exists():
        return built.read_text().strip()
    if not any((place / ".git").exists() for place in (root, *root.parents[:2])):
        return ""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip()
