"""Which streams ack the same messages is found without comparing each with every other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from liftlog.server.streams.neighbours import Recorders, rivals
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
