"""A node starts while JetStream elects."""

from __future__ import annotations

import pytest

from liftlog.cluster.store import CasUnknown
from liftlog.server.metadata import kv_store
from liftlog.server.metadata.kv_link import KvLink
from liftlog.server.metadata.kv_setup import BucketSetup
from liftlog.server.metadata.kv_store import NatsKvMetaStore
from liftlog.settings import NatsSettings


async def test_a_node_waits_for_a_bucket_that_does_not_say_whether_it_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = NatsKvMetaStore(NatsSettings(), ["nats://127.0.0.1:1"], "c", "a")
    checks = 0

    async def check(*_: object) -> None:
        nonlocal checks
        checks += 1
        if checks < 3:
            raise CasUnknown("JetStream did not answer within 3 s")

    async def connected(link: KvLink, _: float) -> None:
        pass

    monkeypatch.setattr(kv_store, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(BucketSetup, "check", check)
    monkeypatch.setattr(KvLink, "start", lambda link: None)
    monkeypatch.setattr(KvLink, "wait_connected", connected)
    await store.open()
    assert checks == 3
