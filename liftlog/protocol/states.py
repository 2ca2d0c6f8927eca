"""States of a connection and the events that move it from one to the next.

    client: NEW -hello-> GREETING -challenge-> CHALLENGED -auth-> PROVING -welcome-> READY
    server: NEW <-hello- GREETING -challenge-> CHALLENGED <-auth- PROVING -welcome-> READY

From any state a connection can become CLOSED. Two kinds of error are kept apart:
`LocalProtocolError` is a mistake of the code on this side, all others are the peer's.
"""

from __future__ import annotations

import enum

from liftlog.errors import ProtocolViolation


class LocalProtocolError(ProtocolViolation):
    """The caller asked for an action that the state of the connection does not allow."""


class State(enum.Enum):
    NEW = "new"
    GREETING = "greeting"
    CHALLENGED = "challenged"
    PROVING = "proving"
    READY = "ready"
    CLOSED = "closed"


CLIENT_TRANSITIONS: dict[tuple[State, str], State] = {
    (State.NEW, "send hello"): State.GREETING,
    (State.GREETING, "receive challenge"): State.CHALLENGED,
    (State.CHALLENGED, "send auth"): State.PROVING,
    (State.PROVING, "receive welcome"): State.READY,
}

SERVER_TRANSITIONS: dict[tuple[State, str], State] = {
    (State.NEW, "receive hello"): State.GREETING,
    (State.GREETING, "send challenge"): State.CHALLENGED,
    (State.CHALLENGED, "receive auth"): State.PROVING,
    (State.PROVING, "send welcome"): State.READY,
}
