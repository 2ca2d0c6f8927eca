"""The sketches of the segments that were read last, as far as they tell of parts of batches."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.log.filesystem import FileSystem
from liftlog.log.manifest import SegmentEntry
from liftlog.log.segment import Segment
from liftlog.log.sketch import ValueChecks, read_sketch, read_value_checks, sketch_state

_CACHED_BYTES = 64 * 1024 * 1024
"""Of all segments, and of one: value checks are a fiftieth of values of 200 bytes."""

_USELESS = 1000
"""Of so many sketches that cannot be used it is known; others are read again."""


class SegmentParts:
    """What the sketch of a segment says of its batches. Thread-safe."""

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
        if place.size_bytes <= _CACHED_BYTES:
            self.size_bytes += place.size_bytes
        self._parts = parts.copy()
        self._fs, self._path = fs, path
        self._place: ValueChecks | None = place  # None: its bytes were read, or are of no use
        self._checks: NDArray[np.uint32] | None = None

    def between(self, position: int, end_position: int) -> tuple[int, int] | None:
        """The numbers of the batches in these bytes; None if others begin or end there."""
        first, end = self.positions.searchsorted((position, end_position)).tolist()
        of_segment = self.about[0].size_bytes
        stop = self.positions[end] if end < len(self.positions) else of_segment
        if first == end or self.positions[first] != position or stop != end_position:
            return None
        return first, end

    def has_heads(self, first: int, end: int) -> bool:
        return bool(self._parts["head_bytes"][first:end].any())

    def of(self, first: int, end: int) -> list[tuple[int, int, int, int]]:
        """Position, bytes and checksum of the head, and first value check of these batches."""
        found: Any = self._parts[first:end].tolist()
        return found  # type: ignore[no-any-return]

    def checks(self, first: int, count: int) -> NDArray[np.uint32] | None:
        """The value checks of a batch; None if they cannot be read. Raises OSError."""
        self._load_checks()
        if self._checks is None:
            return None
        found = self._checks[first : first + count]
        return found if len(found) == count else None

    def checks_at(self, numbers: NDArray[np.int64]) -> NDArray[np.uint32] | None:
        """The value checks with these numbers. Otherwise as `checks`."""
        self._load_checks()
        checks = self._checks
        if checks is None or (len(numbers) and int(numbers.max()) >= len(checks)):
            return None
        found: NDArray[np.uint32] = checks[numbers]
        return found

    def _load_checks(self) -> None:
        place = self._place
        if place is not None:
            if place.size_bytes <= _CACHED_BYTES:
                self._checks = read_value_checks(self._fs, self._path, place)
            self._place = None


class PartsCache:
    """Those of the segments that were used last, up to _CACHED_BYTES. Thread-safe."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        self._found: OrderedDict[Path, SegmentParts] = OrderedDict()
        self._size = 0
        self._useless: OrderedDict[Path, object] = OrderedDict()

    def get(self, segment: Segment, lineage: str, *, load: bool) -> SegmentParts | None:
        """None without a good sketch that has parts, and if it is not in memory unless `load`.
        Raises OSError."""
        path, about = segment.path, (segment.entry(), lineage)
        with self._lock:
            found = self._found.get(path)
            if found is not None and found.about == about:
                self._found.move_to_end(path)
                return found
        if not load:
            return None
        state = sketch_state(self._fs, path)
        if state is None or self._useless.get(path) == (about, state):
            return None
        sketch = read_sketch(self._fs, path, *about)
        if sketch is None or not len(sketch.parts):
            with self._lock:
                self._useless[path] = about, state
                while len(self._useless) > _USELESS:
                    self._useless.popitem(last=False)
            return None
        found = SegmentParts(self._fs, path, about, sketch.parts, sketch.value_checks)
        with self._lock:
            replaced = self._found.pop(path, None)
            self._size += found.size_bytes - (replaced.size_bytes if replaced else 0)
            self._found[path] = found
            while self._size > _CACHED_BYTES and len(self._found) > 1:
                _, unused = self._found.popitem(last=False)
                self._size -= unused.size_bytes
        return found
