"""Which nodes get the replicas of a stream."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.cluster.placement import Candidate, place
from liftlog.errors import Conflict


def nodes(**replicas: int) -> list[Candidate]:
    return [Candidate(node, replicas=count) for node, count in replicas.items()]


def test_the_nodes_with_the_fewest_replicas_are_taken() -> None:
    assert place(nodes(a=3, b=1, c=2, d=0), 3) == ("d", "b", "c")


def test_the_lead_goes_to_the_one_that_leads_least() -> None:
    candidates = [Candidate("a", leads=2), Candidate("b", leads=1, replicas=1), Candidate("c")]
    assert place(candidates, 3) == ("c", "b", "a")


def test_zones_come_before_load() -> None:
    candidates = [
        Candidate("a", "x"),
        Candidate("b", "x"),
        Candidate("c", "y", replicas=9),
        Candidate("d", "y", replicas=8),
    ]
    assert set(place(candidates, 2)) == {"a", "d"}
    assert set(place(candidates, 3)) == {"a", "d", "b"}


def test_nodes_without_a_zone_are_apart_from_each_other() -> None:
    candidates = [Candidate("a"), Candidate("b"), Candidate("c", "x", replicas=1)]
    assert set(place(candidates, 2)) == {"a", "b"}


def test_what_is_there_stays_in_front_unless_its_node_goes() -> None:
    candidates = [*nodes(a=5, b=5, d=0), Candidate("c", available=False)]
    assert place(candidates, 3, keep=("c", "b", "a")) == ("b", "a", "d")
    assert place(candidates, 1, keep=("b", "a")) == ("b",)


def test_a_node_that_stays_takes_its_zone() -> None:
    candidates = [
        Candidate("a", "x"),
        Candidate("b", "x"),
        Candidate("c", "y", replicas=9),
    ]
    assert place(candidates, 2, keep="a") == ("a", "c")


def test_too_few_nodes_are_refused() -> None:
    with pytest.raises(Conflict, match="3 replicas need 3 nodes, and 2 are available"):
        place([*nodes(a=0, b=0), Candidate("c", available=False)], 3)


@given(st.integers(1, 6), st.integers(0, 40), st.integers(1, 3))
def test_replicas_and_leads_are_even_over_many_streams(
    zones: int, streams: int, count: int
) -> None:
    names = [f"n{number}" for number in range(6)]
    replicas: Counter[str] = Counter()
    leads: Counter[str] = Counter()
    for _ in range(streams):
        chosen = place(
            [
                Candidate(name, f"z{number % zones}", replicas[name], leads[name])
                for number, name in enumerate(names)
            ],
            count,
        )
        assert len(set(chosen)) == count
        found = {int(name[1:]) % zones for name in chosen}
        assert len(found) == min(count, zones), "as many zones as can be"
        replicas.update(chosen)
        leads[chosen[0]] += 1
    assert max(leads.values(), default=0) - min(leads[name] for name in names) <= 2
    if zones in (1, 2, 3, 6):  # of equal size
        spread = max(replicas.values(), default=0) - min(replicas[name] for name in names)
        assert spread <= 2
