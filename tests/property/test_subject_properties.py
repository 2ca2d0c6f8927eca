"""The pattern functions compared with a model that tries all subjects."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounds import examples

from acl import is_literal, is_subset, is_valid_pattern, matches, overlaps
from acl.subjects import first_overlap, matches_any, overlap_any

# Patterns use a and b in up to 3 tokens. One token more, and one word that no pattern uses, tell
# any two sets of subjects apart.
MAX_TOKENS = 3
SUBJECTS = [
    ".".join(words)
    for length in range(1, MAX_TOKENS + 2)
    for words in itertools.product("abc", repeat=length)
]


def model_matches(pattern: list[str], subject: list[str]) -> bool:
    if not pattern:
        return not subject
    if pattern[0] == ">":
        return len(subject) >= 1
    if not subject or pattern[0] not in ("*", subject[0]):
        return False
    return model_matches(pattern[1:], subject[1:])


def matched(pattern: str) -> set[str]:
    return {s for s in SUBJECTS if model_matches(pattern.split("."), s.split("."))}


ALL_PATTERNS = [
    ".".join((*words, last))
    for length in range(MAX_TOKENS)
    for words in itertools.product("ab*", repeat=length)
    for last in "ab*>"
]
patterns = st.sampled_from(ALL_PATTERNS)


@given(patterns, st.sampled_from(SUBJECTS))
def test_matches(pattern: str, subject: str) -> None:
    assert matches(pattern, subject) == model_matches(pattern.split("."), subject.split("."))


@given(st.lists(patterns, max_size=4), st.lists(patterns, max_size=4), st.sampled_from(SUBJECTS))
def test_lists_of_patterns(first: list[str], second: list[str], subject: str) -> None:
    pairs = itertools.product(first, second)
    assert overlap_any(first, second) == any(overlaps(one, other) for one, other in pairs)
    assert matches_any(first, subject) == any(matches(one, subject) for one in first)


@given(st.lists(patterns, max_size=6))
def test_the_first_two_that_overlap_are_found(some: list[str]) -> None:
    pairs = ((one, other) for i, other in enumerate(some) for one in some[:i])
    expected = next((pair for pair in pairs if overlaps(*pair)), None)
    assert first_overlap(some) == expected


def test_overlaps_and_subsets_of_all_pairs() -> None:
    sets = {pattern: matched(pattern) for pattern in ALL_PATTERNS}
    for first, second in itertools.product(ALL_PATTERNS, repeat=2):
        assert overlaps(first, second) == bool(sets[first] & sets[second]), (first, second)
        assert is_subset(first, second) == (sets[first] <= sets[second]), (first, second)


@given(st.text(st.sampled_from("ab*>. $\t\n\x00\u00e9"), max_size=8))
def test_what_is_literal_matches_itself_alone(text: str) -> None:
    if is_literal(text):
        assert is_valid_pattern(text)
        assert matches(text, text)
        assert is_subset(text, ">")
    else:
        assert not is_valid_pattern(text) or "*" in text or ">" in text


@settings(max_examples=examples())
@given(patterns, patterns, patterns)
def test_subsets_are_transitive(first: str, second: str, third: str) -> None:
    if is_subset(first, second) and is_subset(second, third):
        assert is_subset(first, third)
    if is_subset(first, second) and overlaps(first, third):
        assert overlaps(second, third)
