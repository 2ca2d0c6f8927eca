"""From which positions a stream can be read on."""

from types import SimpleNamespace

import pytest

from liftlog.errors import (
    Diverged,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
)
from liftlog.server.checkpoints.checkpoint import (
    readable_offsets,
    why_not_readable,
    why_not_storable,
)

# Epoch 2 began at offset 50, 3 at 80; [10, 100) can be read, up to 90 it is committed.
LOG = SimpleNamespace(
    incarnation="now",
    leader_epoch=3,
    log_start_offset=10,
    high_watermark=90,
    log_end_offset=100,
    epoch_end=lambda epoch: {1: 50, 2: 80}.get(epoch, 100),
)


@pytest.mark.parametrize(
    ("offset", "incarnation", "epoch", "storable", "readable"),
    [
        (10, "now", 1, None, None),
        (50, "now", 1, None, None),
        (51, "now", 1, Diverged, Diverged),
        (80, "now", 2, None, None),
        (81, "now", 2, Diverged, Diverged),
        (100, "now", 3, None, None),
        (101, "now", 3, OffsetOutOfRange, OffsetOutOfRange),
        (50, "now", 4, Diverged, Diverged),
        (9, "now", 1, None, OffsetOutOfRange),
        (50, "then", 1, StaleIncarnation, StaleIncarnation),
        (9, "then", 9, StaleIncarnation, StaleIncarnation),
        (0, "now", 1, InvalidArgument, InvalidArgument),
    ],
)
def test_judgements(
    offset: int,
    incarnation: str,
    epoch: int,
    storable: type[LiftlogError] | None,
    readable: type[LiftlogError] | None,
) -> None:
    found = why_not_storable(LOG, "orders", offset, incarnation, epoch)
    assert type(found) is (storable or type(None))
    found = why_not_readable(LOG, "orders", offset, incarnation, epoch)
    assert type(found) is (readable or type(None))


def test_what_is_not_said_is_taken_from_now() -> None:
    assert why_not_storable(LOG, "orders", 100, None, None) is None
    error = why_not_storable(LOG, "orders", 101, None, None)
    assert isinstance(error, OffsetOutOfRange)
    assert error.details == {"log_start_offset": 10, "log_end_offset": 100}
    error = why_not_storable(LOG, "orders", 60, None, 1)
    assert isinstance(error, Diverged)
    assert error.details["epoch_end_offset"] == 50


@pytest.mark.parametrize("incarnation", ["now", "then"])
@pytest.mark.parametrize("epoch", range(6))
def test_the_offsets_of_all_readers_at_once(incarnation: str, epoch: int) -> None:
    judged = [
        offset
        for offset in range(-1, 110)
        if why_not_readable(LOG, "orders", offset, incarnation, epoch) is None
    ]
    assert judged == list(readable_offsets(LOG, incarnation, epoch))
