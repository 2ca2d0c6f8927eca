"""What the leaf node connection says of who it is."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

import pytest
from support.clients.nkey_seeds import seed_of

from acl.nkeys import SigningKey, is_signed
from liftlog.errors import NatsUnavailable
from liftlog.server.jetstream_api.consumers.leaf_login import LeafLogin
from liftlog.settings import NatsSettings

CREDENTIALS = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

************************* IMPORTANT *************************
-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""


def login(**settings: object) -> LeafLogin:
    return LeafLogin(NatsSettings.model_validate(settings))


def is_right(seed: str, nonce: str, signature: str) -> bool:
    raw = base64.urlsafe_b64decode(signature + "=" * (-len(signature) % 4))
    return is_signed(SigningKey(seed).public_key, nonce.encode(), raw)


def test_a_password_or_a_token_is_sent_as_it_is() -> None:
    assert login(user="u", password="p").fields("nonce") == {"user": "u", "pass": "p"}
    assert login(token="t").fields("nonce") == {"auth_token": "t"}
    assert login().fields("") == {}


def test_a_login_in_the_url_of_a_server() -> None:
    servers = ["nats://a:x@one:4222", "nats://t0ken@two", "nats://three"]
    told = login(servers=servers)
    assert told.fields("", "one") == {"user": "a", "pass": "x"}
    assert told.fields("", "TWO") == {"auth_token": "t0ken"}
    assert told.fields("", "elsewhere") == {"user": "a", "pass": "x"}
    assert login(servers=servers, token="t").fields("", "one") == {"auth_token": "t"}
    assert login(servers=["nats://one"]).fields("", "one") == {}


def test_an_nkey_signs_the_nonce(tmp_path: Path) -> None:
    seed = seed_of(secrets.token_bytes(32))
    (tmp_path / "seed").write_text(f"{seed}\n")
    fields = login(nkey=str(tmp_path / "seed")).fields("a nonce")
    assert fields["nkey"] == SigningKey(seed).public_key
    assert is_right(seed, "a nonce", fields["sig"])
    assert seed not in str(fields)


def test_credentials_are_a_jwt_and_a_signature(tmp_path: Path) -> None:
    seed = seed_of(secrets.token_bytes(32))
    file = tmp_path / "user.creds"
    file.write_text(CREDENTIALS.format(jwt="eyJ0.eyJq.c2ln", seed=seed))
    fields = login(credentials=str(file)).fields("a nonce")
    assert fields["jwt"] == "eyJ0.eyJq.c2ln"
    assert is_right(seed, "a nonce", fields["sig"])


@pytest.mark.parametrize("content", ["", "SUABC", CREDENTIALS.format(jwt="a.b.c", seed="SUABC")])
@pytest.mark.parametrize("kind", ["credentials", "nkey"])
def test_a_file_that_holds_something_else(tmp_path: Path, kind: str, content: str) -> None:
    file = tmp_path / "file"
    file.write_text(content)
    with pytest.raises(NatsUnavailable, match=str(file)):
        login(**{kind: str(file)}).fields("a nonce")
