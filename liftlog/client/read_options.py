"""The keyword arguments of `read_batches` and `read`, of both clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from liftlog.client.read_ahead import OnCorrupt
from liftlog.client.resets import OnReset, ResetCallback
from liftlog.client.selecting import Column, Filter


class ReadOptions(TypedDict, total=False):
    """All are optional.

    `filter` and `columns` choose what the daemon sends: which records, and what of them. Of a
    record's columns those left out are empty: timestamp 0, subject "", no key, no headers, and the
    value b"" (but None for a tombstone, so that nothing looks deleted that is not).

    `fetch_bytes` is what is asked for at once, `read_ahead_bytes` how much may wait for the
    application.

    `on_corrupt`: damaged records end the read with CorruptRange, whose `first_offset` and
    `next_offset` say exactly which are gone ("raise"); or a warning is logged and the read goes on
    behind them ("skip"); or a callable is called with the CorruptRange, and the read goes on.

    `on_reset`: when the place where the read was to go on is gone (OffsetOutOfRange, Diverged,
    StaleIncarnation), end with that error, or log a warning, call `reset_callback` if there is one,
    and go on at the log start ("earliest") or at the high watermark ("latest").

    `incarnation` and `epoch` are what was read from before, for a read that goes on from a stored
    position: if the stream was made anew or has lost what was read, that is told.
    """

    filter: Filter | None
    columns: Sequence[Column] | None
    fetch_bytes: int
    read_ahead_bytes: int
    on_corrupt: OnCorrupt
    on_reset: OnReset
    reset_callback: ResetCallback | None
    incarnation: str | None
    epoch: int | None
