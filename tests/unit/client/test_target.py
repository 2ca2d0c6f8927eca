"""A token that others on the network could read causes one warning."""

import logging

import pytest

from liftlog.client.connecting.target import Address, credentials_of

SECRET = "billing.a-secret-that-is-long-enough"


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("tcp://198.51.100.7:9292", 1),
        ("tcp://logs.example", 1),
        ("tcp://[2001:db8::1]:9292", 1),
        ("tcp://127.0.0.1:9292", 0),
        ("tcp://[::1]:9292", 0),
        ("tcp://localhost", 0),
        ("tls://logs.example", 0),
        ("unix:///run/liftlog.sock", 0),
    ],
)
def test_a_token_without_tls(address: str, warned: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "liftlog.client"):
        for _ in range(3):
            credentials_of(SECRET, None, Address.parse(address))
        credentials_of(None, None, Address.parse(address.replace("7", "8")))
    assert [one.getMessage() for one in caplog.records] == (
        [f"token-unencrypted address={address}"] * warned
    )
    assert "secret" not in caplog.text
