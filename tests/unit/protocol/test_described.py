"""Values that travel as maps: what is missing or wrong is filled in; the page names every key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from liftlog.protocol.administration import StreamUpdate
from liftlog.protocol.described import DaemonInfo, Described, LeaseInfo, Removal, StreamInfo

PAGE = (Path(__file__).parents[3] / "docs/reference/protocol.md").read_text()

SECTIONS: dict[str, type[Described]] = {
    "Removal by retention": Removal,
    "Description of a lease": LeaseInfo,
    "Description of the daemon": DaemonInfo,
}


@pytest.mark.parametrize("title", SECTIONS)
def test_the_page_names_every_key(title: str) -> None:
    found = re.search(rf"^## {title}\n(.*?)(?=^#)", PAGE, re.S | re.M)
    assert found
    assert re.findall(r"^\| `(\w+)` \|", found[1], re.M) == list(SECTIONS[title]().to_wire())


def test_values_of_another_type_and_unknown_keys_are_passed_over() -> None:
    info = LeaseInfo.from_wire({"low": "7", "high": True, "holder": "me", "more": 1})
    assert info == LeaseInfo(holder="me")
    assert DaemonInfo.from_wire({"uptime_seconds": 3}).uptime_seconds == 3.0
    assert DaemonInfo.from_wire({"uptime_seconds": True}).uptime_seconds == 0.0


def test_an_update_survives_the_wire() -> None:
    removal = Removal(5, 4, 1, 100, ["max_messages"])
    for update in (
        StreamUpdate(StreamInfo("s", "in"), [{"setting": "acks"}], removal, dry_run=True),
        StreamUpdate(StreamInfo("s", "in"), [], None, dry_run=False),
    ):
        assert StreamUpdate.from_answer(update.to_answer()) == update
