"""The offsets that a deliver policy has chosen: the newest records of each subject."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from liftlog.errors import LimitExceeded

_CLOSE = 512
"""Maximum gap, in offsets, between two wanted records that are read in one piece."""
_LONGEST_RUN = 4096
"""Maximum number of records in one piece. The limit exists because the search for the end of a
piece runs in the event loop."""


def has(chosen: Sequence[int], offset: int) -> bool:
    """Return True if the ascending offsets contain this one."""
    place = bisect_left(chosen, offset)
    return place < len(chosen) and chosen[place] == offset


def end_of_run(chosen: Sequence[int], place: int) -> int:
    """Return the offset after the last record of the first run. A run consists of chosen offsets
    with only small gaps between them."""
    end = chosen[place]
    for at in range(place + 1, min(place + _LONGEST_RUN, len(chosen))):
        if chosen[at] - end > _CLOSE:
            break
        end = chosen[at]
    return end + 1


def too_many() -> LimitExceeded:
    return LimitExceeded(
        "the last record of each subject: the stream has too many records to search",
        hint="choose fewer with a filter, or read with the pull API",
    )
