"""What streams have to know of each other."""

from __future__ import annotations

from collections.abc import Sequence

from liftlog.server.stream_host import StreamHost
from liftlog.server.stream_settings import share_messages
from liftlog.stream import AckSubjects


def introduce(hosts: Sequence[StreamHost]) -> AckSubjects:
    """Tell every stream which subjects acks must not go to, and who its neighbours are. Call it
    when streams come and go, or their settings change."""
    ack_subjects = AckSubjects(
        [host.settings.subject for host in hosts if host.settings.acks != "off"],
        [host.settings.subject for host in hosts if host.settings.acks == "off"],
    )
    # One map for all who have the same neighbours: a thousand streams with a map each would stop
    # the event loop for a second.
    siblings: dict[str | None, dict[bytes, str]] = {}
    for host in hosts:
        group = host.settings.queue_group
        if group not in siblings:
            siblings[group] = {
                other.name.encode(): other.settings.subject
                for other in hosts
                if not share_messages(host.settings, other.settings)
            }
        host.sequencer.ack_subjects = ack_subjects
        host.sequencer.sibling_streams = siblings[group]
    return ack_subjects
