"""Batches from a daemon as Arrow: only the requested columns."""

from __future__ import annotations

import pyarrow as pa

from liftlog.client import connect


async def test_a_range_that_cuts_batches(address: str) -> None:
    async with connect(address) as client:
        found = [batch.to_arrow() async for batch in client.read_batches("orders", 15, 38)]
    table = pa.Table.from_batches(found)
    assert table["offset"].to_pylist() == list(range(15, 38))
    assert table["value"].to_pylist() == [b"value %d" % i for i in range(15, 38)]
    assert [len(batch) for batch in found] == [6, 10, 7]
    assert set(table["subject"].to_pylist()) == {"orders.new"}
