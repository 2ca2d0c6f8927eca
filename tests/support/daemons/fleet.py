"""Three streams under load with different settings: plain, compacted by key, and with short
retention.

The background work of a daemon (rolls, compaction, re-batching, retention, checkpoints) runs with
the smallest limits, so that a crash at any moment interrupts some of this work.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from support.clients.ingesting import AckedPublisher, describe, until
from support.clients.ledger import PATIENCE, Ledger
from support.clients.readback import read_back
from support.daemons.daemon import Daemon

from liftlog.log.files.manifest import SKIPPED

IN_FLIGHT = 40
FLUSH_MESSAGES = 200
KEYS = 50

DAEMON = {
    "log": {"recovery_checkpoint_interval": "100ms", "retention_interval": "100ms"},
    "cleaner": {"interval": "100ms"},
    "nats": {"reconnect_wait": "50ms"},
}
STREAMS: dict[str, dict[str, Any]] = {
    "plain": {"rebatch": {"min_age": "0s"}},
    "keyed": {"compaction": {"min_dirty_ratio": 0.2}, "dedupe_window": "0s"},
    "short": {"retention": {"max_bytes": "96KiB"}, "dedupe_window": "0s"},
}


class Fleet:
    """The publishers and recorded results of the three streams, on subjects below `prefix`."""

    def __init__(self, port: int, prefix: str, durability: str = "fsync") -> None:
        self.durability = durability
        self.settings: dict[str, Any] = {
            **DAEMON,
            "streams": {
                name: {
                    "subject": f"{prefix}.{name}.>",
                    "durability": durability,
                    "flush": {"messages": FLUSH_MESSAGES, "interval": "1s"},
                    "segment": {"max_bytes": "32KiB"},
                    **special,
                }
                for name, special in STREAMS.items()
            },
        }
        self.ledgers = {
            name: Ledger(
                [
                    AckedPublisher(
                        port,
                        f"{prefix}.{name}.{i}",
                        in_flight=IN_FLIGHT,
                        pad=100,
                        keys=KEYS if name == "keyed" else 0,
                    )
                    for i in range(2)
                ]
            )
            for name in STREAMS
        }
        self._lost: dict[str, set[int]] = {name: set() for name in STREAMS}

    def start(self) -> None:
        for ledger in self.ledgers.values():
            ledger.start()

    def finish(self, daemon: Daemon) -> None:
        """Stop publishing, and wait until all messages can be read."""
        for ledger in self.ledgers.values():
            ledger.finish()
        for name in STREAMS:
            until(lambda name=name: _committed(daemon, name), PATIENCE)  # type: ignore[misc]

    def wait_acked(self, more: int) -> None:
        for ledger in self.ledgers.values():
            ledger.wait_acked(more)

    def wait_settled(self) -> None:
        for ledger in self.ledgers.values():
            ledger.wait_settled()

    def acked(self) -> dict[str, set[int]]:
        return {name: set(ledger.acked()) for name, ledger in self.ledgers.items()}

    def high_watermarks(self, daemon: Daemon) -> dict[str, int]:
        return {name: int(describe(daemon, name).high_watermark) for name in STREAMS}

    def check(
        self,
        daemon: Daemon,
        acked: dict[str, set[int]] | None = None,
        *,
        may_lose_from: dict[str, int] | None = None,
        disk_died: bool = False,
        unreadable: Mapping[str, Set[int]] | None = None,
    ) -> None:
        """Check every stream against its recorded results. Records whose loss was once allowed may
        stay lost. `unreadable` are the offsets, by stream, on pages that the disk does not return.
        Readers must get an error for each of these that is missing, and no other record may be
        missing.

        Publishers send slowly during the check, because all later rounds have to read their
        messages. Without this, each round would take longer than the one before, and a campaign
        would never end.
        """
        for ledger in self.ledgers.values():
            ledger.ease(True)
        try:
            self._compare(daemon, acked, may_lose_from, disk_died, unreadable)
        finally:
            for ledger in self.ledgers.values():
                ledger.ease(False)

    def _compare(
        self,
        daemon: Daemon,
        acked: dict[str, set[int]] | None,
        may_lose_from: dict[str, int] | None,
        disk_died: bool,
        unreadable: Mapping[str, Set[int]] | None,
    ) -> None:
        for name, ledger in self.ledgers.items():
            found = read_back(daemon, name)
            lost = ledger.check(
                found.records,
                acked=(set(ledger.acked()) if acked is None else acked[name]) - self._lost[name],
                may_lose_from=None if may_lose_from is None else may_lose_from[name],
                gone_below=describe(daemon, name).log_start_offset,
                refused_may_be_stored=disk_died,
                keys=KEYS if name == "keyed" else 0,
                excused=[range(*told) for told in found.damaged] if unreadable else (),
            )
            untold = [
                offset
                for offset in lost
                if not any(first <= offset < following for first, following in found.damaged)
            ]
            assert not untold, f"{name}: {untold} were acked and are gone, and no reader was told"
            if unreadable is not None:
                assert set(lost) <= self._lost[name] | unreadable[name], name
                self._lost[name].update(lost)
                continue
            if self.durability == "interval":
                assert len(lost) <= FLUSH_MESSAGES + 2 * IN_FLIGHT, name
            self._lost[name].update(lost)
            if self.durability == "fsync":
                assert not found.damaged, (name, found.damaged, describe(daemon, name))
                # Offsets of a torn tail that was never acked may be skipped, and are reported.
                reasons = {bad["reason"] for bad in describe(daemon, name).quarantined}
                assert reasons <= {SKIPPED}, name


def _committed(daemon: Daemon, stream: str) -> bool:
    info = describe(daemon, stream)
    return bool(info.high_watermark == info.log_end_offset)
