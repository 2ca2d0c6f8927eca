"""liftlog errors."""

import json

import pytest
from click.testing import CliRunner, Result

from liftlog.cli.errors import all_errors, all_refusals
from liftlog.cli.lib.exit_codes import MEANINGS, ExitCode
from liftlog.cli.root import cli
from liftlog.errors import WIRE_ERRORS
from liftlog.sequencing import refusals
from liftlog.sequencing.refusals import RefusalReason


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["errors", *arguments])


def test_ls_names_all_of_them() -> None:
    found = json.loads(run("ls", "-o", "json").stdout)
    codes = {one["code"] for one in found if one["code"]}
    refused = {int(one.code) for one in all_refusals()}
    assert min(refused) >= 10_000 > max(WIRE_ERRORS)
    assert codes == set(WIRE_ERRORS) | refused
    assert all(one["meaning"] and one["advice"] for one in found)
    lines = run("list").stdout.splitlines()
    assert len(lines) == len(found) + 1


@pytest.mark.parametrize(
    "word", ["13", "OFFSET_OUT_OF_RANGE", "offset-out-of-range", "OffsetOutOfRange"]
)
def test_by_number_and_by_name(word: str) -> None:
    (found,) = json.loads(run("lookup", word, "-o", "json").stdout)
    assert (found["code"], found["exit_code"]) == (13, ExitCode.OUT_OF_RANGE)
    shown = run("lookup", word).stdout
    assert "OFFSET_OUT_OF_RANGE" in shown
    assert "what to do" in shown


def test_refusals_of_publishers() -> None:
    shown = run("lookup", "10071").stdout
    assert "wrong last sequence" in shown
    assert str(ExitCode.NOT_ACKED.value) in shown
    several = run("lookup", "10077", "-o", "jsonl").stdout.splitlines()
    assert {json.loads(one)["name"] for one in several} >= {"disk_full", "paused"}


def test_every_row_can_be_looked_up() -> None:
    for one in [*all_errors(), *all_refusals()]:
        for word in filter(None, (one.code, one.name)):
            found = json.loads(run("lookup", word, "-o", "json").stdout)
            assert one.meaning in [row["meaning"] for row in found]


def test_exit_codes() -> None:
    assert MEANINGS[ExitCode.DAMAGED] in run("lookup", "exit:8").stdout
    assert run("lookup", "exit:99").exit_code == ExitCode.NOT_FOUND


def test_what_is_none_is_guessed() -> None:
    result = run("lookup", "ofset_out_of_range")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "did you mean OFFSET_OUT_OF_RANGE?" in result.stderr
    assert run("lookup", "4711").exit_code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("refusal", [refusals.PAUSED, refusals.READ_ONLY, refusals.OVERLOADED])
def test_the_class_of_a_refusal_leads_to_its_err_code(refusal: RefusalReason) -> None:
    result = run("lookup", str(refusal.code))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "look up the err_code next to it" in result.stderr
