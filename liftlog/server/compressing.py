"""Batches of a commit -> the same batches compressed, as their stream wants it."""

from __future__ import annotations

from liftlog.log import EncodedBatch
from liftlog.records.codecs import codec_named, compress_batch

INLINE_BYTES = 64 * 1024
"""More than this is compressed in a writer's thread: the event loop has better to do."""


def compressed(batches: list[EncodedBatch], compression: str) -> list[EncodedBatch]:
    """Where it makes a batch smaller; each at a speed of some 100 MB/s, without the GIL."""
    codec = codec_named(compression)
    if codec is None:
        return batches
    return [batch._replace(data=compress_batch(batch.data, codec)) for batch in batches]
