import base64
import os

import nkeys as reference
import pytest
from support.clients.nkey_seeds import seed_of

from acl.nkeys import (
    NotAnNkey,
    SigningKey,
    find_seed,
    is_signed,
    new_seed,
    public_key_bytes,
    public_key_text,
    seed_bytes,
)

SEED = seed_of(bytes(range(32)))


def test_the_same_keys_and_signatures_as_nats_has() -> None:
    for _ in range(20):
        seed = seed_of(os.urandom(32))
        theirs, ours = reference.from_seed(seed.encode()), SigningKey(seed)
        assert ours.public_key == theirs.public_key.decode().rstrip("=")
        assert ours.sign(b"text") == theirs.sign(b"text")
        assert is_signed(ours.public_key, b"text", theirs.sign(b"text"))
        assert public_key_text(public_key_bytes(ours.public_key)) == ours.public_key


@pytest.mark.parametrize("place", range(56))
def test_a_mistyped_key_is_noticed(place: int) -> None:
    text = SigningKey(SEED).public_key
    wrong = text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :]
    with pytest.raises(NotAnNkey):
        public_key_bytes(wrong)
    assert not is_signed(wrong, b"text", SigningKey(SEED).sign(b"text"))


@pytest.mark.parametrize("place", range(58))
def test_a_mistyped_seed_is_noticed_and_not_shown(place: int) -> None:
    wrong = SEED[:place] + ("A" if SEED[place] != "A" else "B") + SEED[place + 1 :]
    with pytest.raises(NotAnNkey) as caught:
        seed_bytes(wrong)
    assert wrong[2:] not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "prefix",
    [reference.PREFIX_BYTE_ACCOUNT, reference.PREFIX_BYTE_SERVER, reference.PREFIX_BYTE_OPERATOR],
)
def test_only_users(prefix: int) -> None:
    seed = reference.encode_seed(bytes(32), prefix)
    with pytest.raises(NotAnNkey):
        seed_bytes(seed.decode())
    with pytest.raises(NotAnNkey):
        public_key_bytes(reference.from_seed(seed).public_key.decode())


def test_keys_of_small_order_sign_nothing() -> None:
    for point in (bytes(32), b"\x01" + bytes(31), b"\xec" + b"\xff" * 30 + b"\x7f"):
        for signature in (bytes(64), point + bytes(32), b"\x01" + bytes(63)):
            assert not is_signed(public_key_text(point), b"text", signature)


def test_a_seed_in_a_file() -> None:
    jwt = base64.urlsafe_b64encode(os.urandom(99))
    creds = b"-----BEGIN USER NKEY SEED-----\n%b\n------END USER NKEY SEED------\n" % SEED.encode()
    assert find_seed(SEED.encode()) == find_seed(SEED.encode() + b"\r\n") == SEED
    assert find_seed(b"-----BEGIN NATS USER JWT-----\n" + jwt + b"\n" + creds) == SEED
    for content in (b"", SEED[:-1].encode(), b"X" + SEED.encode(), os.urandom(5000)):
        with pytest.raises(NotAnNkey):
            find_seed(content)
    with pytest.raises(NotAnNkey, match="exactly one"):
        find_seed(f"{SEED} {seed_of(bytes(32))}".encode())


def test_new_seeds() -> None:
    seeds = {new_seed() for _ in range(20)}
    assert len(seeds) == 20
    for seed in seeds:
        theirs = reference.from_seed(seed.encode())
        assert SigningKey(seed).public_key == theirs.public_key.decode().rstrip("=")


def test_the_seed_is_shown_nowhere() -> None:
    key = SigningKey(SEED)
    assert repr(key) == f"SigningKey({key.public_key})"
    assert not hasattr(key, "__dict__")
