"""Steps of tests that iterate over data from a client."""

from __future__ import annotations

from typing import Any


async def offsets(client: Any, seen: list[int], *args: Any, **options: Any) -> None:
    """Append the offsets to `seen` as they arrive."""
    async for batch in client.read_batches(*args, **options):
        seen.extend(batch.offsets())


async def take(iterator: Any, count: int | None = None) -> list[Any]:
    """Return `count` items, or fewer at the end of the iteration; all items if `count` is None."""
    found: list[Any] = []
    while count is None or len(found) < count:
        item = await anext(iterator, None)
        if item is None:
            break
        found.append(item)
    return found


async def first(iterator: Any) -> Any:
    """Return the first item and end the iteration."""
    async for item in iterator:
        return item
    raise AssertionError("it has no item")


async def take_in_block(consumer: Any) -> list[Any]:
    """Return all items, read inside of the consumer's `async with` block."""
    async with consumer:
        return await take(consumer)


async def fail_at(consumer: Any, offset: int) -> None:
    """Leave the block by a KeyError while this record is processed."""
    async with consumer:
        async for record in consumer:
            if record.offset == offset:
                raise KeyError("cannot handle it")


async def ping_amid_a_read(client: Any, log: Any, count: int, *args: Any, **options: Any) -> int:
    """Return the number of reads of `log` at the moment when the first batch was taken and `count`
    pings were answered. The remaining batches have 39 records."""
    reader = client.read_batches(*args, **options)
    await anext(reader)
    for _ in range(count):
        await client.ping()
    reads = int(log.reads)
    assert sum([len(batch) async for batch in reader]) == 39
    return reads


async def create_amid_reads(client: Any, read: str, settings: dict[str, str]) -> int:
    """Begin four reads, create a stream, and return the number of records that the reads have not
    returned yet."""
    readers = [client.read_batches(read, until="end") for _ in range(4)]
    for reader in readers:
        await anext(reader)
    await client.create_stream("new", **settings)
    left = 0
    for reader in readers:
        left += sum([len(batch) async for batch in reader])
    return left
