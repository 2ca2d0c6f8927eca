"""The NATS commands that carry out the instructions of a consumer: messages, statuses, advisories.

Whether a subject may receive anything is decided each time, since streams and the ACL can change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from liftlog.deliveries.instructions import (
    Advisory,
    Deliver,
    Instruction,
    Resumed,
    Status,
)
from liftlog.sequencing.destinations import Destination, Why
from liftlog.server.jetstream_api.answers import command
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Row
from liftlog.server.jetstream_api.consumers.delivered import headers_only
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.leaf_frames import leaf_message
from liftlog.server.jetstream_api.consumers.push_flow import PushFlow
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.server.jetstream_api.workers.rounds import Clock

_FLOW_REQUEST = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class Composer:
    """Composes the commands of one consumer. `spec` may be replaced."""

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
        """When the last message was pushed."""
        self._stream = stream
        self._to = to
        self._leaf = leaf
        self._advisories = sent_advisories
        self._clock = clock
        self._ack_head = f"$JS.ACK.{stream}.{spec.name}.".encode()

    def may_pull(self, reply: bytes) -> bool:
        """Return True if messages may be sent to this reply subject."""
        return not isinstance(self._to.pulls(reply), Why)

    def answers(self, replies: Iterable[bytes]) -> bytes:
        """Return empty answers to these reply subjects, for an ordinary NATS connection."""
        targets = map(self._to.statuses, replies)
        return b"".join([command(target, b"") for target in targets if target is not None])

    def compose(self, instruction: Instruction, rows: Mapping[int, Row]) -> Sequence[bytes]:
        if isinstance(instruction, Deliver):
            return self._messages(instruction, rows)
        if isinstance(instruction, Status):
            return [self.status(instruction)]
        stream, name = self._stream, self.spec.name
        if isinstance(instruction, Advisory):
            self._advisories.about_messages(stream, name, instruction)
        elif isinstance(instruction, Resumed):
            self._advisories.paused(stream, name, self.spec.settings.pause_until_ns)
        return []

    def _messages(self, deliver: Deliver, rows: Mapping[int, Row]) -> list[bytes]:
        is_push = bool(self.spec.deliver_subject)
        target = self._to.pushes() if is_push else self._to.pulls(deliver.reply)
        if isinstance(target, Why):
            return []
        queues, head = self._leaf.queues(target), self._ack_head
        columns = (deliver.offsets, deliver.sequences, deliver.counts, deliver.pendings)
        commands = []
        for offset, sequence, count, pending in zip(
            *[one.tolist() for one in columns], strict=True
        ):
            row = rows[offset]
            reply = b"%b%d.%d.%d.%d.%d@%b" % (
                head,
                count,
                offset,
                sequence,
                row.timestamp_ns,
                pending,
                row.subject,
            )
            if self.spec.headers_only:
                headers, value = headers_only(row), b""
            else:
                headers, value = row.headers, row.value
            commands.append(leaf_message(target, reply, headers, value, queues))
        if is_push:
            self.pushed_ns = self._clock.now_ns()
            question = self.flow.sent(sum(map(len, commands)))
            if question:
                commands.append(leaf_message(target, question, _FLOW_REQUEST, b"", queues))
        return commands

    def status(self, status: Status) -> bytes:
        target: Destination | Why | None = self._to.statuses(status.reply)
        if self.spec.deliver_subject and status.reply == self.spec.deliver_subject.encode():
            target = self._to.pushes()
        if target is None or isinstance(target, Why):
            return b""
        return leaf_message(target, b"", status.block(), b"", self._leaf.queues(target))
