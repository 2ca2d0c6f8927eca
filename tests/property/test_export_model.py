"""Exports of random histories, compared with a model: messages, compaction, retention, damage,
crashes, and runs of all kinds. After every run, every row of its table is compared with the sent
messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.disks.crashing_disk import Stopped, disk
from support.rounds import fewer, is_torture
from support.spark.exporting import Export, ExportedStreams, Put, table

from liftlog.client import connect_sync
from liftlog.errors import Conflict, CorruptRange, LiftlogError, OffsetOutOfRange
from liftlog.spark.export import changes, in_doubt, newest
from liftlog.spark.export.changes import FOLD_PART, MOST_CHANGES
from liftlog.spark.export.job import Summary

Row = tuple[int, bytes | None, bytes | None]

KEYS = st.sampled_from(["a", "b", "c", "d", "e", "f", "g", None])
VALUES = st.sampled_from([b"1", b"2" * 500, None])
MESSAGES = st.lists(
    st.builds(Put, KEYS, VALUES).filter(lambda put: put.key is not None or put.value is not None),
    min_size=1,
    max_size=8,
)
PLACES = st.sampled_from([0.0, 0.3, 0.6, 0.9])  # of the log
CHANGES = st.one_of(
    st.tuples(st.just("compact"), st.booleans()),
    st.tuples(st.just("truncate"), st.sampled_from([0.1, 0.5, 1.0])),
    st.tuples(st.just("damage"), st.tuples(PLACES, st.booleans())),
    st.tuples(st.just("damage"), st.tuples(PLACES, st.booleans())),
    st.tuples(st.just("convert"), st.sampled_from(["compacted", "append"])),
)
RUNS = st.fixed_dictionaries(
    {
        "stop_before": st.one_of(st.none(), st.integers(0, 60)),
        "partition_bytes": st.sampled_from([None, 6000]),  # one task, or several and some buckets
        "optimize": st.sampled_from([False, False, True]),
        "full": st.sampled_from([False, False, True]),
        # Of the compacted table. A run that folds leaves nothing of what merge on read does.
        "layout": st.sampled_from([None, "copy-on-write", "merge-on-read", "merge-on-read"]),
    }
)
# How much may have changed before a fold, and how many files of changes are made one. As they are,
# and so that a few runs of a small table reach them.
AS_THEY_ARE = (FOLD_PART, MOST_CHANGES)
BOUNDS = st.sampled_from([AS_THEY_ARE, (5.0, 1), (5.0, 2), (5.0, MOST_CHANGES)])
ROUNDS = st.lists(
    st.tuples(st.lists(MESSAGES, min_size=1, max_size=3), st.lists(CHANGES, max_size=2), RUNS),
    min_size=2,
    max_size=8 if is_torture() else 4,
)

PLAIN = {"stop_before": None, "partition_bytes": None, "optimize": False, "full": False}
ON_READ = PLAIN | {"layout": "merge-on-read"}
READ_BEFORE_AND_AFTER_A_PASS = [
    # The runs read up to the same high watermark, which the pass in between does not move.
    ([[Put("a", b"1")], [Put("a", b"2" * 500)] * 8], [], PLAIN),
    ([[Put("b", b"1")] * 3], [("convert", "compacted"), ("compact", False)], PLAIN),
]

AN_ARCHIVE_OF_WHAT_WAS_COMPACTED = [
    ([[Put("a", b"1")]], [("convert", "compacted")], PLAIN),
    ([[Put("a", b"1")] * 8] * 4, [("compact", False), ("convert", "append")], PLAIN),
]

# The changes of as many runs as a bucket has files become one file, and so does what they replaced:
# also the row of a key that no later run had.
FIRST = [Put(name, b"1") for name in ["first", "never", *map("k{}".format, range(MOST_CHANGES))]]
ABSORBED = [
    ([FIRST], [], ON_READ),
    ([[Put("first", b"2")]], [], ON_READ),
    *[([[Put(f"k{n}", b"2")]], [], ON_READ) for n in range(MOST_CHANGES)],
]

numbers = itertools.count()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExportedStreams]:
    with ExportedStreams(tmp_path_factory.mktemp("data")) as streams:
        yield streams


class Model:
    """Every sent message, the log start, and the damaged batches."""

    def __init__(self) -> None:
        self.sent: list[Row] = []
        self.log_start = 1
        self.damaged: set[int] = set()

    @property
    def end(self) -> int:
        return len(self.sent) + 1

    def put(self, messages: list[Put]) -> None:
        for one in messages:
            key = None if one.key is None else one.key.encode()
            self.sent.append((self.end, key, one.value))

    def compacted(self, end: int) -> list[Row]:
        """Return the rows of a compacted table without damage, for the messages before `end`."""
        sent = self.sent[: end - 1]
        newest = {key: offset for offset, key, _ in sent}
        return [
            (offset, key, value)
            for offset, key, value in sent
            if offset >= self.log_start
            and (key is None or (newest[key] == offset and value is not None))
        ]


class History:
    """A stream, its model and its exports: compacted, an archive, and one that changes its mode."""

    def __init__(self, streams: ExportedStreams, directory: Path) -> None:
        self.name = f"s{next(numbers)}"
        self.streams = streams
        self.model = Model()
        self.lake = Export(streams, self.name, str(directory / self.name))
        self.archive = Export(streams, self.name, str(directory / f"{self.name}-archive"))
        self.other = Export(streams, self.name, str(directory / f"{self.name}-other"))
        # A rolled segment of its own for every few messages, so that passes find something.
        streams.create(self.name, segment={"max_bytes": "4KiB"})

    def put(self, messages: list[Put]) -> None:
        self.streams.put(self.name, messages)
        self.model.put(messages)

    def change(self, action: str, detail: Any) -> None:
        if action == "compact":
            if detail:  # tombstones of the pass before go
                self.streams.advance(7200)
            self.streams.compact(self.name)
        elif action == "truncate":
            start = self.model.log_start
            self.model.log_start = start + round((self.model.end - start) * detail)
            self.streams.truncate(self.name, self.model.log_start)
        elif action == "damage":
            self.damage(*detail)
        else:
            self.run(self.other, mode=detail, full=True)

    def export(self, layout: Any = None, **asked: Any) -> None:
        self.run(self.lake, layout=layout, **asked)
        self.run(self.archive, mode="append", **asked)

    def damage(self, place: float, noticed: bool) -> None:
        start = self.model.log_start
        offset = start + int((self.model.end - start) * place)
        if offset not in self.model.damaged:  # a bit that is flipped twice is as it was
            lost = self.streams.damage(self.name, offset, noticed=noticed)
            self.model.damaged.update(lost)

    def run(self, export: Export, stop_before: int | None = None, **asked: Any) -> None:
        """Make a run with the necessary permissions, sometimes after a run during which the machine
        stopped."""
        permitted: dict[str, bool] = {}
        was = newest(export.to)
        while True:
            before = rows_of(export)
            with disk(stop_before) as crashing:
                try:
                    summary = export(**asked, **permitted)
                    break
                except Stopped:
                    crashing.cut_power()
                except (OffsetOutOfRange, CorruptRange, Conflict) as refused:
                    assert rows_of(export) == before, "a run that failed has changed the table"
                    permission = self.permission(export, refused, before, asked)
                    assert permission not in permitted
                    permitted[permission] = True
            stop_before = None
        self.check(export, summary)
        # What a compacted table held may be superseded by now, and compaction may have removed it.
        is_archive = summary.mode == "append" and (was is None or was.mode == "append")
        if is_archive and "discard_rows" not in permitted:
            gone = set(before) - set(rows_of(export))
            assert not gone, "an archive has lost rows without a word"

    def permission(
        self, export: Export, refused: LiftlogError, before: list[Row], asked: dict[str, Any]
    ) -> str:
        """Return the permission that such a run needs, and check that the refusal was right."""
        if isinstance(refused, Conflict):
            assert "--full would remove rows" in refused.message
            assert self.may_lose(before, asked), refused.message
            return "discard_rows"
        if isinstance(refused, OffsetOutOfRange):
            snapshot = newest(export.to)
            assert snapshot is not None
            assert (snapshot.mode, asked["full"]) == ("append", False)
            assert snapshot.to_offset < self.model.log_start
        else:
            assert self.model.damaged
        return "skip_lost"

    def may_lose(self, before: list[Row], asked: dict[str, Any]) -> bool:
        log = self.streams.log(self.name)
        first = min([row[0] for row in before], default=self.model.end)
        return bool(
            asked.get("mode") == "compacted"
            or first < max(self.model.log_start, log.view.manifest.cleaned_below)
            or self.model.damaged
        )

    def check(self, export: Export, summary: Summary) -> None:
        """Compare the table with the sent messages, except for the records that it reports as
        missing."""
        model, snapshot, rows = self.model, newest(export.to), rows_of(export)
        assert snapshot is not None
        end = snapshot.to_offset
        assert end == self.streams.log(self.name).high_watermark
        sent = {row[0]: row for row in model.sent}
        assert [row for row in rows if sent[row[0]] != row] == []
        lost = {n for one in snapshot.lost for n in range(one.first_offset, one.next_offset)}
        assert not [n for n in lost if n not in model.damaged and n >= model.log_start]
        doubted = {key for batch in in_doubt(export.to) for key in batch.column("key").to_pylist()}
        assert summary.keys_in_doubt == len(doubted)
        if snapshot.mode == "append":
            assert not doubted
            missing = set(self.readable()) - set(rows)
            assert missing <= {sent[n] for n in lost}
            return
        truth = model.compacted(end)
        assert [row for row in rows if row[0] < model.log_start] == []
        wrong = [row for row in rows if row not in truth and row[1] not in doubted]
        assert not wrong, "values that are not the newest, and nothing says so"
        absent = [row for row in truth if row not in rows and row[1] not in doubted]
        assert not [row for row in absent if row[0] not in lost]
        if not lost:
            assert (rows, doubted) == (truth, set())

    def readable(self) -> list[Row]:
        """Return the records that a client can still read."""
        with connect_sync(f"tcp://{self.streams.server}") as client:
            found = client.read(self.name, until="end", on_corrupt="skip")
            return [(record.offset, record.key, record.value) for record in found]


def rows_of(export: Export) -> list[Row]:
    return table(export.to)


def examples(few: int) -> settings:
    return settings(
        max_examples=300 if is_torture() else fewer(few),
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


@pytest.mark.timeout(3600 if is_torture() else 300)  # Hypothesis calls the end of time flaky
@examples(3)
@example(rounds=READ_BEFORE_AND_AFTER_A_PASS, bounds=AS_THEY_ARE)
@example(rounds=AN_ARCHIVE_OF_WHAT_WAS_COMPACTED, bounds=AS_THEY_ARE)
@example(rounds=ABSORBED, bounds=(5.0, MOST_CHANGES))
@given(rounds=ROUNDS, bounds=BOUNDS)
def test_exports_of_any_history(
    streams: ExportedStreams, tmp_path: Path, rounds: Any, bounds: tuple[float, int]
) -> None:
    run_history(streams, tmp_path, rounds, bounds)


@pytest.mark.skipif(is_torture(), reason="test_exports_of_any_history has more examples")
@pytest.mark.long
@examples(30)
@given(rounds=ROUNDS, bounds=BOUNDS)
def test_exports_of_more_histories(
    streams: ExportedStreams, tmp_path: Path, rounds: Any, bounds: tuple[float, int]
) -> None:
    run_history(streams, tmp_path, rounds, bounds)


def run_history(
    streams: ExportedStreams, directory: Path, rounds: Any, bounds: tuple[float, int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changes, "FOLD_PART", bounds[0])
        patch.setattr(changes, "MOST_CHANGES", bounds[1])
        history = History(streams, directory)
        check_history(history, rounds)
        streams.delete(history.name)  # or each history takes longer than the one before


def check_history(history: History, rounds: Any) -> None:
    for groups, events, run in rounds:
        for messages in groups:
            history.put(messages)
        for action, detail in events:
            history.change(action, detail)
        history.export(**run)
    history.export(full=False)
    if not history.model.damaged:
        whole = Export(history.streams, history.name, history.lake.to + "-whole")
        whole()
        assert table(whole.to) == table(history.lake.to)
