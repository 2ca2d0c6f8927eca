"""The common interface of both kinds of table, which store snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from liftlog.errors import Conflict
from liftlog.spark.export.snapshot import Snapshot
from liftlog.spark.export.store import Store, join

MANIFESTS = "_manifest"
DELTA_LOG = "_delta_log"

LEAST_SNAPSHOTS = 2
"""Number of snapshots that always stay: the newest snapshot, and the previous one, which readers
may have just opened."""

_RUN = re.compile(r"(\d{20})-([0-9a-f]{32})")


class Table(Protocol):
    """Stores the snapshots of a table. Methods raise LiftlogError."""

    @property
    def store(self) -> Store: ...

    def prepare(self) -> None:
        """Check, before the run begins its work, that the result can be committed."""
        ...

    def newest(self) -> Snapshot | None: ...

    def next_sequence(self) -> int: ...

    def run_directory(self, sequence: int, run: str) -> str:
        """Return the directory of the run with this number and id. Its parent directory exists
        after `prepare`."""
        ...

    def commit(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        """Commit a snapshot. Durable on return. Raises Conflict if another run has committed
        first."""
        ...

    def garbage(
        self, now_ns: int, keep_seconds: float | None, keep_snapshots: int = LEAST_SNAPSHOTS
    ) -> list[str]:
        """Return the unneeded files and directories: neither a snapshot that readers may use nor a
        run in progress needs them. The caller must remove them in the returned order, a snapshot
        before its files.

        Readers may use the newest `keep_snapshots` snapshots. Readers may use an older snapshot for
        `keep_seconds` after the next snapshot was committed. If `keep_seconds` is None, a property
        of the table defines the time; without the property they may use no older snapshot.
        """
        ...


def run_name(sequence: int, run: str) -> str:
    """Return the name of a run's directory. It contains the sequence number under which the run is
    to be committed."""
    return f"{sequence:020d}-{run}"


def left_by_runs(
    store: Store,
    runs: str,
    newest: int,
    is_needed: Callable[[str, str], bool],
    oldest: int = 0,
) -> list[str]:
    """Return the files that stopped runs with numbers from `oldest` to `newest` have left.

    Only one run is committed under each number. After this commit, other files with this number can
    never become part of a snapshot, even if a run is still writing them. Files of later numbers are
    not returned, because their runs may be in progress. `is_needed` is called with the id of a run
    and the path of an entry in its directory.
    """
    found: list[str] = []
    for name in store.names(runs):
        match = _RUN.fullmatch(name)
        if match is None or not oldest <= int(match[1]) <= newest:
            continue
        directory = join(runs, name)
        entries = [join(directory, entry) for entry in store.names(directory)]
        dead = [path for path in entries if not is_needed(match[2], path)]
        found += [directory] if len(dead) == len(entries) else dead
    return found


def another_was_quicker(where: str, newest: Snapshot | None) -> Conflict:
    how = "it has changed the table"
    if newest is not None:
        how = f"the table ends at offset {newest.to_offset} now (sequence {newest.sequence})"
    return Conflict(
        f"another export into {where} was quicker: {how}; this run has changed nothing",
        hint="run it again to export newer records; run only one export at a time",
    )
