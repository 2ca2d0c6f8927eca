"""The exit codes: one table, and every error has its place in it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from liftlog import errors
from liftlog.cli.lib.exit_codes import MEANINGS, ExitCode, exit_code_of
from liftlog.cli.root import cli
from liftlog.server.http.failures import status_of

ROOT = Path(__file__).parents[3]


def every_error() -> list[type[errors.LiftlogError]]:
    return errors.LiftlogError.__subclasses__()


def test_every_code_has_a_meaning_and_no_two_are_equal() -> None:
    assert set(MEANINGS) == set(ExitCode)
    assert len({code.value for code in ExitCode}) == len(ExitCode)


def test_the_documented_numbers_stay() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "CONFIG": 3,
        "CANNOT_CONNECT": 4,
        "NOT_FOUND": 5,
        "CONFLICT": 6,
        "OUT_OF_RANGE": 7,
        "DAMAGED": 8,
        "DENIED": 9,
        "NOT_ACKED": 10,
        "TRY_AGAIN": 11,
        "BEHIND": 12,
        "INTERRUPTED": 130,
        "PIPE_CLOSED": 141,
    }


@pytest.mark.parametrize("code", list(ExitCode))
def test_help_and_page_list_every_code(code: ExitCode) -> None:
    shown = CliRunner().invoke(cli, ["--help"]).output
    assert f"{code.value:>3}  {MEANINGS[code]}" in shown
    page = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert f"| {code.value} | {MEANINGS[code]} |" in page


def make(kind: type[errors.LiftlogError]) -> errors.LiftlogError:
    if kind is errors.CorruptRange:
        return errors.CorruptRange("x", first_offset=1, next_offset=2)
    return kind("x")


def test_retriable_errors_of_the_daemon_say_try_again() -> None:
    for kind in every_error():
        if kind.retriable and kind is not errors.ConnectionLost:
            assert exit_code_of(make(kind)) is ExitCode.TRY_AGAIN, kind


def test_what_is_told_to_try_again_is_retriable_for_clients() -> None:
    """The code of the process, the status over HTTP and the flag on the wire say the same."""
    assert errors.StreamUnavailable.retriable
    for kind in errors.WIRE_ERRORS.values():
        if exit_code_of(make(kind)) is ExitCode.TRY_AGAIN or status_of(make(kind)) in (503, 507):
            assert kind.retriable, kind


def test_the_jar_tries_the_same_errors_again() -> None:
    source = (ROOT / "spark-connector/src/liftlog/records/Failure.java").read_text()
    constants = dict(re.findall(r'String (\w+) = "(\w+)";', source))
    listed = source.partition("RETRIABLE = Set.of(")[2].partition(")")[0]
    named = {constants.get(one, one.strip('"')) for one in re.findall(r'"?\w+"?', listed)}
    wanted = {kind.name for kind in errors.WIRE_ERRORS.values() if kind.retriable}
    assert named == wanted | {errors.ConnectionLost.name}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.StreamNotFound, ExitCode.NOT_FOUND),
        (errors.Conflict, ExitCode.CONFLICT),
        (errors.OffsetOutOfRange, ExitCode.OUT_OF_RANGE),
        (errors.CorruptRange, ExitCode.DAMAGED),
        (errors.ConfigError, ExitCode.CONFIG),
        (errors.ConnectionLost, ExitCode.CANNOT_CONNECT),
        (errors.Forbidden, ExitCode.DENIED),
        (errors.InternalError, ExitCode.FAILED),
    ],
)
def test_the_code_of_an_error(kind: type[errors.LiftlogError], code: ExitCode) -> None:
    assert exit_code_of(make(kind)) is code


def test_the_code_of_other_exceptions() -> None:
    assert exit_code_of(FileNotFoundError(2, "no such file")) is ExitCode.NOT_FOUND
    assert exit_code_of(PermissionError(13, "denied")) is ExitCode.FAILED
    assert exit_code_of(KeyError("x")) is ExitCode.FAILED


@pytest.mark.parametrize("call", ["info {0}", "verify {0}", "restore {0} {1} --dry-run"])
def test_a_backup_that_is_not_there_is_not_a_damaged_one(tmp_path: Path, call: str) -> None:
    backup = tmp_path / "backup"
    arguments = ["backup", *call.format(backup, tmp_path / "data").split()]
    assert CliRunner().invoke(cli, arguments).exit_code == ExitCode.NOT_FOUND
    backup.mkdir()  # as one is that was not finished
    assert CliRunner().invoke(cli, arguments).exit_code == ExitCode.DAMAGED
