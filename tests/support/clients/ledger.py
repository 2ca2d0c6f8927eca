"""Records the results of publishers during crashes, and compares them with the stored records.

Values are unique per publisher, and offsets define the order. So each promise can be checked
exactly:

- each stored record was published by the publisher that its subject names
- no record is stored twice
- the records of one publisher are in the order of publishing
- each acked message is stored at the offset of its ack, and no offset occurs in two acks
- no refused message is stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from support.clients.ingesting import AckedPublisher, number_of, until

from liftlog.records.decode import Record

PATIENCE = 60.0


class Ledger:
    def __init__(self, publishers: Sequence[AckedPublisher]) -> None:
        self._publishers = {publisher.subject: publisher for publisher in publishers}
        self._seen: dict[int, tuple[str, int]] = {}

    def _acked_count(self) -> int:
        for publisher in self._publishers.values():
            if publisher.error is not None:
                raise publisher.error
        return sum(len(publisher.acked) for publisher in self._publishers.values())

    def wait_acked(self, more: int) -> None:
        wanted = self._acked_count() + more
        until(lambda: self._acked_count() >= wanted, PATIENCE, f"{more} more acks")

    def wait_settled(self) -> None:
        """Wait until every ack that was sent before is counted. Call it while the subject has no
        subscriber.

        Answers arrive in order. So all earlier acks are counted when a publisher gets the answer
        that the subject has no subscriber.
        """
        before = {publisher: publisher.unheard for publisher in self._publishers.values()}
        until(lambda: all(one.unheard > count for one, count in before.items()), PATIENCE)

    def start(self) -> None:
        for publisher in self._publishers.values():
            publisher.start()

    def ease(self, easy: bool) -> None:
        for publisher in self._publishers.values():
            publisher.easy = easy

    def finish(self) -> None:
        for publisher in self._publishers.values():
            publisher.finish()

    def acked(self) -> dict[int, tuple[str, int]]:
        """Return (subject, number) of every acked message by offset. Fails if an offset occurs
        twice."""
        found: dict[int, tuple[str, int]] = {}
        for subject, publisher in self._publishers.items():
            for number, offset in publisher.acked.copy().items():  # its thread may add items
                assert offset > 0
                assert offset not in found, (
                    f"offset {offset} was given to {found[offset]} and to {(subject, number)}"
                )
                found[offset] = (subject, number)
        return found

    def check(
        self,
        records: Sequence[Record],
        *,
        acked: Collection[int] | None = None,
        may_lose_from: int | None = None,
        gone_below: int = 0,
        refused_may_be_stored: bool = False,
        keys: int = 0,
        excused: Sequence[range] = (),
    ) -> list[int]:
        """Check a read of the whole stream, and return the acked offsets that are missing.

        `acked` are the offsets that were acked before the read began (default: all until now). Of
        these, only offsets from `may_lose_from` on, and offsets below `gone_below` (retention) may
        be missing. A record that an earlier read has returned must still exist, unless its offset
        is in those ranges. If the disk had already failed, a refused message may be stored
        (`refused_may_be_stored`). In a stream that is compacted by `keys`, a message may be missing
        if a later message with its key exists, so the newest message of each key must exist. The
        ranges in `excused` were reported as lost.
        """
        promised = self.acked()
        offsets = set(promised) if acked is None else acked
        stored = self._check_stored(records)
        if not refused_may_be_stored:
            assert set(stored.values()).isdisjoint(self._refused()), "what was refused is stored"
        for offset, message in stored.items():
            assert promised.get(offset, message) == message, (
                f"offset {offset} was acked to {promised[offset]} and holds {message}"
            )
            assert self._seen.get(offset, message) == message, (
                f"offset {offset} was read as {self._seen[offset]} and is now {message}"
            )
        missing = sorted(offset for offset in offsets if offset not in stored)
        vanished = sorted(offset for offset in self._seen if offset not in stored)
        if keys:
            newest = {(subject, number % keys): number for subject, number in stored.values()}
            missing, vanished = (
                [offset for offset in lost if not _superseded(books[offset], newest, keys)]
                for lost, books in ((missing, promised), (vanished, self._seen))
            )
        for what, lost in (("acked", missing), ("read before", vanished)):
            unexplained = [
                offset
                for offset in lost
                if offset >= gone_below
                and (may_lose_from is None or offset < may_lose_from)
                and not any(offset in one for one in excused)
            ]
            assert not unexplained, (
                f"{len(unexplained)} messages {what} are gone, of {len(offsets)} acked: "
                f"{unexplained[:5]} to {unexplained[-1]}; stored up to {max(stored, default=0)}"
            )
        self._seen = stored
        return [offset for offset in missing if offset >= gone_below]

    def _check_stored(self, records: Sequence[Record]) -> dict[int, tuple[str, int]]:
        stored: dict[int, tuple[str, int]] = {}
        newest: dict[str, int] = {}
        last_offset = 0
        for record in records:
            assert record.offset > last_offset, f"{record.offset} follows {last_offset}"
            last_offset = record.offset
            subject, number = record.subject, number_of(record.value)
            publisher = self._publishers[subject]
            assert 0 <= number < publisher.published, f"{subject} {number} was never published"
            # Each is stored once, and in the order of publishing.
            assert number > newest.get(subject, -1), (
                f"{subject} {number} stands behind {newest[subject]}"
            )
            newest[subject] = number
            stored[record.offset] = (subject, number)
        return stored

    def _refused(self) -> set[tuple[str, int]]:
        return {
            (subject, number)
            for subject, publisher in self._publishers.items()
            for number in publisher.nacked.copy()
        }


def _superseded(message: tuple[str, int], newest: Mapping[tuple[str, int], int], keys: int) -> bool:
    subject, number = message
    return newest.get((subject, number % keys), -1) > number
