"""Verifies a stream's files: reports damage, recorded losses and unfinished tails.

Damage means that readers cannot get acked records. Bytes after the last whole batch are not damage
if they were never acked: a running daemon is writing them, or the next start cuts them off.

A `Finding` describes both a problem that verify finds and a step of a repair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from liftlog.log.files.filesystem import OsFile
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry, read_manifest
from liftlog.log.offline.files import (
    FILES,
    StreamFacts,
    StreamFiles,
    opened,
    read_facts,
    segment_bytes,
    segments_on_disk,
)
from liftlog.log.segment.tail import ActiveState, Damage, judge_tail, resync_behind
from liftlog.log.segment.walk import Missing, is_covered, readable_again

DAMAGE = "damage"
KNOWN = "known"
NOTE = "note"

MANIFEST = "manifest"
QUARANTINE = "quarantine"
LIFTED = "lifted"
TAIL = "tail"
RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem that verify found, or one step of a repair, and its place.

    `kind` of a problem: damage; known (a daemon found and quarantined it before); note (harmless).
    `kind` of a step: manifest (written again), quarantine (readers get an error for the range),
    lifted (a quarantined range that is readable), tail (bytes that are cut off), recovery (other
    actions of recovery).

    The offsets are [first_offset, next_offset); both are None if the finding is not about offsets.
    """

    kind: str
    text: str
    segment: str = ""
    position: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None


@dataclass(slots=True)
class StreamReport:
    name: str
    segment_count: int = 0
    batch_count: int = 0
    record_count: int = 0
    size_bytes: int = 0
    first_offset: int | None = None
    end_offset: int | None = None
    findings: list[Finding] = field(default_factory=list)

    def of_kind(self, kind: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind == kind]


def verify_stream(
    stream: StreamFiles, read: Callable[[str, int], None] = lambda name, size: None
) -> StreamReport:
    """Read every byte of the stream. `read` is called with the name of the stream and the size of
    each segment.

    Raises OSError, UnsupportedFormat.
    """
    return _Verification(stream, read_facts(stream), read).run()


class _Verification:
    """The state of one verification; used once."""

    def __init__(
        self, stream: StreamFiles, facts: StreamFacts, read: Callable[[str, int], None]
    ) -> None:
        self.stream = stream
        self.read = read
        self.facts = facts
        self.report = StreamReport(stream.name)
        manifest = facts.manifest
        self.segments = segments_on_disk(stream.path)
        self.log_start = 0
        self.quarantined: tuple[QuarantinedRange, ...] = ()
        if manifest is not None:
            self.segments = list(manifest.segments)
            self.log_start = manifest.log_start_offset
            self.quarantined = manifest.quarantined
        self.expected: int | None = None  # base offset expected of the next segment

    def run(self) -> StreamReport:
        report = self.report
        if self.facts.manifest is None:
            if not self.facts.problem and not any(map(self._has_bytes, self.segments)):
                self._add(NOTE, "no data: a stream that is just being created or deleted")
                return report
            problem = self.facts.problem or "there is no manifest"
            self._add(DAMAGE, f"{problem}; the segments are judged by themselves")
        for problem in self.facts.copies:
            self._add(DAMAGE, f"{problem}; the other copy is used")
        for problem in self.facts.erased_problems:
            self._add(DAMAGE, f"{problem}; it says which records are erased")
        for bad in self.quarantined:
            if bad.next_offset > self.log_start:
                text = f"lost before: {bad.reason}"
                self._add(KNOWN, text, bad.segment, bad.position, bad.first_offset, bad.next_offset)
        for number, entry in enumerate(self.segments):
            self._segment(entry, is_last=number == len(self.segments) - 1)
        report.first_offset = self.log_start or (
            self.segments[0].base_offset if self.segments else None
        )
        report.end_offset = self.expected
        end = self.expected
        if self.facts.manifest is not None and end is not None and end < self.facts.acked_end:
            text = "the end of the log is missing, and it was acked"
            self._lost(text, self.segments[-1].file_name, None, end, self.facts.acked_end)
        return report

    def _has_bytes(self, entry: SegmentEntry) -> bool:
        try:
            return (self.stream.path / entry.file_name).stat().st_size > 0
        except FileNotFoundError:
            return False

    # --- findings ---

    def _add(
        self,
        kind: str,
        text: str,
        segment: str = "",
        position: int | None = None,
        first: int | None = None,
        following: int | None = None,
    ) -> None:
        self.report.findings.append(Finding(kind, text, segment, position, first, following))

    def _lost(
        self, text: str, segment: str, position: int | None, first: int, following: int
    ) -> None:
        """Report offsets without records as damage, unless the loss is recorded or below the log
        start."""
        if following <= self.log_start:
            self._add(NOTE, f"below the log's start: {text}", segment, position, first, following)
        elif not is_covered(first, following, self.quarantined):
            self._add(DAMAGE, text, segment, position, first, following)

    # --- segments ---

    def _segment(self, entry: SegmentEntry, *, is_last: bool) -> None:
        if self.expected is not None and entry.base_offset != self.expected:
            if entry.base_offset > self.expected:
                text = "no segment holds these offsets"
                self._lost(text, "", None, self.expected, entry.base_offset)
            else:
                text = f"it begins before offset {self.expected}, where the one before it ends"
                self._add(DAMAGE, text, entry.file_name)
        try:
            with opened(self.stream.path / entry.file_name) as file:
                self.report.segment_count += 1
                self._batches(entry, file, is_active=is_last)
        except FileNotFoundError:
            self._missing_segment(entry, is_active=is_last)

    def _missing_segment(self, entry: SegmentEntry, *, is_active: bool) -> None:
        """Report a missing segment, unless retention deleted it since the manifest was read."""
        now = read_manifest(FILES, self.stream.path) if self.facts.manifest else None
        if now is not None and entry.file_name not in {s.file_name for s in now.segments}:
            self._add(NOTE, "deleted by the daemon meanwhile", entry.file_name)
            self.log_start = max(self.log_start, now.log_start_offset)
            self.expected = None
            return
        following = entry.next_offset
        if is_active:
            following = max(self.facts.acked_end, entry.base_offset)
        if following > entry.base_offset:
            self._lost("the file is missing", entry.file_name, 0, entry.base_offset, following)
        elif is_active:
            self._add(DAMAGE, "the file is missing", entry.file_name)
        self.expected = max(following, entry.base_offset)

    def _batches(self, entry: SegmentEntry, file: OsFile, *, is_active: bool) -> None:
        """Check the batches. `is_active` means that the manifest does not contain the segment's
        end."""
        name = entry.file_name
        found = segment_bytes(
            self.stream.path, entry, file, self.facts.manifest, is_active=is_active
        )
        knows_end, size, data_end = found.knows_end, found.size, found.data_end
        if knows_end and size < entry.size_bytes:
            text = f"the file has {size:,} bytes, the manifest says {entry.size_bytes:,}"
            self._add(NOTE, text, name)
        if knows_end and found.index is None:
            self._add(NOTE, "its index is missing or bad; it is rebuilt when needed", name)
        end, records, epoch, used = entry.base_offset, 0, 0, 0
        missing: list[Missing] = []
        for item in found.walk():
            if isinstance(item, Missing):
                missing.append(item)
            else:
                header = item.batch.header
                self.report.batch_count += 1
                records += header.record_count
                if self.facts.erased is not None:
                    records -= self.facts.erased.count_in(header.base_offset, header.next_offset)
                end, epoch = header.next_offset, header.leader_epoch
                used = item.position + header.length  # zeros may end it, past `data_end`
                continue
            if not knows_end and self._is_unfinished(file, item, data_end, epoch):
                unfinished = data_end - item.position
                bytes_ = "1 byte" if unfinished == 1 else f"{unfinished:,} bytes"
                text = f"{bytes_} of a write that was never acked"
                self._add(NOTE, text, name, item.position, item.first_offset)
                data_end = item.position
                break
            end = item.first_offset
            if item.next_offset is not None:
                self._lost(item.reason, name, item.position, end, item.next_offset)
                end = item.next_offset
            else:
                end = self._bad_end(entry, item, knows_end=knows_end)
        if knows_end and end < entry.next_offset:
            self._lost("the end of the file is missing", name, size, end, entry.next_offset)
        if knows_end:
            self._readable_again(entry, missing)
            end = max(end, entry.next_offset)
        self.report.record_count += records
        self.report.size_bytes += max(data_end, used)
        self.read(self.stream.name, max(data_end, used))
        self.expected = end

    def _readable_again(self, entry: SegmentEntry, missing: list[Missing]) -> None:
        name = entry.file_name
        damage = [
            QuarantinedRange(
                one.first_offset,
                entry.next_offset if one.next_offset is None else one.next_offset,
                name,
                one.position,
                one.end_position,
                one.reason,
            )
            for one in missing
        ]
        known = [bad for bad in self.quarantined if bad.segment == name]
        for bad in readable_again(known, damage, entry)[0]:
            text = "it reads well again: a scrub or `liftlog log repair` lifts it"
            self._add(NOTE, text, name, bad.position, bad.first_offset, bad.next_offset)

    def _bad_end(self, entry: SegmentEntry, item: Missing, *, knows_end: bool) -> int:
        """Report damage that no good batch follows; return the offset where the log continues."""
        after_header = item.header.next_offset if item.header is not None else item.first_offset
        following = max(entry.next_offset if knows_end else self.facts.acked_end, after_header)
        if following > item.first_offset:
            self._lost(item.reason, entry.file_name, item.position, item.first_offset, following)
        else:
            self._add(DAMAGE, item.reason, entry.file_name, item.position, item.first_offset)
        return following

    def _is_unfinished(self, file: OsFile, item: Missing, data_end: int, epoch: int) -> bool:
        """Return True if the next start would cut off this tail, because it was never acked."""
        facts = self.facts
        if facts.manifest is None or item.size_bytes == 0:
            return False
        if is_covered(item.first_offset, item.first_offset + 1, self.quarantined):
            return False
        damage = Damage(item.position, item.first_offset, item.reason, item.header)
        good = replace(
            ActiveState.empty("", 0),
            position=item.position,
            next_offset=item.first_offset,
            leader_epoch=epoch,
        )
        verdict = judge_tail(
            damage,
            resync_behind(file, damage, good, data_end),
            recovery_point=facts.recovery_point,
            slot=facts.slot,
            reserved_offset=facts.manifest.reserved_offset,
        )
        return verdict.cut
