"""The subjects of streams that JetStream's clients are creating or changing at the moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from acl.subjects import overlap_any


class Creations:
    """Finds overlaps with subjects that a stream does not have yet, but is about to get. Belongs to
    the event loop."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Sequence[str]]] = []

    def overlap(self, stream: str, subjects: Sequence[str]) -> bool:
        """Return True if a stream of another name is about to get one of these patterns."""
        return any(name != stream and overlap_any(used, subjects) for name, used in self._open)

    @contextlib.contextmanager
    def of(self, stream: str, config: Mapping[str, Any]) -> Iterator[None]:
        """Mark the subjects of this configuration as taken, while the stream is created or
        changed. Check for overlaps first, without an await in between."""
        one = (stream, () if config.get("no_ack") else config["subjects"])
        self._open.append(one)
        try:
            yield
        finally:
            self._open.remove(one)
