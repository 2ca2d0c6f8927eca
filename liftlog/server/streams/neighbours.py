"""Information about other streams that each stream needs: the subjects to which it must not send
acks, and the other streams that ack a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from acl.subjects import matches_any, overlap_any
from liftlog.sequencing import Destinations
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings

_WILDCARDS = ("*", ">")


class Neighbours:
    """Gives each stream this information. Belongs to the event loop."""

    def __init__(
        self,
        hosts: Mapping[str, StreamHost],
        chosen: Sequence[str],
        elsewhere: Callable[[], Mapping[str, StreamSettings]],
    ) -> None:
        """`chosen` are subjects to which the operator allows acks. `elsewhere` returns all streams
        of the cluster, because acks must not be sent to the subjects of any stream, even if it has
        no host on this node."""
        self._chosen = tuple(chosen)
        self.destinations = Destinations(chosen=self._chosen)
        """The subjects to which acks, answers and records may be sent."""
        self._hosts = hosts
        self._elsewhere = elsewhere
        self._recorded: dict[str, StreamSettings] = {}
        """The settings of all streams, as of the last change."""
        self._recorders = Recorders({})
        self._warnings: dict[str, list[str]] = {}
        self._siblings: dict[str | None, dict[bytes, tuple[str, ...]]] = {}

    def changed(self) -> None:
        """Update all streams: give each stream its neighbours, and the subjects to which it must
        not send acks. Call this after streams were created or deleted, or after settings of a
        stream have changed."""
        hosts = list(self._hosts.values())
        self._recorded = {**self._elsewhere(), **{host.name: host.settings for host in hosts}}
        # A host that has failed may still have the subscriptions of its earlier settings.
        recorded = [*self._elsewhere().values(), *(host.settings for host in hosts)]
        self._recorders = Recorders(self._recorded)
        self._warnings.clear()
        self.destinations = Destinations(
            [subject for one in recorded if one.acks != "off" for subject in one.subjects],
            [subject for one in recorded if one.acks == "off" for subject in one.subjects],
            self._chosen,
        )
        # Streams with the same neighbours share a map: a thousand streams with one map each would
        # block the event loop for a second.
        self._siblings = {}
        for host in hosts:
            self.joined(host)

    def joined(self, host: StreamHost) -> None:
        """Update one stream, because its host was replaced by a new host with the same settings."""
        group = host.settings.queue_group
        if group not in self._siblings:
            self._siblings[group] = {
                name.encode(): other.subjects
                for name, other in self._recorded.items()
                if not share_messages(host.settings, other)
            }
        host.set_neighbours(self.destinations, self._siblings[group])

    def recording(self, subject: str) -> list[str]:
        """Return the streams that store and ack a message on this subject."""
        return [
            name
            for name, one in self._recorded.items()
            if one.acks != "off" and matches_any(one.subjects, subject)
        ]

    def warnings(self, host: StreamHost) -> list[str]:
        """Return warnings about other streams that ack the same messages. Computed once per
        change."""
        found = self._warnings.get(host.name)
        if found is None:
            others = self._recorders.of_subjects(host.settings.subjects)
            found = rivals(host.name, host.settings, others)
            self._warnings[host.name] = found
        return found


class Recorders:
    """Groups streams by the first token of their subjects. With thousands of streams, comparing
    each stream with every other stream would take half a minute."""

    def __init__(self, recorded: Mapping[str, StreamSettings]) -> None:
        self._recorded = recorded
        self._by_token: dict[str, dict[str, StreamSettings]] = {}
        for name, settings in recorded.items():
            for subject in settings.subjects:
                self._by_token.setdefault(_first_token(subject), {})[name] = settings

    def of_subjects(self, subjects: Sequence[str]) -> Mapping[str, StreamSettings]:
        """Return all streams that may record a message on one of these patterns; the result may
        also contain other streams."""
        tokens = {_first_token(subject) for subject in subjects}
        if not tokens.isdisjoint(_WILDCARDS):
            return self._recorded
        found: dict[str, StreamSettings] = {}
        for token in (*tokens, *_WILDCARDS):
            found |= self._by_token.get(token, {})
        return found


def _first_token(subject: str) -> str:
    return subject.partition(".")[0]


def share_messages(first: StreamSettings, second: StreamSettings) -> bool:
    """Return True if NATS delivers each message to only one of the two streams. NATS identifies a
    queue group only by its name, so a group may have subscriptions with different patterns."""
    return first.queue_group is not None and first.queue_group == second.queue_group


def rivals(name: str, settings: StreamSettings, others: Mapping[str, StreamSettings]) -> list[str]:
    """Return warnings about streams that would ack the same messages."""
    if settings.acks != "on":
        return []
    found = []
    for other_name, other in others.items():
        if other_name == name or other.acks != "on":
            continue
        if not share_messages(settings, other) and overlap_any(settings.subjects, other.subjects):
            found.append(
                f"stream {other_name} also acks messages on {other.shown_subjects}: publishers "
                "take the first ack they get, which says nothing about the other stream"
            )
    return found
