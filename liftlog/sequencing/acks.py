"""The content of acks, and the NATS `PUB` commands that carry them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii as json_text
from typing import Any, NamedTuple

from envelope import ACK_POLICIES, AckPolicy
from envelope.liftbridge import Ack
from liftlog.sequencing.refusals import to_json

_WEAVE_FROM = 16
_COMMAND = b"PUB "
NEXT = b"\r\n" + _COMMAND
"""The bytes between two commands."""
_LAST_DIGITS = 4
_ENDINGS = [b"%04d" % number for number in range(10**_LAST_DIGITS)]

Answer = tuple[bytes, bytes]
"""(subject, body) of one answer."""


class Sent(NamedTuple):
    """A message in the form in which NATS delivers it."""

    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Asked(NamedTuple):
    """The kind of answer that a message in liftlog's envelope requests. Used for streams with
    several replicas."""

    correlation_id: str | None
    policy: AckPolicy


Echo = str | Asked | Ack | None
"""The fields of a message that its answer repeats. These are: none; a correlation id; a correlation
id and the ack policy; or the fields that an Ack of Liftbridge repeats."""


class AckFormat:
    """The format of one stream's acks.

    An ack contains `durability` if it is weaker than fsync. It contains the policy "leader" if that
    policy is the stream's default (`policy`). Answers to `Asked` contain epoch and policy.
    """

    def __init__(
        self, stream: str, durability: str, *, policy: AckPolicy = "all", epoch: int = 0
    ) -> None:
        extra = {} if durability == "fsync" else {"durability": durability}
        document: dict[str, Any] = {"stream": stream, "seq": 0}
        self._asked_tails = {
            (named, duplicate): to_json(
                {"seq": 0}
                | ({"duplicate": True} if duplicate else {})
                | extra
                | {"epoch": epoch, "policy": named}
            ).removeprefix(b'{"seq":0')
            for named in ACK_POLICIES
            for duplicate in (False, True)
        }
        if policy == "leader":
            extra["policy"] = policy
        head, _, tail = to_json(document | extra).partition(b'"seq":0')
        self._head = head + b'"seq":'
        self._tail = tail
        body = to_json(document | {"duplicate": True} | extra)
        self._duplicate_tail = body.removeprefix(self._head + b"0")
        self._forms: dict[int, bytes] = {}

    def body(
        self, offset: int, *, duplicate: bool = False, correlation_id: str | None = None
    ) -> bytes:
        """Return the JSON of one ack."""
        tail = self._duplicate_tail if duplicate else self._tail
        if correlation_id is not None:
            tail = b'%b,"correlation_id":%b}' % (tail[:-1], json_text(correlation_id).encode())
        return b"%b%d%b" % (self._head, offset, tail)

    def mixed(
        self, replies: Sequence[bytes], offsets: Sequence[int], is_new: Sequence[bool]
    ) -> bytes:
        """Return `PUB` commands with acks for these offsets, in their order. `is_new` is False for
        acks of duplicates."""
        lowest, highest = min(offsets), max(offsets)
        digits = len(str(highest))
        if len(str(lowest)) != digits:
            return publish_commands(
                [
                    (reply, self.body(offset, duplicate=not new))
                    for reply, offset, new in zip(replies, offsets, is_new, strict=True)
                ]
            )
        head, fixed = self._head, len(self._head) + digits
        base = lowest - lowest % len(_ENDINGS)
        if lowest >= len(_ENDINGS) and highest - base < len(_ENDINGS):
            head = b"%b%d" % (head, base // len(_ENDINGS))
            numbers = [_ENDINGS[offset - base] for offset in offsets]
        else:
            numbers = _numbers(offsets)
        new, duplicate = self._tail, self._duplicate_tail
        new_head = b" %d\r\n%b" % (fixed + len(new), head)
        duplicate_head = b" %d\r\n%b" % (fixed + len(duplicate), head)
        new_end, duplicate_end = new + NEXT, duplicate + NEXT
        heads = [new_head if is_first else duplicate_head for is_first in is_new]
        ends = [new_end if is_first else duplicate_end for is_first in is_new]
        return woven([replies, heads, numbers, ends])

    def repeating(self, answers: Sequence[tuple[bytes, str, int]]) -> bytes:
        """Return `PUB` commands for acks that contain the correlation id of their message;
        `answers` are tuples (reply, id, offset)."""
        before = self._tail[:-1] + b',"correlation_id":'
        form = b"PUB %%b %%d\r\n%b%%d%b%%b}\r\n" % (self._head, before)
        fixed = len(self._head) + len(before) + 1
        commands = []
        for reply, correlation_id, offset in answers:
            text = json_text(correlation_id).encode()
            size = fixed + len(str(offset)) + len(text)
            commands.append(form % (reply, size, offset, text))
        return b"".join(commands)

    def asked(
        self, answers: Iterable[tuple[bytes, Asked, int]], *, duplicate: bool = False
    ) -> bytes:
        """Return `PUB` commands for acks of messages in liftlog's envelope; `answers` are tuples
        (reply, requested answer, offset)."""
        head, tails = self._head, self._asked_tails
        commands = []
        for reply, (correlation_id, policy), offset in answers:
            tail = tails[policy, duplicate]
            if correlation_id is not None:
                tail = b'%b,"correlation_id":%b}' % (tail[:-1], json_text(correlation_id).encode())
            commands.append((reply, b"%b%d%b" % (head, offset, tail)))
        return publish_commands(commands)

    def commands(self, replies: Sequence[bytes], first_offset: int) -> bytes:
        """Return `PUB` commands that ack consecutive offsets; b"" in `replies` means no ack.

        One format string serves all offsets with the same number of digits.
        """
        if len(replies) == 1:
            # Each microsecond that this takes delays a publisher that waits for its ack.
            form = self._forms.get(len(str(first_offset)))
            if form is not None and replies[0]:
                return form % (replies[0], first_offset)
        end = first_offset + len(replies)
        parts = []
        start = first_offset
        while start < end:
            digits = len(str(start))
            stop = min(end, 10**digits)
            chosen = replies
            if stop - start != len(replies):
                chosen = replies[start - first_offset : stop - first_offset]
            if len(chosen) >= _WEAVE_FROM and all(chosen):
                parts.append(self._weave(chosen, start, digits))
            else:
                form = self._forms.get(digits) or self._make_form(digits)
                numbered = zip(chosen, range(start, stop), strict=True)
                parts += [form % pair for pair in numbered if pair[0]]
            start = stop
        return b"".join(parts)

    def _weave(self, replies: Sequence[bytes], start: int, digits: int) -> bytes:
        """Return the same as `commands`, for many replies. No reply is empty."""
        end = start + len(replies)
        head = b" %d\r\n%b" % (len(self._head) + digits + len(self._tail), self._head)
        if digits <= _LAST_DIGITS:
            heads, numbers = [head] * len(replies), _numbers(range(start, end))
        else:
            # Only the last digits differ from one ack to the next, so the other digits are
            # formatted once.
            heads, numbers = [], []
            for at in range(start - start % len(_ENDINGS), end, len(_ENDINGS)):
                endings = _ENDINGS[max(start - at, 0) : end - at]
                heads += [b"%b%d" % (head, at // len(_ENDINGS))] * len(endings)
                numbers += endings
        return woven([replies, heads, numbers, [self._tail + NEXT] * len(replies)])

    def _make_form(self, digits: int) -> bytes:
        size = len(self._head) + digits + len(self._tail)
        form = b"PUB %%b %d\r\n%b%%d%b\r\n" % (size, self._head, self._tail)
        self._forms[digits] = form
        return form


def _numbers(numbers: Sequence[int]) -> list[bytes]:
    return (b"%d " * len(numbers) % tuple(numbers)).split()


def woven(columns: Sequence[Sequence[bytes]]) -> bytes:
    """Return many `PUB` commands. Each command joins one item of every column. The first column has
    the subjects. The items of the last column end in `NEXT`."""
    width, count = len(columns), len(columns[0])
    pieces = [_COMMAND] * (1 + width * count)
    for at, column in enumerate(columns, 1):
        pieces[at::width] = column
    pieces[-1] = pieces[-1].removesuffix(_COMMAND)
    return b"".join(pieces)


def within_payload(commands: bytes, max_payload_bytes: int) -> tuple[bytes, int]:
    """Remove the `PUB` commands with a body above the limit; return the other commands, and the
    number of removed ones.

    A server closes the connection of a client that sends a larger body.
    """
    if _size_of_digits(len(str(max_payload_bytes))).search(commands) is None:
        return commands, 0  # every size has fewer digits than the limit
    kept = []
    left_out = 0
    for start, body, end in _borders(commands):
        if end - 2 - body <= max_payload_bytes:
            kept.append(commands[start:end])
        else:
            left_out += 1
    return b"".join(kept), left_out


@lru_cache(maxsize=16)
def _size_of_digits(count: int) -> re.Pattern[bytes]:
    """Return a pattern that finds candidates for the size field of a command, with at least `count`
    digits. The pattern can also match text inside a body."""
    return re.compile(rb" \d{%d,}\r\n" % count)


def published(commands: bytes) -> Iterator[Sent]:
    """Return the messages that `PUB` and `HPUB` commands send."""
    for start, body, end in _borders(commands):
        command, subject, *words = commands[start:body].split()
        headers_end = body + int(words[-2]) if command == b"HPUB" else body
        has_reply = len(words) > (2 if command == b"HPUB" else 1)
        reply = words[0] if has_reply else b""
        yield Sent(subject, reply, commands[body:headers_end], commands[headers_end : end - 2])


def _borders(commands: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield, for each command, its start, the start of its body, and the start of the next
    command."""
    start = 0
    while start < len(commands):
        line_end = commands.index(b"\r\n", start)
        size = int(commands[commands.rindex(b" ", start, line_end) + 1 : line_end])
        end = line_end + 2 + size + 2
        yield start, line_end + 2, end
        start = end


def publish_commands(answers: Iterable[Answer]) -> bytes:
    """Return the `PUB` commands for answers whose bodies are complete."""
    return b"".join(
        [b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body) for subject, body in answers]
    )
