"""Snapshots: the whole state of a consumer as bytes.

Equal states have equal snapshots. A decoded state has the same blocks as the encoded state, so both
behave in the same way. Layout: version, settings, the numbers in the order of `_NUMBERS`, exhausted
offsets, waiting pulls, blocks, the queue of redeliveries, inboxes (since version 2). A block has
the offsets, consumer sequences and stamps of all its messages. Then follow a bitmap of its pending
messages (empty if all are pending), and the counts, phases and times of its pending messages. The
journal adds a checksum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from liftlog.deliveries.block import BLOCK_SIZE, MAX_COUNT, Block, Phase
from liftlog.deliveries.changes import client_of
from liftlog.deliveries.codec import (
    check_version,
    read_inbox,
    read_pull,
    read_settings,
    write_inbox,
    write_pull,
    write_settings,
)
from liftlog.deliveries.columns import Index, Ints, Rising, Values
from liftlog.deliveries.settings import MAX_PENDING, MAX_WAITING
from liftlog.deliveries.state import MAX_EXHAUSTED, MAX_INBOXES, ConsumerState
from liftlog.deliveries.wire import MAX_OFFSET, MAX_TIME_NS, Reader, Writer
from liftlog.errors import CorruptState

VERSION = 2
_NUMBERS = (
    "next_offset",
    "sequence",
    "delivered_end",
    "floor_offset",
    "floor_sequence",
    "epoch",
)
_MOST_SLOTS = 2 * MAX_PENDING + BLOCK_SIZE
"""Maximum number of messages in the blocks of a snapshot. It follows from the rule that at least
half of a block's messages are pending."""


def encode_snapshot(state: ConsumerState) -> bytes:
    """Return the whole state as bytes."""
    writer = Writer(VERSION)
    write_settings(writer, state.settings)
    for name in _NUMBERS:
        writer.number(getattr(state, name))
    writer.column(np.array(state.exhausted, np.int64))
    writer.number(len(state.pulls))
    for number in sorted(state.pulls):
        write_pull(writer, state.pulls[number])
    writer.number(len(state.pending.blocks))
    for block in state.pending.blocks:
        _write_block(writer, block)
    writer.column(state.queue.all())
    writer.number(len(state.inboxes))
    for inbox in state.inboxes.values():
        write_inbox(writer, inbox)
    return writer.done()


def decode_snapshot(data: bytes) -> ConsumerState:
    """Decode a snapshot. Raises NewerFormat for an unknown version, CorruptState for invalid
    bytes."""
    reader = Reader(data, 8 * _MOST_SLOTS)
    check_version(version := reader.byte(), VERSION)
    state = ConsumerState(read_settings(reader), 0)
    for name in _NUMBERS:
        setattr(state, name, reader.number(MAX_OFFSET))
    if not state.floor_offset <= state.delivered_end <= state.next_offset:
        raise CorruptState("floor, end of deliveries and next offset are not in this order")
    if state.floor_sequence > state.sequence:
        raise CorruptState("the ack floor is above the newest delivery")
    state.exhausted.extend(reader.column(MAX_EXHAUSTED).tolist())
    for _ in range(reader.number(MAX_WAITING)):
        pull = read_pull(reader)
        if not pull.reply:
            raise CorruptState("a waiting pull has no reply")
        state.pulls[pull.number] = pull
    _read_blocks(reader, state)
    _read_queue(reader, state)
    for _ in range(reader.number(MAX_INBOXES) if version > 1 else 0):
        inbox = read_inbox(reader)
        state.inboxes[client_of(inbox.reply)] = inbox
    if not reader.is_at_end:
        raise CorruptState("bytes follow the state")
    return state


def _write_block(writer: Writer, block: Block) -> None:
    places = block.places()
    writer.column(block.offsets.all())
    writer.column(block.sequences.all())
    writer.signed(block.oldest_ns)
    writer.signed(block.newest_ns)
    all_pending = block.pending == block.size
    writer.raw(b"" if all_pending else np.packbits(_bits(places, block.size)).tobytes())
    phases, times = block.phases.at(places), block.times.at(places)
    writer.column(block.counts.at(places))
    writer.column(phases)
    writer.column(np.where(phases == Phase.QUEUED, 0, times))


def _read_blocks(reader: Reader, state: ConsumerState) -> None:
    slots = total = 0
    least = (0, 1)
    blocks = []
    for _ in range(reader.number(_MOST_SLOTS)):
        block = _read_block(reader)
        slots, total = slots + block.size, total + block.pending
        if slots > _MOST_SLOTS or total > MAX_PENDING:
            raise CorruptState(f"more than {MAX_PENDING} pending messages")
        if block.offsets.base < least[0] or block.sequences.base < least[1]:
            raise CorruptState("blocks are not in order")
        least = block.offsets.last + 1, block.sequences.last + 1
        blocks.append(block)
    if least[0] > state.delivered_end or least[1] > state.sequence + 1:
        raise CorruptState("a pending message was never delivered")
    state.pending.restore(blocks)


def _read_block(reader: Reader) -> Block:
    offsets, sequences = _rising(reader.column(BLOCK_SIZE)), _rising(reader.column(BLOCK_SIZE))
    block = Block(offsets, sequences, reader.signed(), reader.signed())
    bitmap = reader.raw()
    if bitmap:
        if len(bitmap) != (block.size + 7) // 8:
            raise CorruptState("the bitmap of a block has a wrong size")
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=block.size).astype(np.bool_)
        block.remove(np.flatnonzero(~bits))
    if sequences.count != offsets.count or not 2 * block.pending >= block.size:
        raise CorruptState("too few messages of a block are pending")
    places = block.places()
    counts = _of(places, reader.column(BLOCK_SIZE), 1, MAX_COUNT)
    phases = _of(places, reader.column(BLOCK_SIZE), 0, Phase.QUEUED)
    times = _of(places, reader.column(BLOCK_SIZE), 0, MAX_TIME_NS)
    block.counts = _values(np.uint32, places, counts, block.size)
    block.phases = _values(np.uint8, places, phases, block.size)
    block.times = _values(np.int64, places, times, block.size)
    return block


def _read_queue(reader: Reader, state: ConsumerState) -> None:
    offsets = reader.column(MAX_PENDING)
    queued, _, _ = state.pending.in_queue()
    if not np.array_equal(np.sort(offsets), queued):
        raise CorruptState("the queue has other messages than the blocks")
    state.pending.queue(offsets, state.queue.push(offsets))


def _rising(numbers: Ints) -> Rising:
    if not len(numbers) or not bool((np.diff(numbers) > 0).all()):
        raise CorruptState("numbers of a block do not rise")
    if int(numbers[0]) < 0 or int(numbers[-1]) > MAX_OFFSET:
        raise CorruptState("numbers of a block are out of bounds")
    try:
        return Rising(numbers)
    except ValueError as error:
        raise CorruptState(str(error)) from error


def _of(places: Index, numbers: Ints, least: int, most: int) -> Ints:
    """Check `numbers`, and return them. Raises CorruptState unless there is one number for each of
    `places`, and all numbers are between `least` and `most`, inclusive."""
    if len(numbers) != len(places) or int(numbers.min()) < least or int(numbers.max()) > most:
        raise CorruptState("a column of a block is out of bounds")
    return numbers


def _values(dtype: type, places: Index, numbers: Ints, size: int) -> Values:
    if bool((numbers == numbers[0]).all()):
        return Values(dtype, int(numbers[0]))
    array: NDArray[Any] = np.zeros(size, dtype)
    array[places] = numbers
    return Values(dtype, 0, array)


def _bits(places: Index, size: int) -> Ints:
    bits = np.zeros(size, np.int64)
    bits[places] = 1
    return bits
