"""One handover of the leadership in simulated time, between two nodes on different NATS servers,
while publishers continue. The servers exchange subscriptions with a delay.

`liftlog.cluster.handover` decides. This module simulates messages in flight, slow commits, steps
that fail or whose outcome is lost, a store that applies a change late, and a giver that dies.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from liftlog.cluster.handover import (
    DIGEST_BYTES,
    HOLD_SECONDS,
    SPREAD_SECONDS,
    Giver,
    Offer,
    Step,
    Taker,
)
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.transitions import create

GIVER, TAKER = "giver", "taker"
KEY = b"k" * 16


class Miscounted(AssertionError):
    """A message is missing, was stored twice, refused, or got no answer."""


@dataclass(slots=True)
class Message:
    publisher: int
    number: int
    has_reply: bool
    published: float

    @property
    def digest(self) -> bytes:
        return (self.publisher * 1_000_000 + self.number).to_bytes(DIGEST_BYTES, "big")


@dataclass
class Node:
    name: str
    server: int
    is_subscribed: bool = False
    """True if the node's own server has the subscription."""
    generation: int = 0
    """Number of the subscription. Messages for an earlier subscription are dropped."""
    arrives: float = 0.0
    """Time at which the newest message to the node arrives. Messages arrive in order."""


@dataclass
class Trouble:
    """The probability of each fault, per handover or step."""

    failing: float = 0.0
    """A step fails at the taker."""
    unanswered: float = 0.0
    """A step succeeds, and its outcome is lost."""
    late_change: float = 0.0
    """The change of the record is applied long after the giver has ended the handover."""
    death: float = 0.0
    """The giver dies, and the taker is elected."""


@dataclass
class HandoverWorld:
    seed: int
    is_shared: bool = False
    servers: int = 3
    trouble: Trouble = field(default_factory=Trouble)
    make_giver: type[Giver] = Giver
    make_taker: type[Taker[Message]] = Taker
    spread: float = SPREAD_SECONDS
    stop_at: Step | None = None
    """The step of the giver during which, or shortly after which, the taker is asked to stop. This
    is a planned stop, so no message may be lost."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 100.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.nodes = {name: Node(name, self.random.randrange(self.servers)) for name in
                      (GIVER, TAKER)}  # fmt: skip
        self.known = {(server, GIVER) for server in range(self.servers)}
        """The subscriptions that each server has received."""
        self.nodes[GIVER].is_subscribed = True
        self.record = create("s", "i", {}, (GIVER, TAKER), starts={GIVER: 1, TAKER: 1})
        self.seen = {GIVER: self.record, TAKER: self.record}
        offer = Offer("s", "i", 1, GIVER, KEY, is_shared=self.is_shared)
        self.giver = self.make_giver(offer)
        self.taker: Taker[Message] | None = None
        self.logs: dict[str, list[Message]] = {GIVER: [], TAKER: []}
        self.committed = {GIVER: 0, TAKER: 0}
        self.acked: Counter[int] = Counter()
        self.messages: list[Message] = []
        self.refused: list[Message] = []
        self.losses: list[str] = []
        self.is_dead = False
        self.is_stopping = self.has_gone = False
        """The taker."""
        self._accepts = {GIVER: True, TAKER: False}
        self._next_number = Counter[int]()

    # --- time ------------------------------------------------------------------------

    def at(self, delay: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), act))

    def delay(self) -> float:
        return self.random.choice((0.0005, 0.001, 0.003, 0.02)) * (0.5 + self.random.random())

    def run(self) -> None:
        end = self.now + (3.0 if self.trouble == Trouble() else 2 * HOLD_SECONDS)
        self._publish_until = end - 1.5
        for publisher in range(3):
            self._publish(publisher, self.random.randrange(self.servers))
        self.at(self.random.random() * 0.1, lambda: self._do(self.giver.begin(self.now)))
        if self.random.random() < self.trouble.death:
            self.at(self.random.random() * 0.6, self._die)
        while self._events and self.now < end:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.check()

    # --- NATS ------------------------------------------------------------------------

    def _publish(self, publisher: int, server: int) -> None:
        number = self._next_number[publisher]
        self._next_number[publisher] += 1
        message = Message(publisher, number, self.random.random() < 0.5, self.now)
        self.messages.append(message)
        interested = [name for name in self.nodes if (server, name) in self.known]
        if not interested and message.has_reply:
            self.refused.append(message)
        if self.is_shared and interested:
            interested = [self.random.choice(interested)]
        for name in interested:
            self._route(message, name, server)
        if self.now < self._publish_until:
            # Often at times when a handover is likely to take place or to be undone.
            is_busy = self.now < 102.0 or 105.0 < self.now < 107.0
            pause = 0.001 + self.random.random() * (0.02 if is_busy else 0.2)
            self.at(pause, lambda: self._publish(publisher, server))

    def _route(self, message: Message, name: str, server: int) -> None:
        node = self.nodes[name]
        way = 0.0 if node.server == server else self.delay()
        # Each route between two servers, and each connection, keeps the order.
        arrives = self._ways[server, name] = max(
            self._ways.get((server, name), 0.0), self.now + way
        )
        self.at(arrives - self.now, lambda: self._at_server(message, name))

    _ways: dict[tuple[int, str], float] = field(default_factory=dict)

    def _at_server(self, message: Message, name: str) -> None:
        node = self.nodes[name]
        if node.is_subscribed:
            node.arrives = max(node.arrives, self.now + self.delay())
            of = node.generation
            self.at(node.arrives - self.now, lambda: self._arrives(message, name, of))
        elif self.is_shared:  # a server without a member sends to another one
            others = [one for one in self.nodes if one != name]
            if (node.server, others[0]) in self.known:
                self._route(message, others[0], node.server)

    def subscribe(self, name: str, then: Callable[[], None]) -> None:
        """Subscribe. Calls `then` when the node's server has confirmed."""
        node = self.nodes[name]

        def made() -> None:
            node.is_subscribed = True
            node.generation += 1
            for server in range(self.servers):
                wait = 0.0 if server == node.server else self.random.random() * SPREAD_SECONDS * 0.9
                self.at(wait, lambda server=server: self._know(server, name))
            self._confirm(node, then)

        self.at(self.delay(), made)

    def unsubscribe(self, name: str, then: Callable[[], None]) -> None:
        node = self.nodes[name]

        def made() -> None:
            node.is_subscribed = False
            self.known.discard((node.server, name))
            for server in range(self.servers):
                self.at(self.delay(), lambda server=server: self._know(server, name))
            self._confirm(node, then)

        self.at(self.delay(), made)

    def _know(self, server: int, name: str) -> None:
        change = self.known.add if self.nodes[name].is_subscribed else self.known.discard
        change((server, name))

    def _confirm(self, node: Node, then: Callable[[], None]) -> None:
        """Call `then` after all messages in flight to the node have arrived."""
        node.arrives = max(node.arrives, self.now + self.delay())
        self.at(node.arrives - self.now, then)

    # --- what the nodes do with messages -------------------------------------------------

    def _stop_taker(self) -> None:
        """Check repeatedly whether the taker may stop. While it leads, it does not stop, because it
        would begin another handover of the same kind."""
        self.is_stopping = True
        leads = self.seen[TAKER].leader == TAKER
        if not leads and (self.taker is None or not self.taker.is_needed(self.now)):
            self.has_gone, self.taker = True, None
            self.unsubscribe(TAKER, lambda: None)
        else:
            self.at(0.01, self._stop_taker)

    def _arrives(self, message: Message, name: str, generation: int) -> None:
        if self.is_dead if name == GIVER else self.has_gone:
            return
        if generation != self.nodes[name].generation:
            return
        if name == TAKER and self.taker is not None:
            digests = [message.digest] if self.taker.wants_digests(self.now) else ()
            rows = self.taker.arrived(message, 1, digests, 100, self.now)
            if rows:
                self._store(message, TAKER)
            return
        if name == TAKER and not self._accepts[TAKER]:
            return  # its subscription has ended, so it refuses nothing
        if name == GIVER and self.giver.is_noting:
            self.giver.received([message.digest])
        self._store(message, name)

    def _store(self, message: Message, name: str) -> None:
        if not self._accepts[name]:
            if message.has_reply:
                self.refused.append(message)
            return
        self.logs[name].append(message)
        end = len(self.logs[name])
        self.at(4 * self.delay(), lambda: self._commit(name, end))

    def _commit(self, name: str, end: int) -> None:
        """Commit. The other node has the records, too, unless the epoch has ended."""
        if name == GIVER and (self.is_dead or self.record.leader != GIVER):
            return
        log, before = self.logs[name], self.committed[name]
        if name == GIVER:
            self.logs[TAKER] = log[: max(end, len(self.logs[TAKER]))]
        self.committed[name] = max(before, end)
        for message in log[before:end]:
            self.acked[id(message)] += message.has_reply

    # --- the giver -----------------------------------------------------------------------

    def _do(self, step: Step) -> None:
        if self.is_dead or step is Step.OVER:
            return
        serial = self._serial = self._serial + 1
        if step is self.stop_at:
            self.at(self.random.choice((0.0, 0.002, 0.02, 0.3)), self._stop_taker)
        self.at(self.giver.seconds_left(self.now), lambda: self._fail(serial))
        {
            Step.PREPARE: lambda: self._ask(serial, self._prepare),
            Step.SUBSCRIBE: lambda: self._ask(serial, self._let_subscribe),
            Step.SPREAD: lambda: self.at(self.spread, lambda: self._done(serial)),
            Step.UNSUBSCRIBE: lambda: self.unsubscribe(GIVER, lambda: self._done(serial)),
            Step.COMMIT: lambda: self._wait_committed(serial),
            Step.TELL: lambda: self._ask(serial, self._tell),
            Step.TRANSFER: lambda: self._transfer(serial),
        }[step]()

    _serial: int = 0

    def _done(self, serial: int) -> None:
        if serial == self._serial and not self.is_dead:
            self._do(self.giver.done(self.now))

    def _fail(self, serial: int, *, is_declined: bool = False) -> None:
        if serial != self._serial or self.is_dead or self.giver.step is Step.OVER:
            return
        self._serial += 1
        undo = self.giver.failed(is_declined=is_declined)
        if undo.loss:
            self.losses.append(undo.loss)
        drop = self._drop if undo.drop else lambda: None
        if undo.subscribe:
            self.subscribe(GIVER, drop)
        else:
            drop()

    def _ask(self, serial: int, work: Callable[[Callable[[bool], None]], None]) -> None:
        lost = self.random.random() < self.trouble.unanswered

        def answered(ok: bool) -> None:
            if not lost:
                self.at(self.delay(), lambda: (self._done if ok else self._fail)(serial))

        def arrived() -> None:
            # A stopping process answers requests until its end.
            if self.is_stopping and (self.taker is None or not self.taker.is_relied_on):
                self.at(self.delay(), lambda: self._fail(serial, is_declined=True))
            else:
                work(answered)

        if self.random.random() < self.trouble.failing:
            self.at(self.delay(), lambda: self._fail(serial))
        else:
            self.at(self.delay(), arrived)

    def _prepare(self, answer: Callable[[bool], None]) -> None:
        self.taker = self.make_taker(self.giver.offer)
        self.at(self.random.random() * 0.3, lambda: answer(True))

    def _let_subscribe(self, answer: Callable[[bool], None]) -> None:
        taker = self.taker
        assert taker is not None
        taker.subscribes()

        def confirmed() -> None:
            taker.subscribed(self.now)
            self.at(HOLD_SECONDS + 0.1, self._look_at_taker)
            answer(True)

        self.subscribe(TAKER, confirmed)

    def _wait_committed(self, serial: int) -> None:
        if self.committed[GIVER] >= len(self.logs[GIVER]):
            self._done(serial)
        elif serial == self._serial:
            self.at(0.001, lambda: self._wait_committed(serial))

    def _tell(self, answer: Callable[[bool], None]) -> None:
        taker = self.taker
        if taker is not None:
            taker.told(KEY, len(self.logs[GIVER]), self.giver.told(10), self.now)
        answer(taker is not None and not taker.problem)

    def _drop(self) -> None:
        if self.random.random() >= self.trouble.unanswered:
            self.at(self.delay(), self._let_go)

    def _let_go(self) -> None:
        if self.taker is not None and not self.taker.leads:
            self.taker.broken("dropped")
            self._look_at_taker()

    def _look_at_taker(self) -> None:
        if self.taker is not None and self.taker.is_over(self.now):
            self.taker = None
            if self.record.leader != TAKER:
                self.unsubscribe(TAKER, lambda: None)

    def _transfer(self, serial: int) -> None:
        is_late = self.random.random() < self.trouble.late_change
        wait = self.giver.seconds_left(self.now) + self.random.random() if is_late else self.delay()

        def applied() -> None:
            if self.record.leader == GIVER and not self.is_dead:
                self._lead()
                if not is_late:
                    self.at(self.delay(), lambda: self._done(serial))

        self.at(wait, applied)

    def _die(self) -> None:
        self.is_dead = True
        self.losses.append("the giver died")
        self.nodes[GIVER].is_subscribed = False
        for server in range(self.servers):
            self.known.discard((server, GIVER))
        self.at(1.0 + self.random.random(), lambda: self.record.leader == GIVER and self._lead())

    # --- the taker leads -----------------------------------------------------------------

    def _lead(self) -> None:
        record = self.record
        self.record = StreamMetadata(
            record.name, record.incarnation, record.settings, record.replicas, TAKER,
            record.leader_epoch + 1, record.isr, starts=record.starts, version=record.version + 1,
        )  # fmt: skip
        self._accepts[GIVER] = False
        self.at(self.delay(), self._take)

    def _take(self) -> None:
        if self.has_gone:
            return
        self.seen[TAKER] = self.record
        self._accepts[TAKER] = True
        self.committed[TAKER] = len(self.logs[TAKER])
        if self.nodes[GIVER].is_subscribed:
            self.unsubscribe(GIVER, lambda: None)
        held = None if self.taker is None else self.taker.take(len(self.logs[TAKER]), self.now)
        if held is None:
            self.losses.append("no messages were held")
            # Its subscription may still deliver messages that the giver has stored.
            self.taker = None
            self.nodes[TAKER].generation += 1

            def again() -> None:
                self.at(SPREAD_SECONDS, lambda: self.subscribe(TAKER, lambda: None))

            self.unsubscribe(TAKER, again)
            return
        for message, rows in held:
            if rows:
                self._store(message, TAKER)

    # --- what must hold ------------------------------------------------------------------

    def check(self) -> None:
        log = self.logs[self.record.leader or ""]
        stored = Counter(map(id, log))
        for message in self.messages:
            times = stored[id(message)]
            if times > 1:
                raise Miscounted(f"stored {times} times: {message}")
            if self.acked[id(message)] and not times:
                raise Miscounted(f"acked and lost: {message}")
            if self.losses:
                continue
            if not times:
                raise Miscounted(f"lost: {message}")
            if message.has_reply and self.acked[id(message)] != 1:
                raise Miscounted(f"acked {self.acked[id(message)]} times: {message}")
        if self.stop_at is not None and self.losses:
            raise Miscounted(f"a planned stop has lost something: {self.losses}")
        if self.refused and not self.losses:
            raise Miscounted(f"refused: {self.refused}")
        if not self.is_shared:
            for publisher in range(3):
                numbers = [one.number for one in log if one.publisher == publisher]
                if numbers != sorted(numbers):
                    raise Miscounted(f"publisher {publisher} is out of order")
        if self.trouble == Trouble() and self.stop_at is None and self.record.leader != TAKER:
            raise Miscounted("the lead has not moved")
