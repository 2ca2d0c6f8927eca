"""The page on the clients' own tests says what was not run, and its numbers agree."""

from __future__ import annotations

import re

from jetstream_clients.suites import KINDS, SUITES
from jetstream_clients.table import Extent, page
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
        assert int(cells[-1]) == sum(int(kind[at]) for kind in kinds.values())
    left_out = sum(int(kind[-1]) for kind in kinds.values())
    found = re.search(r"Of ([\d,]+) test functions for JetStream ([\d,]+) were run", text)
    assert found is not None
    total, run = (int(number.replace(",", "")) for number in found.groups())
    assert total - run == left_out > 0


def test_the_page_is_what_the_generator_would_write_of_it() -> None:
    """Its head, with numbers of its own."""
    extents = {suite.name: Extent(10, {KINDS[0]: 3, KINDS[1]: 2}) for suite in SUITES}
    made = page([], extents, "78f221142c6e")
    assert f"Of {15 * len(SUITES)} test functions for JetStream {10 * len(SUITES)}" in made
    assert rows(made, "tests of")[KINDS[0]] == ["3"] * len(SUITES) + [str(3 * len(SUITES))]

    def without_numbers(text: str) -> str:
        head = re.sub(r"revision \w+", "revision R", text.partition("| client |")[0])
        return re.sub(r"[\d,]+", "N", head)

    assert without_numbers(made) == without_numbers(PAGE.read_text())
