"""Where snapshots are kept: what all kinds of tables have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from liftlog.errors import Conflict
from liftlog.spark.export.snapshot import Snapshot
from liftlog.spark.export.store import Store, join

MANIFESTS = "_manifest"
DELTA_LOG = "_delta_log"

_RUN = re.compile(r"(\d{20})-([0-9a-f]{32})")


class Table(Protocol):
    """Where snapshots are kept. Methods raise LiftlogError."""

    @property
    def store(self) -> Store: ...

    def prepare(self) -> None:
        """Make sure before the work that its result can be committed."""
        ...

    def newest(self) -> Snapshot | None: ...

    def next_sequence(self) -> int: ...

    def run_directory(self, sequence: int, run: str) -> str:
        """Where that run writes; there after `prepare`."""
        ...

    def commit(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        """Durable on return. Raises Conflict when another run was quicker."""
        ...

    def vacuum(self, now_ns: int, keep_seconds: float) -> int:
        """Remove what no snapshot needs that readers may be at; how many files and directories."""
        ...


def run_name(sequence: int, run: str) -> str:
    """A run writes into a directory that names the sequence number that it is after."""
    return f"{sequence:020d}-{run}"


def clear_runs(
    store: Store,
    runs: str,
    newest: int,
    is_needed: Callable[[str, str], bool],
    oldest: int = 0,
) -> int:
    """Remove what the runs from the number `oldest` to `newest` have left behind; how many entries.

    Only one run gets a number. So what no snapshot names of a number that is taken can never become
    real, whoever may still be writing to it; and those after it may be under way, and are left.
    `is_needed` is asked with a run and the path of an entry in its directory.
    """
    removed = 0
    for name in store.names(runs):
        match = _RUN.fullmatch(name)
        if match is None or not oldest <= int(match[1]) <= newest:
            continue
        directory = join(runs, name)
        entries = [join(directory, entry) for entry in store.names(directory)]
        dead = [path for path in entries if not is_needed(match[2], path)]
        for path in [directory] if len(dead) == len(entries) else dead:
            store.remove(path)
            removed += 1
    return removed


def another_was_quicker(where: str, newest: Snapshot | None) -> Conflict:
    how = "it has changed the table"
    if newest is not None:
        how = f"the table ends at offset {newest.to_offset} now (sequence {newest.sequence})"
    return Conflict(
        f"another export into {where} was quicker: {how}; nothing of this run was kept",
        hint="run it again for what came since; let only one run at a time",
    )
