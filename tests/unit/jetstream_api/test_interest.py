"""Interest as a leaf node sees it: compared with a list of patterns, and fast among thousands."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from acl.subjects import matches
from liftlog.server.jetstream_api.consumers.interest import Interest

TOKENS = st.sampled_from([b"a", b"b", b"c*", b">x"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(b".".join)
PATTERNS = st.builds(
    lambda tokens, end: b".".join([*tokens, *end]),
    st.lists(TOKENS | st.just(b"*"), min_size=1, max_size=3),
    st.sampled_from([(), (b">",)]),
) | st.just(b">")
QUEUES = st.sampled_from([b"", b"q1", b"q2"])
STEPS = st.lists(st.tuples(st.booleans(), PATTERNS, QUEUES), max_size=30)


@given(STEPS, st.lists(SUBJECTS, min_size=1, max_size=8))
def test_it_finds_what_a_search_of_all_patterns_finds(
    steps: list[tuple[bool, bytes, bytes]], subjects: list[bytes]
) -> None:
    interest = Interest()
    known: set[tuple[bytes, bytes]] = set()
    for is_added, pattern, queue in steps:
        if is_added:
            interest.add(pattern, queue)
            known.add((pattern, queue))
        else:
            interest.remove(pattern, queue)
            known.discard((pattern, queue))
    for subject in subjects:
        found = {queue for pattern, queue in known if matches(pattern.decode(), subject.decode())}
        assert interest.has(subject) == bool(found)
        assert interest.queues(subject) == b" ".join(sorted(found - {b""}))


@given(STEPS)
def test_nothing_is_left_of_what_was_removed(steps: list[tuple[bool, bytes, bytes]]) -> None:
    interest = Interest()
    for is_added, pattern, queue in steps:
        (interest.add if is_added else interest.remove)(pattern, queue)
    for _, pattern, queue in steps:
        interest.remove(pattern, queue)
    assert not interest.has(b"a")
    assert interest.size == 0


def test_a_group_counts_once_however_many_members_it_has() -> None:
    """The server repeats a group with its new weight, and withdraws it once."""
    interest = Interest()
    for _ in range(3):
        interest.add(b"work", b"q")
    interest.remove(b"work", b"q")
    assert not interest.has(b"work")


def test_look_ups_among_10000_inboxes_take_as_long_as_among_10() -> None:
    seconds = {}
    for count in (10, 10_000):
        interest = Interest()
        for number in range(count):
            interest.add(b"_INBOX.%022d.*" % number)
        interest.add(b"_INBOX.other", b"group")
        wanted = [b"_INBOX.%022d.7" % number for number in range(10)] * 200
        best = 60.0
        for _ in range(5):
            began = time.perf_counter()
            assert all(map(interest.has, wanted))
            assert not any(map(interest.queues, wanted))
            best = min(best, time.perf_counter() - began)
        seconds[count] = best
        assert not interest.has(b"_INBOX.%022d.7" % count)
        assert not interest.has(b"_INBOX.%022d" % 1)
    assert seconds[10_000] < 5 * seconds[10]
