"""Makes subject indexes of small segments with short runs, so that a test does not have to write
megabytes."""

from __future__ import annotations

import pytest

from liftlog.log.read import by_subject
from liftlog.log.rewrite import subject_indexing
from liftlog.server.reading import filtering


def index_small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow subject indexes for small batches and short runs."""
    monkeypatch.setattr(subject_indexing, "RUN_BYTES", 4096)
    monkeypatch.setattr(subject_indexing, "MOST_PART", 1)
    monkeypatch.setattr(subject_indexing, "_LEAST_BATCH_BYTES", 0)
    monkeypatch.setattr(subject_indexing, "_LEAST_RECORDS", 0)


def read_small_answers_by_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let readers use subject indexes also for small answers and small values."""
    monkeypatch.setattr(by_subject, "SPARSE_VALUE_BYTES", 16)
    monkeypatch.setattr(filtering, "_LEAST_BY_SUBJECT", 0)
