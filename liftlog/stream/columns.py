"""A run as columns: what each message says by itself, found for all messages at once.

What no column can say makes a row *odd*: its message is judged alone, between the rows before and
those behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import add
from typing import NamedTuple

from envelope import COOKIE, decode, liftbridge
from envelope.fields import wrong_id
from envelope.format import MAX_KEY_BYTES
from liftlog.stream.acks import Echo
from liftlog.stream.config import SequencerConfig
from liftlog.stream.enveloped import own_block
from liftlog.stream.header_columns import header_columns
from liftlog.stream.judging import FAST_BATCH_SUFFIX
from liftlog.stream.liftbridge import ANY_OFFSET, POLICIES, ack_to
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
        """The rows of which `chosen` says so."""
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
    if run.has_cookie:
        columns = _opened(config, run, columns, stamp, odd)
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
    if FAST_BATCH_SUFFIX not in b"\n".join(replies):
        return []
    return [row for row, reply in enumerate(replies) if reply.endswith(FAST_BATCH_SUFFIX)]


class _OpenColumns:
    """Columns that the fields of envelopes are put into. `odd` are the rows of those that bring
    headers to merge, or that expect something."""

    def __init__(self, config: SequencerConfig, run: MessageRun, columns: Columns) -> None:
        count = len(run)
        self.odd: list[int] = []
        self._config = config
        self._subjects = run.subjects
        self._names: dict[bytes, str] = {}
        self.values: list[bytes | None] = list(run.payloads)
        self.replies, self.blocks = list(columns.replies), list(columns.blocks or [b""] * count)
        self.keys = list(columns.keys or [None] * count)
        self.message_ids = list(columns.message_ids or [None] * count)
        self.echoes: list[Echo] = [None] * count

    def columns(self) -> Columns:
        return Columns(
            self._subjects,
            self.replies,
            self.values,
            self.blocks,
            self.keys,
            self.message_ids,
            self.echoes,
        )

    def open_ours(self, row: int, payload: bytes) -> None:
        opened = decode(payload)
        if opened is None:
            return  # a plain message
        value, key, headers, ack_subject, correlation_id, ack_policy, message_id, last = opened
        adds_lines = message_id or correlation_id
        if headers or last is not None or (adds_lines and self.blocks[row]):
            self.odd.append(row)
            return
        self.values[row], self.echoes[row] = value, correlation_id
        if key is not None:
            self.keys[row] = key
        if adds_lines:
            self.blocks[row] = own_block(message_id, correlation_id)
        if message_id:
            self.message_ids[row] = message_id.encode()
        if ack_policy == "none":
            self.replies[row] = b""
        elif ack_subject is not None:
            self.replies[row] = ack_subject.encode()

    def open_theirs(self, row: int, payload: bytes, stamp: int) -> None:
        published = liftbridge.decode_publish(payload)
        if published is None:
            return  # a plain message
        offset, key, value, _, _, _, _, _, headers, inbox, correlation_id, policy = published
        if (
            headers
            or offset not in ANY_OFFSET
            or policy not in POLICIES
            or len(key) > MAX_KEY_BYTES
            or (correlation_id and (self.blocks[row] or wrong_id(correlation_id)))
        ):
            self.odd.append(row)
            return
        self.values[row], self.echoes[row] = value, correlation_id or None
        if key:
            self.keys[row] = key
        if correlation_id:
            self.blocks[row] = own_block(None, correlation_id)
        if inbox:
            subject = self._subjects[row]
            name = self._names.get(subject)
            if name is None:
                name = self._names[subject] = subject.decode("utf-8", "replace")
            self.echoes[row] = ack_to(self._config, name, inbox, correlation_id, policy, stamp)
            self.replies[row] = inbox.encode()


def _opened(
    config: SequencerConfig, run: MessageRun, columns: Columns, stamp: int, odd: list[int]
) -> Columns:
    """The columns with the fields of envelopes in them; `odd` gets more rows."""
    opened = _OpenColumns(config, run, columns)
    skipped = set(odd)
    for row, payload in enumerate(run.payloads):
        cookie = payload[:4]
        if cookie == COOKIE:
            if config.recognise_envelopes and row not in skipped:
                opened.open_ours(row, payload)
        elif cookie == liftbridge.COOKIE and config.recognise_liftbridge and row not in skipped:
            opened.open_theirs(row, payload, stamp)
    odd += opened.odd
    return opened.columns()
