"""When to connect again, which requests to repeat, and the errors of connections. Without any I/O,
for both clients.

A request is repeated only if repeating it cannot do anything twice: its kind says so
(`REPEATABLE`), it was never sent, or the daemon refused it because it is stopping. Any other ends
with a ConnectionLost whose `undecided` is true.
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
    """Whether the daemon or the connection went away, or the daemon has just begun to lead the
    stream, so that the request may be repeated."""
    return isinstance(error, ConnectionLost | ShuttingDown | NotReady)


def is_detour(error: LiftlogError) -> bool:
    """Whether the request may be repeated, perhaps at another node."""
    return is_interruption(error) or isinstance(error, NotLeader)


class Backoff:
    """Pauses between attempts: they double up to a bound, and are random, so that the clients of a
    daemon that went away do not all return at once."""

    def __init__(self, spread: Callable[[], float] = random.random) -> None:
        self._spread = spread
        self._ceiling = FIRST_PAUSE_SECONDS

    def next_pause(self) -> float:
        """In seconds: between half of the present bound and all of it."""
        pause = self._ceiling * (0.5 + self._spread() / 2)
        self._ceiling = min(2 * self._ceiling, LONGEST_PAUSE_SECONDS)
        return pause

    def reset(self) -> None:
        """An attempt succeeded."""
        self._ceiling = FIRST_PAUSE_SECONDS


def deadline_after(now: float, seconds: float, reconnect_for: float | None) -> float:
    """When a call gives up connecting."""
    return now + (seconds if reconnect_for is None else min(seconds, reconnect_for))


class ReadPatience:
    """How long a read without any answer keeps trying. Each answer starts the time again."""

    def __init__(self, reconnect_for: float | None) -> None:
        self._reconnect_for = reconnect_for
        self._backoff = Backoff()
        self._answer_count = -1
        self._deadline: float | None = None

    def interrupted(self, answer_count: int, now: float) -> tuple[float, float | None]:
        """The pause before the next attempt, and when to give up (None: never)."""
        if answer_count != self._answer_count:
            self._answer_count = answer_count
            self._backoff.reset()
            forever = self._reconnect_for is None
            self._deadline = None if forever else now + (self._reconnect_for or 0)
        return self._backoff.next_pause(), self._deadline

    def gave_up(self) -> None:
        """If the caller reads on, it gets the whole time again."""
        self._answer_count = -1


def may_repeat(message: Message, exchange: Exchange, *, refused: bool) -> bool:
    """Whether a request that ended with an interruption can be asked again.

    `refused`: the daemon answered it, rather than that the connection ended under it.
    """
    return message.is_repeatable or refused or not exchange.sent


def may_pass(error: LiftlogError) -> bool:
    """Whether another attempt to connect may succeed. The bound on connections passes too: the
    daemon may not have noticed yet that the old ones are gone."""
    return error.retriable or isinstance(error, LimitExceeded)


def undecided(message: Message, error: LiftlogError, address: str) -> ConnectionLost:
    """The error of a request that may have taken effect."""
    return ConnectionLost(
        f"the connection to {address} was lost before the answer to {message.KIND!r} came; "
        f"whether it took effect is undecided: {error.message}",
        hint="check whether it took effect before you repeat it",
        address=address,
        undecided=True,
    )


def gave_up(address: str, last: LiftlogError | None) -> ConnectionLost:
    """The error of a call or read that got no connection in time."""
    if isinstance(last, ConnectionLost):
        return ConnectionLost(last.message, hint=last.hint, address=address)
    reason = "no connection in time" if last is None else last.message
    return ConnectionLost(
        f"the connection to {address} is lost: {reason}",
        hint="check that the daemon runs and listens there",
        address=address,
    )


def lost(address: str, reason: object) -> LiftlogError:
    """The connection's last error, for everyone who still waits."""
    if isinstance(reason, LiftlogError):
        return reason
    return ConnectionLost(f"the connection to {address} is lost: {reason}", address=address)


def unanswered(address: str, message: Message, seconds: float) -> RequestTimeout:
    """The error of a request that has waited so long, which is less than the call may take if
    attempts before this one took their part."""
    return RequestTimeout(f"{address} has not answered {message.KIND!r} in {seconds:.1f} s")


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
