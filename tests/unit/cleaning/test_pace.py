"""How fast a job may go, decided from what the daemon sees of its own work."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from support.daemons.local_cleaning import Cleaning

from liftlog.server.cleaning.pace import (
    BUSY_RATE_BYTES,
    IdleWatch,
    Rates,
    Seen,
    fixed_rate,
    is_busy,
    rates_of,
)

MIB = 2**20
QUIET = Seen(at=10.0, received_bytes=1000, syncs=5, is_committing=False, cpu_seconds=3.0)


@pytest.mark.parametrize(
    ("cleaner", "stream", "expected"),
    [
        (None, None, Rates(BUSY_RATE_BYTES, None)),
        (None, 8 * MIB, fixed_rate(8 * MIB)),
        (None, 100 * MIB, Rates(BUSY_RATE_BYTES, 100 * MIB)),
        (64 * MIB, None, fixed_rate(64 * MIB)),
        (64 * MIB, 8 * MIB, fixed_rate(8 * MIB)),
        (64 * MIB, 100 * MIB, fixed_rate(64 * MIB)),
    ],
)
def test_a_figure_is_a_ceiling_and_auto_depends_on_the_daemon(
    cleaner: int | None, stream: int | None, expected: Rates
) -> None:
    assert rates_of(cleaner, stream) == expected


@pytest.mark.parametrize(
    ("changes", "busy"),
    [
        ({}, False),
        ({"received_bytes": 1001}, True),
        ({"syncs": 6}, True),
        ({"is_committing": True}, True),
        ({"cpu_seconds": 3.004}, False),
        ({"cpu_seconds": 3.006}, True),
    ],
)
def test_what_counts_as_work(changes: dict[str, float], busy: bool) -> None:
    later = QUIET._replace(at=QUIET.at + 0.02)
    assert is_busy(QUIET, later._replace(**changes)) is busy  # type: ignore[arg-type]


def looks(seconds: float, *, at: float) -> list[Seen]:
    """One every 20 ms while nothing happens."""
    return [QUIET._replace(at=at + n * 0.02) for n in range(round(seconds / 0.02) + 1)]


def test_the_daemon_is_idle_after_a_quiet_quarter_of_a_second() -> None:
    watch = IdleWatch()
    found = [watch.look(seen) for seen in looks(1.0, at=10.0)]
    assert found.index(True) == 13
    assert all(found[13:])


def test_one_message_ends_it_at_the_next_look() -> None:
    watch = IdleWatch()
    assert [watch.look(seen) for seen in looks(1.0, at=10.0)][-1]
    more = [seen._replace(received_bytes=1001) for seen in looks(1.0, at=11.02)]
    found = [watch.look(seen) for seen in more]
    assert found.index(True) == 13


def test_a_stalled_disk_is_not_an_idle_one() -> None:
    """No message comes and no sync ends, for as long as the sync that is under way takes."""
    watch = IdleWatch()
    stalled = [seen._replace(is_committing=True) for seen in looks(10.0, at=10.0)]
    assert not any(watch.look(seen) for seen in stalled)


def test_ten_messages_a_second_are_work_all_the_time() -> None:
    watch = IdleWatch()
    seen = [one._replace(received_bytes=int(one.at * 10)) for one in looks(10.0, at=10.0)]
    assert len({two.received_bytes - one.received_bytes for one, two in pairwise(seen)}) == 2
    assert not any(watch.look(one) for one in seen)


def test_the_first_look_of_a_job_judges_the_time_since_the_job_before() -> None:
    watch = IdleWatch()
    watch.look(QUIET)
    assert watch.look(QUIET._replace(at=100.0, cpu_seconds=4.0))
    assert not watch.look(QUIET._replace(at=200.0, cpu_seconds=4.0, syncs=6))


def test_what_happened_before_a_job_does_not_slow_it_down_for_longer() -> None:
    watch = IdleWatch()
    watch.look(QUIET)
    later = QUIET._replace(at=70.0, received_bytes=10**6, syncs=1000, cpu_seconds=33.0)
    found = [watch.look(later._replace(at=70.0 + n * 0.125)) for n in range(4)]
    assert found == [False, False, True, True]


def test_consumers_that_read_count_as_work() -> None:
    watch = IdleWatch()
    reading = [seen._replace(cpu_seconds=seen.at * 0.3) for seen in looks(5.0, at=10.0)]
    assert not any(watch.look(seen) for seen in reading)


async def test_only_a_configured_rate_is_fixed(tmp_path: Path) -> None:
    for settings, expected in (
        ({}, Rates(BUSY_RATE_BYTES, None)),
        ({"max_rate": "1GiB"}, fixed_rate(2**30)),
    ):
        cleaning = Cleaning(tmp_path / str(expected.busy_bytes), **settings)
        await cleaning.running.start()
        await cleaning.stream("s", 100, 3)
        await cleaning.round()
        assert cleaning.worker.rates == [expected]
        await cleaning.close()
