"""Principals of every kind, and the principal that the daemon assigns to a client."""

from __future__ import annotations

from typing import Any

from support.clients.nkey_seeds import seed_of

from acl.nkeys import SigningKey
from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import connect
from liftlog.server.pull import PullLimits

SEED = seed_of(b"1" * 32)
KEY = SigningKey(SEED)
SECRET = "a-secret-that-is-long-enough"
QUICK = PullLimits(auth_failure_delay_seconds=0)


def policy(*principals: str) -> Policy:
    names = [one.partition(":")[0] for one in principals]
    return Policy.load(
        f"principals: {{{', '.join(principals)}}}\n"
        'roles: {look: [{allow: [read], streams: ["*"]}]}\n'
        f"bindings: {{{', '.join(f'{name}: [look]' for name in names)}}}\n"
    )


OPS = f"ops: {{nkey: {KEY.public_key}}}"
SHOP = f"shop: {{token_hash: '{hash_token(SECRET)}'}}"


async def principal_at(address: str, **options: Any) -> str | None:
    async with connect(address, **options) as client:
        await client.describe_stream("orders")
        return client.server.principal
