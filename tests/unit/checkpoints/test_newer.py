"""Records of `_offsets` that a newer version has stored are kept, and neither read nor replaced."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import add_segments, compact_once, keyed, row, stored
from unit.checkpoints.test_opening import Opened, opened

from liftlog.errors import StreamUnavailable
from liftlog.groups.requests import Join, Remove
from liftlog.groups.state import encode_key as group_key
from liftlog.groups.state import encode_value as group_value
from liftlog.groups.state import new_group
from liftlog.server.checkpoints import OFFSETS_STREAM
from liftlog.server.checkpoints.checkpoint import Stored, encode_key, encode_value
from liftlog.server.checkpoints.newer import in_words, is_newer, refusal
from liftlog.server.checkpoints.service import complete
from liftlog.server.checkpoints.table import load_table

CHECKPOINT = encode_value(Stored(5, 1, "c0ffee", 7))
GROUP = group_value(new_group(4, 1))
NEWER = {
    encode_key(("billing", "orders")): CHECKPOINT.replace(b'"v":1', b'"v":2'),
    group_key(("workers", "orders")): b'{"slots":[],"v":2}',
    b"transaction:one": b"\x00 not even JSON",
}


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"a/b", CHECKPOINT, False),
        (b"a/b", b'{"offset":1,"v":1}', False),
        (b"a/b", b'{"offset":1,"v":3}', True),
        (b"a/b", b'{"v":true}', False),
        (b"a/b", b'{"v":"2"}', False),
        (b"a/b", b"garbage", False),
        (b"a/b", b"[2]", False),
        (b"a/b", b'{"v":10}', True),
        (b"group:a/b", GROUP, False),
        (b"group:a/b", b'{"v":2}', True),
        (b"group2:a/b", GROUP, True),
    ],
)
def test_what_is_newer(key: bytes, value: bytes, expected: bool) -> None:
    assert is_newer(key, value) is expected


async def store(one: Opened, records: dict[bytes, bytes | None]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    host = one.broker.hosts[OFFSETS_STREAM]
    subjects = [b"liftlog.x.offsets.s.c"] * len(records)
    host.store(subjects, list(records), list(records.values()), partial(complete, done))
    await done


async def left(one: Opened) -> set[bytes]:
    table = await asyncio.to_thread(load_table, one.broker.hosts[OFFSETS_STREAM].log)
    return table.newer


async def test_they_are_kept_and_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, records=9) as one:
        await one.commit("billing", 3)
        await one.commit("other", 4)
        await store(one, dict(NEWER))
    async with opened(tmp_path) as one:
        checkpoints = one.checkpoints
        assert checkpoints.newer == in_words(NEWER)
        assert "1 of the kind 'transaction'" in checkpoints.newer
        assert one.offsets() == {"other": 4}, "the older checkpoint is no longer valid"
        assert checkpoints.table.losses == 0
        for call in (
            partial(one.commit, "billing", 5),
            partial(checkpoints.groups.asked, Join(("workers", "orders"), "m", "t", 10_000)),
        ):
            with pytest.raises(StreamUnavailable, match="a newer liftlog"):
                await call()
        with pytest.raises(StreamUnavailable, match="a newer liftlog"):
            checkpoints.fetch("billing", "orders", check=True)
        with pytest.raises(StreamUnavailable, match="a newer liftlog"):
            checkpoints.groups.describe(("workers", "orders"))
        await one.commit("other", 6)
        assert await left(one) == NEWER.keys()

        # An operator may give them up.
        await checkpoints.deleted("billing", "orders")
        assert checkpoints.fetch("billing", "orders", check=True) is None
        await one.commit("billing", 5)
        await checkpoints.groups.asked(Remove(("workers", "orders")))
        assert checkpoints.groups.describe(("workers", "orders")) is None
        await checkpoints.groups.asked(Join(("workers", "orders"), "m", "t", 10_000))
        assert checkpoints.newer == in_words([b"transaction:one"])
    async with opened(tmp_path) as one:
        assert one.offsets() == {"other": 6, "billing": 5}
        assert await left(one) == {b"transaction:one"}
        assert one.checkpoints.groups.describe(("workers", "orders")) is not None


async def test_what_a_newer_version_deletes_is_gone(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        await store(one, dict(NEWER))
        await store(one, dict.fromkeys(NEWER))
    async with opened(tmp_path) as one:
        assert one.checkpoints.newer == ""
        assert one.offsets() == {}


def test_compaction_keeps_the_newest_record_of_each_key_whatever_it_is() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    newest = [row(key, value) for key, value in NEWER.items()]
    add_segments(log, [[row(key, b"older") for key in NEWER]], [newest])
    assert compact_once(log, fs) is not None
    assert {one.key: one.value for one in stored(log).values()} == NEWER


def test_an_error_has_a_next_step() -> None:
    assert "how-to/upgrade" in (refusal("checkpoint of a in b").hint or "")
