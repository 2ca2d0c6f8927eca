"""Information about other streams that each stream needs: the subjects to which it must not send
acks, and the other streams that ack a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from acl.subjects import matches_any, overlap_any
from liftlog.sequencing import Destinations
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings

_DEPTH = 3
"""Number of tokens by which subjects are grouped. It is 3 because the subjects of many streams may
begin with the same one or two tokens, such as `$KV`."""


class Neighbours:
    """Gives each stream the information that it needs about other streams. Belongs to the event
    loop."""

    def __init__(
        self,
        hosts: Mapping[str, StreamHost],
        chosen: Sequence[str],
        elsewhere: Callable[[], Mapping[str, StreamSettings]],
    ) -> None:
        """`chosen` are subjects to which the operator allows acks. `elsewhere` returns all streams
        of the cluster, including streams that have no host on this node: acks must not be sent to
        the subjects of any stream."""
        self._chosen = tuple(chosen)
        self.destinations = Destinations(chosen=self._chosen)
        """The subjects to which acks, answers and records may be sent."""
        self._hosts = hosts
        self._elsewhere = elsewhere
        self._recorded: dict[str, StreamSettings] = {}
        """The settings of all streams, as of the last change."""
        self._recorders = Recorders(self._recorded)
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
        # Streams with the same neighbours share a map. If each of a thousand streams had its own
        # map, the update would block the event loop for a second.
        self._siblings = {}
        for host in hosts:
            self.joined(host)

    def added(self, host: StreamHost) -> None:
        """Add a new stream, as `changed` does. The time does not grow with the number of streams.
        Only a stream with a new queue group is compared with all streams."""
        name, settings = host.name, host.settings
        if name in self._recorded or self._hosts.get(name) is not host:
            self.changed()
            return
        others = self._recorders.of_subjects(settings.subjects)
        if len(others) < len(self._warnings):
            for other in others:
                self._warnings.pop(other, None)
        else:
            self._warnings.clear()
        self._recorded[name] = settings
        self._recorders.add(name, settings)
        if settings.acks == "off":
            self.destinations.add(witnesses=settings.subjects)
        else:
            self.destinations.add(settings.subjects)
        for group, siblings in self._siblings.items():
            if group is None or group != settings.queue_group:
                siblings[name.encode()] = settings.subjects
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

    def overlapping(self, subjects: Sequence[str]) -> dict[str, StreamSettings]:
        """Return the streams that may store a message on one of these patterns. This includes the
        daemon's own streams and, in a cluster, the streams of other nodes."""
        near = self._recorders.of_subjects(subjects)
        return {name: one for name, one in near.items() if overlap_any(one.subjects, subjects)}

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
    """Groups streams by the first tokens of their subjects. With thousands of streams, comparing
    each stream with every other stream would take half a minute."""

    def __init__(self, recorded: Mapping[str, StreamSettings]) -> None:
        self._recorded = recorded
        self._all = _Group()
        for name, settings in recorded.items():
            self.add(name, settings)

    def add(self, name: str, settings: StreamSettings) -> None:
        """Add a stream that the caller has already added to the mapping `recorded`."""
        for subject in settings.subjects:
            group = self._all
            for token in subject.split(".", _DEPTH)[:_DEPTH]:
                group = group.below.setdefault(token, _Group())
            group.names.append(name)

    def of_subjects(self, subjects: Sequence[str]) -> Mapping[str, StreamSettings]:
        """Return all streams that may record a message on one of these patterns; the result may
        also contain other streams."""
        names = {name for one in subjects for name in self._near(one.split(".", _DEPTH)[:_DEPTH])}
        return {name: self._recorded[name] for name in names}

    def _near(self, tokens: Sequence[str]) -> Iterator[str]:
        groups = [self._all]
        for token in tokens:
            reached: list[_Group] = []
            for group in groups:
                if token == ">":
                    for one in group.below.values():
                        yield from one.all_names()
                    continue
                if (whole := group.below.get(">")) is not None:
                    yield from whole.names
                if token == "*":
                    reached += [one for other, one in group.below.items() if other != ">"]
                else:
                    reached += filter(None, map(group.below.get, (token, "*")))
            groups = reached
        for group in groups:
            yield from group.names


class _Group:
    """The streams with subjects that begin with the same tokens."""

    __slots__ = ("below", "names")

    def __init__(self) -> None:
        self.names: list[str] = []
        """The streams with a subject that ends here. At the greatest depth, also the streams with a
        subject that continues."""
        self.below: dict[str, _Group] = {}
        """The groups with one token more, by that token."""

    def all_names(self) -> Iterator[str]:
        yield from self.names
        for one in self.below.values():
            yield from one.all_names()


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
