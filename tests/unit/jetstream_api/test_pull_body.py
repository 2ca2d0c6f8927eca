"""The bodies of pull requests, and the words with which they are refused."""

from __future__ import annotations

import pytest

from liftlog.server.jetstream_api.consumers.pull_body import (
    MAX_BATCH,
    BadPull,
    Pull,
    PullLimits,
    check_limits,
    check_without_priorities,
    parse_pull,
)

SECOND = 10**9
GROUPS = b'{"group": "a", "id": "p", "min_pending": 5, "min_ack_pending": 6, "priority": 7}'


@pytest.mark.parametrize(
    ("body", "pull"),
    [
        (b"", Pull()),
        (b"  ", Pull()),
        (b"7", Pull(7)),
        (b" +7\n", Pull(7)),
        (b"-3", Pull(1)),
        (b"0", Pull(1)),
        (b"nonsense", Pull(1)),
        (b"7x", Pull(1)),
        (b"9" * 30, Pull(1)),
        (b"999999999", Pull(MAX_BATCH)),
        (b"{}", Pull()),
        (b'{"batch": 0}', Pull()),
        (b'{"batch": -1}', Pull()),
        (b'{"batch": 5, "no_wait": true}', Pull(5, no_wait=True)),
        (b'{"batch": 5, "unknown": [1]}', Pull(5)),
        (
            b'{"batch":2,"max_bytes":100,"expires":4000000000,"idle_heartbeat":2000000000}',
            Pull(2, 100, False, 4 * SECOND, 2 * SECOND),
        ),
        (b'{"batch": 2, "description": "' + b"x" * 300 + b'"}', Pull(2)),
        (GROUPS, Pull(1, 0, False, 0, 0, "a", "p", 5, 6, 7)),
    ],
)
def test_what_a_body_asks_for(body: bytes, pull: Pull) -> None:
    assert parse_pull(body) == pull


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"batch": "2"}',
        b'{"batch": 1.5}',
        b'{"no_wait": 1}',
        b'{"expires": -1}',
        b'{"idle_heartbeat": 1}',
        b'{"expires": 4, "idle_heartbeat": 3}',
        b'{"batch": 1e400}',
        b'{"batch": 1, "x": "\xff"}',
        b'{"a": ' * 100_000,
    ],
)
def test_a_bad_body_is_refused_in_one_line(body: bytes) -> None:
    for _ in range(2):  # also when it is known
        with pytest.raises(BadPull) as found:
            parse_pull(body)
        words = found.value.words
        assert words.startswith(b"400 Bad Request - ")
        assert len(words) < 300
        assert b"\n" not in words


def test_the_limits_of_a_consumer() -> None:
    limits = PullLimits(batch=10, max_bytes=1000, expires_ns=90 * SECOND)
    check_limits(Pull(10, 1000, expires_ns=90 * SECOND), limits)
    check_limits(Pull(), limits)  # no time limit: as in JetStream, it is not above `max_expires`
    check_limits(Pull(MAX_BATCH, 2**60, expires_ns=2**60), PullLimits())
    for pull, words in (
        (Pull(11), b"409 Exceeded MaxRequestBatch of 10"),
        (Pull(expires_ns=90 * SECOND + 1), b"409 Exceeded MaxRequestExpires of 1m30s"),
        (Pull(max_bytes=1001), b"409 Exceeded MaxRequestMaxBytes of 1000"),
    ):
        with pytest.raises(BadPull) as found:
            check_limits(pull, limits)
        assert found.value.words == words


@pytest.mark.parametrize(
    ("pull", "words"),
    [
        (Pull(min_pending=1), b"400 Bad Request - Not a Overflow Priority consumer"),
        (Pull(min_ack_pending=1), b"400 Bad Request - Not a Overflow Priority consumer"),
        (Pull(pin_id="a"), b"400 Bad Request - Not a Pinned Client Priority consumer"),
        (Pull(priority=10), b"400 Bad Request - Priority must be between 0 and 9"),
        (Pull(priority=-1), b"400 Bad Request - Priority must be between 0 and 9"),
    ],
)
def test_priorities_need_a_consumer_with_groups(pull: Pull, words: bytes) -> None:
    check_without_priorities(Pull(group="a", priority=9))
    with pytest.raises(BadPull) as found:
        check_without_priorities(pull)
    assert found.value.words == words
