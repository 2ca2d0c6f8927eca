"""Where secrets would pass in clear; and what differs between two configurations."""

import pytest

from acl.policy import Policy
from liftlog.settings import load_settings
from liftlog.settings.checks import cautions
from liftlog.settings.keys import differing_keys

TOKENS = Policy.load(f"principals: {{a: {{token_hash: 'sha256:{'0' * 64}'}}}}")
USERS = Policy.load("principals: {a: {unix_uid: 0}}")


def told(policy: Policy | None, *overrides: str) -> list[str]:
    settings = load_settings(None, {}, ["allow_anonymous=true", *overrides])
    return [one.setting for one in cautions(settings, policy)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], []),
        (["pull.listen=tcp://127.0.0.1:1,tcp://[::1]:2,unix:///tmp/s"], []),
        (["pull.listen=tcp://localhost:1,tcp://10.0.0.1:2"], ["pull.listen[1]"]),
        (["pull.listen=tcp://:1,tcp://daemon.example:2"], ["pull.listen[0]", "pull.listen[1]"]),
        (
            ["pull.listen=tls://0.0.0.0:1", "pull.tls.cert=c.pem", "pull.tls.key=k.pem"],
            [],
        ),
        (["http.listen=0.0.0.0:8292"], ["http.listen"]),
        (["http.listen=0.0.0.0:8292", "http.web=false"], []),
        (["http.listen=0.0.0.0:8292", "http.web=false", "http.log_api=true"], ["http.listen"]),
    ],
)
def test_tokens_on_a_network_without_tls(overrides: list[str], expected: list[str]) -> None:
    assert told(TOKENS, *overrides) == expected
    assert told(None, *overrides) == [], "where everyone may do everything there are no tokens"


def test_who_has_no_tokens_still_shows_records() -> None:
    settings = load_settings(None, {}, ["allow_anonymous=true", "pull.listen=tcp://:1"])
    (found,) = cautions(settings, USERS)
    assert str(found) == (
        "pull.listen[0]: records are sent unencrypted over tcp://:1: "
        "listen on tls://HOST:PORT and set pull.tls"
    )
    assert told(USERS, "http.listen=:8292") == []


def test_settings_that_differ_are_named_without_their_values() -> None:
    common = ["streams.a.subject=a", "streams.gone.subject=g", "nats.user=me"]
    old = load_settings(None, {"LIFTLOG_NATS__PASSWORD": "hush1"}, common)
    assert differing_keys(old, old) == []
    new = load_settings(
        None,
        {"LIFTLOG_NATS__PASSWORD": "hush2"},
        [common[0], common[2], "streams.a.retention.max_age=7d", "streams.b.subject=b", "name=x"],
    )
    assert set(differing_keys(old, new)) == {
        "name",
        "nats.password",
        "streams.a.retention.max_age",
        "streams.b",
        "streams.gone",
    }
