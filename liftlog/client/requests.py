"""What both clients share: arguments -> requests, answers -> results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import liftlog
from liftlog.client.batches import FetchAnswer
from liftlog.client.positions import Start, start_fields
from liftlog.client.selecting import Column, Filter, not_selected, selection_fields
from liftlog.client.target import Address
from liftlog.errors import ConnectionLost, LiftlogError, ProtocolViolation
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import CreateStream, Fetch, FetchHeader, Message

SOFTWARE = f"liftlog-python/{liftlog.__version__}"

CONNECT_TIMEOUT_SECONDS = 10.0
REQUEST_TIMEOUT_SECONDS = 30.0

RECEIVE_BYTES = 2 * 1024 * 1024
"""Received at once before the batches in it are looked at; larger steps overflow the processor's
cache, smaller ones cost a turn of Python each."""

Answer = TypeVar("Answer", bound=Message)


def create_request(name: str, subject: str | None, settings: Mapping[str, Any]) -> CreateStream:
    wanted = dict(settings)
    if subject is not None:
        wanted["subject"] = subject
    return CreateStream(name, wanted)


def fetch_request(
    stream: str,
    start: Start,
    *,
    filter: Filter | None = None,
    columns: Sequence[Column] | None = None,
    **options: Any,
) -> Fetch:
    return Fetch(stream, **start_fields(start), **selection_fields(filter, columns), **options)


def fetch_answer(fetch: Fetch, exchange: Exchange) -> FetchAnswer:
    """The answer, or the error raised."""
    header = result_of(exchange, FetchHeader)
    too_old = not_selected(fetch.selects, header)
    if too_old is not None:
        raise too_old
    return FetchAnswer(fetch.stream, header, exchange.body)


def result_of(exchange: Exchange, expected: type[Answer]) -> Answer:
    """The answer, or the error raised."""
    if exchange.error is not None:
        raise exchange.error
    if not isinstance(exchange.answer, expected):
        raise ProtocolViolation(f"expected {expected.KIND!r} as the answer")
    return exchange.answer


def lost(address: str, reason: object) -> LiftlogError:
    """The connection's last error, for everyone who still waits."""
    if isinstance(reason, LiftlogError):
        return reason
    return ConnectionLost(f"the connection to {address} is lost: {reason}", address=address)


def never_greeted(error: ConnectionLost, address: Address) -> ConnectionLost:
    """The error of a connection that was lost before it could be used."""
    hint = "check that a liftlog daemon listens there"
    if not (address.tls or address.path):
        hint += "; if it asks for TLS, use tls://"
    return ConnectionLost(error.message, hint=hint, address=address.text)


def unreachable(address: str, reason: object) -> ConnectionLost:
    return ConnectionLost(
        f"cannot connect to {address}: {reason}",
        hint="check that the daemon runs and listens there",
        address=address,
    )
