"""Pulls that this node has passed on to the leader of their stream. The leader may lose them.

A pull gets no answer until there are messages. So this node sends questions to the leader, to
determine whether the leader still reads its connection. The first question precedes the first pull,
and the next question follows each answer. NATS keeps the order of questions and pulls. While a
question has no answer, the leader has not read the pulls that were sent after the question. The
leader may then be frozen.

If another node becomes the leader, or the same node in another epoch, these pulls are passed on
again. After an answer, no pull is passed on again, because the former leader may have served it. An
answer can also be late or lost. Therefore the next leader ignores a pull if the consumer's state
shows that the former leader has read it (`workers.arriving`).

The subjects follow the node's own prefix:

    PULLS.<number>.<node>.<stream>   a question of `node` to this node, which leads the stream
    TAKEN.<number>                   the answer to a question of this node
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from liftlog.errors import LiftlogError, NotLeader
from liftlog.sequencing.destinations import own_subject
from liftlog.server.jetstream_api.answers import command
from liftlog.server.jetstream_api.waiting import Message
from liftlog.server.metadata.membership import CONSUMERS_WITH_ACKS
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.streams.broker import Broker

_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 0.5
"""A question without an answer is repeated after this time (in seconds), because it may be lost."""
_SILENT_SECONDS = 0.2
"""Minimum time, in seconds, that a question must wait for an answer before the leader counts as
silent. If the leader changes earlier, the former leader may have read the pulls, although it has
not answered yet."""
_KEPT_SECONDS = 30.0
_MAX_KEPT = 1_000
_MAX_KEPT_BYTES = 1024 * 1024
_PULLS, _TAKEN = b"PULLS.", b"TAKEN."

Leader = tuple[str, int]
"""A node, and the epoch in which it leads."""


@dataclass(slots=True)
class _Asked:
    """A question to the leader of a stream, and the pulls that were sent after the question."""

    leader: Leader
    number: int
    began: float
    repeated: float
    pulls: list[Message] = field(default_factory=list)


class PassedPulls:
    """The pulls that this node has passed on. Belongs to the event loop."""

    def __init__(
        self,
        name: str,
        prefix_of: Callable[[str], bytes],
        leader_of: Callable[[str], Leader],
        may_answer: Callable[[str], bool],
        answers: Callable[[str], bool],
        send: Callable[[bytes], object],
        again: Callable[[Message], object],
    ) -> None:
        """`name` is the name of this node, empty without a cluster. `prefix_of` returns the prefix
        of a node's own subjects, and raises LiftlogError if no node has this name. `leader_of`
        raises LiftlogError if a stream has no leader. `may_answer` returns True if this node
        certainly leads a stream. `answers` returns True if a node's version answers questions;
        without this check, an older node would seem to be frozen. `send` publishes an empty message
        on a subject. `again` gets the pulls that are to be passed on again."""
        self._name = name
        self.own = prefix_of(name) if name else b""
        """Prefix of the subjects on which other nodes forward requests to this node; empty without
        a cluster."""
        self._prefix_of = prefix_of
        self._leader_of = leader_of
        self._may_answer = may_answer
        self._answers = answers
        self._send = send
        self._again = again
        self._asked: dict[str, _Asked] = {}
        self._count = self._size_bytes = 0
        self._numbers = itertools.count(time.time_ns())
        self._repeated: set[Message] = set()
        self._watching: asyncio.Task[None] | None = None

    def note(self, stream: str, message: Message) -> None:
        """Note a pull. Called just before the pull is passed on to the leader. Raises LiftlogError
        if there is no leader."""
        leader, now = self._leader_of(stream), time.monotonic()
        asked = self._asked.get(stream)
        if asked is None or asked.leader != leader:
            self._end(stream, is_silent=asked is not None and self._is_silent(asked, now))
            if not self._answers(leader[0]):
                return
            asked = self._asked[stream] = _Asked(leader, next(self._numbers), now, now)
            self._ask(stream, asked)
        size = _size_of(message)
        if self._count < _MAX_KEPT and self._size_bytes + size <= _MAX_KEPT_BYTES:
            asked.pulls.append(message)
            self._count += 1
            self._size_bytes += size
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="jetstream-api-passed")

    def was_repeated(self, message: Message) -> bool:
        """Return True, once per pull, if `again` has received this pull. Such a pull may be older
        than other requests."""
        # The table is nearly always empty, and the hash of a large message takes time.
        if not self._repeated:
            return False
        is_repeated = message in self._repeated
        self._repeated.discard(message)
        return is_repeated

    def takes(self, subject: bytes) -> bool:
        """Handle the subject of a question or of an answer. Returns False for other subjects."""
        if not self.own or not subject.startswith(self.own):
            return False
        kind = subject[len(self.own) :]
        if kind.startswith(_TAKEN):
            self._answered(kind.removeprefix(_TAKEN))
        elif kind.startswith(_PULLS):
            self._answer(kind.removeprefix(_PULLS))
        else:
            return False
        return True

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    # --- the leader ---

    def _answer(self, asked: bytes) -> None:
        number, _, more = asked.decode("utf-8", "replace").partition(".")
        node, _, stream = more.partition(".")
        if number.isdecimal() and self._may_answer(stream):
            try:
                prefix = self._prefix_of(node)
            except LiftlogError:
                return
            self._send(prefix + _TAKEN + number.encode())

    # --- the node that has passed pulls on ---

    def _ask(self, stream: str, asked: _Asked) -> None:
        try:
            prefix = self._prefix_of(asked.leader[0])
        except LiftlogError:
            return  # the node has left the cluster
        asked.repeated = time.monotonic()
        question = f"{asked.number}.{self._name}.{stream}".encode()
        self._send(prefix + _PULLS + question)

    def _answered(self, number: bytes) -> None:
        for stream, asked in self._asked.items():
            if number == b"%d" % asked.number:
                self._end(stream, is_silent=False)
                return

    def _end(self, stream: str, *, is_silent: bool) -> None:
        """Drop a question. If the leader was silent, pass on the pulls after the question again."""
        asked = self._asked.pop(stream, None)
        for message in () if asked is None else asked.pulls:
            self._count -= 1
            self._size_bytes -= _size_of(message)
            if is_silent and not _is_old(message):
                self._repeated.add(message)
                if self._again(message) is False:
                    self._repeated.discard(message)

    async def _watch(self) -> None:
        try:
            while self._asked:
                await asyncio.sleep(_LOOK_SECONDS)
                for stream in [*self._asked]:
                    self._look(stream, self._asked[stream])
        finally:
            self._watching = None  # after a defect in this task, the next pull starts another task

    def _look(self, stream: str, asked: _Asked) -> None:
        now = time.monotonic()
        if all(map(_is_old, asked.pulls)):
            self._end(stream, is_silent=False)
            return
        try:
            leader = self._leader_of(stream)
        except LiftlogError:
            return  # until there is another leader
        if leader != asked.leader:
            self._end(stream, is_silent=self._is_silent(asked, now))
        elif now - asked.repeated > _AGAIN_SECONDS:
            self._ask(stream, asked)

    @staticmethod
    def _is_silent(asked: _Asked, now: float) -> bool:
        return now - asked.began > _SILENT_SECONDS


def passed_pulls_of(
    broker: Broker, send: Callable[[bytes], object], again: Callable[[Message], object]
) -> PassedPulls:
    """Return the object for this daemon; see `PassedPulls`. `send` sends NATS commands."""
    cluster, catalog = broker.settings.cluster, broker.catalog
    own = "" if cluster is None else cluster.node

    def prefix_of(node: str) -> bytes:
        known = node == own or node in needed_node_of(broker).mirror.directory.nodes
        if cluster is None or not known:
            raise NotLeader(f"{node} is not a node of the cluster")
        return passed_on_prefix(cluster.name, node).encode()

    def answers(node: str) -> bool:
        known = needed_node_of(broker).mirror.directory.nodes.get(node)
        return known is not None and CONSUMERS_WITH_ACKS in known.features

    def leader_of(stream: str) -> Leader:
        node = catalog.answerer(stream)
        record = needed_node_of(broker).mirror.records.get(stream)
        return node or own, 0 if record is None else record.leader_epoch

    return PassedPulls(
        own,
        prefix_of,
        leader_of,
        catalog.may_answer,
        answers,
        lambda subject: send(command(own_subject(subject), b"")),
        again,
    )


def passed_on_prefix(cluster: str, node: str) -> str:
    """Return the prefix of the subjects on which other nodes forward requests to `node`."""
    return f"liftlog.{cluster}.jsapi.{node}."


def _size_of(message: Message) -> int:
    return sum(map(len, message[:3]))


def _is_old(message: Message) -> bool:
    return time.monotonic() - message[3] > _KEPT_SECONDS
