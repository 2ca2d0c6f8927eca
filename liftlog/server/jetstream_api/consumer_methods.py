"""CONSUMER.*: ordered reading over NATS."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from acl.rules import OVER_NATS
from liftlog.errors import Forbidden
from liftlog.server.jetstream_api.answers import (
    ZERO_TIME,
    JetStreamError,
    command,
    invalid_json,
)
from liftlog.server.jetstream_api.consumers.config import (
    check_group_name,
    parse_consumer,
    refused,
)
from liftlog.server.jetstream_api.consumers.consumer import Consumer
from liftlog.server.jetstream_api.consumers.pull_body import (
    BadPull,
    Pull,
    check_limits,
    check_without_priorities,
    parse_pull,
)
from liftlog.server.jetstream_api.consumers.pull_requests import status_block
from liftlog.server.jetstream_api.fields import text, whole
from liftlog.server.jetstream_api.inboxes import party_of
from liftlog.server.jetstream_api.methods import (
    PREFIX,
    PULL_KIND,
    Answer,
    Request,
    always,
    answers,
)
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.pulls import WorkerPull, request_of
from liftlog.server.jetstream_api.workers.worker_link import Arrived

_PAGE = 256
_HELD_DIGITS = 9
"""Maximum number of digits in the time (ms) that a node reports as the time for which it has held a
pull."""


def _not_found() -> JetStreamError:
    return JetStreamError(404, 10014, "consumer not found")


@answers("CONSUMER.CREATE", "consumer_create", arguments=(1, None), at_leader=True)
async def _create(request: Request) -> Answer:
    body, config = _config_of(request)
    if len(request.arguments) == 1 and config.get("durable_name"):
        raise JetStreamError(
            400,
            10020,
            "consumer expected to be ephemeral but a durable name was set in request",
        )
    config = _named(request.arguments[1:], config)
    return await _made(request, config, text(body, "action"))


@answers("CONSUMER.DURABLE.CREATE", "consumer_create", arguments=(2, 2), at_leader=True)
async def _create_durable(request: Request) -> Answer:
    body, config = _config_of(request)
    durable = config.get("durable_name")
    if not durable:
        raise JetStreamError(
            400, 10018, "consumer expected to be durable but a durable name was not set"
        )
    if durable != request.arguments[1]:
        raise _other_name()
    return await _made(request, config, text(body, "action"))


def _config_of(request: Request) -> tuple[Answer, dict[str, Any]]:
    """Return the body of a request, and the configuration that the body contains."""
    body = request.body()
    config = body.get("config")
    if not isinstance(config, dict):
        raise invalid_json("config: expected an object")
    if text(body, "stream_name") != request.stream:
        raise JetStreamError(400, 10056, "stream name in subject does not match request")
    return body, config


def _other_name() -> JetStreamError:
    return JetStreamError(
        400, 10017, "consumer name in subject does not match durable name in request"
    )


async def _made(request: Request, config: dict[str, Any], action: str) -> Answer:
    if action not in ("", "create", "update"):
        raise invalid_json("action: expected create or update")
    request.authorize("read")
    host = request.led_stream()
    spec = parse_consumer(config, secrets.token_hex(4))
    if spec.is_kept:
        request.authorize_work(spec.name)
    there = await _find(request, spec.name)
    if there is not None:
        # JetStream compares the threshold of an ephemeral consumer before it sets the default.
        is_same = there.spec == spec and (spec.is_durable or bool(config.get("inactive_threshold")))
        if is_same or (there.spec == spec and action != "create"):
            return await there.info()
        if action == "create":
            raise JetStreamError(400, 10148, "consumer already exists")
        if isinstance(there, Consumer):
            raise refused("a consumer without acks cannot be updated: create another one")
        return await (await request.parts.acked.update(there, lambda _: spec)).info()
    if action == "update":
        raise JetStreamError(400, 10149, "consumer does not exist")
    party = party_of(request.reply)
    if spec.is_kept:
        return await (await request.parts.acked.create(spec, host, party)).info()
    gate = request.parts.gate
    readable = gate.readable_subjects(OVER_NATS, request.stream, peer="nats")

    def may_read() -> bool:
        """Return True if the client still has the read rights with which the consumer was created;
        the ACL can change. This check writes no line to the audit log."""
        if gate.policy is None:
            return readable is None
        return (
            gate.may(OVER_NATS, "read", host.name)
            and gate.readable_subjects(OVER_NATS, host.name, peer="nats") == readable
        )

    consumer = await request.parts.consumers.create(spec, host, readable, may_read, party)
    return await consumer.info(is_new=True)


async def _find(request: Request, name: str) -> Consumer | AckedConsumer | None:
    parts = request.parts
    await parts.acked.opened(request.stream)
    return parts.acked.find(request.stream, name) or parts.consumers.find(request.stream, name)


def _named(rest: Sequence[str], config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration, with the consumer's name from the request's subject. The subject
    may also contain the filter."""
    if not rest:
        return config
    for key in ("name", "durable_name"):
        if config.get(key) not in (None, "", rest[0]):
            raise _other_name()
    if len(rest) > 1 and config.get("filter_subjects"):
        raise JetStreamError(
            400, 10137, "consumer with multiple subject filters cannot use subject based API"
        )
    if len(rest) > 1 and ".".join(rest[1:]) != config.get("filter_subject"):
        raise JetStreamError(
            400, 10131, "consumer create request did not match filtered subject from create subject"
        )
    return {**config, "name": rest[0]}


@answers("CONSUMER.INFO", "consumer_info", arguments=(2, 2), at_leader=True, is_cheap=always)
async def _info(request: Request) -> Answer:
    request.authorize("read")
    request.led_stream()
    consumer = await _find(request, request.arguments[1])
    if consumer is None:
        raise _not_found()
    return await consumer.info()


@answers("CONSUMER.DELETE", "consumer_delete", arguments=(2, 2), at_leader=True, is_cheap=always)
async def _delete(request: Request) -> Answer:
    request.authorize("read")
    request.led_stream()
    await request.parts.acked.opened(request.stream)
    if request.parts.consumers.find(request.stream, request.arguments[1]) is None:
        request.authorize_work(request.arguments[1])
    for table in (request.parts.acked, request.parts.consumers):
        if await table.delete(request.stream, request.arguments[1]):
            return {"success": True}
    raise _not_found()


@answers("CONSUMER.PAUSE", "consumer_pause", arguments=(2, 2), at_leader=True)
async def _pause(request: Request) -> Answer:
    request.authorize("read")
    request.authorize_work(request.arguments[1])
    request.led_stream()
    consumer = await _find(request, request.arguments[1])
    if isinstance(consumer, Consumer):
        raise refused("a consumer without acks cannot be paused")
    if consumer is None:
        raise _not_found()
    until = request.body().get("pause_until")
    changed = await request.parts.acked.update(
        consumer, lambda old: parse_consumer({**old.config, "pause_until": until}, old.name)
    )
    info = await changed.info()
    return {
        "paused": info.get("paused", False),
        "pause_until": until or ZERO_TIME,
        "pause_remaining": info.get("pause_remaining", 0),
    }


@answers("CONSUMER.RESET", "consumer_reset", arguments=(2, 2), at_leader=True)
async def _reset(request: Request) -> Answer:
    request.authorize("read")
    request.authorize_work(request.arguments[1])
    request.led_stream()
    sequence = whole(request.body(), "seq")
    consumer = await _find(request, request.arguments[1])
    if isinstance(consumer, Consumer):
        raise refused("a consumer without acks cannot be reset: create another one")
    if consumer is None:
        raise _not_found()
    began = await request.parts.acked.reset(consumer, sequence)
    return {**await consumer.info(), "reset_seq": began}


@answers("CONSUMER.UNPIN", "consumer_unpin", arguments=(2, 2), at_leader=True)
async def _unpin(request: Request) -> Answer:
    request.authorize("read")
    request.authorize_work(request.arguments[1])
    request.led_stream()
    group = text(request.body(), "group")
    if not group:
        raise invalid_json("consumer group not specified")
    check_group_name(group)
    consumer = await _find(request, request.arguments[1])
    if consumer is None:
        raise _not_found()
    if group not in consumer.spec.settings.priority_groups:
        raise JetStreamError(400, 10160, "Provided priority group does not exist for this consumer")
    if isinstance(consumer, AckedConsumer):
        consumer.machine.unpin()
        consumer.wake()
    return {}


@answers("CONSUMER.NAMES", "consumer_names", arguments=(1, 1), at_leader=True, is_cheap=always)
async def _names(request: Request) -> Answer:
    found, answer = await _page(request)
    return {**answer, "consumers": [one.spec.name for one in found]}


@answers("CONSUMER.LIST", "consumer_list", arguments=(1, 1), at_leader=True)
async def _list(request: Request) -> Answer:
    found, answer = await _page(request)
    return {**answer, "consumers": [await one.info() for one in found]}


async def _page(request: Request) -> tuple[list[Consumer | AckedConsumer], Answer]:
    request.authorize("read")
    request.led_stream()
    offset = whole(request.body(), "offset")
    parts = request.parts
    await parts.acked.opened(request.stream)
    found: list[Consumer | AckedConsumer] = [
        *parts.acked.of(request.stream),
        *parts.consumers.of(request.stream),
    ]
    found.sort(key=lambda one: one.spec.name)
    page = found[offset : offset + _PAGE]
    return page, {"total": len(found), "offset": offset, "limit": _PAGE}


@answers("CONSUMER.MSG.NEXT", PULL_KIND, arguments=(2, 3), at_leader=True, is_cheap=always)
async def _next(request: Request) -> None:
    """Handle a pull. The third argument is the time in ms for which another node has held it."""
    stream, name = request.arguments[:2]
    try:
        consumer = await _find(request, name)
    except JetStreamError:  # the consumer cannot be loaded now; clients retry later
        if request.parts.acked.refuse_pull(stream, name, request.reply):
            await _say(request, b"503")
        else:
            _take_missed(request, None)
        return
    if isinstance(consumer, AckedConsumer):
        _take_missed(request, consumer)
    elif consumer is None:
        asked = f"{PREFIX}CONSUMER.MSG.NEXT.{'.'.join(request.arguments[:2])}"
        await _say(request, b"503", b"Nats-Subject: %b\r\n" % asked.encode())
    elif consumer.spec.deliver_subject:
        await _say(request, b"409 Consumer is push based")
    else:
        try:
            request.record_target()
            pull = parse_pull(request.payload)
            check_limits(pull, consumer.spec.limits)
            check_without_priorities(pull)
            consumer.add(request.reply, pull)
        except Forbidden as error:
            await _say(request, b"403 %b" % f"{error.message}: {error.hint}".encode())
        except BadPull as error:
            await _say(request, error.words)


def _take_missed(request: Request, consumer: AckedConsumer | None) -> None:
    """Take a pull for a consumer with acks if the pull arrived before this node subscribed to the
    pulls for the stream. Skip the pull if the former leader has read it. All other pulls arrive on
    the connection of workers. `consumer` is None if it is not known yet."""
    stream, name, *held = request.arguments
    is_held = held and held[0].isdecimal() and len(held[0]) <= _HELD_DIGITS
    began = request.arrived - (int(held[0]) / 1000 if is_held else 0.0)
    if began >= request.parts.acked.subscribed_at(stream):
        return
    pull, held_ns = request_of(request.payload), round((time.monotonic() - began) * 1e9)
    if isinstance(pull, Pull) and consumer is not None:
        began_ns = time.time_ns() - held_ns
        if consumer.pulls.was_read(request.reply, pull.expires_ns, began_ns):
            return
    if isinstance(pull, Pull) and pull.expires_ns:
        left = pull.expires_ns - held_ns
        if left <= 0:
            return  # the client no longer waits
        pull = pull._replace(expires_ns=left)
    request.parts.take(Arrived(stream, [], [WorkerPull(name, request.reply, pull)], []))


async def _say(request: Request, words: bytes, lines: bytes = b"") -> None:
    block = status_block(words, lines)
    await request.parts.send(lambda: command(request.target(), b"", block))
