"""Parses batches that a log copies from another log, and checks that they continue the copy.
Pure."""

from __future__ import annotations

from liftlog.records.columns.batch_columns import cut_front
from liftlog.records.decode import decode_batch
from liftlog.records.encode import EncodedBatch
from liftlog.records.header import parse_header, verify_body


def continuing_batches(
    view: memoryview, offset: int, epochs: list[tuple[int, int]]
) -> tuple[list[EncodedBatch], int]:
    """Parse the batches in `view` and check that they continue a log that ends at `offset`.

    Returns the batches, and the commit group of the last batch. Adds new epochs to `epochs`.
    """
    batches: list[EncodedBatch] = []
    position = group = 0
    while position < len(view):
        header = parse_header(view, position)
        piece = view[position : position + header.length]
        verify_body(piece, header)
        length = header.length
        if header.base_offset < offset < header.next_offset and not batches:
            # The other log has joined or compacted batches, so the requested offset lies inside a
            # batch.
            piece = memoryview(cut_front(decode_batch(piece, verify=False), offset))
            header = parse_header(piece)
        if header.base_offset != offset:
            raise ValueError(f"batch at offset {header.base_offset}, expected {offset}")
        last = epochs[-1][0] if epochs else 0
        if header.leader_epoch < last:
            raise ValueError(f"batch of leader epoch {header.leader_epoch} behind {last}")
        if header.leader_epoch > last:
            epochs.append((header.leader_epoch, offset))
        batches.append(
            EncodedBatch(
                piece,
                offset,
                header.next_offset,
                header.record_count,
                header.base_timestamp_ns,
                header.max_timestamp_ns,
            )
        )
        offset, group = header.next_offset, header.commit_group
        position += length
    return batches, group
