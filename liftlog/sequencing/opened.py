"""Opens the envelopes of a run, and returns their fields as columns.

Envelopes with the same layout are opened together, the other envelopes of the run one by one, with
the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import envelope
from envelope import COOKIE, liftbridge
from envelope.fields import wrong_id
from envelope.format import MAX_KEY_BYTES
from envelope.same_shape import Alike, rows_by_length
from liftlog.sequencing.acks import Asked, Echo
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.enveloped import echo_of, own_block, own_blocks
from liftlog.sequencing.liftbridge import ANY_OFFSET, POLICIES, ack_to, acks_to
from liftlog.sequencing.run import MessageRun

_T = TypeVar("_T")


class EnvelopeFields:
    """The fields of the messages of a run; `open` overrides them with the fields of the messages'
    envelopes.

    `odd` are the rows of envelopes that contain headers to merge, or an expectation.
    """

    def __init__(
        self,
        config: SequencerConfig,
        run: MessageRun,
        replies: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        message_ids: Sequence[bytes | None] | None,
    ) -> None:
        count = len(run)
        self.odd: list[int] = []
        self._config = config
        self._subjects = run.subjects
        self._names: dict[bytes, str] = {}
        self._values: list[bytes | None] = list(run.payloads)
        self._replies, self._blocks = list(replies), list(run.headers or [b""] * count)
        self._keys = list(keys or [None] * count)
        self._message_ids = list(message_ids or [None] * count)
        self._echoes: list[Echo] = [None] * count

    def columns(self) -> dict[str, Any]:
        """Return the fields as arguments of `Columns`."""
        return {
            "replies": self._replies,
            "values": self._values,
            "blocks": self._blocks if any(self._blocks) else None,
            "keys": self._keys if _has_some(self._keys) else None,
            "message_ids": self._message_ids if _has_some(self._message_ids) else None,
            "echoes": self._echoes,
        }

    def open(self, payloads: Sequence[bytes], skipped: Sequence[int], stamp: int) -> None:
        """Open every envelope, except for the rows in `skipped`."""
        left: Sequence[int] = range(len(payloads))
        if skipped:
            left = sorted({*left}.difference(skipped))
        done: set[int] = set()
        for rows in rows_by_length(payloads, left):
            done.update(self._open_alike(rows, payloads, stamp))
        if len(done) < len(left):
            self._open_each([row for row in left if row not in done], payloads, stamp)

    def _open_each(self, rows: Sequence[int], payloads: Sequence[bytes], stamp: int) -> None:
        config = self._config
        for row in rows:
            payload = payloads[row]
            cookie = payload[:4]
            if cookie == COOKIE:
                if config.recognise_envelopes:
                    self._open_ours(row, payload)
            elif cookie == liftbridge.COOKIE and config.recognise_liftbridge:
                self._open_theirs(row, payload, stamp)

    def _open_alike(
        self, rows: Sequence[int], payloads: Sequence[bytes], stamp: int
    ) -> Sequence[int]:
        """Open the envelopes of the `rows` that have the same layout; return the opened rows."""
        config = self._config
        chosen = payloads if len(rows) == len(payloads) else [payloads[row] for row in rows]
        ours = envelope.same_shape.ours(chosen) if config.recognise_envelopes else None
        theirs = None
        if ours is None and config.recognise_liftbridge:
            theirs = envelope.same_shape.liftbridges(chosen)
        alike = ours or theirs
        if alike is None:
            return ()
        if len(alike.rows) < len(rows):
            rows = [rows[at] for at in alike.rows]
        if ours is not None:
            was_taken = self._take_ours(rows, ours)
        else:
            was_taken = self._take_theirs(rows, alike, stamp)
        return rows if was_taken else ()

    # --- our envelope ---

    def _take_ours(self, rows: Sequence[int], alike: Alike) -> bool:
        opened = envelope.decode(alike.example)
        assert opened is not None
        message_ids, correlation_ids = alike.message_ids, alike.correlation_ids
        if message_ids or correlation_ids:
            if any(self._blocks):
                return False
            _put(self._blocks, rows, own_blocks(message_ids, correlation_ids))
        texts: Sequence[str | None] | None = _texts(correlation_ids) if correlation_ids else None
        if self._config.is_replicated:
            policy = opened.ack_policy or self._config.ack_policy
            _put(self._echoes, rows, [Asked(text, policy) for text in texts or [None] * len(rows)])
        elif texts:
            _put(self._echoes, rows, texts)
        if message_ids:
            _put(self._message_ids, rows, message_ids)
        _put(self._values, rows, alike.values or [None] * len(rows))
        if alike.keys:
            _put(self._keys, rows, alike.keys)
        if opened.ack_policy == "none":
            _put(self._replies, rows, [b""] * len(rows))
        elif alike.ack_subjects:
            _put(self._replies, rows, alike.ack_subjects)
        return True

    def _open_ours(self, row: int, payload: bytes) -> None:
        opened = envelope.decode(payload)
        if opened is None:
            return  # a plain message
        value, key, headers, ack_subject, correlation_id, ack_policy, message_id, last = opened
        adds_lines = message_id or correlation_id
        if headers or last is not None or (adds_lines and self._blocks[row]):
            self.odd.append(row)
            return
        self._values[row], self._echoes[row] = value, echo_of(self._config, opened)
        if key is not None:
            self._keys[row] = key
        if adds_lines:
            self._blocks[row] = own_block(message_id, correlation_id)
        if message_id:
            self._message_ids[row] = message_id.encode()
        if ack_policy == "none":
            self._replies[row] = b""
        elif ack_subject is not None:
            self._replies[row] = ack_subject.encode()

    # --- Liftbridge's ---

    def _take_theirs(self, rows: Sequence[int], alike: Alike, stamp: int) -> bool:
        published = liftbridge.decode_publish(alike.example)
        assert published is not None
        policy, inboxes, correlation_ids = published.ack_policy, None, None
        if published.offset not in ANY_OFFSET or policy not in POLICIES:
            return False
        if len(published.key) > MAX_KEY_BYTES:
            return False
        if published.correlation_id:
            correlation_ids = alike.correlation_ids
            if any(self._blocks) or wrong_id(published.correlation_id):
                return False
            assert correlation_ids is not None
            _put(self._blocks, rows, own_blocks(None, correlation_ids))
            _put(self._echoes, rows, _texts(correlation_ids))
        _put(self._values, rows, alike.values or [b""] * len(rows))
        if published.key:
            _put(self._keys, rows, alike.keys or ())
        if published.ack_inbox:
            inboxes = alike.ack_subjects
            assert inboxes is not None
            subjects = self._subjects
            if subjects.count(subjects[0]) == len(subjects):
                names = [self._name(0)] * len(rows)
            else:
                names = list(map(self._name, rows))
            acks = acks_to(
                self._config,
                names,
                _texts(inboxes),
                _texts(correlation_ids) if correlation_ids else [""] * len(rows),
                policy,
                stamp,
            )
            _put(self._echoes, rows, acks)
            _put(self._replies, rows, inboxes)
        return True

    def _open_theirs(self, row: int, payload: bytes, stamp: int) -> None:
        published = liftbridge.decode_publish(payload)
        if published is None:
            return  # a plain message
        offset, key, value, _, _, _, _, _, headers, inbox, correlation_id, policy = published
        if (
            headers
            or offset not in ANY_OFFSET
            or policy not in POLICIES
            or len(key) > MAX_KEY_BYTES
            or (correlation_id and (self._blocks[row] or wrong_id(correlation_id)))
        ):
            self.odd.append(row)
            return
        self._values[row], self._echoes[row] = value, correlation_id or None
        if key:
            self._keys[row] = key
        if correlation_id:
            self._blocks[row] = own_block(None, correlation_id)
        if inbox:
            name = self._name(row)
            self._echoes[row] = ack_to(self._config, name, inbox, correlation_id, policy, stamp)
            self._replies[row] = inbox.encode()

    def _name(self, row: int) -> str:
        subject = self._subjects[row]
        name = self._names.get(subject)
        if name is None:
            name = self._names[subject] = subject.decode("utf-8", "replace")
        return name


def _has_some(column: Sequence[object]) -> bool:
    return column.count(None) < len(column)


def _texts(column: Sequence[bytes]) -> list[str]:
    """Return the text of each word of a column of ASCII words."""
    return b" ".join(column).decode("ascii").split(" ")


def _put(column: list[_T], rows: Sequence[int], items: Sequence[_T]) -> None:
    if len(rows) == len(column):
        column[:] = items
    else:
        for row, item in zip(rows, items, strict=True):
            column[row] = item
