"""Which sealed segments consist of small batches."""

from __future__ import annotations

from collections.abc import Sequence

from liftlog.log import Log
from liftlog.log.rewrite import RebatchJob, needs_rebatch
from liftlog.log.segment import Segment
from liftlog.server.cleaning.compaction import compaction_of, damaged_files
from liftlog.settings import StreamSettings

_LOOK_AT_ONCE = 64
_SECOND_NS = 1_000_000_000


class SmallBatches:
    """Looks at each segment of a stream once. A rewritten segment is a new one, and is looked at
    again."""

    def __init__(self) -> None:
        self._judged: set[str] = set()
        self._all_judged: tuple[Segment, ...] = ()

    def candidates(self, log: Log, settings: StreamSettings, now_ns: int) -> list[Segment]:
        """Some of the segments that were not looked at yet. Costs nothing for an idle stream."""
        segments = log.segments
        if not settings.rebatch.enabled or self._all_judged is segments:
            return []
        oldest_ns = now_ns - int(settings.rebatch.min_age_seconds * _SECOND_NS)
        damaged = damaged_files(log)
        # Compaction will soon rewrite the segments that it has not cleaned yet.
        end = segments[-1].base_offset if compaction_of(settings) is None else log.cleaned_below
        found: list[Segment] = []
        waiting = False
        for segment in segments:
            name = segment.path.name
            if not segment.sealed or name in self._judged or name in damaged:
                continue
            if segment.next_offset > end or segment.max_timestamp_ns > oldest_ns:
                waiting = True
            elif len(found) < _LOOK_AT_ONCE:
                found.append(segment)
        if not found:
            self._judged &= {segment.path.name for segment in segments}
            if not waiting:
                self._all_judged = segments
        return found

    def find(
        self, log: Log, candidates: Sequence[Segment], compression: str = "none"
    ) -> RebatchJob | None:
        """A job for the first of them that needs one, or None when none does.

        Reads the end of an index file for each: call it in a thread. Raises OSError.
        """
        for segment in candidates:
            self._judged.add(segment.path.name)
            if needs_rebatch(log.environment.fs, log.directory, segment.entry()):
                return RebatchJob(
                    str(log.directory),
                    segment.entry(),
                    compression=compression,
                    epochs=log.epochs,
                )
        return None

    def look_again(self, file_name: str) -> None:
        """The job for this segment failed: judge it again."""
        self._judged.discard(file_name)
        self._all_judged = ()
