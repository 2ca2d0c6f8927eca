"""One message: its attempts, the answers to them, and its result.

Pure. A refusal proves only that one attempt was not stored: the attempt that it answers. An attempt
without an answer may have been stored. So a message counts as refused only if no attempt can have
been stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from liftlog.client.publishing.message import OutgoingMessage
from liftlog.client.publishing.results import (
    Ack,
    NotPublished,
    OrderBroken,
    Published,
    PublishFailed,
    PublishRefused,
    PublishUnknown,
    Refusal,
)


class NoResponders:
    """The answer of NATS itself if no client is subscribed to the subject: the message reached no
    stream."""


NO_RESPONDERS: Final = NoResponders()
_NO_RESPONDERS_STATUS = "503"
_USUAL_ACK = re.compile(rb'\{"stream":"([A-Za-z0-9_-]+)","seq":([1-9][0-9]{0,18})\}')
_parse = json.JSONDecoder().decode

Outcome = Ack | Refusal | NoResponders

_ANY = ""

_DEPENDS_ON_THE_MOMENT = frozenset({10077, 10109, 10167})
"""Codes of refusals that depend on the time of the attempt: paused, disk full, read-only,
overloaded. After such a refusal an earlier attempt may still have been stored. All other refusals
also prove that no earlier attempt was stored: most of them refuse the message for its own content,
and before a refusal with 10070 or 10071 the stream has checked that the message is no duplicate."""


class Delivery:
    """One message and its attempts. `expect` names the streams to wait for; if it is empty, the
    first answer counts.

    `on_settled` is called once, when `result` is set.
    """

    __slots__ = (
        "_acks",
        "_refusals",
        "_refused",
        "_unheard",
        "attempts",
        "expect",
        "first_sent",
        "foreign_answers",
        "in_flight",
        "last_sequence",
        "message",
        "number",
        "on_settled",
        "result",
        "wire",
        "wrong_stream",
    )

    def __init__(
        self,
        message: OutgoingMessage,
        expect: tuple[str, ...],
        on_settled: Callable[[Delivery], None],
    ) -> None:
        self.message = message
        self.number = 0  # assigned by the publisher
        self.wire: tuple[bytes, bytes] | None = None
        """Payload and header block of the first attempt, if they are known."""
        self.expect = expect
        self.on_settled = on_settled
        self.result: Published | PublishFailed | None = None
        self.attempts = 0
        self.first_sent: float | None = None
        """Time of the first attempt, even if that attempt could not be sent."""
        self.in_flight = False
        self.last_sequence: int | None = None
        """The precondition of the newest attempt: the last offset of the stream."""
        self.foreign_answers = 0
        self.wrong_stream = ""
        """Name of another stream, which has refused the message because it is not the expected
        stream."""
        self._acks: dict[str, Ack] = {}
        self._refusals: dict[str, Refusal] = {}
        self._refused: dict[str, set[int]] = {}  # by stream, the attempts that it refused
        self._unheard: set[int] = set()  # attempts that reached no subscriber

    @property
    def settled(self) -> bool:
        return self.result is not None

    # --- attempts and answers ---

    def start_attempt(self, now: float) -> int:
        """Begin a new attempt, and return its number, from 1."""
        if self.first_sent is None:
            self.first_sent = now
        self.attempts += 1
        self.in_flight = True
        return self.attempts

    def withdraw_attempt(self) -> None:
        """Undo `start_attempt`, because the attempt was certainly not sent."""
        self.attempts -= 1
        self.in_flight = False

    def take(self, attempt: int, answer: Outcome, *, passing: bool = False) -> None:
        """Note an answer to an attempt. Sets `result` when every expected stream has acked or
        finally refused the message.

        `passing` means that the refusal is due to an earlier message, and proves nothing about this
        message.
        """
        if not self.expect and self.result is None and isinstance(answer, Ack):
            self._acks[_ANY] = answer  # the usual case
            self._settle(Published(self.message.subject, self.message.message_id, (answer,)))
            return
        if isinstance(answer, NoResponders):
            self._unheard.add(attempt)
        elif not self.expect or answer.stream in self.expect:
            name = answer.stream if self.expect else _ANY
            if isinstance(answer, Ack):
                self._acks.setdefault(name, answer)
            else:
                self._refused.setdefault(name, set()).add(attempt)
                if not passing:
                    self._refusals[name] = answer
        if attempt == self.attempts and self._attempt_answered():
            self.in_flight = False
        if self.result is None and not passing:
            self._settle_if_decided()

    def _names(self) -> tuple[str, ...]:
        return self.expect or (_ANY,)

    def _attempt_answered(self) -> bool:
        attempt = self.attempts
        return attempt in self._unheard or all(
            name in self._acks or attempt in self._refused.get(name, ()) or self._is_final(name)
            for name in self._names()
        )

    def _is_final(self, name: str) -> bool:
        """Return True if the stream has refused the message, and no attempt can have been
        stored."""
        refusal = self._refusals.get(name)
        if refusal is None or refusal.retriable:
            return False
        return refusal.err_code not in _DEPENDS_ON_THE_MOMENT or not self._may_have_stored(name)

    def _may_have_stored(self, name: str) -> bool:
        answered = self._refused.get(name, set()) | self._unheard
        return len(answered) < self.attempts

    def _settle_if_decided(self) -> None:
        names = self._names()
        if all(name in self._acks for name in names):
            message = self.message
            acks = tuple(self._acks[name] for name in names)
            self._settle(Published(message.subject, message.message_id, acks))
        elif all(name in self._acks or self._is_final(name) for name in names):
            self._settle(self._failure("", broken=None))

    def _settle(self, result: Published | PublishFailed) -> None:
        self.result = result
        self.in_flight = False
        self.on_settled(self)

    # --- the end without acks ---

    def give_up(self, reason: str = "", *, broken: PublishFailed | None = None) -> None:
        """Make no further attempt, and set `result` from the answers so far. `broken` is the
        failure of an earlier message. After this failure the message must not be sent, because the
        order would change."""
        if self.result is None:
            self._settle(self._failure(reason, broken=broken))

    def _failure(self, reason: str, *, broken: PublishFailed | None) -> PublishFailed:
        names = [name for name in self._names() if name not in self._acks]
        missing = [
            name for name in names if not self._is_final(name) and self._may_have_stored(name)
        ]
        refusals = tuple(self._refusals[name] for name in names if name in self._refusals)
        kind: type[PublishFailed] = NotPublished
        hint = ""
        if missing:
            kind = PublishUnknown
            who = ", ".join(filter(None, missing)) or "a stream"
            text = f"no answer says whether {who} stored it ({self._attempts_made()})"
            hint = "publish it again with the same message id"
            if self.message.message_id is None:
                hint = "the stream may have `acks: off` (then request no ack), or be overloaded"
            if self.wrong_stream:
                hint = (
                    f"the stream {self.wrong_stream!r} records {self.message.subject}: "
                    f"is there a stream {missing[0]!r} that does, too?"
                )
            if self.foreign_answers:
                hint = "the answers come from no stream: does a service reply on this subject?"
        elif broken is not None:
            kind = OrderBroken
            text = f"not stored: a message before it failed: {broken.message}"
            hint = "decide about that message, then call resume()"
        elif refusals:
            kind = PublishRefused
            text = "refused by " + "; ".join(map(str, refusals))
        elif self._refused:
            text = "not stored: the time for retrying was spent on the messages before it"
        elif self.attempts:
            text = f"no one listens on {self.message.subject} ({self._attempts_made()})"
            hint = "no stream records this subject, or the daemon is down"
        else:
            text = "it could not be sent"
        return kind(
            f"{text}: {reason}" if reason else text,
            subject=self.message.subject,
            message_id=self.message.message_id,
            acks=tuple(self._acks.values()),
            refusals=refusals,
            missing=tuple(filter(None, missing)),
            hint=hint,
        )

    def _attempts_made(self) -> str:
        return "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"


def read_answer(payload: bytes, status: str | None = None) -> Outcome | None:
    """Parse an answer to a message. Returns None if the answer is not from a stream, for example if
    a service on the subject has sent it.

    Raises no error, whatever the input. `status` is the status of the answer's header block, if it
    has one.
    """
    if status == _NO_RESPONDERS_STATUS and not payload:
        return NO_RESPONDERS
    usual = _USUAL_ACK.fullmatch(payload)
    if usual is not None:  # takes a third of the time of parsing JSON
        return Ack(usual[1].decode(), int(usual[2]))
    try:
        found = _parse(payload.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    error = found.get("error")
    if isinstance(error, dict):
        return _refusal(found, error)
    stream, offset = found.get("stream"), found.get("seq")
    if not isinstance(stream, str) or type(offset) is not int or offset <= 0:
        return None
    durability = found.get("durability")
    return Ack(
        stream,
        offset,
        found.get("duplicate") is True,
        durability if isinstance(durability, str) else "fsync",
    )


def _refusal(found: dict[str, Any], error: dict[str, Any]) -> Refusal | None:
    code, err_code = error.get("code"), error.get("err_code", 0)
    if type(code) is not int or type(err_code) is not int:
        return None
    stream, description = found.get("stream"), error.get("description")
    return Refusal(
        stream if isinstance(stream, str) else "",
        code,
        err_code,
        description if isinstance(description, str) else "",
    )
