import re

from hypothesis import example, given
from hypothesis import strategies as st

from acl.rules import stream_matches


@example("*a*b", "bab")
@given(st.text("ab*", min_size=1, max_size=8), st.text("ab", min_size=1, max_size=10))
def test_a_star_is_any_characters(pattern: str, stream: str) -> None:
    model = re.fullmatch(pattern.replace("*", ".*"), stream) is not None
    assert stream_matches(pattern, stream) is model


@given(st.text("a*", min_size=1, max_size=8), st.text("a", max_size=5))
def test_the_systems_streams_are_named(pattern: str, rest: str) -> None:
    assert not stream_matches(pattern, f"_{rest}")
