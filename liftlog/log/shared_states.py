"""The checkpoint files that all streams of a data directory share: clean marker, recovery points.

Each says of streams, by name, how far their active segments are known to be good.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptMetadata
from liftlog.log.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.filesystem import FileSystem
from liftlog.log.manifest import SegmentEntry
from liftlog.log.recovery import ActiveState

CLEAN_NAME = "clean"
RECOVERY_POINTS_NAME = "recovery-points"


def read_states(fs: FileSystem, data_dir: Path, file_name: str) -> dict[str, ActiveState]:
    """States by stream; none when the file is not there.

    Raises CorruptMetadata, UnsupportedFormat, OSError.
    """
    content = read_checkpoint_file(fs, data_dir / file_name, file_name)
    if content is None:
        return {}
    try:
        return {stream: _state(state) for stream, state in content["streams"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptMetadata(f"{file_name} holds something else than states: {error}") from error


def _state(content: dict[str, Any]) -> ActiveState:
    """Keys that a newer liftlog has added are ignored, as in every checkpoint file."""
    known = ActiveState.__slots__
    return ActiveState(**{name: value for name, value in content.items() if name in known})


def write_states(
    fs: FileSystem, data_dir: Path, file_name: str, states: Mapping[str, ActiveState]
) -> None:
    """Replace the file; durable on return. Raises OSError."""
    content = {"streams": {stream: asdict(state) for stream, state in states.items()}}
    write_checkpoint_file(fs, data_dir / file_name, file_name, content)


@dataclass(slots=True)
class KnownStates:
    """What both files say of one stream."""

    clean: ActiveState | None = None
    recovery_point: ActiveState | None = None

    def of(self, incarnation: str, active: SegmentEntry) -> list[ActiveState]:
        """Those that speak of this very segment."""
        return [one for one in self.all() if one.is_of(incarnation, active)]

    def all(self) -> list[ActiveState]:
        return [one for one in (self.clean, self.recovery_point) if one is not None]


def read_known_states(fs: FileSystem, data_dir: Path | None, stream: str) -> KnownStates:
    """A file that cannot be read says nothing, as for the daemon. Raises UnsupportedFormat."""
    if data_dir is None:
        return KnownStates()
    found = []
    for file_name in (CLEAN_NAME, RECOVERY_POINTS_NAME):
        try:
            found.append(read_states(fs, data_dir, file_name).get(stream))
        except (CorruptMetadata, OSError):
            found.append(None)
    return KnownStates(*found)
