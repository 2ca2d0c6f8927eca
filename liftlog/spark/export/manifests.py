"""A Parquet table: data files, and manifests. The newest manifest is the valid one.

    _manifest/<sequence, 20 digits>.json      a snapshot, complete in itself
    _runs/<sequence, 20 digits>-<run>/        the files that one run has written

A run commits its files by creating the manifest with its sequence number. If several runs have the
same number, only one of them can create the manifest. The names of the directories begin with an
underscore, so that a Spark job that reads the whole directory finds no rows, instead of the rows of
all snapshots.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from itertools import pairwise

from liftlog.errors import Conflict, CorruptMetadata, StorageError
from liftlog.spark.export.snapshot import Snapshot, decode_manifest, encode_manifest
from liftlog.spark.export.store import LocalStore, join, no_atomic_manifest
from liftlog.spark.export.table import (
    DELTA_LOG,
    LEAST_SNAPSHOTS,
    MANIFESTS,
    another_was_quicker,
    left_by_runs,
    run_name,
)

RUNS = "_runs"

_MANIFEST = re.compile(r"(\d{20})\.json")
_TEMPORARY = re.compile(r"\.{1,2}(\d{20})\.(?:json|probe).*")


class ManifestTable:
    """A Parquet table in a directory."""

    def __init__(self, where: str, store: LocalStore) -> None:
        self.store = store
        self._where = where

    def prepare(self) -> None:
        self._check_format()
        self.store.make_directory(MANIFESTS)
        self.store.make_directory(RUNS)
        self._check_put_if_absent()

    def newest(self) -> Snapshot | None:
        while numbers := self._numbers():
            try:
                return self._read(numbers[-1])
            except FileNotFoundError:  # already removed, because two newer ones exist
                continue
        return None

    def next_sequence(self) -> int:
        numbers = self._numbers()
        return numbers[-1] + 1 if numbers else 1

    def run_directory(self, sequence: int, run: str) -> str:
        return join(RUNS, run_name(sequence, run))

    def commit(self, snapshot: Snapshot, previous: Snapshot | None) -> None:
        self._check_format()  # checked again: another run may have created a Delta table
        data = encode_manifest(snapshot)
        try:
            is_first = self.store.put_if_absent(_manifest_path(snapshot.sequence), data)
        except StorageError as error:
            if self.next_sequence() > snapshot.sequence:  # by the other run
                raise another_was_quicker(self._where, self.newest()) from error
            raise
        if not is_first:
            raise another_was_quicker(self._where, self.newest())
        following = [number for number in self._numbers() if number > snapshot.sequence]
        if following and not self._was_built_on(snapshot, following):
            # The run took so long that another run has used its number, and the manifest with this
            # number has been removed again.
            self.store.remove(_manifest_path(snapshot.sequence))
            raise another_was_quicker(self._where, self.newest())

    def garbage(
        self, now_ns: int, keep_seconds: float | None, keep_snapshots: int = LEAST_SNAPSHOTS
    ) -> list[str]:
        found = list(self._all())
        if not found:
            return []
        newest, least = found[-1][0], max(keep_snapshots, 1)
        kept = [snapshot for _, snapshot in found[-least:]]
        gone = self._temporary(newest)
        for (number, snapshot), (_, following) in pairwise(found[: max(len(found) - least + 1, 0)]):
            age_ns = 0 if following is None else now_ns - following.created_ns
            if age_ns > (keep_seconds or 0.0) * 1e9:
                gone.append(_manifest_path(number))
            else:
                kept.append(snapshot)
        readable = [snapshot for snapshot in kept if snapshot is not None]
        if len(readable) < len(kept):
            return gone  # it is unknown which files a damaged manifest needs
        needed = {file.path for snapshot in readable for file in snapshot.all_files}
        return gone + left_by_runs(self.store, RUNS, newest, lambda run, path: path in needed)

    # --- inner ---

    def _check_format(self) -> None:
        if self.store.names(DELTA_LOG):
            raise Conflict(f"{self._where} is a Delta table", hint="use --format delta")

    def _numbers(self) -> list[int]:
        found = map(_MANIFEST.fullmatch, self.store.names(MANIFESTS))
        return [int(one[1]) for one in found if one]

    def _read(self, number: int) -> Snapshot:
        path = _manifest_path(number)
        snapshot = decode_manifest(self.store.read(path), join(self._where, path))
        if snapshot.sequence != number:
            raise Conflict(f"{path} contains sequence {snapshot.sequence}: it was renamed")
        return snapshot

    def _all(self) -> Iterator[tuple[int, Snapshot | None]]:
        """Yield the snapshots with their numbers; None for a damaged manifest, which a run with
        --full has superseded."""
        for number in self._numbers():
            try:
                yield number, self._read(number)
            except CorruptMetadata:
                yield number, None
            except FileNotFoundError:  # removed by another run
                continue

    def _check_put_if_absent(self) -> None:
        number = self.next_sequence()
        probe = join(MANIFESTS, f".{number:020d}.probe-{uuid.uuid4().hex}")
        try:
            works = self.store.put_if_absent(probe, b"1")
            works = works and not self.store.put_if_absent(probe, b"2")
        except StorageError:
            if self.next_sequence() == number:
                raise
            return  # a run that committed meanwhile has removed the probe
        finally:
            self.store.remove(probe)
        if not works and self.next_sequence() == number:
            raise no_atomic_manifest(self._where, "its hard links replace existing files")

    def _temporary(self, newest: int) -> list[str]:
        """Return temporary manifests and probes that killed runs have left."""
        found = map(_TEMPORARY.fullmatch, self.store.names(MANIFESTS))
        return [join(MANIFESTS, one[0]) for one in found if one and int(one[1]) <= newest]

    def _was_built_on(self, snapshot: Snapshot, following: list[int]) -> bool:
        if following[0] != snapshot.sequence + 1:
            return False
        try:
            return self._read(following[0]).previous_run == snapshot.run
        except FileNotFoundError:  # already removed, because many newer ones exist
            return False


def _manifest_path(number: int) -> str:
    return join(MANIFESTS, f"{number:020d}.json")
