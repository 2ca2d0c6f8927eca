"""Parses acks into columns: many at a time, from the messages of one read of the connection. Pure.

The reply subject of a delivery, to which a worker sends its ack, has nine tokens:

    $JS.ACK.<stream>.<consumer>.<count>.<sequence>.<consumer sequence>.<stamp>.<pending>

Every client that may publish to these subjects can send an ack. So messages that do not have this
form are counted and dropped. Parsing takes a few operations per column, not per ack.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from liftlog.deliveries.acks import MAX_ACKS, Acks, Bytes, Verdict
from liftlog.deliveries.columns import Ints
from liftlog.sequencing.run import MessageRun
from liftlog.server.jetstream_api.workers.ack_bodies import (
    PLAIN,
    AckBody,
    parse_ack_body,
)

PREFIX = b"$JS.ACK."
_NUMBERS = 5
_MAX_DIGITS = 19
_BEYOND = 2**63 - 1
_IGNORED = int(Verdict.IGNORED)
_NUMBER = b"[0-9]{1,%d}" % _MAX_DIGITS
_LINES = re.compile(rb"(?>(?:%b\n)*)" % rb"\.".join([_NUMBER] * _NUMBERS)).fullmatch


class WorkerAcks(NamedTuple):
    """Acks for one consumer, in the order of arrival."""

    consumer: str
    acks: Acks
    sequences: Ints
    """Consumer sequences, by the index of the ack."""
    replies: Sequence[bytes]
    """For each ack, the subject on which the client wants an answer; b"" if it wants none. The list
    is empty if no client wants an answer."""

    def to_answer(self, verdicts: Bytes) -> list[bytes]:
        """Return the subjects of the answers to send. An ignored ack gets no answer."""
        if not self.replies:
            return []
        pairs = zip(self.replies, verdicts.tolist(), strict=True)
        return [one for one, verdict in pairs if one and verdict != _IGNORED]


class NextPull(NamedTuple):
    """A pull that came with an ack (`+NXT`)."""

    consumer: str
    reply: bytes
    body: bytes


class ParsedAcks(NamedTuple):
    acks: list[WorkerAcks]
    pulls: list[NextPull]
    answers: list[bytes]
    """Reply subjects of acks that have no effect because of their bodies, but whose clients want an
    answer."""
    dropped: int
    """Number of messages that are not valid acks of this stream."""


class AckParser:
    """Parses the messages that arrive on `$JS.ACK.<stream>.>`."""

    def __init__(self, stream: str) -> None:
        self.prefix = b"%b%b." % (PREFIX, stream.encode())
        form = rb"%b[^.]+%b" % (re.escape(self.prefix), rb"\.(%b)" % _NUMBER * _NUMBERS)
        self._match = re.compile(form).fullmatch

    def head_of(self, subject: bytes) -> bytes:
        """Return a subject up to the name of its consumer and the dot after it; empty if it has no
        such dot."""
        return subject[: subject.find(b".", len(self.prefix)) + 1]

    def parse(self, run: MessageRun) -> ParsedAcks:
        parsed = ParsedAcks([], [], [], 0)
        dropped = 0
        for start in range(0, len(run), MAX_ACKS):
            part = slice(start, start + MAX_ACKS)
            subjects, payloads = run.subjects[part], run.payloads[part]
            replies = run.replies[part] if any(run.replies[part]) else ()
            for place in self._by_consumer(subjects):
                if place is None:
                    chosen = _Rows(subjects, payloads, replies)
                else:
                    chosen = _Rows(
                        [subjects[at] for at in place],
                        [payloads[at] for at in place],
                        [replies[at] for at in place] if replies else (),
                    )
                dropped += self._parse(chosen, parsed)
        return parsed._replace(dropped=dropped) if dropped else parsed

    def _by_consumer(self, subjects: Sequence[bytes]) -> Iterator[list[int] | None]:
        """Yield the indices of the acks of each consumer. For a single consumer, yield None, which
        stands for all acks."""
        size = len(self.prefix)
        head = self.head_of(subjects[0])
        if len(subjects) == 1 or (head and all(map(bytes.startswith, subjects, repeat(head)))):
            yield None
            return
        found: dict[bytes, list[int]] = {}
        for place, subject in enumerate(subjects):
            name = subject[size : subject.find(b".", size)]
            found.setdefault(name, []).append(place)
        yield from found.values()

    def _parse(self, rows: _Rows, parsed: ParsedAcks) -> int:
        """Parse acks of one consumer into `parsed`. Returns the number of messages that are not
        valid acks."""
        count = len(rows.subjects)
        numbers = self._numbers(rows.subjects) if count > 1 else None
        if numbers is None:
            lines = list(map(self._numbers_of, rows.subjects))
            if None in lines:
                rows = rows.only([place for place, line in enumerate(lines) if line is not None])
            if not rows.subjects:
                return count
            numbers = np.array([line for line in lines if line is not None], np.int64)
        dropped = count - len(numbers)
        name = rows.subjects[0][len(self.prefix) :].partition(b".")[0]
        try:
            consumer = name.decode()
        except UnicodeDecodeError:
            return count
        _append(parsed, consumer, rows, numbers)
        return dropped

    def _numbers_of(self, subject: bytes) -> list[int] | None:
        """Return the five numbers of a subject. Return None if the subject does not have this
        form."""
        found = self._match(subject)
        if found is None:
            return None
        numbers = list(map(int, found.groups()))
        return numbers if max(numbers) < _BEYOND else None

    def _numbers(self, subjects: Sequence[bytes]) -> Ints | None:
        """Return one row of five numbers for each subject of one consumer (see `_numbers_of`); None
        if a subject has another form."""
        head = self.head_of(subjects[0])
        if not head.startswith(self.prefix) or len(head) <= len(self.prefix) + 1:
            return None
        text = b"\n".join(subjects) + b"\n"
        if text.count(b"\n" + head) != len(subjects) - 1:
            return None
        text = text[len(head) :].replace(b"\n" + head, b"\n")
        if _LINES(text) is None:
            return None
        numbers = np.fromstring(text.replace(b"\n", b"."), np.int64, sep=".")
        if len(numbers) != _NUMBERS * len(subjects) or numbers.max() == _BEYOND:
            return None
        found: Ints = numbers.reshape(-1, _NUMBERS)
        return found


class _Rows(NamedTuple):
    """Columns of messages. `replies` is empty if no message has a reply subject."""

    subjects: Sequence[bytes]
    payloads: Sequence[bytes]
    replies: Sequence[bytes]

    def only(self, places: Sequence[int]) -> _Rows:
        return _Rows(
            [self.subjects[at] for at in places],
            [self.payloads[at] for at in places],
            [self.replies[at] for at in places] if self.replies else (),
        )


def _append(parsed: ParsedAcks, consumer: str, rows: _Rows, numbers: Ints) -> None:
    """Add acks of one consumer with these numbers to `parsed`."""
    count = len(numbers)
    if sum(map(rows.payloads.count, PLAIN)) == count:
        acks = Acks.plain(numbers[:, 1], numbers[:, 0], numbers[:, 3])
        replies = rows.replies if any(rows.replies) else ()
        parsed.acks.append(WorkerAcks(consumer, acks, numbers[:, 2], replies))
        return
    known = {payload: parse_ack_body(payload) for payload in set(rows.payloads)}
    if any(body.pull is not None for body in known.values()):
        rows = _take_pulls(parsed, consumer, rows, known)
    if any(body.kind is None for body in known.values()):
        places = [at for at, one in enumerate(rows.payloads) if known[one].kind is not None]
        rows = _take_ineffective(parsed, rows, places)
        numbers = numbers[places]
        if not places:
            return
    kinds = np.array([known[one].kind for one in rows.payloads], np.uint8)
    delays = np.zeros(len(numbers), np.int64)
    if any(body.delay_ns for body in known.values()):
        delays = np.array([known[one].delay_ns for one in rows.payloads], np.int64)
    reasons = {}
    if any(body.reason for body in known.values()):
        found = [known[one].reason for one in rows.payloads]
        reasons = {place: reason for place, reason in enumerate(found) if reason}
    parsed.acks.append(_acks(consumer, numbers, kinds, delays, reasons, rows.replies))


def _acks(
    consumer: str,
    numbers: Ints,
    kinds: Bytes,
    delays_ns: Ints,
    reasons: dict[int, str],
    replies: Sequence[bytes],
) -> WorkerAcks:
    counts, offsets, sequences, stamps_ns, _ = numbers.T
    acks = Acks(offsets, counts, stamps_ns, kinds, delays_ns, reasons)
    return WorkerAcks(consumer, acks, sequences, replies if any(replies) else ())


def _take_pulls(
    parsed: ParsedAcks, consumer: str, rows: _Rows, known: Mapping[bytes, AckBody]
) -> _Rows:
    """Add the pulls that came with acks. Such an ack gets no separate answer, because its client
    gets messages. A pull without a reply subject is ignored."""
    if not rows.replies:
        return rows
    replies = list(rows.replies)
    for place, payload in enumerate(rows.payloads):
        body = known[payload].pull
        if body is not None:
            if replies[place]:
                parsed.pulls.append(NextPull(consumer, replies[place], body))
            replies[place] = b""
    return rows._replace(replies=replies)


def _take_ineffective(parsed: ParsedAcks, rows: _Rows, effective: Sequence[int]) -> _Rows:
    """Add the reply subjects of acks without an effect to `parsed`. Returns the remaining acks."""
    if rows.replies:
        others = set(range(len(rows.payloads))).difference(effective)
        parsed.answers.extend(filter(None, (rows.replies[place] for place in sorted(others))))
    return rows.only(effective)
