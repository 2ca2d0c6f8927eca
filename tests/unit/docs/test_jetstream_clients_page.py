"""The page on the clients' own tests is what their results say, and its numbers agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jetstream_clients import table
from jetstream_clients.suite import ELSEWHERE, KINDS, CannotRun, Outcome, Suite
from jetstream_clients.suites import SUITES
from jetstream_clients.table import Result, page
from support.repository import REPOSITORY

PAGE = REPOSITORY / "docs/reference/jetstream-clients.md"


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of each row of the table that begins with this cell, by the first cell."""
    table = text.partition(f"| {heading} |")[2].partition("\n\n")[0]
    cells = [[one.strip() for one in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in cells}


def test_what_was_not_run_is_told() -> None:
    text = PAGE.read_text()
    clients, kinds = rows(text, "client"), rows(text, "tests of")
    assert list(clients) == [suite.name for suite in SUITES]
    assert list(kinds) == list(KINDS)
    for at, cells in enumerate(clients.values()):
        assert int(cells[-2]) == sum(int(kind[at]) for kind in kinds.values())
    left_out = sum(int(kind[-1]) for kind in kinds.values())
    found = re.search(r"Of ([\d,]+) test functions for JetStream ([\d,]+) were run", text)
    assert found is not None
    total, run = (int(number.replace(",", "")) for number in found.groups())
    assert total - run == left_out > 0


def test_the_page_is_made_from_the_committed_results() -> None:
    assert page(table.results()) == PAGE.read_text()


def test_the_page_counts_and_names_each_revision() -> None:
    made = page(
        [
            result("nats-py", {"a1": 9}, {KINDS[0]: 3, KINDS[1]: 2}, [("KVTest::test_kv_x", True)]),
            result("nats.java", {"a1": 9, "b2": 1}, {KINDS[0]: 4, ELSEWHERE: 70}, []),
        ]
    )
    assert "Of 29 test functions for JetStream 20 were run." in made
    assert rows(made, "tests of")[KINDS[0]] == ["3", "4", "7"]
    about = rows(made, "client")
    assert about["nats-py"][2:] == ["8", "0", "0", "1", "5", "a1"]
    assert about["nats.java"][2:] == ["8", "0", "0", "0", "4", "a1 (9), b2 (1)"]
    assert "(70 in nats.java)" in made


def result(
    client: str, revisions: dict[str, int], not_run: dict[str, int], others: list[tuple[str, bool]]
) -> Result:
    return Result(client, "1.0", "a registry", revisions, 10, not_run, 8, others)


class OneSuite(Suite):
    name, version, source = "nats-py", "1.0", "a registry"

    def tests(self) -> list[str]:
        return ["one", "two"]


def test_tests_that_were_run_again_have_a_later_revision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(table, "BUILD", tmp_path)
    monkeypatch.setattr(table, "RESULTS", tmp_path)
    again = Outcome("nats-py", "two/part", True, "")
    with pytest.raises(CannotRun, match="once"):
        table.keep(OneSuite(), [again], revision="b2", is_all=False)
    first = [Outcome("nats-py", "one", True, ""), again._replace(passed=False, theirs=True)]
    table.keep(OneSuite(), first, revision="a1", is_all=True)
    table.keep(OneSuite(), [again], revision="b2", is_all=False)
    [kept] = table.results()
    assert kept.revisions == {"a1": 1, "b2": 1}
    assert (kept.run, kept.passed, kept.others) == (2, 2, [])
