"""Checkpoints above a stream that lands or fails when the test says so."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.errors import (
    CheckpointMoved,
    DiskFull,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.protocol.checkpoints import PAGE_CHECKPOINTS
from liftlog.server.checkpoints.checkpoint import Stored, decode_key, decode_value
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.checkpoints.table import CheckpointTable


class Disk:
    """The stream `_offsets`: flights wait until they are told."""

    def __init__(self) -> None:
        self.failure = ""
        self.flights: list[tuple[dict[Any, Any], Any]] = []
        self.subjects: list[bytes] = []

    def store(self, subjects: Any, keys: Any, values: Any, done: Any) -> None:
        self.subjects += subjects
        content = {
            decode_key(key): None if value is None else decode_value(value)
            for key, value in zip(keys, values, strict=True)
        }
        self.flights.append((content, done))

    def land(self, error: LiftlogError | None = None) -> dict[Any, Any]:
        content, done = self.flights.pop(0)
        done(error)
        return content


class Streams:
    def __init__(self) -> None:
        self.logs = {"orders": make_log(), "_offsets": make_log()}

    def stream(self, name: str) -> Any:
        if name not in self.logs:
            raise StreamNotFound(f"no stream {name}")
        return SimpleNamespace(log=self.logs[name])


def make_log(incarnation: str = "i1") -> Any:
    return SimpleNamespace(
        incarnation=incarnation,
        leader_epoch=1,
        log_start_offset=1,
        high_watermark=100,
        log_end_offset=100,
        epoch_end=lambda epoch: 100,
    )


class Bench:
    def __init__(self, max_count: int = 1000, entries: Any = None, quota: int = 1000) -> None:
        self.disk, self.streams = Disk(), Streams()
        self.now = 1000
        self.checkpoints = Checkpoints(
            self.streams.stream,
            self.disk,  # type: ignore[arg-type]
            CheckpointTable(entries),
            subject_prefix="liftlog.main.offsets",
            max_count=max_count,
            max_count_per_principal=quota,
            now_ns=lambda: self.now,
        )
        self.told: list[tuple[str, LiftlogError | None]] = []

    def commit(self, label: str, consumer: str, offset: int, **options: Any) -> None:
        def told(error: LiftlogError | None) -> None:
            self.told.append((label, error))

        self.checkpoints.commit(consumer, options.pop("stream", "orders"), offset, told, **options)

    def delete(self, label: str, consumer: str, **options: Any) -> None:
        self.checkpoints.delete(
            consumer, "orders", lambda error: self.told.append((label, error)), **options
        )

    def outcomes(self) -> dict[str, str]:
        return {label: "ok" if error is None else error.name for label, error in self.told}


async def turn() -> None:
    """Let what was scheduled run."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_comes_together_is_one_flight_and_nothing_is_told_before_it_lands() -> None:
    bench = Bench()
    for n in range(50):
        bench.commit(f"c{n}", f"c{n}", n + 1)
    assert not bench.disk.flights
    await turn()
    assert len(bench.disk.flights) == 1
    assert not bench.told
    assert len(bench.checkpoints.table) == 0
    content = bench.disk.land()
    assert content[("c7", "orders")] == Stored(8, 1, "i1", 1000)
    assert set(bench.outcomes().values()) == {"ok"}
    assert len(bench.told) == 50
    found = bench.checkpoints.fetch("c7", "orders", check=True)
    assert found is not None
    assert (found.offset, found.lag, found.problem) == (8, 92, "")
    assert b"liftlog.main.offsets.orders.c7" in bench.disk.subjects


async def test_what_comes_meanwhile_is_the_next_flight() -> None:
    bench = Bench()
    bench.commit("first", "c", 5)
    await turn()
    bench.commit("second", "c", 6)
    bench.commit("third", "c", 7)
    await turn()
    assert len(bench.disk.flights) == 1
    bench.disk.land()
    assert bench.outcomes() == {"first": "ok"}
    assert [one.offset for one in bench.disk.flights[0][0].values()] == [7]
    bench.disk.land()
    assert bench.outcomes() == {"first": "ok", "second": "ok", "third": "ok"}


async def test_expected_values_are_judged_one_after_the_other() -> None:
    bench = Bench()
    bench.commit("new", "c", 5, expected=0)
    bench.commit("again", "c", 6, expected=0)
    bench.commit("on", "c", 7, expected=5)
    bench.commit("late", "c", 9, expected=5)
    bench.delete("rm-late", "c", expected=5)
    await turn()
    bench.disk.land()
    assert bench.outcomes() == {
        "new": "ok",
        "again": "CHECKPOINT_MOVED",
        "on": "ok",
        "late": "CHECKPOINT_MOVED",
        "rm-late": "CHECKPOINT_MOVED",
    }
    details = {label: error.details for label, error in bench.told if error is not None}
    assert details["again"] == {"offset": 5}
    assert details["late"] == {"offset": 7}


async def test_a_flight_that_fails_takes_everything_judged_by_it_along() -> None:
    bench = Bench()
    bench.commit("new", "c", 5, expected=0)
    bench.commit("late", "c", 9, expected=0)
    await turn()
    bench.commit("next", "c", 6, expected=0)
    bench.disk.land(DiskFull("full"))
    assert bench.outcomes() == {"new": "DISK_FULL", "late": "DISK_FULL"}
    assert bench.checkpoints.fetch("c", "orders", check=True) is None
    bench.disk.land()
    assert bench.outcomes()["next"] == "ok"


async def test_deletions() -> None:
    bench = Bench(
        entries={("c", "orders"): Stored(5, 1, "i1", 1), ("d", "gone"): Stored(1, 1, "", 1)}
    )
    bench.delete("none", "other")
    await turn()
    assert bench.outcomes() == {"none": "ok"}  # without a write
    assert not bench.disk.flights
    bench.delete("rm", "c", expected=5)
    bench.checkpoints.delete("d", "gone", lambda error: bench.told.append(("gone", error)))
    bench.commit("after", "c", 3, expected=0)
    await turn()
    assert bench.disk.land() == {
        ("c", "orders"): Stored(3, 1, "i1", 1000),
        ("d", "gone"): None,
    }
    assert bench.outcomes() == {"none": "ok", "rm": "ok", "gone": "ok", "after": "ok"}
    assert len(bench.checkpoints.table) == 1


async def test_only_if_it_is_still_the_same() -> None:
    stored = Stored(5, 1, "i1", 1)
    bench = Bench(entries={("c", "orders"): stored})
    bench.commit("back", "c", 5)
    bench.delete("rm", "c", only_if=stored)
    await turn()
    bench.disk.land()
    assert bench.outcomes() == {"back": "ok", "rm": "CHECKPOINT_MOVED"}


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (InvalidArgument, {"offset": 0}),
        (InvalidArgument, {"consumer": "a/b"}),
        (InvalidArgument, {"consumer": "_a"}),
        (StreamNotFound, {"stream": "none"}),
        (OffsetOutOfRange, {"offset": 101}),
        (StaleIncarnation, {"incarnation": "i0"}),
    ],
)
async def test_refused_at_once(error: type[LiftlogError], arguments: dict[str, Any]) -> None:
    bench = Bench()
    with pytest.raises(error):
        bench.commit("x", **({"consumer": "c", "offset": 5} | arguments))
    await turn()
    assert not bench.disk.flights
    assert bench.checkpoints.refused[error.name] == 1


async def test_a_bound_on_their_number() -> None:
    bench = Bench(max_count=2)
    bench.commit("a", "a", 1)
    bench.commit("b", "b", 1)
    bench.commit("c", "c", 1)
    bench.commit("a2", "a", 2)
    bench.delete("rm", "a")
    bench.commit("d", "d", 1)
    await turn()
    bench.disk.land()
    assert bench.outcomes() == {
        "a": "ok", "b": "ok", "c": "LIMIT_EXCEEDED", "a2": "ok", "rm": "ok", "d": "ok",
    }  # fmt: skip
    assert sorted(key for key, _ in bench.checkpoints.table.items()) == [
        ("b", "orders"), ("d", "orders"),
    ]  # fmt: skip


async def test_a_bound_on_what_waits() -> None:
    bench = Bench()
    bench.commit("first", "c", 1)
    await turn()
    with pytest.raises(LimitExceeded):
        for _ in range(100_001):
            bench.commit("more", "c", 1)
    while bench.disk.flights:
        bench.disk.land()
    assert len(bench.told) == 100_001
    assert not bench.checkpoints._waiting_of


async def test_what_waits_is_judged_some_at_a_time() -> None:
    """The event loop has more to do than to judge the checkpoints of one client."""
    bench = Bench()
    bench.commit("first", "c", 1)
    await turn()
    for _ in range(2_400):
        bench.commit("more", "c", 1)
    landed = []
    while bench.disk.flights:
        before = len(bench.told)
        bench.disk.land()
        landed.append(len(bench.told) - before)
    assert landed == [1, 1000, 1000, 400]


async def test_what_waits_of_one_principal_leaves_room_for_others() -> None:
    bench = Bench()
    bench.commit("first", "c", 1)
    await turn()
    with pytest.raises(LimitExceeded):
        for _ in range(100_000):
            bench.commit("more", "c", 1, metadata="x" * 4096, owner="greedy")
    bench.commit("modest", "d", 1, metadata="x" * 4096, owner="modest")
    bench.commit("nobody's", "e", 1)
    while bench.disk.flights:
        bench.disk.land()
    assert bench.outcomes()["modest"] == bench.outcomes()["nobody's"] == "ok"


async def test_a_quota_for_each_principal() -> None:
    old = {("old", "orders"): Stored(5, 1, "i1", 1)}
    bench = Bench(entries=old, quota=2)
    for label in ("a", "b", "c"):
        bench.commit(label, label, 1, owner="greedy")
    bench.commit("other", "d", 1, owner="modest")
    bench.commit("nobody's", "e", 1)
    await turn()
    bench.disk.land()
    assert bench.outcomes() == {
        "a": "ok", "b": "ok", "c": "LIMIT_EXCEEDED", "other": "ok", "nobody's": "ok",
    }  # fmt: skip
    (refusal,) = [error for _, error in bench.told if error is not None]
    assert "greedy has 2 checkpoints already" in refusal.message
    assert "checkpoints.max_count_per_principal" in refusal.hint

    bench.told.clear()
    bench.commit("again", "a", 2, owner="greedy")  # one that is there always goes
    bench.commit("taken over", "d", 2, owner="greedy")
    bench.commit("old", "old", 6, owner="greedy")
    bench.delete("rm", "b")
    bench.commit("still too many", "c", 1, owner="greedy")
    bench.delete("rm too", "a")
    bench.delete("rm three", "old")
    bench.commit("room", "c", 1, owner="greedy")
    bench.commit("modest has room", "f", 1, owner="modest")
    await turn()
    bench.disk.land()
    assert {label for label, error in bench.told if error is not None} == {"still too many"}
    assert bench.checkpoints.table.owned_count("greedy") == 2
    assert bench.checkpoints.table.owned_count("modest") == 1


async def test_a_flight_that_fails_counts_against_nobody() -> None:
    bench = Bench(quota=1)
    bench.commit("lost", "a", 1, owner="p")
    await turn()
    bench.disk.land(StreamUnavailable("the disk is gone"))
    bench.commit("again", "b", 1, owner="p")
    await turn()
    bench.disk.land()
    assert bench.outcomes() == {"lost": "STREAM_UNAVAILABLE", "again": "ok"}


async def test_a_bound_on_the_text_of_what_waits() -> None:
    bench = Bench()
    bench.commit("first", "c", 1)
    await turn()
    with pytest.raises(LimitExceeded):
        for _ in range(100_000):
            bench.commit("more", "c", 1, metadata="x" * 4096)
    assert len(bench.checkpoints._waiting) == 64 * 1024 * 1024 // 4096
    bench.disk.land()
    bench.commit("again", "c", 1, metadata="x" * 4096)


async def test_a_stream_that_failed() -> None:
    bench = Bench()
    bench.disk.failure = "the disk is gone"
    with pytest.raises(StreamUnavailable, match="the disk is gone"):
        bench.commit("x", "c", 1)


async def test_one_who_cannot_be_told_does_not_keep_it_from_the_others() -> None:
    bench = Bench()

    def broken(error: LiftlogError | None) -> None:
        raise RuntimeError("gone")

    bench.checkpoints.commit("a", "orders", 1, broken)
    bench.commit("b", "b", 1)
    await turn()
    bench.disk.land()
    assert bench.outcomes() == {"b": "ok"}


async def test_what_a_reader_is_told() -> None:
    entries = {
        ("ahead", "orders"): Stored(101, 1, "i1", 1),
        ("fine", "orders"): Stored(100, 1, "i1", 1, "mine"),
        ("gone", "none"): Stored(5, 1, "i1", 1),
        ("old", "orders"): Stored(5, 1, "i0", 1),
    }
    bench = Bench(entries=entries)
    listed, after = bench.checkpoints.page(lambda stream: True)
    assert after is None
    assert [(one.consumer, one.lag, one.problem) for one in listed] == [
        ("ahead", None, "OFFSET_OUT_OF_RANGE"),
        ("fine", 0, ""),
        ("gone", None, "STREAM_NOT_FOUND"),
        ("old", None, "STALE_INCARNATION"),
    ]
    for consumer, stream, error in (
        ("ahead", "orders", OffsetOutOfRange),
        ("gone", "none", StreamNotFound),
        ("nobody", "none", StreamNotFound),
        ("old", "orders", StaleIncarnation),
    ):
        with pytest.raises(error):
            bench.checkpoints.fetch(consumer, stream, check=True)
    found = bench.checkpoints.fetch("old", "orders", check=False)
    assert found is not None
    assert (found.offset, found.problem) == (5, "STALE_INCARNATION")
    found = bench.checkpoints.fetch("fine", "orders", check=True)
    assert found is not None
    assert found.metadata == "mine"


@pytest.mark.parametrize(
    "count", [PAGE_CHECKPOINTS - 1, PAGE_CHECKPOINTS, 2 * PAGE_CHECKPOINTS + 1]
)
async def test_pages(count: int) -> None:
    names = [f"c{n:05}" for n in range(count)]
    streams = ("a", "b", "hidden")
    entries = {(name, s): Stored(5, 1, "i1", 1) for name in names for s in streams}
    bench = Bench(entries=entries)

    def all_of(**options: Any) -> list[tuple[str, str]]:
        found, after = [], None
        while True:
            page, after = bench.checkpoints.page(
                lambda stream: stream != "hidden", after=after, **options
            )
            assert len(page) <= PAGE_CHECKPOINTS
            found += [(one.consumer, one.stream) for one in page]
            if after is None:
                return found

    assert all_of() == [(name, s) for name in names for s in ("a", "b")]
    assert all_of(stream="b") == [(name, "b") for name in names]
    assert all_of(consumer=names[-1]) == [(names[-1], "a"), (names[-1], "b")]
    assert all_of(consumer="c") == []
    assert all_of(stream="hidden") == []


async def test_moved_is_worded_for_people() -> None:
    bench = Bench()
    bench.commit("x", "c", 5, expected=4)
    await turn()
    (_, error), = bench.told  # fmt: skip
    assert isinstance(error, CheckpointMoved)
    assert error.message == "the checkpoint of c in stream orders is not set, not 4"


async def test_lags_are_those_of_the_page() -> None:
    entries = {
        ("ahead", "orders"): Stored(200, 1, "i1", 1),
        ("at-the-end", "orders"): Stored(100, 1, "i1", 1),
        ("behind", "orders"): Stored(7, 1, "i1", 1),
        ("earlier", "orders"): Stored(7, 1, "i0", 1),
        ("gone", "deleted"): Stored(7, 1, "i1", 1),
        ("newer", "orders"): Stored(7, 2, "i1", 1),
        ("unknown", "_offsets"): Stored(7, 1, "i1", 1),
    }
    bench = Bench(entries=entries)
    bench.streams.logs["_offsets"].high_watermark = None
    page, _ = bench.checkpoints.page(lambda _: True)
    lags = bench.checkpoints.lags(None, 3)
    lags += bench.checkpoints.lags(lags[-1][0], 100)
    assert [(one.consumer, one.stream, one.lag) for one in page] == [(*k, lag) for k, lag in lags]
    assert [lag for _, lag in lags] == [None, 0, 93, None, None, None, None]
    assert bench.checkpoints.lags(lags[-1][0], 100) == []


@pytest.mark.parametrize(("metadata", "flights"), [("", [1000, 500]), ("x" * 4000, [125] * 12)])
async def test_a_flight_takes_only_so_much(metadata: str, flights: list[int]) -> None:
    """It is judged, encoded and answered in one turn of the loop each."""
    bench = Bench(max_count=2000, quota=2000)
    for n in range(1500):
        bench.commit(f"c{n}", f"c{n}", n % 100 + 1, metadata=metadata)
    found = []
    while len(bench.told) < 1500:
        await turn()
        found.append(len(bench.disk.land()))
    assert found == flights
    assert set(bench.outcomes().values()) == {"ok"}
