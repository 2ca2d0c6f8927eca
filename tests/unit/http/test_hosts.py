"""Under which names requests without credentials are answered."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from liftlog.server.http.callers import HostNames
from liftlog.settings import Settings

HOSTS = HostNames(["Liftlog.Example.org"])


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:8292", "10.1.2.3:80", "[::1]", "[::1]:8292", "localhost",
     "LOCALHOST:8292", "liftlog.localhost:80", "liftlog:8292", "liftlog.example.org",
     "LIFTLOG.example.ORG:443", "liftlog.example.org.", socket.gethostname()],
)  # fmt: skip
def test_ours(host: str) -> None:
    assert HOSTS.is_ours(host)


@pytest.mark.parametrize(
    "host",
    ["", ":8292", "evil.example", "evil.example:8292", "127.0.0.1.evil.example", "127.0.0.1.",
     "localhost.evil.example", "evil.example@127.0.0.1", "127.0.0.1@evil.example:80", "0x7f.1",
     "liftlog.example.org.evil.example", "evil.liftlog.example.org", "[::1].evil.example", "[::1",
     "::1", "evil.", "evil.example:", "evil.example:8292:8292", "[evil.example]", "evil.example#"],
)  # fmt: skip
def test_of_strangers(host: str) -> None:
    assert not HOSTS.is_ours(host)


@given(st.text(max_size=30))
def test_any_text_is_judged(text: str) -> None:
    HOSTS.is_ours(text)
    assert not HOSTS.is_ours(f"{text}.evil.example")
    assert not HOSTS.is_ours(f"{text}.evil.example:80")


@pytest.mark.parametrize("name", ["", "http://a.example", "a.example:80", "a b", "*.example", "é"])
def test_a_setting_that_is_no_host_name(name: str) -> None:
    with pytest.raises(ValidationError, match="expected a host name"):
        Settings.model_validate({"http": {"allowed_hosts": [name]}})


def test_the_setting() -> None:
    settings = Settings.model_validate({"http": {"allowed_hosts": ["A.example", "b.example"]}})
    assert settings.http.allowed_hosts == ["a.example", "b.example"]
