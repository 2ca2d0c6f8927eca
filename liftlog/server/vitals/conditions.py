"""The one list of conditions (problems of the daemon) that every surface shows.

The surfaces are `/readyz`, `liftlog health`, `info`, `stream info`, `top` and `doctor`, every web
page, the pull protocol and the metrics. To add a condition, add its kind to `KINDS`, and pass a
function to `Conditions.add` that yields a `Condition` of that kind. Every surface then shows it,
`make pages` documents it, and `tests/integration/test_conditions.py` looks for it on every surface.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

_MAX_NAMED = 20
_SHARE = 100.0
_MAX_AGE_SECONDS = 1.0
_CHEAP_SECONDS = 0.001

MayRead = Callable[[str], bool]


class Severity(Enum):
    """The severity of a condition, the worst first."""

    UNREADY = "unready"
    """The daemon should not receive clients: `/readyz` answers 503."""
    ERROR = "error"
    """A part of the daemon is broken; the other parts work."""
    WARNING = "warning"
    """All parts work, but an operator should look at the problem."""


class About(Enum):
    """The subject of a condition."""

    DAEMON = "daemon"
    STREAM = "stream"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of condition. `meaning` is a sentence for the reference page, `next_step` is the first
    action of an operator.

    If `concerns_streams` is true, each stream of the daemon also shows the condition as a warning,
    because publishers or readers of the stream are affected.
    """

    name: str
    severity: Severity
    meaning: str
    next_step: str
    about: About = About.DAEMON
    concerns_streams: bool = False


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "recovery",
            Severity.UNREADY,
            "The daemon has started and is still opening its streams.",
            "wait: after an unclean stop the daemon scans the records after the last recovery "
            "point",
        ),
        Kind(
            "nats",
            Severity.UNREADY,
            "The daemon has no connection to NATS, so no message arrives.",
            "check `nats.servers` and the login, and that the NATS server runs",
        ),
        Kind(
            "streams",
            Severity.UNREADY,
            "NATS has not confirmed a subscription that a stream needs, or refuses this "
            "subscription. Or the daemon answers no requests of JetStream's clients yet "
            "(`nats.jetstream_api`).",
            "wait, if the daemon has just started; if NATS refuses the subscription, give the "
            "daemon's NATS user the permission: `liftlog docs how-to/nats`",
        ),
        Kind(
            "disk",
            Severity.UNREADY,
            "The daemon cannot write to the data directory, or a commit waits for the disk. "
            "Publishers receive refusals with 503, or no answer.",
            "free space or repair the disk: `liftlog docs how-to/operate` (LiftlogDiskFull)",
            concerns_streams=True,
        ),
        Kind(
            "cluster",
            Severity.UNREADY,
            "This node cannot renew its session in the metadata store. Or the node has started, "
            "and some of its replicas are not in sync yet.",
            "see `liftlog cluster status`, and `liftlog docs how-to/cluster-faults`",
        ),
        Kind(
            "newer_version",
            Severity.UNREADY,
            "A newer version of liftlog has written the stream in a form that this version does "
            "not support. So the daemon does not open the stream, and does not change its files.",
            "upgrade this daemon, or return to the version that ran before: `liftlog docs "
            "how-to/upgrade`",
            About.STREAM,
        ),
        Kind(
            "draining",
            Severity.UNREADY,
            "The daemon is stopping.",
            "connect to another daemon, or wait until this daemon has started again",
        ),
        Kind(
            "failed_streams",
            Severity.ERROR,
            "The daemon could not open the stream, or the storage of the stream has failed. The "
            "daemon refuses messages for the stream.",
            "remove the cause, which the reason names, and restart the daemon; for damaged files "
            "see `liftlog log verify`",
            About.STREAM,
        ),
        Kind(
            "refusing",
            Severity.ERROR,
            "The last commit of the stream failed less than five minutes ago. The daemon "
            "refused its messages with 503.",
            "free space or repair the disk: `liftlog docs how-to/operate` (LiftlogRefusing)",
            About.STREAM,
        ),
        Kind(
            "no_leader",
            Severity.ERROR,
            "No node of the cluster leads the stream, so its messages are not recorded, and "
            "clients cannot read it.",
            "see `liftlog cluster status`, and `liftlog docs how-to/cluster-faults`",
            About.STREAM,
        ),
        Kind(
            "lost_records",
            Severity.ERROR,
            "Acked records of the stream are damaged or lost, and cannot be read.",
            "`liftlog docs how-to/damage`",
            About.STREAM,
        ),
        Kind(
            "records",
            Severity.ERROR,
            "The daemon cannot read the file `records`, which lists all streams that the data "
            "directory has had. It serves the existing streams, but cannot create streams.",
            "restore the file; or, if no directory of a stream is missing, remove the file and "
            "restart the daemon: `liftlog docs how-to/operate` (LiftlogStreamNotOpened)",
        ),
        Kind(
            "known_records",
            Severity.ERROR,
            "The node cannot read the file `known-records`, which has the newest metadata that "
            "the node has received. So the node cannot detect missing streams, or an older state "
            "of the metadata store. It leads and follows no stream until it can read the file.",
            "repair the cause that the text names. If the file cannot be recovered, remove it: "
            "then each missing copy counts as lost",
        ),
        Kind(
            "checkpoints",
            Severity.ERROR,
            "Consumers can neither store nor read checkpoints.",
            "see `checkpoints-not-opened` in the log of the daemon, or `liftlog cluster status`",
        ),
        Kind(
            "consumers_not_stored",
            Severity.ERROR,
            "The daemon cannot store changes of consumers with acks, so it delivers no message "
            "to them and confirms no ack. It continues to store messages.",
            "free space or repair the disk; the daemon then continues without a restart",
        ),
        Kind(
            "consumers_uncertain",
            Severity.WARNING,
            "The stored changes of some consumers with acks are damaged and lost. These consumers "
            "continue from an older state, so they may deliver acked messages again.",
            "check the disk, and whether workers tolerate repeated messages; for a consumer "
            "that you delete and create again, the condition ends",
        ),
        Kind(
            "newer_records",
            Severity.ERROR,
            "A newer version of liftlog has stored checkpoints or consumer groups in a form that "
            "this version does not support. The daemon keeps them, but can neither read nor "
            "change them.",
            "upgrade this daemon; if these checkpoints and groups are not needed, delete them "
            "(`liftlog offsets rm`, `liftlog group rm`): `liftlog docs how-to/upgrade`",
        ),
        Kind(
            "descriptors",
            Severity.ERROR,
            "The daemon has almost no free file descriptors. It refuses connections and new "
            "streams, and may refuse reads.",
            "raise the daemon's limit (`LimitNOFILE=` of the unit), or close connections: "
            "`liftlog docs how-to/sizing`",
        ),
        Kind(
            "cleaning",
            Severity.WARNING,
            "The last job of compaction, re-batching or scrubbing has failed.",
            "see `cleaning-failed` in the log of the daemon; the daemon repeats the job later",
            About.STREAM,
        ),
        Kind(
            "clock",
            Severity.WARNING,
            "The wall clock jumped, or differs from the clocks of other nodes. For an hour after "
            "a jump, or until the clocks agree, the daemon deletes no records by age. After a jump "
            "ahead, it computes ages without the jump until an operator confirms the time.",
            "set the wrong clock; if the clock is right after the jump, restart with `liftlog "
            "serve --believe-clock`: `liftlog docs how-to/retention`",
        ),
        Kind(
            "clock_skew",
            Severity.WARNING,
            "The clock of the node differs from the clock of the daemon by more than a few "
            "seconds, so one of the clocks is wrong. If the clock of a node differs from most "
            "clocks by a minute, the node deletes no records by age.",
            "compare `date` on the nodes, and have a service such as chrony set their clocks",
            About.NODE,
        ),
        Kind(
            "stamps_ahead",
            Severity.WARNING,
            "Records of the stream have timestamps ahead of the clock. The clock is wrong, or "
            "was wrong when the records were stored.",
            "compare the clock with the clocks of other machines; if it is right, no action is "
            "needed: `liftlog docs how-to/retention`",
            About.STREAM,
        ),
        Kind(
            "nats_refused",
            Severity.WARNING,
            "NATS refuses a subscription of an optional feature. All streams still receive their "
            "messages.",
            "give the daemon's NATS user the permission, or switch off the feature: `liftlog "
            "docs how-to/nats`",
        ),
        Kind(
            "acks_refused",
            Severity.WARNING,
            "NATS has refused acks in the last five minutes. The publishers of these messages "
            "time out.",
            "allow the daemon's NATS user to publish to the reply subjects: "
            "`liftlog docs how-to/nats`",
        ),
        Kind(
            "jetstream",
            Severity.WARNING,
            "A stream of JetStream also acks the messages of this stream. Publishers use the ack "
            "that arrives first.",
            "set `acks: off` for the stream, or remove the stream of JetStream",
            About.STREAM,
        ),
        Kind(
            "jetstream_api",
            Severity.WARNING,
            "The daemon does not answer requests of JetStream's clients.",
            "`liftlog docs reference/jetstream-api`",
        ),
        Kind(
            "worker_acks",
            Severity.WARNING,
            "NATS refuses the daemon's subscriptions to acks or pulls of consumers with acks. If "
            "the daemon receives no acks, it delivers messages again. If it receives no pulls, "
            "it delivers no messages.",
            "allow the daemon's NATS user to subscribe to the subjects: `liftlog docs how-to/nats`",
            About.STREAM,
        ),
        Kind(
            "lame_duck",
            Severity.WARNING,
            "The NATS server will stop soon, and the daemon has not found another server yet.",
            "start another server of the cluster, or name more servers in `nats.servers`",
        ),
        Kind(
            "reload",
            Severity.WARNING,
            "At the last reload, the daemon refused a file. It continues to use the previous "
            "content of this file.",
            "correct the file and reload again (`liftlog reload`)",
        ),
        Kind(
            "restart",
            Severity.WARNING,
            "The sources of the settings contain changes that need a restart.",
            "restart the daemon at a suitable time",
        ),
    )
}

_SEVERITIES = list(Severity)
_PLACES = {
    kind.name: place
    for place, kind in enumerate(
        sorted(KINDS.values(), key=lambda kind: _SEVERITIES.index(kind.severity))
    )
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One problem that exists now.

    `subject` is the name of the stream or node that the condition concerns; empty if it concerns
    none. `streams` are further streams. They are listed after the text, and a viewer sees only
    those that the viewer may read.
    """

    kind: Kind
    text: str
    subject: str = ""
    streams: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, name: str, text: str, subject: str = "", *, streams: Iterable[str] = ()
    ) -> Condition:
        """Return a condition of the kind with this name."""
        return cls(KINDS[name], text, subject, tuple(sorted(streams)))

    @property
    def is_unready(self) -> bool:
        return self.kind.severity is Severity.UNREADY

    @property
    def words(self) -> str:
        """The text, followed by the names of `streams`; without the subject."""
        return f"{self.text}: {_listed(self.streams, ', ')}" if self.streams else self.text

    @property
    def sentence(self) -> str:
        """The subject, followed by the words."""
        return f"{self.subject}: {self.words}" if self.subject else self.words

    def shown_to(self, may_read: MayRead) -> Condition | None:
        """Return the condition in the form for a viewer; None if it concerns a stream that the
        viewer may not read."""
        if self.kind.about is About.STREAM and not may_read(self.subject):
            return None
        if not self.streams:
            return self
        return replace(self, streams=tuple(filter(may_read, self.streams)))

    def to_wire(self) -> dict[str, Any]:
        return {
            "name": self.kind.name,
            "severity": self.kind.severity.value,
            "about": self.kind.about.value,
            "subject": self.subject,
            "text": self.words,
            "next_step": self.kind.next_step,
        }


def sentences_by_kind(conditions: Iterable[Condition]) -> dict[str, list[str]]:
    """Return the sentences, by the name of the kind."""
    found: dict[str, list[str]] = {}
    for one in conditions:
        found.setdefault(one.kind.name, []).append(one.sentence)
    return found


def by_kind(conditions: Iterable[Condition]) -> dict[str, str]:
    """Return one text for each kind, with at most twenty subjects."""
    return {name: _listed(texts, "; ") for name, texts in sentences_by_kind(conditions).items()}


def first_of_each_kind(conditions: Iterable[Condition]) -> list[Condition]:
    """Return at most twenty conditions of each kind. If a kind has more conditions, one further
    condition states how many are left out.

    The limit keeps answers short if there are thousands of streams. In `conditions` and in the
    result, the worst conditions come first.
    """
    shown: list[Condition] = []
    counts: Counter[str] = Counter()
    for one in conditions:
        counts[one.kind.name] += 1
        if counts[one.kind.name] <= _MAX_NAMED:
            shown.append(one)
    for name, count in counts.items():
        if count > _MAX_NAMED:
            text = f"{count - _MAX_NAMED:,} more like this; `{_command_for(name)}` lists them"
            shown.append(Condition.of(name, text))
    return sorted(shown, key=lambda one: _PLACES[one.kind.name])


def _command_for(name: str) -> str:
    about = KINDS[name].about
    if name == "no_leader" or about is About.NODE:
        return "liftlog cluster status"
    return "liftlog stream ls --troubled" if about is About.STREAM else "liftlog health"


def _listed(texts: Sequence[str], between: str) -> str:
    more = len(texts) - _MAX_NAMED
    shown = between.join(texts[:_MAX_NAMED])
    if more <= 0:
        return shown
    return f"{shown}{between}and {more:,} more" if between == "; " else f"{shown} and {more:,} more"


Producer = Callable[[], Iterable[Condition]]


class Conditions:
    """The list of conditions. Belongs to the event loop."""

    def __init__(self) -> None:
        self._producers: list[Producer] = []
        self._refreshers: list[Callable[[], Awaitable[object]]] = []
        self._found: list[Condition] = []
        self._good_until = float("-inf")

    def add(
        self, producer: Producer, *, refresh: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        """Add a function that yields the problems of this moment. The function must not wait, and
        must not take long. Each call of `now` first awaits `refresh`, which measures the values
        that `producer` needs."""
        self._producers.append(producer)
        if refresh is not None:
            self._refreshers.append(refresh)

    async def now(self, may_read: MayRead | None = None) -> list[Condition]:
        """Return the conditions, the worst first. If `may_read` is given, return only conditions
        that the viewer may see.

        With many streams, collecting the conditions takes long, and any client may request them. A
        list that took more than a millisecond of processor time is reused. It is reused for a
        hundred times that duration, but at most for a second.
        """
        for refresh in self._refreshers:
            await refresh()
        now = time.monotonic()
        if now >= self._good_until:
            began = time.thread_time()
            self._found = self._look()
            took = time.thread_time() - began
            if took > _CHEAP_SECONDS:
                self._good_until = now + min(took * _SHARE, _MAX_AGE_SECONDS)
        if may_read is None:
            return list(self._found)
        shown = (one.shown_to(may_read) for one in self._found)
        return [one for one in shown if one is not None]

    def _look(self) -> list[Condition]:
        found = [one for producer in self._producers for one in producer()]
        return sorted(found, key=lambda one: (_PLACES[one.kind.name], one.subject))
