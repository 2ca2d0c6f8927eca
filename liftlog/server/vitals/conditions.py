"""The one list of conditions, that is, of the daemon's problems, which every surface shows.

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
_SHARE = 10.0
_MAX_AGE_SECONDS = 0.25
_CHEAP_SECONDS = 0.001

MayRead = Callable[[str], bool]


class Severity(Enum):
    """The severity of a condition, the worst first."""

    UNREADY = "unready"
    """The daemon should not receive clients: `/readyz` answers 503."""
    ERROR = "error"
    """A part of the daemon is broken; the other parts work."""
    WARNING = "warning"
    """Everything works, and an operator should look."""


class About(Enum):
    """The subject of a condition."""

    DAEMON = "daemon"
    STREAM = "stream"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of condition. `meaning` is a sentence for the reference page, `next_step` is the first
    action of an operator.

    If `concerns_streams`, each stream of the daemon also has the condition as a warning, because
    publishers or readers of the stream notice it.
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
            "wait: after an unclean stop it scans what was written since the last recovery point",
        ),
        Kind(
            "nats",
            Severity.UNREADY,
            "There is no connection to NATS, so no message arrives.",
            "check that the NATS server runs, `nats.servers`, and the login",
        ),
        Kind(
            "streams",
            Severity.UNREADY,
            "NATS has not confirmed a subscription that a stream needs, or refuses it.",
            "give the daemon's NATS user the permission: `liftlog docs how-to/nats`",
        ),
        Kind(
            "disk",
            Severity.UNREADY,
            "The data directory cannot be written, or a commit waits for its disk. Publishers are "
            "refused with 503, or get no answer.",
            "make room or mend the disk: `liftlog docs how-to/operate` (LiftlogDiskFull)",
            concerns_streams=True,
        ),
        Kind(
            "cluster",
            Severity.UNREADY,
            "The metadata store does not renew the session of this node, or replicas here are not "
            "in sync yet after a start.",
            "see `liftlog cluster status`, and `liftlog docs how-to/cluster-faults`",
        ),
        Kind(
            "newer_version",
            Severity.UNREADY,
            "A newer liftlog has written the stream in a way that this version does not know, so "
            "it is not open. Its files stay as they are.",
            "upgrade this daemon, or go back to the version that has run before: "
            "`liftlog docs how-to/upgrade`",
            About.STREAM,
        ),
        Kind(
            "draining",
            Severity.UNREADY,
            "The daemon is stopping.",
            "connect to another daemon, or wait until this one has started again",
        ),
        Kind(
            "failed_streams",
            Severity.ERROR,
            "The stream could not be opened, or its storage has failed. Publishers are refused.",
            "the reason names the cause: mend it and restart the daemon; for damaged files see "
            "`liftlog log verify`",
            About.STREAM,
        ),
        Kind(
            "refusing",
            Severity.ERROR,
            "The last commit of the stream failed, less than five minutes ago: its messages were "
            "refused with 503.",
            "make room or mend the disk: `liftlog docs how-to/operate` (LiftlogRefusing)",
            About.STREAM,
        ),
        Kind(
            "no_leader",
            Severity.ERROR,
            "No node of the cluster leads the stream: its messages are not recorded, and it cannot "
            "be read.",
            "see `liftlog cluster status`, and `liftlog docs how-to/cluster-faults`",
            About.STREAM,
        ),
        Kind(
            "lost_records",
            Severity.ERROR,
            "Records that were acked cannot be read any more.",
            "`liftlog docs how-to/damage`",
            About.STREAM,
        ),
        Kind(
            "records",
            Severity.ERROR,
            "The file `records` of the data directory cannot be read, so it is not known which "
            "streams the directory has had. Those that are there are served; none is created.",
            "put the file back; if no directory of a stream is missing, remove it and restart the "
            "daemon: `liftlog docs how-to/operate` (LiftlogStreamNotOpened)",
        ),
        Kind(
            "known_records",
            Severity.ERROR,
            "The file `known-records` of the node's data directory cannot be read, so it is not "
            "known which streams the directory has had, and whether the metadata store was set "
            "back. The node leads and follows no stream until the file can be read.",
            "mend what the text names. If the file is gone for good, remove it: then a copy "
            "that is missing counts as lost",
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
            "Changes of consumers with acks cannot be stored, so nothing is delivered to them and "
            "no ack is confirmed. Publishing goes on.",
            "make room or mend the disk: the daemon tries again by itself",
        ),
        Kind(
            "consumers_uncertain",
            Severity.WARNING,
            "Stored changes of consumers with acks are lost to damage. They continue from an older "
            "state, so messages that were acked may be delivered again.",
            "check the disk, and whether workers tolerate repeated messages; a consumer that is "
            "created again is certain",
        ),
        Kind(
            "newer_records",
            Severity.ERROR,
            "A newer liftlog has stored checkpoints or consumer groups in a form that this version "
            "does not know. They are kept, but can be neither read nor changed here.",
            "upgrade this daemon, or delete them if they are not needed (`liftlog offsets rm`, "
            "`liftlog group rm`): `liftlog docs how-to/upgrade`",
        ),
        Kind(
            "descriptors",
            Severity.ERROR,
            "The daemon has hardly any file descriptors left: connections and new streams are "
            "refused, and reads may be.",
            "raise its limit (`LimitNOFILE=` of the unit), or close connections: "
            "`liftlog docs how-to/sizing`",
        ),
        Kind(
            "cleaning",
            Severity.WARNING,
            "The last job of compaction, re-batching or scrubbing has failed.",
            "see `cleaning-failed` in the log of the daemon; it is tried again by itself",
            About.STREAM,
        ),
        Kind(
            "clock",
            Severity.WARNING,
            "The wall clock jumped, or differs from the clocks of other nodes. Nothing is deleted "
            "for its age for an hour, or until they are measured alike. After a jump ahead, ages "
            "are judged as if it had not happened, until it is confirmed.",
            "set the clock that is wrong; if one that jumped is right, restart with "
            "`liftlog serve --believe-clock`: `liftlog docs how-to/retention`",
        ),
        Kind(
            "clock_skew",
            Severity.WARNING,
            "The clock of the node differs from that of the daemon by more than a few seconds; one "
            "of them is wrong. A node whose clock differs from most by a minute deletes nothing "
            "for its age.",
            "compare `date` on the nodes, and have a service such as chrony set their clocks",
            About.NODE,
        ),
        Kind(
            "stamps_ahead",
            Severity.WARNING,
            "Records of the stream have timestamps ahead of the clock: the clock is wrong, or was.",
            "compare the clock with those of other machines; if it is right, no action is "
            "needed: `liftlog docs how-to/retention`",
            About.STREAM,
        ),
        Kind(
            "nats_refused",
            Severity.WARNING,
            "NATS refuses a subscription that no stream needs.",
            "give the daemon's NATS user the permission, or turn off what needs it: "
            "`liftlog docs how-to/nats`",
        ),
        Kind(
            "acks_refused",
            Severity.WARNING,
            "NATS has refused acks in the last five minutes; their publishers time out.",
            "allow the daemon's NATS user to publish to the reply subjects: "
            "`liftlog docs how-to/nats`",
        ),
        Kind(
            "jetstream",
            Severity.WARNING,
            "A stream of JetStream acks the same messages, and publishers take the first ack.",
            "set `acks: off` for the stream, or remove the stream of JetStream",
            About.STREAM,
        ),
        Kind(
            "jetstream_api",
            Severity.WARNING,
            "JetStream's clients get no answer from this daemon.",
            "`liftlog docs reference/jetstream-api`",
        ),
        Kind(
            "worker_acks",
            Severity.WARNING,
            "NATS refuses the acks or pulls for consumers with acks: their messages are delivered "
            "again, or not at all.",
            "allow the daemon's NATS user to subscribe to the subjects: `liftlog docs how-to/nats`",
            About.STREAM,
        ),
        Kind(
            "lame_duck",
            Severity.WARNING,
            "The NATS server is about to stop, and no other server was found yet.",
            "start another server of the cluster, or name more of them in `nats.servers`",
        ),
        Kind(
            "reload",
            Severity.WARNING,
            "A file was not reloaded: the one that was read before holds.",
            "correct the file and reload again (`liftlog reload`)",
        ),
        Kind(
            "restart",
            Severity.WARNING,
            "Settings were changed in their source and need a restart.",
            "restart the daemon when it suits",
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

    `subject` names the stream or node if the kind is about one. `streams` are further streams,
    listed after the text; each viewer sees only those that they may read.
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
        """Return the condition as a viewer sees it; None if it is about a stream that they may not
        read."""
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
    """Return at most twenty conditions of each kind, and one that counts the others of its kind.

    This keeps answers short if there are thousands of streams. `conditions` has the worst first,
    and so has the result.
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
        """Add a function that yields the problems of this moment; it must neither wait nor take
        long. Each call of `now` awaits `refresh` first, which measures values that `producer`
        needs."""
        self._producers.append(producer)
        if refresh is not None:
            self._refreshers.append(refresh)

    async def now(self, may_read: MayRead | None = None) -> list[Condition]:
        """Return the conditions, the worst first; with `may_read` only those that a viewer may see.

        With many streams it takes a while to collect them, and any client may ask. So a list that
        took long is reused for ten times as long as that, at most for a quarter of a second.
        """
        for refresh in self._refreshers:
            await refresh()
        began = time.monotonic()
        if began >= self._good_until:
            self._found = self._look()
            took = time.monotonic() - began
            if took > _CHEAP_SECONDS:
                self._good_until = began + min(took * _SHARE, _MAX_AGE_SECONDS)
        if may_read is None:
            return list(self._found)
        shown = (one.shown_to(may_read) for one in self._found)
        return [one for one in shown if one is not None]

    def _look(self) -> list[Condition]:
        found = [one for producer in self._producers for one in producer()]
        return sorted(found, key=lambda one: (_PLACES[one.kind.name], one.subject))
