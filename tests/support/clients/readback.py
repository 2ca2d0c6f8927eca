"""Reading a whole stream through damage, as a careful consumer does."""

from __future__ import annotations

from typing import NamedTuple

from support.daemons.daemon import Daemon

from liftlog.client import connect_sync
from liftlog.errors import CorruptRange, OffsetOutOfRange
from liftlog.records.decode import Record


class Readback(NamedTuple):
    records: list[Record]
    damaged: list[tuple[int, int]]
    """[first offset, next offset) of each range that cannot be read."""


def read_back(daemon: Daemon, stream: str) -> Readback:
    """Everything that can be read now, going on behind each damaged range."""
    records: list[Record] = []
    damaged: list[tuple[int, int]] = []
    with connect_sync(daemon.pull_address) as client:
        start: int | str = "earliest"
        while True:
            try:
                records += client.read(stream, start=start, until="end")
            except CorruptRange as damage:
                first, start = damage.first_offset, damage.next_offset
                damaged.append((first, start))
            except OffsetOutOfRange as behind:
                # Retention overtook the reader: what is left begins here.
                start = int(behind.details["log_start_offset"])
                assert not records or records[-1].offset < start
                continue
            else:
                return Readback(records, damaged)
            assert start > first
            assert len(damaged) == 1 or first >= damaged[-2][1]
            # Up to the damage every record was delivered, none from inside of it.
            assert not records or records[-1].offset < first
