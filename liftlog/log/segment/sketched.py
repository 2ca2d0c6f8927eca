"""The part of a sketch that stays in memory: the checksums of the parts of batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.log.files.filesystem import FileSystem
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.segment.derived import CACHED_BYTES
from liftlog.log.segment.sketch import ValueChecks, read_sketch, read_value_checks


class SegmentParts:
    """The entries of a segment's sketch for its batches. Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        path: Path,
        about: tuple[SegmentEntry, str],
        parts: NDArray[np.void],
        place: ValueChecks,
    ) -> None:
        self.about = about
        """The state of the segment, and the lineage of its log."""
        self.positions: NDArray[np.int64] = parts["position"].astype(np.int64)
        self.size_bytes = parts.nbytes + self.positions.nbytes
        if place.size_bytes <= CACHED_BYTES:
            self.size_bytes += place.size_bytes
        self._parts = parts.copy()
        self._fs, self._path = fs, path
        self._place: ValueChecks | None = place  # None: already read, or cannot be used
        self._checks: NDArray[np.uint32] | None = None

    def between(self, position: int, end_position: int) -> tuple[int, int] | None:
        """Return the number of the first batch in [position, end_position), and the number after
        the last batch. Returns None if no batch begins at one of the two borders."""
        first, end = self.positions.searchsorted((position, end_position)).tolist()
        of_segment = self.about[0].size_bytes
        stop = self.positions[end] if end < len(self.positions) else of_segment
        if first == end or self.positions[first] != position or stop != end_position:
            return None
        return first, end

    def has_heads(self, first: int, end: int) -> bool:
        return bool(self._parts["head_bytes"][first:end].any())

    def of(self, first: int, end: int) -> list[tuple[int, int, int, int]]:
        """Return for each batch: its position, the size and the checksum of its head, and the
        number of its first value check."""
        found: Any = self._parts[first:end].tolist()
        return found  # type: ignore[no-any-return]

    def checks(self, first: int, count: int) -> NDArray[np.uint32] | None:
        """Return the value checks of a batch; None if they cannot be read."""
        self._load_checks()
        if self._checks is None:
            return None
        found = self._checks[first : first + count]
        return found if len(found) == count else None

    def checks_at(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32] | None:
        """Return the value checks with the given numbers; None if they cannot be read."""
        self._load_checks()
        checks = self._checks
        if checks is None or (len(numbers) and int(numbers.max()) >= len(checks)):
            return None
        found: NDArray[np.uint32] = checks[numbers]
        return found

    def _load_checks(self) -> None:
        place = self._place
        if place is not None:
            if place.size_bytes <= CACHED_BYTES:
                self._checks = read_value_checks(self._fs, self._path, place)
            self._place = None


def read_parts(
    fs: FileSystem, log_path: Path, segment: SegmentEntry, lineage: str
) -> SegmentParts | None:
    """Read the entries of a sketch; None if it is missing, invalid or has no parts. Raises
    OSError."""
    sketch = read_sketch(fs, log_path, segment, lineage)
    if sketch is None or not len(sketch.parts):
        return None
    return SegmentParts(fs, log_path, (segment, lineage), sketch.parts, sketch.value_checks)
