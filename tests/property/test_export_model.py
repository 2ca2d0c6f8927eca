"""Exports of random histories against a model of them: any mix of messages, compaction, retention
and crashes ends in the table that one export of all of it would have made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.crashing_disk import Stopped, disk
from support.exporting import Export, ExportedStreams, Put, table

from liftlog.errors import OffsetOutOfRange

KEYS = st.sampled_from(["a", "b", "c", None])
VALUES = st.sampled_from([b"1", b"2" * 500, None])
MESSAGES = st.lists(
    st.builds(Put, KEYS, VALUES).filter(lambda put: put.key is not None or put.value is not None),
    min_size=1,
    max_size=8,
)
PARTITIONS = st.sampled_from([None, 6000])  # one task for all, or several and some buckets
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), MESSAGES),
        st.tuples(st.just("compact"), st.booleans()),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("export"), st.tuples(st.integers(0, 60), PARTITIONS)),
    ),
    min_size=2,
    max_size=8,
)

numbers = itertools.count()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExportedStreams]:
    with ExportedStreams(tmp_path_factory.mktemp("data")) as streams:
        yield streams


class Model:
    """Every message that was sent, and where the log begins."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes | None, bytes | None]] = []
        self.log_start = 1

    @property
    def end(self) -> int:
        return len(self.sent) + 1

    def put(self, messages: list[Put]) -> None:
        for one in messages:
            key = None if one.key is None else one.key.encode()
            self.sent.append((self.end, key, one.value))

    def compacted(self) -> list[Any]:
        newest = {key: offset for offset, key, _ in self.sent}
        return [
            (offset, key, value)
            for offset, key, value in self.sent
            if offset >= self.log_start
            and (key is None or (newest[key] == offset and value is not None))
        ]


class History:
    """A stream, its model and the exports of it."""

    def __init__(self, streams: ExportedStreams, directory: Path) -> None:
        self.name = f"s{next(numbers)}"
        self.streams = streams
        self.model = Model()
        self.lake = Export(streams, self.name, str(directory / self.name))
        self.archive = Export(streams, self.name, str(directory / f"{self.name}-archive"))
        self.archived: list[Any] = []
        self.archived_to = 1
        # A rolled segment of its own for every few messages, so that passes find something.
        streams.create(self.name, segment={"max_bytes": "4KiB"})

    def apply(self, action: str, detail: Any) -> None:
        if action == "put":
            self.streams.put(self.name, detail)
            self.model.put(detail)
        elif action == "compact":
            if detail:  # tombstones of the pass before go
                self.streams.advance(7200)
            self.streams.compact(self.name)
        elif action == "truncate":
            start = self.model.log_start
            self.model.log_start = start + round((self.model.end - start) * detail)
            self.streams.truncate(self.name, self.model.log_start)
        else:
            self.export(*detail)

    def export(self, stop_before: int, partition_bytes: int | None = None) -> None:
        """A run that the machine stops at, and the one after it."""
        with disk(stop_before) as crashing:
            try:
                self.lake(partition_bytes=partition_bytes)
            except Stopped:
                crashing.cut_power()
        self.lake(partition_bytes=partition_bytes)
        assert table(self.lake.to) == self.model.compacted()
        self.append(stop_before)

    def append(self, stop_before: int) -> None:
        log = self.streams.log(self.name)
        present = {offset for offset in self._offsets() if offset >= self.archived_to}
        with disk(stop_before) as crashing:
            try:
                self.archive(mode="append")
            except Stopped:
                crashing.cut_power()
            except OffsetOutOfRange:
                assert self.archived_to < self.model.log_start
        self.archive(mode="append", skip_lost=True)
        self.archived += [one for one in self.model.sent if one[0] in present]
        self.archived_to = log.high_watermark
        assert table(self.archive.to) == self.archived

    def _offsets(self) -> list[int]:
        from liftlog.client import connect_sync

        with connect_sync(f"tcp://{self.streams.server}") as client:
            return [record.offset for record in client.read(self.name, until="end")]


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(actions=ACTIONS)
def test_exports_of_any_history(
    streams: ExportedStreams, tmp_path: Path, actions: list[tuple[str, Any]]
) -> None:
    history = History(streams, tmp_path)
    for action, detail in actions:
        history.apply(action, detail)
    history.export(10**6)
    whole = Export(streams, history.name, history.lake.to + "-whole")
    whole()
    assert table(whole.to) == table(history.lake.to)
