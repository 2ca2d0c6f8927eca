"""The subscriptions that the daemon wants from NATS, and the state of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from liftlog.sequencing.run import MessageRun

logger = logging.getLogger("liftlog.server.nats")

_ASK_AGAIN_SECONDS = (1.0, 30.0)
"""First and longest pause, in seconds, before refused subscriptions are requested again."""

RunHandler = Callable[[MessageRun], None]


Refusals = Mapping[str, str]
"""The refused subjects of a subscription, with the reasons."""


def in_words(refusals: Refusals) -> str:
    return "; ".join(dict.fromkeys(refusals.values()))


def _ignore(reason: str) -> None:
    pass


@dataclass(slots=True, eq=False)
class LinkSubscription:
    """The subscription of one receiver; it outlives connections.

    No message matches two of its subjects. Messages on all subjects arrive in the order in which
    NATS sends them.
    """

    subjects: tuple[str, ...]
    queue_group: str | None
    handler: RunHandler
    on_gap: Callable[[str], None] = _ignore
    """A callback that receives the reason when messages may have been missed."""
    is_acked: bool = False
    """True if the daemon acks the messages, so that JetStream should not ack them."""
    jetstream_streams: list[str] = field(default_factory=list)
    """Streams of JetStream that received some of the same messages at the last check."""
    confirmed: bool = False
    """True if NATS delivers on all subjects, according to its last answer."""
    refusals: dict[str, str] = field(default_factory=dict)
    """The refused subjects, with the reasons. NATS delivers on the other subjects."""
    was_confirmed: bool = False
    was_refused: bool = False
    """True if NATS has refused the subscription after the last confirmation."""
    is_changed: bool = False
    """True if the subjects have changed since the last request to NATS."""

    @property
    def problem(self) -> str:
        """The reason why NATS refuses the subscription or a subject of it; empty if NATS refuses
        nothing."""
        return in_words(self.refusals)

    @property
    def refused_subjects(self) -> str:
        return ", ".join(self.refusals)

    def retarget(self, subjects: tuple[str, ...]) -> bool:
        """Change the subjects. Sends no request to NATS yet. Returns False if the subjects are the
        same."""
        if subjects == self.subjects:
            return False
        self.subjects, self.is_changed = subjects, True
        self.confirmed = False
        self.refusals = {one: why for one, why in self.refusals.items() if one in subjects}
        return True

    def accepted(self) -> None:
        """Note that NATS has confirmed the subscription."""
        if self.was_refused:
            self.on_gap("NATS refused the subscription for a while")
        self.confirmed, self.was_confirmed = not self.is_changed, True
        self.refusals, self.was_refused = {}, False

    def refused(self, refusals: Mapping[str, str]) -> None:
        """Note the subjects on which NATS does not deliver, with the reasons."""
        self.confirmed, self.was_refused = False, True
        self.refusals = dict(refusals)


class SubscriptionBook:
    """All wanted subscriptions, and the time at which to request refused subscriptions again."""

    def __init__(self) -> None:
        self.refusals = 0
        self._wanted: dict[LinkSubscription, None] = {}
        self._open: dict[LinkSubscription, None] = {}
        """The wanted subscriptions that are not confirmed. It may also contain confirmed
        subscriptions; `missing` removes these."""
        self._ask_again_at = 0.0
        self._ask_again_seconds = _ASK_AGAIN_SECONDS[0]

    @property
    def wanted(self) -> list[LinkSubscription]:
        return list(self._wanted)

    @property
    def all_wanted(self) -> Collection[LinkSubscription]:
        """The wanted subscriptions. The result is not a copy, and is only valid until the next
        await."""
        return self._wanted.keys()

    def add(self, subscription: LinkSubscription) -> None:
        self._wanted[subscription] = None
        self._open[subscription] = None

    def retarget(self, subscription: LinkSubscription, subjects: tuple[str, ...]) -> bool:
        """Change the subjects of a subscription; returns False if they are the same."""
        is_changed = subscription.retarget(subjects)
        if is_changed and subscription in self._wanted:
            self._open[subscription] = None
        return is_changed

    def remove(self, subscription: LinkSubscription) -> None:
        """Remove the subscription. Does nothing if the subscription is no longer wanted."""
        self._wanted.pop(subscription, None)
        self._open.pop(subscription, None)
        subscription.confirmed = False

    def take_all(self) -> list[LinkSubscription]:
        """Remove all subscriptions and return them."""
        taken, self._wanted, self._open = self._wanted, {}, {}
        return list(taken)

    def answered(
        self, asked: Iterable[LinkSubscription], refused: Mapping[LinkSubscription, Refusals]
    ) -> None:
        """Note the answer of NATS to the requests `asked`. `refused` contains the refused subjects,
        with the reasons."""
        for one in asked:
            if one in refused:
                self._refuse(one, refused[one])
                continue
            if one.problem:
                logger.info("nats-subscription-allowed subject=%s", one.refused_subjects)
            one.accepted()
            # The subjects of the subscription have changed meanwhile.
            if not one.confirmed and one in self._wanted:
                self._open[one] = None

    def revoked(self, one: LinkSubscription, subject: str, problem: str) -> None:
        """Note that NATS has ended a subscription that it had confirmed."""
        if one in self._wanted:
            self._refuse(one, {**one.refusals, subject: problem})
            one.on_gap(f"NATS ended the subscription: {problem}")

    def _refuse(self, one: LinkSubscription, refusals: Refusals) -> None:
        self.refusals += 1
        known = one.refusals
        one.refused(refusals)
        if one in self._wanted:
            self._open[one] = None
        if one.refusals != known:
            logger.warning(
                "nats-subscription-refused subject=%s reason=%s", one.refused_subjects, one.problem
            )

    def disconnected(self) -> None:
        """Note that there is no connection any more."""
        for one in self._wanted:
            one.confirmed = False
        self._open = dict(self._wanted)

    def gap(self, reason: str) -> None:
        """Report to every subscription that messages may have been missed."""
        for one in self._wanted:
            if one.was_confirmed:
                one.on_gap(reason)

    def missing(self, now: float) -> list[LinkSubscription]:
        """Return the subscriptions to request. These are subscriptions that were added without a
        connection and, from time to time, subscriptions that NATS refused. The pause between two
        requests doubles each time."""
        for one in [one for one in self._open if one.confirmed]:
            del self._open[one]
        missing = [one for one in self._open if not one.problem]
        if now >= self._ask_again_at:
            missing += [one for one in self._open if one.problem]
            self._ask_again_at = now + self._ask_again_seconds
            self._ask_again_seconds = min(self._ask_again_seconds * 2, _ASK_AGAIN_SECONDS[1])
        return missing

    def unconfirmed_among(self, asked: Iterable[LinkSubscription]) -> list[LinkSubscription]:
        """Return the subscriptions in `asked` that are still wanted and not confirmed yet."""
        return [one for one in asked if one in self._wanted and not one.confirmed]

    def shorten_pause(self) -> None:
        """Repeat refused requests soon, because NATS has just granted a subscription that it had
        refused before."""
        self._ask_again_seconds = _ASK_AGAIN_SECONDS[0]

    def ask_at_once(self) -> None:
        self.shorten_pause()
        self._ask_again_at = 0.0
