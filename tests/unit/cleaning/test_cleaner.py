"""What is cleaned next."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.daemons.local_cleaning import COMPACTED, Cleaning

from liftlog.errors import InvalidArgument
from liftlog.log import Log
from liftlog.log.segment.derived import sketch_path
from liftlog.log.segment.index import index_path
from liftlog.server.cleaning import next_segments
from liftlog.server.cleaning.pace import Rates, fixed_rate
from liftlog.server.cleaning.process import JobFailed, WorkerDied


async def test_the_dirtiest_comes_first_and_clean_streams_not_at_all(cleaning: Cleaning) -> None:
    await cleaning.stream("half", 300, 10)
    await cleaning.round()
    await cleaning.stream("dirty", 300, 10)
    pairs = [(f"key-{n}", b"x" * 1000) for n in range(10)]
    for _ in range(3):
        await cleaning.running.put("half", pairs)
    cleaning.worker.jobs.clear()
    assert not await cleaning.round()
    assert cleaning.worker.jobs == [("compact", "dirty"), ("compact", "half")]
    assert cleaning.state("dirty").passes == 1
    cleaning.worker.jobs.clear()
    await cleaning.round()
    assert cleaning.worker.jobs == []


async def test_a_pass_keeps_the_newest_of_each_key(cleaning: Cleaning) -> None:
    await cleaning.stream("s", 300, 10)
    await cleaning.round()
    log = cleaning.running.broker.hosts["s"].log
    assert cleaning.read("s") == {b"key-%d" % n: 291 + n for n in range(10)}
    last = cleaning.state("s").last_pass
    assert last["records_in"] - last["records_out"] == cleaning.state("s").records_removed > 200
    assert cleaning.segment_files("s") == [segment.path.name for segment in log.segments]


async def test_on_demand_rolls_first_and_comes_before_the_others(cleaning: Cleaning) -> None:
    await cleaning.stream("dirty", 300, 10)
    await cleaning.stream("asked", 20, 2, segment={"max_bytes": "1MiB"})
    host = cleaning.running.broker.hosts["asked"]
    cleaning.cleaner.request(host)
    assert cleaning.cleaner.describe(host)["state"] == "waiting"
    await cleaning.round()
    assert cleaning.worker.jobs[0] == ("compact", "asked")
    assert cleaning.read("asked") == {b"key-0": 19, b"key-1": 20}
    info = cleaning.cleaner.describe(host)
    assert (info["state"], info["requested"], info["finished"]) == ("idle", 1, 1)


async def test_on_demand_is_refused_without_compaction(cleaning: Cleaning) -> None:
    for name, compaction in (("null", None), ("off", {"enabled": False})):
        await cleaning.stream(name, 10, 1, compaction=compaction)
        with pytest.raises(InvalidArgument):
            await cleaning.running.broker.compact_stream(name)


async def test_many_keys_in_little_memory_take_several_passes(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, memory="1MiB")
    await cleaning.running.start()
    await cleaning.stream("s", 0, 1, segment={"max_bytes": "256KiB"})
    wide = "x" * 100
    for round_ in range(2):
        for first in range(0, 12_000, 1000):
            pairs = [(f"{wide}{n}", b"%d" % round_) for n in range(first, first + 1000)]
            await cleaning.running.put("s", pairs)
    cleaning.cleaner.request(cleaning.running.broker.hosts["s"])
    await cleaning.round()
    assert cleaning.state("s").passes > 1
    assert cleaning.state("s").finished == 1
    found = cleaning.read("s")
    assert len(found) == 12_000
    assert min(found.values()) == 12_001
    await cleaning.close()


@pytest.mark.parametrize("asked", [False, True], ids=["due", "on demand"])
async def test_keys_that_do_not_fit_into_memory_delay_no_other_stream(
    asked: bool, tmp_path: Path
) -> None:
    """Each pass is for few of them; a turn is over after the first one here."""
    cleaning = Cleaning(tmp_path, memory="1MiB", interval="1ms")
    await cleaning.running.start()
    await cleaning.stream("wide", 0, 1, segment={"max_bytes": "512KiB"})
    wide = "x" * 60_000
    for round_ in range(3):
        for n in range(60):
            await cleaning.running.put("wide", [(f"{wide}{n}", b"%d" % round_)])
    await cleaning.stream("other", 300, 100)
    await cleaning.stream("third", 300, 150)
    if asked:
        cleaning.cleaner.request(cleaning.running.broker.hosts["wide"])
    rounds = 1
    while await cleaning.round():
        rounds += 1
    order = [name for _, name in cleaning.worker.jobs]
    assert order.count("wide") > 3
    assert order.index("wide") == 0
    assert max(order.index("other"), order.index("third")) <= 4
    assert rounds > 1
    state = cleaning.state("wide")
    assert (state.unfinished, state.finished) == (False, int(asked))
    found = cleaning.read("wide")
    assert len(found) == 60
    log = cleaning.running.broker.hosts["wide"].log
    assert sum(segment.record_count for segment in log.segments) < 90
    await cleaning.close()


async def test_a_turn_that_is_over_is_not_waited_for_where_nothing_can_go_on(
    tmp_path: Path,
) -> None:
    """Else rounds would follow each other without a pause."""
    cleaning = Cleaning(tmp_path, interval="1ms")
    await cleaning.running.start()
    await cleaning.stream("s", 300, 10)
    state = cleaning.state("s")
    state.unfinished = True
    state.not_before = time.monotonic() + 60
    assert not await cleaning.round()
    state.not_before = 0.0
    assert not await cleaning.round()  # it was the last pass
    assert not state.unfinished
    await cleaning.close()


async def test_the_lower_rate_holds(cleaning: Cleaning) -> None:
    await cleaning.stream("slow", 100, 3, compaction={"max_rate": "1MiB"})
    await cleaning.stream("fast", 100, 3, compaction={"max_rate": "1GiB"})
    await cleaning.round()
    rates = dict(
        zip([name for _, name in cleaning.worker.jobs], cleaning.worker.rates, strict=True)
    )
    assert rates == {"slow": fixed_rate(2**20), "fast": Rates(32 * 2**20, 2**30)}


# --- re-batching and scrubbing ---


async def test_small_batches_are_joined_once_they_are_old(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = COMPACTED | {"compaction": None, "rebatch": {"min_age": "10m"}}
    await cleaning.running.broker.create_stream("s", settings | {"segment": {"max_bytes": "1MiB"}})
    for number in range(300):
        await cleaning.running.put("s", [("k", b"%d" % number + b"." * 100)])
    log = cleaning.running.broker.hosts["s"].log
    log.writer.roll()
    size = log.segments[0].size_bytes
    assert not await cleaning.round()
    assert cleaning.worker.jobs == []
    cleaning.running.clock.ahead_ns = 601 * 10**9
    await cleaning.round()
    assert cleaning.worker.jobs == [("rebatch", "s")]
    assert cleaning.state("s").rebatched_segments == 1
    assert log.segments[0].size_bytes < size * 0.8
    assert log.segments[0].record_count == 300
    await cleaning.round()
    assert len(cleaning.worker.jobs) == 1
    looks: list[Log] = []
    monkeypatch.setattr(next_segments, "damaged_files", looks.append)
    await cleaning.round()
    assert looks == [], "an idle stream costs nothing"


async def test_rot_is_found_without_any_reader(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h")
    await cleaning.running.start()
    await cleaning.stream("s", 100, 100, compaction=None)
    host = cleaning.running.broker.hosts["s"]
    hurt = host.log.segments[2]
    raw = bytearray(hurt.path.read_bytes())
    raw[-100] ^= 1
    hurt.path.write_bytes(raw)
    await cleaning.round()
    assert cleaning.worker.jobs == []
    cleaning.running.clock.ahead_ns = 3601 * 10**9
    await cleaning.round()
    assert cleaning.worker.jobs == [("scrub", "s")] * (host.log.segment_count - 1)
    assert set(cleaning.worker.rates) == {fixed_rate(8 * 2**20)}
    assert [bad.segment for bad in host.log.view.manifest.quarantined] == [hurt.path.name]
    await cleaning.round()
    assert len(cleaning.worker.jobs) == host.log.segment_count - 1
    await cleaning.close()


async def test_a_segment_that_was_not_read_to_its_end_is_read_again(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h")
    await cleaning.running.start()
    await cleaning.stream("s", 100, 100, compaction=None)
    host = cleaning.running.broker.hosts["s"]
    whole = host.log.segment_count - 1
    await cleaning.round()
    cleaning.running.clock.ahead_ns = 3601 * 10**9
    cleaning.worker.failures = [WorkerDied("killed")]
    await cleaning.round()
    assert len(cleaning.worker.jobs) == 1
    cleaning.state("s").not_before = 0.0
    await cleaning.round()
    assert len(cleaning.worker.jobs) == 1 + whole, "the first one twice"

    cleaning.running.clock.ahead_ns *= 3
    for attempt in range(1, 4):
        cleaning.worker.failures = [WorkerDied("killed")]
        await cleaning.round()
        assert len(cleaning.worker.jobs) == 1 + whole + attempt
        cleaning.state("s").not_before = 0.0
    await cleaning.round()
    assert len(cleaning.worker.jobs) == 1 + whole + 3 + whole - 1, "one segment is given up"
    await cleaning.close()


async def test_a_bad_index_is_rebuilt_before_it_is_read(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h")
    await cleaning.running.start()
    await cleaning.stream("s", 100, 100, compaction=None)
    log = cleaning.running.broker.hosts["s"].log
    path = index_path(log.segments[1].path)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    await cleaning.round()
    cleaning.running.clock.ahead_ns = 3601 * 10**9
    await cleaning.round()
    assert path.read_bytes() == good
    assert not log.view.manifest.quarantined
    await cleaning.close()


async def test_a_job_leaves_room_on_the_disk(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cleaning.stream("a", 100, 3)
    before = cleaning.segment_files("a")
    nearly_full = SimpleNamespace(f_blocks=10**6, f_bavail=10, f_frsize=4096)
    with monkeypatch.context() as patch:
        patch.setattr("os.statvfs", lambda path: nearly_full)
        await cleaning.round()
    assert "less space is left" in cleaning.state("a").error
    assert cleaning.segment_files("a") == before
    await cleaning.running.put("a", [("key-0", b"goes on")])


async def test_sealed_segments_get_sketches_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_segments, "SKETCHED_BYTES", 5 * 1024)
    cleaning = Cleaning(tmp_path, sketches=True)
    await cleaning.running.start()
    await cleaning.stream("s", 300, 10, compaction=None)
    log = cleaning.running.broker.hosts["s"].log
    await cleaning.round()
    assert cleaning.worker.jobs == [], "too small"
    monkeypatch.setattr(next_segments, "SKETCHED_BYTES", 0)
    await cleaning.cleaner.forget(cleaning.running.broker.hosts["s"])
    cleaning.worker.failures.append(JobFailed("io", "the disk is full"))
    await cleaning.round()
    assert cleaning.state("s").failures_in_a_row == 1
    cleaning.state("s").not_before = 0.0
    await cleaning.round()
    sealed = [segment.path for segment in log.segments[:-1]]
    assert len(sealed) > 3
    assert all(sketch_path(path).exists() for path in sealed)
    assert [kind for kind, _ in cleaning.worker.jobs] == ["sketch"] * (1 + len(sealed))
    await cleaning.round()
    assert len(cleaning.worker.jobs) == 1 + len(sealed)
    await cleaning.close()
