"""Commits that arrive as plain NATS messages on `liftlog.<daemon
name>.offsets.<stream>.<consumer>`.

The payload is the offset in decimal digits, or a JSON object. The object contains `offset` and, as
in the pull protocol's `commit`, `expected`, `metadata`, `incarnation` and `epoch`. If a message has
a reply subject, the daemon answers when the checkpoint is durable or the commit has failed. No
input of a publisher makes this module raise an exception.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any

from liftlog.errors import InvalidArgument, LiftlogError, LimitExceeded
from liftlog.protocol.checkpoints import MAX_METADATA_CHARS
from liftlog.sequencing import Destinations, MessageRun
from liftlog.sequencing.acks import publish_commands
from liftlog.server.checkpoints.service import Checkpoints

logger = logging.getLogger("liftlog.server.checkpoints")

_MAX_PAYLOAD_BYTES = 32 * 1024
_MAX_DIGITS = 19
_MAX_OFFSET = 2**63 - 1
_MAX_EPOCH = 2**32 - 1
_MAX_INCARNATION_CHARS = 256
_MAX_SHOWN = 128
"""Maximum number of characters of a name in an answer: the length of the longest valid name."""
_MAX_DESCRIPTION = 1024
_SLICE_SECONDS = 0.002
_MAX_QUEUED_BYTES = 16 * 1024 * 1024
_MESSAGE_BYTES = 512
"""Memory of a queued message, apart from its payload."""

OVER_NATS_OWNER = "(nats)"
"""The owner of checkpoints that arrive over NATS. An ACL cannot contain a principal of this
name."""


class CheckpointIntake:
    """Handles the messages of the subscription for commits."""

    def __init__(
        self,
        checkpoints: Callable[[], Checkpoints],
        prefix: str,
        send: Callable[[bytes], None],
        destinations: Callable[[], Destinations],
        *,
        owner: str = "",
    ) -> None:
        """`checkpoints` returns the service. While commits cannot be accepted, it raises the error
        that clients get as their answer. The checkpoints count against the quota of `owner`. If
        `owner` is empty, they count against no quota."""
        self._owner = owner
        self._checkpoints = checkpoints
        self._skipped = prefix.count(".") + 1
        self._send = send
        self._destinations = destinations
        self._silent_refusals = 0
        self._queue: deque[tuple[bytes, bytes, bytes]] = deque()
        self._queued_bytes = 0
        self._unsent: list[tuple[bytes, bytes]] | None = None
        """The answers of one slice, which are sent together."""

    def receive(self, run: MessageRun) -> None:
        """Take the commits of one read; there may be thousands. Some are handled now, and the
        others in later turns of the event loop. Commits beyond a limit are dropped, and their
        clients get no answer."""
        is_idle = not self._queue
        for message in zip(run.subjects, run.replies, run.payloads, strict=True):
            size = len(message[2]) + _MESSAGE_BYTES
            if self._queued_bytes + size > _MAX_QUEUED_BYTES:
                error = LimitExceeded("too many commits over NATS wait")
                self._note("", "", error, answered=False)
                continue
            self._queue.append(message)
            self._queued_bytes += size
        if is_idle:
            self._take_some()

    def _take_some(self) -> None:
        ends = thread_time() + _SLICE_SECONDS
        answers = self._unsent = []
        try:
            while self._queue and thread_time() < ends:
                message = self._queue.popleft()
                self._queued_bytes -= len(message[2]) + _MESSAGE_BYTES
                self._take(*message)
        finally:
            self._unsent = None
            if answers:
                self._send(publish_commands(answers))
            if self._queue:
                asyncio.get_running_loop().call_soon(self._take_some)

    def _take(self, subject: bytes, reply: bytes, payload: bytes) -> None:
        # A name that is not ASCII fails the check of names.
        names = subject.decode("ascii", "replace").split(".")[self._skipped :]
        stream, consumer = names if len(names) == 2 else ("", "")
        answer = partial(self._answer, reply, stream, consumer)
        try:
            wish = parse_payload(payload)
            told = partial(answer, wish["offset"])
            self._checkpoints().commit(consumer, stream, told=told, owner=self._owner, **wish)
        except LiftlogError as error:
            answer(0, error)

    def _answer(
        self, reply: bytes, stream: str, consumer: str, offset: int, error: LiftlogError | None
    ) -> None:
        body: dict[str, Any] = {"stream": stream[:_MAX_SHOWN], "consumer": consumer[:_MAX_SHOWN]}
        if error is None:
            body["offset"] = offset
        else:
            self._note(stream, consumer, error, answered=bool(reply))
            body["error"] = {
                "code": error.code,
                "name": error.name,
                "description": error.message[:_MAX_DESCRIPTION],
            }
            if "offset" in error.details:
                body["error"]["offset"] = error.details["offset"]
        target = self._destinations().for_answer(reply) if reply else None
        if target is not None:
            text = json.dumps(body, separators=(",", ":")).encode("ascii")
            if self._unsent is None:
                self._send(publish_commands([(target, text)]))
            else:
                self._unsent.append((target, text))

    def _note(self, stream: str, consumer: str, error: LiftlogError, *, answered: bool) -> None:
        """Log a refusal that no client receives, because the message had no reply subject. The more
        refusals there are, the smaller the share that is logged, so that a publisher cannot fill
        the log."""
        if answered:
            return
        self._silent_refusals += 1
        count = self._silent_refusals
        if count & (count - 1) == 0:
            logger.warning(
                "checkpoint-refused stream=%.128r consumer=%.128r error=%s count=%d",
                stream,
                consumer,
                error.name,
                count,
            )


def parse_payload(payload: bytes) -> dict[str, Any]:
    """Return the arguments of `Checkpoints.commit`. Raises InvalidArgument."""
    if payload.isdigit() and len(payload) <= _MAX_DIGITS:
        return {"offset": _whole("offset", int(payload), _MAX_OFFSET)}
    if len(payload) > _MAX_PAYLOAD_BYTES:
        raise InvalidArgument("the payload is too long")
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or "offset" not in content:
        raise InvalidArgument(
            "the payload is not an offset",
            hint='decimal digits, or a JSON object such as {"offset": 42}',
        )
    wish: dict[str, Any] = {"offset": _whole("offset", content["offset"], _MAX_OFFSET)}
    for name, limit in (("expected", _MAX_OFFSET), ("epoch", _MAX_EPOCH)):
        if content.get(name) is not None:
            wish[name] = _whole(name, content[name], limit)
    for name, limit in (
        ("metadata", MAX_METADATA_CHARS),
        ("incarnation", _MAX_INCARNATION_CHARS),
    ):
        if content.get(name) is not None:
            value = content[name]
            if type(value) is not str or len(value) > limit or not _is_utf8(value):
                raise InvalidArgument(f"{name} is not text of at most {limit} characters")
            wish[name] = value
    return wish


def _is_utf8(text: str) -> bool:
    """Return False if `text` contains a lone surrogate. JSON can encode it, but no answer of the
    pull API can contain it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _whole(name: str, value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value <= limit:
        raise InvalidArgument(f"{name} is not a whole number from 0 to {limit}")
    return value
