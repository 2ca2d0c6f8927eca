"""Reads a whole stream, and continues after damage."""

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
    """Return everything that can be read now, and continue after each damaged range."""
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
                # Retention removed records before the reader reached them. The remaining records
                # begin here.
                start = int(behind.details["log_start_offset"])
                assert not records or records[-1].offset < start
                continue
            else:
                return Readback(records, damaged)
            assert start > first
            assert len(damaged) == 1 or first >= damaged[-2][1]
            # Every record before the damage was delivered, and no record inside of it.
            assert not records or records[-1].offset < first
