"""Serves workers on the pull socket. They share the consumers with workers over NATS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from acl.subjects import is_subset
from liftlog.deliveries.acks import MAX_ACKS, Acks
from liftlog.deliveries.columns import NO_INTS, Ints
from liftlog.errors import (
    Conflict,
    ConsumerNotFound,
    Forbidden,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    NotReady,
)
from liftlog.protocol.workers import ConsumerInfo, Run
from liftlog.server.consumers.door import AcksOf, Asked, Told
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, parse_consumer
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.streams.broker import Broker

_NOT_FOUND, _TOO_MANY = 404, 429
_LIMIT_REACHED = 10026
_START = ("deliver_policy", "opt_start_seq", "opt_start_time")
_DURATIONS = ("ack_wait", "inactive_threshold", "idle_heartbeat", "max_expires")

Readable = tuple[str, ...] | None


class SocketDoor:
    """Implements `liftlog.server.consumers.door.Door`. It belongs to the event loop."""

    def __init__(self, broker: Broker, table: AckedConsumers) -> None:
        self._broker = broker
        self._table = table

    async def opened(self) -> None:
        await self._opened("")

    # --- workers ---

    def work(self, stream: str, consumer: str, asked: Asked, readable: Readable) -> None:
        found = self._find(stream, consumer)
        check_covered(found.local.cursor.wanted_subjects, readable, consumer)
        found.local.add(asked)

    def cancel(self, stream: str, consumer: str, asked: Asked) -> bool:
        try:
            found = self._find(stream, consumer)
        except LiftlogError:
            return False  # the end of the consumer has refused the worker
        return found.local.cancel(asked, found.machine)

    def rest(self, stream: str, consumer: str, worker: str) -> None:
        found = self._find(stream, consumer)
        found.local.rest(worker, found.machine)

    def acknowledge(self, stream: str, consumer: str, acks: AcksOf, told: Told | None) -> None:
        found = self._find(stream, consumer)
        if acks.identity != found.local.identity:
            raise ConsumerNotFound(
                f"the consumer {consumer!r} that delivered these messages was deleted",
                hint="another consumer has its name now; pull messages from that consumer",
            )
        state = found.machine.state
        offsets, counts = columns_of(acks.runs, state.floor_offset, state.next_offset)
        for at in range(0, len(offsets), MAX_ACKS):
            some = offsets[at : at + MAX_ACKS]
            size = len(some)
            columns = Acks(
                some,
                counts[at : at + MAX_ACKS],
                state.pending.stamps_of(some),
                np.full(size, acks.kind, np.uint8),
                np.full(size, acks.delay_ns, np.int64),
                dict.fromkeys(range(size), acks.reason) if acks.reason else {},
            )
            found.acknowledge(WorkerAcks(consumer, columns, NO_INTS, ()))
        if told is not None:
            found.local.confirm(told)

    # --- administration ---

    async def create(
        self,
        stream: str,
        consumer: str,
        config: Mapping[str, Any],
        party: str,
        readable: Readable,
    ) -> tuple[ConsumerInfo, bool]:
        await self._opened(stream)
        host = self._broker.led_stream(stream)
        spec = _parsed({"durable_name": consumer, "ack_policy": "explicit", **config}, consumer)
        if spec.deliver_subject:
            raise InvalidArgument(
                "a consumer with a deliver subject has no workers on the pull socket",
                hint="leave deliver_subject out, or create the consumer over NATS",
            )
        check_covered((spec.filters or None,), readable, consumer)
        found = self._there(stream, consumer)
        if found is None:
            try:
                made = await self._table.create(spec, host, party.encode(), is_local=True)
            except JetStreamError as error:
                found = self._there(stream, consumer)  # another client has just created it
                if found is None:
                    raise _typed(error) from None
            else:
                return await described(made), True
        check_covered(found.local.cursor.wanted_subjects, readable, consumer)
        differing = _differences(found.spec, spec, config)
        if differing:
            raise Conflict(
                f"the stream {stream!r} has a consumer {consumer!r} with other settings: "
                + "; ".join(differing),
                hint="change the settings (`liftlog consumer edit`), or use the consumer as it is",
            )
        return await described(found), False

    async def update(
        self, stream: str, consumer: str, config: Mapping[str, Any], readable: Readable
    ) -> ConsumerInfo:
        await self._opened(stream)
        found = self._find(stream, consumer)
        check_covered(found.local.cursor.wanted_subjects, readable, consumer)

        def change(old: ConsumerSpec) -> ConsumerSpec:
            spec = _parsed(_merged(old.config, config), consumer)
            check_covered((spec.filters or None,), readable, consumer)
            return spec

        try:
            return await described(await self._table.update(found, change))
        except JetStreamError as error:
            raise _typed(error) from None

    async def reset(
        self, stream: str, consumer: str, config: Mapping[str, Any], readable: Readable
    ) -> ConsumerInfo:
        await self._opened(stream)
        found = self._find(stream, consumer)
        check_covered(found.local.cursor.wanted_subjects, readable, consumer)
        others = sorted(set(config).difference(_START))
        if others:
            raise InvalidArgument(
                f"a reset changes only the start of a consumer, not {', '.join(others)}"
            )

        def change(old: ConsumerSpec) -> ConsumerSpec:
            kept = {key: value for key, value in old.config.items() if key not in _START}
            return _parsed({**kept, **config}, consumer)

        try:
            return await described(await self._table.restart(found, change))
        except JetStreamError as error:
            raise _typed(error) from None

    async def describe(self, stream: str, consumer: str) -> ConsumerInfo:
        await self._opened(stream)
        return await described(self._find(stream, consumer))

    async def list(
        self, stream: str, after: str | None, limit: int
    ) -> tuple[list[ConsumerInfo], bool]:
        await self._opened(stream)
        self._broker.led_stream(stream)
        found = [one for one in self._table.of(stream) if after is None or one.spec.name > after]
        return [await described(one) for one in found[:limit]], len(found) > limit

    async def delete(self, stream: str, consumer: str) -> None:
        await self._opened(stream)
        self._broker.led_stream(stream)
        try:
            was_there = await self._table.delete(stream, consumer)
        except JetStreamError as error:
            raise _typed(error) from None
        if not was_there:
            raise _no_consumer(stream, consumer)

    # --- inside ---

    async def _opened(self, stream: str) -> None:
        try:
            await self._table.opened(stream)
        except JetStreamError as error:
            raise _typed(error) from None

    def _find(self, stream: str, consumer: str) -> AckedConsumer:
        self._broker.led_stream(stream)
        found = self._there(stream, consumer)
        if found is None and not self._table.is_open(stream):
            raise NotReady(f"the consumers of {stream!r} are being opened", hint="try again")
        if found is None:
            raise _no_consumer(stream, consumer)
        return found

    def _there(self, stream: str, consumer: str) -> AckedConsumer | None:
        if self._table.problem:
            raise NotReady(self._table.problem)
        try:
            return self._table.find(stream, consumer)
        except JetStreamError as error:
            raise _typed(error) from None


def check_covered(alternatives: Sequence[Readable], readable: Readable, consumer: str) -> None:
    """Check that a client may read all records that a consumer delivers. Each set in `alternatives`
    contains the subjects of all these records, so the right to read one of the sets is sufficient.
    None stands for all subjects. Raises Forbidden."""
    if readable is None:
        return
    for subjects in alternatives:
        if subjects is not None and all(
            any(is_subset(one, allowed) for allowed in readable) for one in subjects
        ):
            return
    raise Forbidden(
        f"the consumer {consumer!r} delivers records that you may not read",
        hint=f"you may read only {', '.join(readable)}: use a consumer with such filters",
    )


async def described(consumer: AckedConsumer) -> ConsumerInfo:
    info, state = await consumer.info(), consumer.machine.state
    return ConsumerInfo(
        stream=consumer.host.name,
        name=consumer.spec.name,
        config=dict(consumer.spec.config),
        created_ns=consumer.local.origin.created_ns,
        next_offset=state.next_offset,
        ack_floor=state.floor_offset,
        num_pending=info["num_pending"],
        num_ack_pending=info["num_ack_pending"],
        num_redelivered=info["num_redelivered"],
        num_waiting=info["num_waiting"] + consumer.local.behind,
        deliveries=state.sequence,
        exhausted=list(state.exhausted),
        pause_remaining_ns=max(info.get("pause_remaining", 0), 0),
    )


def columns_of(runs: Sequence[Run], first: int, end: int) -> tuple[Ints, Ints]:
    """Return the offsets of the runs at or above `first` and below `end`, and their delivery
    counts. Messages below the ack floor are done, and messages at or above `end` were never
    delivered. Acks for such messages have no effect, so they are left out to save time."""
    if len(runs) == 1:
        begin, size, count = runs[0]
        offsets = np.arange(max(begin, first), max(min(begin + size, end), first), dtype=np.int64)
        return offsets, np.full(len(offsets), count, np.int64)
    columns = np.array(runs, np.int64).reshape(-1, 3)
    begins = np.maximum(columns[:, 0], first)
    ends = np.minimum(columns[:, 0] + columns[:, 1], end)
    sizes = np.maximum(ends - begins, 0)
    starts = np.cumsum(sizes) - sizes
    offsets = np.repeat(begins - starts, sizes) + np.arange(int(sizes.sum()))
    return offsets, np.repeat(columns[:, 2], sizes)


def _merged(old: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with changes. A change to None removes a setting."""
    merged = {**old, **changes}
    if "filter_subject" in changes or "filter_subjects" in changes:
        for key in ("filter_subject", "filter_subjects"):
            if key not in changes:
                merged.pop(key, None)
    if changes.get("ack_wait") and "backoff" not in changes:
        merged.pop("backoff", None)
    return {key: value for key, value in merged.items() if value is not None}


def _differences(there: ConsumerSpec, wanted: ConsumerSpec, config: Mapping[str, Any]) -> list[str]:
    """Return texts for an error message. They name the settings in `config` that differ from the
    consumer's settings."""
    found = []
    for key in config:
        old, new = there.config.get(key), wanted.config.get(key)
        if key in ("filter_subject", "filter_subjects"):
            if sorted(there.filters) == sorted(wanted.filters):
                continue
            key, old, new = "filters", list(there.filters), list(wanted.filters)
        if old != new:
            found.append(f"{key} is {_shown(key, old)}, not {_shown(key, new)}")
    return sorted(set(found))


def _shown(key: str, value: Any) -> str:
    """Return the value of a setting in a readable form. In the configuration, durations are in
    ns."""
    if key in _DURATIONS and isinstance(value, int):
        return f"{value / 1e9:g} s"
    if key == "backoff" and isinstance(value, list):
        return ", ".join(f"{one / 1e9:g} s" for one in value)
    return repr(value)


def _parsed(config: Mapping[str, Any], name: str) -> ConsumerSpec:
    try:
        return parse_consumer(config, name)
    except JetStreamError as error:
        raise _typed(error) from None


def _typed(error: JetStreamError) -> LiftlogError:
    """Return the error of the pull protocol whose meaning is closest."""
    if error.code >= 500 and error.err_code != 10012:
        return NotReady(error.description)
    if error.code == _NOT_FOUND:
        return ConsumerNotFound(error.description)
    if error.code == _TOO_MANY or error.err_code == _LIMIT_REACHED:
        return LimitExceeded(error.description)
    return InvalidArgument(error.description)


def _no_consumer(stream: str, consumer: str) -> ConsumerNotFound:
    return ConsumerNotFound(
        f"the stream {stream!r} has no consumer {consumer!r} with acks",
        hint="create it, for example with `liftlog consumer add`",
    )
