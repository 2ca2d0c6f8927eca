"""Resets consumers: lets them begin again at another position. Over NATS, the client chooses a
sequence or the ack floor. On the pull socket, the client chooses a new start."""

from __future__ import annotations

from collections.abc import Mapping

from acl.policy import Policy
from liftlog.deliveries.snapshot import encode_snapshot
from liftlog.deliveries.state import ConsumerState
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.building import Builder
from liftlog.server.jetstream_api.workers.pacing import Replay
from liftlog.server.jetstream_api.workers.stored import Origin, encode_settings
from liftlog.server.journal import Change

_WITH_SEQUENCE = ("all", "by_start_sequence", "by_start_time")
"""The deliver policies for which a reset may choose any sequence from the consumer's original start
on."""


async def reset_offset(builder: Builder, consumer: AckedConsumer, sequence: int) -> int:
    """Return the offset at which a consumer begins again. `sequence` is the sequence that the
    client has requested; 0 stands for the ack floor. Raises JetStreamError, LiftlogError."""
    if not sequence:
        return consumer.machine.state.floor_offset
    spec = consumer.spec
    if spec.policy not in _WITH_SEQUENCE:
        raise _invalid("not allowed")
    if spec.policy == "all":
        return sequence
    is_local = consumer.local.origin.is_local
    cursor, _ = await builder.placed(spec, consumer.host, is_local=is_local)
    first = cursor.next_offset
    cursor.close()
    if sequence < max(first, spec.start_sequence):
        raise _invalid("below start seq")
    return sequence


async def cursor_at(
    builder: Builder, consumer: AckedConsumer, offset: int
) -> tuple[Cursor, Policy | None]:
    """Return a cursor of a consumer at another offset, and the policy that gives the cursor's
    rights. Raises LiftlogError."""
    spec, host = consumer.spec, consumer.host
    cursor, policy = builder.cursor(spec, host, is_local=consumer.local.origin.is_local)
    try:
        await builder.begin(cursor, spec, host, offset, consumer.local.cursor.chosen_end)
    except BaseException:
        cursor.close()
        raise
    return cursor, policy


async def begin_again(
    consumer: AckedConsumer,
    spec: ConsumerSpec,
    origin: Origin,
    cursor: Cursor,
    policy: Policy | None,
    hosts: Mapping[str, StreamHost],
) -> None:
    """Let a consumer begin again at the position of `cursor`, with no message pending or delivered.
    If `origin` is new, acks of earlier deliveries to workers on the pull socket are refused.
    `hosts` contains the streams that exist. Durable on return. Raises LiftlogError or
    JetStreamError. An error changes nothing, and closes `cursor`."""
    state = ConsumerState(consumer.machine.state.settings, cursor.next_offset)
    version = consumer.version._replace(number=consumer.version.number + 1)
    settings = encode_settings(spec, origin, cursor.chosen_end)
    change = Change.snapshot(consumer.key, version, settings, encode_snapshot(state), settles=True)
    # Without this, a delta of the old state would follow the new state in the journal.
    consumer.is_held = True
    try:
        _check_there(consumer, hosts)
        try:
            await consumer.changes.synced(consumer.changes.write(change))
            _check_there(consumer, hosts)
        except BaseException:
            if hosts.get(consumer.host.name) is not consumer.host:
                consumer.changes.write(Change.deleted(consumer.key))
            elif not consumer.is_closed:  # if closed, the daemon stops, and one state is stored
                consumer.changes.write(consumer.snapshot())
            raise
        consumer.spec, consumer.version = spec, version
        consumer.machine.reset(state)
        consumer.local.adopt(origin)
        consumer.replace(cursor, policy, Replay() if spec.is_replayed else None)
    except BaseException:
        cursor.close()
        raise
    finally:
        consumer.is_held = False
        consumer.wake()


def _check_there(consumer: AckedConsumer, hosts: Mapping[str, StreamHost]) -> None:
    if consumer.is_closed or hosts.get(consumer.host.name) is not consumer.host:
        raise JetStreamError(404, 10014, "consumer not found")


def _invalid(why: str) -> JetStreamError:
    return JetStreamError(400, 10204, f"invalid reset: {why}")
