"""Pulls of workers, as they arrive on `$JS.API.CONSUMER.MSG.NEXT.<stream>.<consumer>`. Pure."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from liftlog.deliveries.pull import NO_PRIORITY, Priority, PullRequest
from liftlog.deliveries.settings import PriorityPolicy, Settings
from liftlog.sequencing.run import MessageRun
from liftlog.server.jetstream_api.consumers.pull_body import BadPull, Pull, parse_pull

PREFIX = b"$JS.API.CONSUMER.MSG.NEXT."
_LEVEL = re.compile(rb"\r\nNats-Required-Api-Level:[ \t]*([^\r\n]*)\r\n")
_FIRST_PRIORITY = Pull._fields.index("group")
_NO_PRIORITIES = Pull()[_FIRST_PRIORITY:]
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")


class WorkerPull(NamedTuple):
    consumer: str
    reply: bytes
    """The subject on which the client awaits messages and the status. The subject is not checked
    yet: a client can name any subject."""
    request: Pull | BadPull
    """The parsed pull. If it is a BadPull, its words are the status for the client. The status is
    sent only if the consumer exists."""


class PullParser:
    """Parses the messages that arrive on `$JS.API.CONSUMER.MSG.NEXT.<stream>.*`."""

    def __init__(self, stream: str, api_level: int) -> None:
        """`api_level` is the level of JetStream's API that the daemon reports. A pull that requires
        a higher level is refused."""
        self._prefix = b"%b%b." % (PREFIX, stream.encode())
        self._api_level = api_level

    def parse(self, run: MessageRun) -> tuple[list[WorkerPull], int]:
        """Return the pulls, and the number of messages that are not valid pulls. A pull without a
        reply subject has no effect."""
        pulls = list(self._parsed(run))
        return pulls, len(run) - len(pulls)

    def _parsed(self, run: MessageRun) -> Iterator[WorkerPull]:
        blocks = run.headers or repeat(b"", len(run))
        for subject, reply, body, block in zip(
            run.subjects, run.replies, run.payloads, blocks, strict=True
        ):
            name = subject.removeprefix(self._prefix)
            if not reply or not name or b"." in name or name == subject:
                continue
            try:
                consumer = name.decode()
            except UnicodeDecodeError:
                continue
            yield WorkerPull(consumer, reply, self._request(body, block))

    def _request(self, body: bytes, block: bytes) -> Pull | BadPull:
        level = _LEVEL.search(block) if block else None
        if level is not None and not self._has_level(level[1].strip()):
            return BadPull(b"412 Required Api Level")
        return request_of(body)

    def _has_level(self, text: bytes) -> bool:
        return _NUMBER.fullmatch(text) is not None and int(text) <= self._api_level


def request_of(body: bytes) -> Pull | BadPull:
    try:
        return parse_pull(body)
    except BadPull as error:
        return error


def pull_of(pull: Pull, reply: bytes, settings: Settings) -> PullRequest:
    """Return the request for the state machine of a consumer."""
    priority, new_pin = NO_PRIORITY, b""
    if pull[_FIRST_PRIORITY:] != _NO_PRIORITIES:
        pin = pull.pin_id.encode()
        priority = Priority(pull.group, pull.min_pending, pull.min_ack_pending, pin, pull.priority)
    if settings.priority_policy is PriorityPolicy.PINNED_CLIENT:
        new_pin = secrets.token_hex(11).encode()
    return PullRequest(
        reply,
        pull.batch,
        pull.max_bytes,
        pull.no_wait,
        pull.expires_ns,
        pull.heartbeat_ns,
        priority,
        new_pin,
    )
