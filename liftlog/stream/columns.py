"""A run as columns: what each message says by itself, found for all messages at once.

What no column can say makes a row *odd*: its message is judged alone, between the rows before and
those after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import add
from typing import NamedTuple

from liftlog.stream.acks import Echo
from liftlog.stream.config import SequencerConfig
from liftlog.stream.header_columns import header_columns
from liftlog.stream.judging import FAST_BATCH_SUFFIX
from liftlog.stream.opened import EnvelopeFields
from liftlog.stream.run import MessageRun


class Columns(NamedTuple):
    """One entry per message, or None for a column without any. `replies` are where answers go, not
    checked yet, b"" for nowhere; `echoes` is what answers repeat."""

    subjects: Sequence[bytes]
    replies: Sequence[bytes]
    values: Sequence[bytes | None]
    blocks: Sequence[bytes] | None = None
    keys: Sequence[bytes | None] | None = None
    message_ids: Sequence[bytes | None] | None = None
    echoes: Sequence[Echo] | None = None

    def part(self, start: int, stop: int) -> Columns:
        """The rows from `start` to before `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        return Columns._make([column and column[start:stop] for column in self])

    def only(self, chosen: Sequence[bool]) -> Columns:
        """The rows that `chosen` selects."""
        return Columns._make([column and list(compress(column, chosen)) for column in self])


def columns_of(config: SequencerConfig, run: MessageRun, stamp: int) -> tuple[Columns, list[int]]:
    """The columns of a run, and its odd rows in ascending order."""
    count = len(run)
    blocks = run.headers
    odd = _too_large(config, run)
    nowhere = [b""] * count
    if config.acks == "off":
        return Columns(run.subjects, nowhere, run.payloads, blocks), odd
    keys = message_ids = None
    if blocks is not None:
        keys, message_ids, bad_rows = header_columns(blocks)
        odd += bad_rows
        if message_ids is not None and config.acks != "on":
            # Meant for JetStream, so they are remembered without being judged.
            odd += [row for row, message_id in enumerate(message_ids) if message_id is not None]
    if config.acks == "on":
        odd += _in_fast_batches(run.replies)
    replies = run.replies if config.acks == "on" else nowhere
    columns = Columns(run.subjects, replies, run.payloads, blocks, keys, message_ids)
    if run.has_cookie and (config.recognise_envelopes or config.recognise_liftbridge):
        fields = EnvelopeFields(config, run, replies, keys, message_ids)
        fields.open(run.payloads, odd, stamp)
        odd += fields.odd
        columns = columns._replace(**fields.columns())
    return columns, sorted(set(odd))


def _too_large(config: SequencerConfig, run: MessageRun) -> list[int]:
    limit, payloads, blocks = config.max_message_bytes, run.payloads, run.headers
    if run.size_bytes <= limit:
        return []
    if max(map(len, payloads)) + (max(map(len, blocks)) if blocks else 0) <= limit:
        return []
    sizes = map(len, payloads)
    if blocks is not None:
        sizes = map(add, sizes, map(len, blocks))
    return [row for row, size in enumerate(sizes) if size > limit]


def _in_fast_batches(replies: Sequence[bytes]) -> list[int]:
    if b"$" not in b"".join(replies):  # a search for one byte is the fastest
        return []
    return [row for row, reply in enumerate(replies) if reply.endswith(FAST_BATCH_SUFFIX)]
