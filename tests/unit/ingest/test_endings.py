"""What nats-server says, sorted: the texts are those of its 2.15."""

from __future__ import annotations

import pytest

from liftlog.server.ingest.endings import Cause, ending_of, error_words, rejection_of


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("Slow Consumer", Cause.SLOW_CONSUMER),
        ("Stale Connection", Cause.STALE),
        ("Maximum Payload Violation", Cause.MAX_PAYLOAD),
        ("maximum connections exceeded", Cause.LIMIT),
        ("maximum account active connections exceeded", Cause.LIMIT),
        ("Authorization Violation", Cause.AUTHORIZATION),
        ("Authentication Timeout", Cause.AUTHORIZATION),
        ("User Authentication Expired", Cause.AUTHORIZATION),
        ("User Authentication Revoked", Cause.AUTHORIZATION),
        ("Account Authentication Expired", Cause.AUTHORIZATION),
        ("Server Shutdown", Cause.CLOSED),
        ("Parser Error", Cause.OTHER),
    ],
)
def test_what_ends_a_connection(words: str, cause: Cause) -> None:
    for said in (words, words.lower()):
        assert rejection_of(said) is None
        assert ending_of(said).cause is cause
        assert cause is Cause.SLOW_CONSUMER or said in ending_of(said).text


@pytest.mark.parametrize(
    ("words", "subject", "is_publish", "sid"),
    [
        ('Permissions Violation for Subscription to "a.>"', "a.>", False, None),
        ('Permissions Violation for Subscription to "a" using queue "q"', "a", False, None),
        ('Permissions Violation for Subscription to "a" (sid "12")', "a", False, 12),
        ('Permissions Violation for Publish to "A.b"', "A.b", True, None),
        ('Permissions Violation for Publish with Reply of "r"', "r", True, None),
        ("maximum subscriptions exceeded", "", False, None),
        ("Invalid Subject", "", False, None),
        ("Invalid Publish Subject", "", True, None),
    ],
)
def test_what_is_refused(words: str, subject: str, is_publish: bool, sid: int | None) -> None:
    found = rejection_of(words)
    assert found is not None
    assert (found.subject, found.is_publish, found.sid) == (subject, is_publish, sid)
    assert found.text == words


def test_a_long_text_is_cut() -> None:
    found = rejection_of(f'Permissions Violation for Publish to "{"a" * 4000}"')
    assert found is not None
    assert len(found.text) == 400


def test_lines() -> None:
    assert error_words(b"-ERR 'Stale Connection'\r\n") == "Stale Connection"
    assert error_words(b"-ERR 'it''s'\r\n") == "it''s"
    assert error_words(b"-ERR \xff\r\n") == "\ufffd"
    assert error_words(b"PING\r\n") is None
