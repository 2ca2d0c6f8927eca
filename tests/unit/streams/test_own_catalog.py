"""The catalog of a daemon on its own: the manifest changes first, and the record follows."""

from __future__ import annotations

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import StorageError
from liftlog.settings import parse_stream_settings


async def test_a_change_that_fails_is_not_in_the_record(running: Running) -> None:
    broker = running.broker
    await broker.create_stream("s", {"subject": "s.>"})
    host, before = broker.hosts["s"], broker.records.record("s")
    assert before is not None

    async def fail() -> int:
        assert broker.records.record("s") == before, "the manifest is first"
        raise StorageError("on purpose")

    with pytest.raises(StorageError):
        await broker.own.update(host, parse_stream_settings({"subject": "other.>"}), fail)
    with pytest.raises(StorageError):
        await broker.own.truncate(host, 1, fail)
    assert broker.records.record("s") == before


async def test_a_truncation_that_removes_nothing_changes_no_record(running: Running) -> None:
    broker = running.broker
    await broker.create_stream("s", {"subject": "s.>"})
    await running.publish("s", b"1", b"2", b"3")
    before = broker.records.record("s")
    await broker.administration.truncate_prefix("s", 1)
    assert broker.records.record("s") == before
    await broker.administration.truncate_prefix("s", 3)
    after = broker.records.record("s")
    assert after is not None
    assert after.log_start == 3


async def test_it_leads_what_it_has_and_knows_of_no_other(running: Running) -> None:
    own = running.broker.own
    await running.broker.create_stream("s", {"subject": "s.>"})
    assert (own.knows("s"), own.knows("t")) == (True, False)
    assert own.leads("s")
    assert own.may_answer("s")
    assert not own.leads_elsewhere("s")
    assert own.answerer("s") is None
    assert own.describe_elsewhere("t") is None
    assert (list(own.names()), own.addresses(), dict(own.other_leaders())) == ([], [], {})
    await own.side_confirmed("s")
