"""Composes the NATS commands that carry out the instructions of a consumer: messages, statuses,
advisories.

The composer checks the destination of each command, because streams and the ACL can change.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from liftlog.deliveries.instructions import (
    Advisory,
    AdvisoryKind,
    Deliver,
    Instruction,
    Pinned,
    Resumed,
    Status,
    Unpinned,
)
from liftlog.deliveries.state import ConsumerState
from liftlog.deliveries.statuses import heartbeat
from liftlog.sequencing.destinations import Destination, Destinations, Why
from liftlog.server.jetstream_api.answers import PREAMBLE, command, status
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.delivered import headers_only
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.leaf_frames import (
    each_leaf_delivery,
    leaf_deliveries,
    leaf_message,
)
from liftlog.server.jetstream_api.consumers.push_flow import PushFlow
from liftlog.server.jetstream_api.consumers.rows import Row
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.server.jetstream_api.workers.pacing import rate_of
from liftlog.server.jetstream_api.workers.rounds import Clock

_Columns = tuple[
    Destination,
    bytes,
    Sequence[Sequence[int]],
    Sequence[bytes],
    Sequence[bytes],
    Sequence[bytes],
    bytes,
]

_STALLED = b"Nats-Consumer-Stalled: %b\r\n"
_FLOW_REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class Composer:
    """Composes the commands of one consumer."""

    def __init__(
        self,
        stream: str,
        spec: ConsumerSpec,
        to: Deliveries,
        flow: PushFlow,
        leaf: LeafLink,
        sent_advisories: Advisories,
        clock: Clock,
    ) -> None:
        self.spec = spec
        self.flow = flow
        """Flow control of a push consumer."""
        self.pushed_ns = clock.now_ns()
        """Time at which the last message was pushed."""
        self.exhausted_total = 0
        """Number of messages that have run out of deliveries."""
        self.rate = rate_of(spec)
        self._stream = stream
        self._to = to
        self._leaf = leaf
        self._advisories = sent_advisories
        self._clock = clock
        self._ack_head = f"$JS.ACK.{stream}.{spec.name}.".encode()

    def update(self, spec: ConsumerSpec, to: Deliveries) -> None:
        if spec.rate_limit_bps != self.spec.rate_limit_bps:
            self.rate = rate_of(spec)
        self.spec, self._to = spec, to

    def may_pull(self, reply: bytes) -> bool:
        """Return True if messages may be sent to this reply subject."""
        return not isinstance(self._to.pulls(reply), Why)

    def answers(self, replies: Iterable[bytes]) -> bytes:
        """Return empty answers to these reply subjects, for an ordinary NATS connection."""
        targets = map(self._to.statuses, replies)
        return b"".join([command(target, b"") for target in targets if target is not None])

    def compose(self, instructions: Iterable[Instruction], rows: Mapping[int, Row]) -> bytes:
        """Return the commands that carry out the instructions of one turn."""
        parts: list[bytes] = []
        delivers: list[Deliver] = []
        for one in instructions:
            if isinstance(one, Deliver):
                delivers.append(one)
                continue
            parts += self._deliveries(delivers, rows)
            delivers = []
            parts += self._other(one)
        return b"".join([*parts, *self._deliveries(delivers, rows)])

    def _deliveries(self, delivers: Sequence[Deliver], rows: Mapping[int, Row]) -> list[bytes]:
        """Return the commands in the order of their deliveries. This order matters: pulls receive
        messages in turn, and several pulls can belong to one client. The client expects the order
        of the stream."""
        pairs = itertools.pairwise(delivers)
        if all(one.sequences[-1] < other.sequences[0] for one, other in pairs):
            return [part for one in delivers for part in self._messages(one, rows)]
        parts: list[tuple[int, bytes]] = []
        for one in delivers:
            target = self._to.pulls(one.reply)
            if not isinstance(target, Why):
                each = each_leaf_delivery(*self._columns(one, target, rows))
                parts += zip(one.sequences.tolist(), each, strict=True)
        return [part for _, part in sorted(parts)]

    def _other(self, instruction: Instruction) -> Sequence[bytes]:
        if isinstance(instruction, Status):
            return [self.status(instruction)]
        stream, name = self._stream, self.spec.name
        if isinstance(instruction, Advisory):
            if instruction.kind is AdvisoryKind.MAX_DELIVERIES:
                self.exhausted_total += len(instruction.offsets)
            self._advisories.about_messages(stream, name, instruction)
        elif isinstance(instruction, Resumed):
            self._advisories.paused(stream, name, self.spec.settings.pause_until_ns)
        elif isinstance(instruction, Pinned):
            self._advisories.pinned(stream, name, self._group, instruction.pin.decode())
        elif isinstance(instruction, Unpinned):
            self._advisories.unpinned(stream, name, self._group, instruction.reason)
        return []

    @property
    def _group(self) -> str:
        """Return the group name for events. As in JetStream, this is the first group."""
        return next(iter(self.spec.settings.priority_groups), "")

    def _messages(self, deliver: Deliver, rows: Mapping[int, Row]) -> list[bytes]:
        is_push = bool(self.spec.deliver_subject)
        target = self._to.pushes() if is_push else self._to.pulls(deliver.reply)
        if isinstance(target, Why):
            return []
        commands = [leaf_deliveries(*self._columns(deliver, target, rows))]
        if is_push:
            self.pushed_ns = self._clock.now_ns()
            size = sum(map(len, commands))
            if self.rate is not None:
                self.rate.spend(size, self.pushed_ns)
            question = self.flow.sent(size)
            if question:
                queues = self._leaf.queues(target)
                commands.append(leaf_message(target, question, _FLOW_REQUEST, b"", queues))
        return commands

    def _columns(self, deliver: Deliver, target: Destination, rows: Mapping[int, Row]) -> _Columns:
        """Return the arguments of `leaf_deliveries`."""
        offsets = deliver.offsets.tolist()
        found = [rows[offset] for offset in offsets]
        _, stamps, subjects, headers, values = zip(*found, strict=True)
        if self.spec.headers_only:
            headers, values = tuple(map(headers_only, found)), (b"",) * len(found)
        if deliver.pin:
            headers = tuple([_with_pin(block, deliver.pin) for block in headers])
        numbers = (
            deliver.counts.tolist(),
            offsets,
            deliver.sequences.tolist(),
            stamps,
            deliver.pendings.tolist(),
        )
        queues = self._leaf.queues(target)
        return target, self._ack_head, numbers, subjects, headers, values, queues

    def heartbeat(self, state: ConsumerState, now_ns: int) -> bytes:
        """Return the heartbeat of a push consumer; empty if no heartbeat is due, or if the subject
        has no subscriber. The next heartbeat is due after the full interval. If the consumer waits
        for an answer of flow control, the heartbeat repeats the name of the request: a new client
        may have replaced the client that received it."""
        seconds = self.spec.heartbeat_seconds
        if not seconds or now_ns - self.pushed_ns < seconds * 1e9:
            return b""
        self.pushed_ns = now_ns
        subject = self.spec.deliver_subject.encode()
        if not (self._leaf.connected and self._leaf.has_interest(subject)):
            return b""
        stalled = b"" if self.flow.is_open else _STALLED % self.flow.question
        return self.status(heartbeat(subject, state.sequence, state.next_offset - 1), stalled)

    def status(self, status: Status, lines: bytes = b"") -> bytes:
        """Return the command for a status. `lines` are further headers."""
        target: Destination | Why | None = self._to.statuses(status.reply)
        if self.spec.deliver_subject and status.reply == self.spec.deliver_subject.encode():
            target = self._to.pushes()
        if target is None or isinstance(target, Why):
            return b""
        block = b"%b%b\r\n" % (status.block()[:-2], lines)
        return leaf_message(target, b"", block, b"", self._leaf.queues(target))


def _with_pin(headers: bytes, pin: bytes) -> bytes:
    """Add the id of the pinned client to a header block."""
    return b"%bNats-Pin-Id: %b\r\n\r\n" % (headers[:-2] or PREAMBLE, pin)


def ack_answers(
    destinations: Destinations, ineffective: Iterable[bytes], lost: Iterable[bytes]
) -> bytes:
    """Return the answers to acks that no consumer takes. An ack without an effect gets an empty
    answer. If the consumer does not exist or wants no acks, the answer is the status 503, which
    NATS sends for a subject without subscribers."""
    blocks = ((ineffective, b""), (lost, status(503, "")))
    targets = [(destinations.for_answer(one), block) for some, block in blocks for one in some]
    return b"".join([command(to, b"", block) for to, block in targets if to is not None])
