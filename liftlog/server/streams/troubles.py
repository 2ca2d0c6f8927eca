"""What is wrong with streams that are served all the same, in words: for `/readyz`, `health`, web.

Warnings, not reasons to be called not ready: to send clients away from this daemon would neither
bring lost records back nor mend compaction, and would take all other streams from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from liftlog.log import Log
from liftlog.server.commits.host import StreamHost

_MAX_STREAMS = 20
_MAX_RANGES = 3


def stream_troubles(
    hosts: Mapping[str, StreamHost],
    failures: Mapping[str, str],
    may_read: Callable[[str], bool] = lambda name: True,
) -> dict[str, str]:
    """By kind: `lost_records`, `cleaning`. Only of streams that `may_read` is true for.

    `failures` are those of the cleaner, by stream.
    """
    lost = {
        name: words
        for name, host in hosts.items()
        if may_read(name) and host.log.quarantined and (words := _lost(host.log))
    }
    failing = {name: words for name, words in failures.items() if may_read(name)}
    found = {"lost_records": _listed(lost), "cleaning": _listed(failing)}
    return {kind: text for kind, text in found.items() if text}


def _lost(log: Log) -> str:
    """Of what the stream still reaches back to."""
    start = log.log_start_offset
    ranges = sorted(
        (max(start, bad.first_offset), bad.next_offset, bad.reason)
        for bad in log.quarantined
        if bad.is_loss and bad.next_offset > start
    )
    if not ranges:
        return ""
    count = sum(following - first for first, following, _ in ranges)
    places = [
        f"[{first:,}, {following:,}) {reason}" for first, following, reason in ranges[:_MAX_RANGES]
    ]
    return f"{count:,} offsets cannot be read: {_joined(places, len(ranges))}"


def _listed(by_stream: Mapping[str, str]) -> str:
    names = sorted(by_stream)
    shown = [f"{name}: {by_stream[name]}" for name in names[:_MAX_STREAMS]]
    return _joined(shown, len(names))


def _joined(shown: Sequence[str], count: int) -> str:
    more = count - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
