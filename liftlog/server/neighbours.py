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
    for host in hosts:
        host.sequencer.ack_subjects = ack_subjects
        host.sequencer.sibling_streams = {
            other.name.encode(): other.settings.subject
            for other in hosts
            if other is not host and not share_messages(host.settings, other.settings)
        }
    return ack_subjects
