"""The epoch table of a log: the offset at which each leader epoch begins.

A table is a tuple of pairs (epoch, first offset), both ascending. The manifest of a log stores the
table. Two logs agree up to the end of the newest epoch that both have, because an epoch has one
leader, and a leader assigns each offset once. So a follower finds the offset where its log diverges
from the leader's by comparing tables.
"""

from __future__ import annotations

EpochTable = tuple[tuple[int, int], ...]

NO_EPOCH = 0
"""A number below every epoch, which stands for a log without records."""


def last_epoch(epochs: EpochTable, log_end: int) -> int:
    """Return the epoch of the last record below `log_end`; NO_EPOCH if there is no record."""
    for epoch, start in reversed(epochs):
        if start < log_end:
            return epoch
    return NO_EPOCH


def end_of_epoch(epochs: EpochTable, epoch: int, log_end: int) -> tuple[int, int]:
    """Return the newest epoch in the table that is at most `epoch`, and the exclusive end of its
    records.

    Returns NO_EPOCH and the first offset of the table if all its epochs are newer.
    """
    end = log_end
    for found, start in reversed(epochs):
        if found <= epoch:
            return found, end
        end = start
    return NO_EPOCH, end


def begin_epoch(epochs: EpochTable, epoch: int, log_end: int) -> EpochTable:
    """Return the table for a leader that appends from `log_end` on. The result omits an epoch
    without records."""
    return (*cut(epochs, log_end), (epoch, log_end))


def between(epochs: EpochTable, first: int, end: int) -> EpochTable:
    """Return the entries for the offsets from `first` to `end`."""
    starts = [max(start, first) for _, start in epochs]
    ends = [*starts[1:], end]
    return tuple(
        (epoch, start)
        for (epoch, _), start, next_start in zip(epochs, starts, ends, strict=True)
        if start < min(next_start, end)
    )


def extend(epochs: EpochTable, more: EpochTable) -> EpochTable:
    """Return the table of a log after the offsets that `more` describes have been appended to it.

    The result omits an epoch without records, whose leader appended nothing: the next epoch begins
    at the same offset. Records from another leader may belong to an older epoch.
    """
    if not more:
        return epochs
    kept = cut(epochs, more[0][1])
    newest = kept[-1][0] if kept else NO_EPOCH
    return (*kept, *(entry for entry in more if entry[0] > newest))


def cut(epochs: EpochTable, log_end: int) -> EpochTable:
    """Return the table without the epochs that begin at or past `log_end`."""
    return tuple(entry for entry in epochs if entry[1] < log_end)


def divergence(
    epochs: EpochTable, log_end: int, last: int, offset: int, *, has_all: bool
) -> tuple[int, int] | None:
    """Return the epoch and the end up to which another log may agree with this one; None if the
    whole other log agrees.

    The other log ends at `offset`, and its last record has the epoch `last`, or NO_EPOCH if it is
    empty. An empty log cannot diverge. `has_all` is True if the other log has all committed records
    of this log.
    """
    if last == NO_EPOCH:
        return (NO_EPOCH, log_end) if offset > log_end else None
    epoch, end = end_of_epoch(epochs, last, log_end)
    if epoch == NO_EPOCH and has_all:
        # Retention here has deleted the whole last epoch of the other log. That log has all
        # committed records, and only committed ones are deleted, so the logs agree there.
        epoch = last
    return (epoch, end) if epoch < last or end < offset else None
