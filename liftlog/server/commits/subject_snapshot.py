"""The last offset of each subject as of a clean stop, so that the next start need not scan a large
log. Blocking."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from liftlog.errors import LiftlogError
from liftlog.log import Log
from liftlog.log.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.stream.subject_sequences import SubjectSequences

logger = logging.getLogger("liftlog.server.stream")

_NAME = "subjects"
_MAX_SUBJECTS = 200_000  # beyond it a scan costs about as much


def write_subject_snapshot(log: Log, table: SubjectSequences) -> None:
    """Save the table, which must have seen everything that went from the log. Raises OSError."""
    if not 0 < len(table) <= _MAX_SUBJECTS:
        return
    content = table.snapshot(log.log_end_offset) | _state_of(log)
    write_checkpoint_file(log.environment.fs, _path(log), _NAME, content)


def restore_subject_snapshot(log: Log, table: SubjectSequences) -> bool:
    """True when there was a snapshot of exactly this state of the log."""
    try:
        content = read_checkpoint_file(log.environment.fs, _path(log), _NAME)
        state = _state_of(log)
        if content is None or {name: content[name] for name in state} != state:
            return False
        return table.restore(content, log.log_end_offset)
    except (LiftlogError, KeyError, TypeError, ValueError, OSError) as error:
        logger.warning("subjects-snapshot-ignored stream=%s error=%s", log.name, error)
        return False


def _path(log: Log) -> Path:
    return log.directory / _NAME


def _state_of(log: Log) -> dict[str, Any]:
    """Other files, or other damage, and other records may be there."""
    return {
        "lineage": log.lineage,
        "log_end_offset": log.log_end_offset,
        "segments": [segment.path.name for segment in log.segments],
        "quarantined": [[bad.first_offset, bad.next_offset] for bad in log.quarantined],
    }
