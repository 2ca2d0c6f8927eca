"""Decides when to reconnect and which requests to repeat, and makes the errors of connections. Does
no I/O; both clients use it.

A request is repeated only if its kind may be repeated (`REPEATABLE`), if it was never sent, or if
the daemon refused it. Any other request may have taken effect, and ends with a ConnectionLost whose
`undecided` is true.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from liftlog.client.connecting.target import Address
from liftlog.errors import (
    ConnectionLost,
    LiftlogError,
    LimitExceeded,
    NotLeader,
    NotReady,
    RequestTimeout,
    ShuttingDown,
)
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import Message

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0


def is_interruption(error: LiftlogError) -> bool:
    """Return True if the failed request may be repeated at the same node: the connection was lost,
    the daemon is stopping, or the node is just taking over the stream."""
    return isinstance(error, ConnectionLost | ShuttingDown | NotReady)


def is_detour(error: LiftlogError) -> bool:
    """Return True if the failed request may be repeated, at the same node or at another one."""
    return is_interruption(error) or isinstance(error, NotLeader)


class Backoff:
    """Computes the pauses between attempts. The pauses double up to a limit, and have a random
    part, so that the clients of a stopped daemon do not all reconnect at once."""

    def __init__(self, spread: Callable[[], float] = random.random) -> None:
        self._spread = spread
        self._ceiling = FIRST_PAUSE_SECONDS

    def next_pause(self) -> float:
        """Return a pause in seconds: between half of the present limit and all of it."""
        pause = self._ceiling * (0.5 + self._spread() / 2)
        self._ceiling = min(2 * self._ceiling, LONGEST_PAUSE_SECONDS)
        return pause

    def reset(self) -> None:
        """Begin with the shortest pause again, after a successful attempt."""
        self._ceiling = FIRST_PAUSE_SECONDS


def deadline_after(now: float, seconds: float, reconnect_for: float | None) -> float:
    """Return the time at which a call stops trying to connect."""
    return now + (seconds if reconnect_for is None else min(seconds, reconnect_for))


class ReadPatience:
    """Limits the time for which an interrupted read tries to reconnect. With each answer that the
    read receives, the time starts again."""

    def __init__(self, reconnect_for: float | None) -> None:
        self._reconnect_for = reconnect_for
        self._backoff = Backoff()
        self._answer_count = -1
        self._deadline: float | None = None

    def interrupted(self, answer_count: int, now: float) -> tuple[float, float | None]:
        """Return the pause before the next attempt, in seconds, and the time at which to stop
        trying (None: never)."""
        if answer_count != self._answer_count:
            self._answer_count = answer_count
            self._backoff.reset()
            forever = self._reconnect_for is None
            self._deadline = None if forever else now + (self._reconnect_for or 0)
        return self._backoff.next_pause(), self._deadline

    def gave_up(self) -> None:
        """Reset the time, because the read has reported its failure. If the caller continues to
        read, the read gets the whole time again."""
        self._answer_count = -1


def may_repeat(message: Message, exchange: Exchange, *, refused: bool) -> bool:
    """Return True if a request that ended with an interruption can be repeated.

    `refused` means that the daemon answered with a refusal. Otherwise the connection ended before
    the answer.
    """
    return message.is_repeatable or refused or not exchange.sent


def may_pass(error: LiftlogError) -> bool:
    """Return True if another attempt to connect may succeed. Also returns True if the limit on
    connections was reached: the daemon may not have detected yet that the old connections are
    closed."""
    return error.retriable or isinstance(error, LimitExceeded)


def undecided(message: Message, error: LiftlogError, address: str) -> ConnectionLost:
    """Return the error of a request that may have taken effect."""
    return ConnectionLost(
        f"the connection to {address} was lost before the answer to {message.KIND!r} came; "
        f"whether it took effect is undecided: {error.message}",
        hint="check whether it took effect before you repeat it",
        address=address,
        undecided=True,
    )


def gave_up(address: str, last: LiftlogError | None) -> ConnectionLost:
    """Return the error of a call or read that got no connection in time."""
    if isinstance(last, ConnectionLost):
        return ConnectionLost(last.message, hint=last.hint, address=address)
    reason = "no connection in time" if last is None else last.message
    return ConnectionLost(
        f"the connection to {address} is lost: {reason}",
        hint="check that the daemon runs and listens there",
        address=address,
    )


def lost(address: str, reason: object) -> LiftlogError:
    """Return the connection's last error, for all waiting callers."""
    if isinstance(reason, LiftlogError):
        return reason
    return ConnectionLost(f"the connection to {address} is lost: {reason}", address=address)


def unanswered(address: str, message: Message, seconds: float) -> RequestTimeout:
    """Return the error of a request that got no answer within `seconds`. `seconds` is less than the
    call's time limit if earlier attempts have used a part of it."""
    return RequestTimeout(f"{address} has not answered {message.KIND!r} in {seconds:.1f} s")


def never_greeted(error: ConnectionLost, address: Address) -> ConnectionLost:
    """Return the error of a connection that was lost before the hellos were exchanged."""
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
