"""Records the answers that clients of a metadata store got, and checks that one history explains
them.

Each value of a key names itself and the value that it replaces. So the values that took effect form
one chain, from the last value back to the first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

START = "start"
"""The value that the first value of a key replaces."""


class Written(NamedTuple):
    label: str
    parent: str
    began: float
    ended: float
    outcome: str
    """made, lost, unknown or unavailable."""
    revision: int


class Seen(NamedTuple):
    label: str
    began: float
    ended: float
    is_confirmed: bool


class Held(NamedTuple):
    holder: str
    seen_free: float
    """Time at which the holder was told that the key does not exist."""
    deadline: float
    """The last deadline, or the time at which the holder gave up the key."""


def value_of(label: str, parent: str) -> bytes:
    return json.dumps([label, parent]).encode()


def label_of(value: bytes | None) -> str:
    return START if value is None else str(json.loads(value)[0])


@dataclass
class KeyHistory:
    """One key that many clients write by compare-and-set."""

    written: dict[str, Written] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)

    def problems(self, last: str) -> list[str]:
        """Return the problems. `last` is the label of the value at the end."""
        found: list[str] = []
        chain = self._chain(last, found)
        place = {label: number for number, label in enumerate(chain)}
        for one in self.written.values():
            if one.outcome == "made" and one.label not in place:
                found.append(f"lost: {one}")
            if one.outcome in ("lost", "unavailable") and one.label in place:
                found.append(f"applied, and the client was told that it was not: {one}")
        made = sorted(
            (one for one in self.written.values() if one.outcome == "made" and one.label in place),
            key=lambda one: place[one.label],
        )
        for one, after in pairwise(made):
            if after.revision <= one.revision:
                found.append(f"revisions do not rise: {one} {after}")
        newest = -1.0
        for one in made:
            if one.ended < newest:
                found.append(f"took effect before a change that began after its end: {one}")
            newest = max(newest, one.began)
        self._check_reads(place, made, found)
        return found

    def _chain(self, last: str, found: list[str]) -> list[str]:
        """Return the chain from the first value to the last."""
        chain: dict[str, None] = {}
        label = last
        while label != START:
            one = self.written.get(label)
            if one is None or label in chain:
                found.append(f"a value that no client wrote: {label}")
                break
            chain[label] = None
            label = one.parent
        return list(chain)[::-1]

    def _check_reads(self, place: dict[str, int], made: list[Written], found: list[str]) -> None:
        found.extend(
            f"read, and gone later: {read}"
            for read in self.seen
            if read.label != START and read.label not in place
        )
        confirmed = [
            (read.began, read.ended, place.get(read.label, -1), str(read))
            for read in self.seen
            if read.is_confirmed
        ]
        marks = [(one.began, one.ended, place[one.label], str(one)) for one in made]
        # No change that had ended before a read began may be newer than the result of the read.
        ends = sorted((ended, number) for _, ended, number, _ in confirmed + marks)
        index, newest = 0, -1
        for began, _, number, what in sorted(confirmed):
            while index < len(ends) and ends[index][0] < began:
                newest = max(newest, ends[index][1])
                index += 1
            if number < newest:
                found.append(f"a confirmed read went back, to {number} from {newest}: {what}")
        begun = {place[one.label]: one.began for one in made}
        found.extend(
            f"read before it was written: {what}"
            for _, ended, number, what in confirmed
            if begun.get(number, ended) > ended
        )


def overlaps(held: list[Held]) -> list[str]:
    """Return the cases in which a key seemed free before its holder's deadline had passed."""
    found = []
    in_order = sorted(held, key=lambda one: one.seen_free)
    for one, after in pairwise(in_order):
        if one.deadline > after.seen_free:
            found.append(f"{one} overlaps with {after}")
    return found
