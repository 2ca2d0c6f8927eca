"""Reads whose position does not exist any more: the policy, and the report to the reader."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog.client import Reset
from liftlog.errors import (
    Diverged,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
)
from liftlog.log import Log

if TYPE_CHECKING:
    from tests.unit.client.conftest import Both
else:
    Both = Any

TOO_FAR = {"start": 5000}
ANOTHER = {"start": 50, "incarnation": "another"}
DIVERGED = {"start": 50, "epoch": 9}

CASES = [(TOO_FAR, OffsetOutOfRange), (ANOTHER, StaleIncarnation), (DIVERGED, Diverged)]


@pytest.mark.parametrize(("asked", "error"), CASES)
async def test_without_a_policy_it_is_an_error(
    both: Both, asked: dict[str, Any], error: type[LiftlogError]
) -> None:
    with pytest.raises(error):
        await both.records("orders", until="end", **asked)


@pytest.mark.parametrize(("asked", "error"), CASES)
@pytest.mark.parametrize(("policy", "first"), [("earliest", 1), ("latest", 101)])
async def test_a_read_goes_on_where_the_policy_says_and_tells(
    both: Both,
    asked: dict[str, Any],
    error: type[LiftlogError],
    policy: str,
    first: int,
    broker: LogBroker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[Reset] = []
    with caplog.at_level(logging.WARNING, "liftlog.client"):
        found = await both.records(
            "orders", until="end", on_reset=policy, reset_callback=told.append, **asked
        )
    assert [record.offset for record in found] == list(range(first, 101))
    (reset,) = told
    assert type(reset.error) is error
    incarnation = broker.streams["orders"].real_log.incarnation
    assert (reset.stream, reset.from_offset, reset.to_offset, reset.incarnation) == (
        "orders", asked["start"], first, incarnation,
    )  # fmt: skip
    (line,) = [one.message for one in caplog.records if "position-reset" in one.message]
    assert error.name in line
    assert f"to_offset={first}" in line


async def test_a_callback_that_raises_ends_the_read(both: Both) -> None:
    class No(Exception):
        pass

    def refuse(_: Reset) -> None:
        raise No

    with pytest.raises(No):
        await both.records("orders", 5000, "end", on_reset="earliest", reset_callback=refuse)
    await both.call("ping")


async def test_a_stream_made_anew_is_read_to_its_own_end(both: Both, broker: LogBroker) -> None:
    """The requested end belonged to the old stream, and is far beyond the end of the new one."""
    told: list[Reset] = []

    def make_anew(_: Any) -> None:
        stream = broker.streams.pop("orders")
        stream.real_log.close()
        broker.directory = broker.directory / "again"
        broker.directory.mkdir()
        broker.add("orders").append([b"new"] * 3)

    options: dict[str, Any] = {
        "fetch_bytes": 4096,
        "read_ahead_bytes": 0,
        "on_reset": "earliest",
        "reset_callback": told.append,
        "on_corrupt": make_anew,  # called in the midst of the read
    }
    for _ in range(100):
        broker.streams["orders"].append([b"x" * 1000] * 10)
    path = broker.streams["orders"].real_log.segments[-1].path
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    seen = [record.offset for record in await both.records("orders", 1, "end", **options)]
    assert seen[-3:] == [1, 2, 3]
    assert [type(reset.error) for reset in told] == [StaleIncarnation]


async def test_a_second_error_in_a_row_is_raised(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise OffsetOutOfRange("gone again", log_start_offset=1, log_end_offset=1)

    monkeypatch.setattr(Log, "read", gone)
    with pytest.raises(OffsetOutOfRange, match="gone again"):
        await both.records("orders", 50, "end", on_reset="earliest")


@pytest.mark.parametrize("options", [{"on_reset": "erliest"}, {"reset_callback": 5}])
async def test_a_policy_that_does_not_exist_is_refused(both: Both, options: Any) -> None:
    with pytest.raises(InvalidArgument):
        await both.records("orders", **options)
