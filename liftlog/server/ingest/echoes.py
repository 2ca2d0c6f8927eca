"""Our own answers, which come back to us as messages while two servers are in use.

NATS sends a client nothing that it has published itself (`no_echo`). With two connections, the
daemon is two clients: what it sends over the old one reaches its subscriptions on the new one, if a
stream has subjects of inboxes. No stream may store it, however late it comes.

NATS keeps the order from one connection to one subscription. So once the last answer that was sent
has come back, none of those before it will.
"""

from __future__ import annotations

from collections.abc import Callable

from liftlog.server.ingest.overlap import select
from liftlog.server.ingest.subscriptions import LinkSubscription
from liftlog.stream.acks import Answer
from liftlog.stream.run import MessageRun

FORGET_SECONDS = 60.0
"""A connection that is silent for so long has long been given up."""


class Echoes:
    """What was sent, by the subscription to which it comes back. Belongs to the event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` is a monotonic clock in seconds."""
        self._now = now
        self._sent: dict[LinkSubscription, dict[Answer, int]] = {}
        self._last_at: dict[LinkSubscription, float] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sent.values()))

    def sent(self, one: LinkSubscription, answer: Answer) -> None:
        """This will come back; or not, where the new server has not subscribed yet."""
        answers = self._sent.setdefault(one, {})
        answers[answer] = answers.pop(answer, 0) + 1  # the last is at the end
        self._last_at[one] = self._now()

    def are_due(self, one: LinkSubscription) -> bool:
        """Whether some may still come to this subscription."""
        if one in self._sent and self._now() - self._last_at[one] >= FORGET_SECONDS:
            self._forget(one)
        return one in self._sent

    def without(self, one: LinkSubscription, run: MessageRun) -> MessageRun | None:
        """The messages of this run that others have sent; None if there are none."""
        if not self.are_due(one):
            return run
        rows = [row for row in range(len(run)) if not self._is_ours(one, run, row)]
        return select(run, rows) if rows else None

    def _is_ours(self, one: LinkSubscription, run: MessageRun, row: int) -> bool:
        answers = self._sent.get(one)
        if answers is None or run.replies[row] or (run.headers is not None and run.headers[row]):
            return False
        answer = bytes(run.subjects[row]), bytes(run.payloads[row])
        count = answers.get(answer, 0)
        if count == 1 and answer == next(reversed(answers)):
            self._forget(one)
        elif count == 1:
            del answers[answer]
        elif count:
            answers[answer] = count - 1
        return count > 0

    def _forget(self, one: LinkSubscription) -> None:
        del self._sent[one], self._last_at[one]

    def forget_old(self) -> None:
        """Free the memory of those that do not come any more."""
        for one in list(self._sent):
            self.are_due(one)
