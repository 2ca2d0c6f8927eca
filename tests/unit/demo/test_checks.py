"""The demo fails when something is missing: its checks find it, and its end says it."""

from pathlib import Path

import pytest

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem
from liftlog.demo.publishing import (
    Expected,
    find_disorder,
    find_problems,
    find_repeats,
    summarise,
)
from liftlog.demo.running import DemoDaemon, Story, conclude
from liftlog.records.decode import Record

HEADERS = b"NATS/1.0\r\nTrace: 1\r\n\r\n"


def record(offset: int, value: bytes, key: bytes | None = None) -> Record:
    return Record(offset, 0, "orders.new", key, value, HEADERS)


EXPECTED = [
    Expected(1, "orders.new", b"a"),
    Expected(2, "orders.new", b"b", b"k", {"Trace": "1"}),
]
STORED = [record(1, b"a"), record(2, b"b", b"k")]


def test_nothing_is_missing() -> None:
    assert find_problems(EXPECTED, STORED) == []
    assert find_disorder(STORED) == []
    assert find_repeats([b"a", b"b"], STORED) == []


def test_a_missing_message_is_named() -> None:
    assert find_problems(EXPECTED, STORED[:1]) == ["offset 2 ('b') is missing"]


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        (record(2, b"B", b"k"), "the value b'B', not b'b'"),
        (record(2, b"b"), "the key None, not b'k'"),
        (record(2, b"b", b"k")._replace(subject="x"), "the subject 'x', not 'orders.new'"),
        (record(2, b"b", b"k")._replace(raw_headers=b""), "the header Trace: None, not 1"),
    ],
)
def test_a_changed_message_is_named(stored: Record, complaint: str) -> None:
    (problem,) = find_problems(EXPECTED, [STORED[0], stored])
    assert complaint in problem


def test_messages_stored_twice_or_never_are_named() -> None:
    twice = [*STORED, record(3, b"a")]
    assert find_repeats([b"a", b"c"], twice) == [
        "'a' was stored 2 times, not once",
        "'c' was stored 0 times, not once",
    ]


def test_a_gap_is_named() -> None:
    assert find_disorder([STORED[0], record(3, b"c")]) == ["offset 3 follows 1"]


def test_many_problems_are_summed_up() -> None:
    assert summarise(["x"] * 3) == ["x"] * 3
    assert summarise(["x"] * 25)[-1] == "... and 15 more"


def test_the_end_says_what_is_missing_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    problems = find_problems(EXPECTED, STORED[:1])
    assert conclude(Story(), problems, "well") == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "MISSING  offset 2 ('b') is missing" in shown
    assert "FAILED" in shown


def test_the_end_without_problems_is_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert conclude(Story(), [], "well") == ExitCode.OK
    assert "MISSING" not in capsys.readouterr().out


async def test_a_daemon_that_does_not_start_is_told_with_its_log(tmp_path: Path) -> None:
    config = tmp_path / "liftlog.yaml"
    config.write_text("durability: none\n")
    daemon = DemoDaemon(config, tmp_path / "data")
    with pytest.raises(Problem, match=r"ended with 3[\s\S]*unknown key") as caught:
        await daemon.start()
    assert caught.value.exit_code is ExitCode.FAILED
