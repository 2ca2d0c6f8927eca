"""Which streams ack the same messages is found without comparing each with every other."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acl.subjects import overlap_any
from liftlog.sequencing import Destinations
from liftlog.server.streams import neighbours
from liftlog.server.streams.neighbours import Neighbours, Recorders, rivals
from liftlog.settings import StreamSettings, parse_stream_settings

tokens = st.sampled_from(["a", "b", "c", "*"])
subjects = st.lists(tokens, min_size=1, max_size=3).map(".".join)
patterns = st.one_of(subjects, subjects.map(lambda one: f"{one}.>"), st.just(">"))


@given(st.lists(patterns, min_size=1, max_size=8))
def test_all_rivals_are_found_among_those_of_the_first_token(found: list[str]) -> None:
    recorded: dict[str, StreamSettings] = {
        f"s{number}": parse_stream_settings({"subject": one, "acks": "off"}).model_copy(
            update={"acks": "on"}  # the check of acks wants no wildcard at the first place
        )
        for number, one in enumerate(found)
    }
    index = Recorders(recorded)
    for name, settings in recorded.items():
        others = index.of_subjects(settings.subjects)
        assert sorted(rivals(name, settings, others)) == sorted(rivals(name, settings, recorded))


def test_streams_on_other_subjects_are_not_looked_at() -> None:
    recorded = {
        f"s{number}": parse_stream_settings({"subject": f"plant{number}.>"})
        for number in range(1000)
    }
    assert set(Recorders(recorded).of_subjects(["plant7.x"])) == {"s7"}


@pytest.mark.parametrize("common", ["plant.", "plant.line.", "$KV."])
def test_streams_below_the_same_first_tokens_are_not_looked_at(common: str) -> None:
    recorded = {
        f"s{number}": parse_stream_settings({"subject": f"{common}{number}.>"})
        for number in range(1000)
    }
    assert set(Recorders(recorded).of_subjects([f"{common}7.x"])) == {"s7"}


class Told:
    """A host of a stream, which keeps what its neighbours are."""

    def __init__(self, name: str, settings: StreamSettings) -> None:
        self.name, self.settings = name, settings
        self.destinations = Destinations()
        self.siblings: dict[bytes, tuple[str, ...]] = {}

    def set_neighbours(
        self, destinations: Destinations, siblings: dict[bytes, tuple[str, ...]]
    ) -> None:
        self.destinations, self.siblings = destinations, siblings


def told(name: str, subject: str, acks: str, group: str | None) -> Told:
    settings = parse_stream_settings({"subject": subject, "acks": "off", "queue_group": group})
    return Told(name, settings.model_copy(update={"acks": acks}))


streams = st.lists(
    st.tuples(patterns, st.sampled_from(["on", "off"]), st.sampled_from([None, "g", "h"])),
    min_size=1,
    max_size=6,
)
_SUBJECTS = [b"a", b"a.b", b"b.c", b"c.c.c", b"_INBOX.x", b"d", b"a.b.c.d"]


@given(streams, st.integers(min_value=0, max_value=6))
def test_streams_added_one_by_one_have_the_neighbours_of_all(
    found: list[tuple[str, str, str | None]], at_once: int
) -> None:
    hosts: dict[str, Any] = {}
    grown = Neighbours(hosts, (">",), dict)
    for number, one in enumerate(found):
        hosts[f"s{number}"] = host = told(f"s{number}", *one)
        if number < at_once:
            grown.changed()
        else:
            for other in hosts.values():
                grown.warnings(other)  # so that there are some to forget
            grown.added(cast(Any, host))
    others = {name: Told(name, host.settings) for name, host in hosts.items()}
    whole = Neighbours(cast(Any, others), (">",), dict)
    whole.changed()
    for name, host in hosts.items():
        assert host.siblings == others[name].siblings
        assert sorted(grown.warnings(host)) == sorted(whole.warnings(cast(Any, others[name])))
        for subject in _SUBJECTS:
            decided = whole.destinations.why_not(subject)
            assert host.destinations.why_not(subject) is decided
            allowed = whole.destinations.all_allowed([subject])
            assert host.destinations.all_allowed([subject]) == allowed
    for subject in ("a.>", "*.b", ">", "c.c.c"):
        assert grown.overlapping([subject]).keys() == {
            name for name, host in hosts.items() if overlap_any(host.settings.subjects, [subject])
        }


def test_a_new_stream_is_compared_with_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(first: Any, second: Any) -> bool:
        nonlocal compared
        compared += 1
        return overlap_any(first, second)

    hosts: dict[str, Any] = {f"s{n}": told(f"s{n}", f"plant.{n}", "on", None) for n in range(1000)}
    grown = Neighbours(hosts, (">",), dict)
    grown.changed()
    monkeypatch.setattr(neighbours, "overlap_any", counted)
    told_before = [host.destinations for host in hosts.values()]
    hosts["new"] = told("new", "plant.7", "on", None)
    grown.added(hosts["new"])
    [warning] = grown.warnings(hosts["new"])
    assert "stream s7 also acks" in warning
    assert compared == 1
    assert [host.destinations for host in hosts.values()] == [*told_before, grown.destinations]
    assert hosts["s0"].siblings[b"new"] == ("plant.7",)
