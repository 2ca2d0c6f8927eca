"""The checker of histories finds each kind of fault, wherever it is, and nothing in good ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.worlds.history import (
    BACKWARDS,
    DIVERGED,
    DOUBLED,
    LOST,
    MISPLACED,
    MISSING,
    OUTSIDE,
    PHANTOM,
    REFUSED,
    REORDERED,
    REVIVED,
    TWICE_ACKED,
    History,
    Reading,
    Stored,
)

NODES = ("a", "b", "c")
COUNT = 60
KEYS = 7
Fault = Callable[[History, random.Random], None]


def good(chance: random.Random, *, is_compacted: bool = False) -> History:
    """Some publishers, several messages of each in flight, an ack for most of them; offsets that
    were given up; and all replicas read, once on the way and once at the end."""
    history = History(is_compacted=is_compacted)
    log: list[Stored] = []
    offset, now = 1, 0.0
    for number in range(COUNT):
        message, key = ("p", number), b"%d" % (number % KEYS)
        now += chance.random()
        history.sent(message, now - chance.random(), key)
        fate = chance.random()
        if fate < 0.1:
            history.refused(message, 10008)
        elif fate > 0.2:  # the others left, and were never seen again
            offset += 3 * (chance.random() < 0.05)
            log.append(Stored(offset, message, f"content {number}", key))
            if fate > 0.3:  # the answers of the others were lost
                history.acked(message, offset, now, promised=fate > 0.35)
            offset += 1
        if number == COUNT // 2:
            read_all(history, log, offset, is_last=False)
    read_all(history, compacted(log) if is_compacted else log, offset, is_last=True)
    return history


def read_all(history: History, log: list[Stored], end: int, *, is_last: bool) -> None:
    for node in NODES:
        history.read(Reading(node, 1, end, list(log), is_last))


def compacted(log: list[Stored]) -> list[Stored]:
    newest = {record.key: record for record in log}
    return [record for record in log if newest[record.key] is record]


def kinds(history: History) -> set[str]:
    return {finding.kind for finding in history.check()}


def promises(history: History) -> list[tuple[str, int]]:
    return [
        (message, one.offset)
        for message, one in history.published.items()
        if one.offset is not None and one.is_promised
    ]  # type: ignore[misc]


def change(history: History, reading: int, records: list[Stored], **more: Any) -> None:
    history.readings[reading] = replace(history.readings[reading], records=records, **more)


def any_reading(history: History, chance: random.Random) -> tuple[int, list[Stored]]:
    number = chance.randrange(len(history.readings))
    return number, list(history.readings[number].records)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("is_compacted", [False, True])
def test_nothing_is_found_where_nothing_is_wrong(seed: int, is_compacted: bool) -> None:
    history = good(random.Random(seed), is_compacted=is_compacted)
    assert history.acks > 20
    assert history.check() == []


# --- faults ---------------------------------------------------------------------------


def lose_everywhere(history: History, chance: random.Random) -> None:
    _, lost = chance.choice(promises(history))
    for number, reading in enumerate(history.readings):
        change(history, number, [it for it in reading.records if it.offset != lost])


def lose_the_tail(history: History, chance: random.Random) -> None:
    """The log ends before the last ack, and each reading covers all that there is."""
    _, lost = promises(history)[-1]
    for number, reading in enumerate(history.readings):
        if reading.is_last:
            change(history, number, [it for it in reading.records if it.offset < lost], end=lost)


def lose_on_one(history: History, chance: random.Random) -> None:
    number, records = any_reading(history, chance)
    acked = {offset for _, offset in promises(history)}
    records.remove(chance.choice([it for it in records if it.offset in acked]))
    change(history, number, records)


def lack_what_was_not_acked(history: History, chance: random.Random) -> None:
    number, records = any_reading(history, chance)
    acked = {offset for _, offset in promises(history)}
    records.remove(chance.choice([it for it in records if it.offset not in acked]))
    change(history, number, records)


def ack_an_offset_twice(history: History, chance: random.Random) -> None:
    (first, offset), (second, _) = chance.sample(promises(history), 2)
    assert first != second
    history.published[second].offset = offset


def store_what_no_one_sent(history: History, chance: random.Random) -> None:
    number, records = any_reading(history, chance)
    records[-1] = records[-1]._replace(message=("q", 1))
    change(history, number, records)


def store_what_was_refused(history: History, chance: random.Random) -> None:
    refused = next(name for name, one in history.published.items() if one.refused_with)
    for number, reading in enumerate(history.readings):
        added = Stored(reading.end, refused, "refused")
        change(history, number, [*reading.records, added], end=reading.end + 1)


def store_twice(history: History, chance: random.Random) -> None:
    """A message whose publisher never heard of it, so that no ack contradicts."""
    for number, reading in enumerate(history.readings):
        again = next(it for it in reading.records if history.published[it.message].offset is None)
        added = again._replace(offset=reading.end)
        change(history, number, [*reading.records, added], end=reading.end + 1)


def ack_elsewhere(history: History, chance: random.Random) -> None:
    message, _ = chance.choice(promises(history))
    history.published[message].offset = 1_000


def differ(history: History, chance: random.Random) -> None:
    number, records = any_reading(history, chance)
    place = chance.randrange(len(records))
    records[place] = records[place]._replace(content="rot")
    change(history, number, records)


def swap_two(history: History, chance: random.Random) -> None:
    """Two messages change places on one replica, offsets in order."""
    number, records = any_reading(history, chance)
    first, second = records[3], records[4]
    records[3] = second._replace(offset=first.offset)
    records[4] = first._replace(offset=second.offset)
    change(history, number, records)


def go_back(history: History, chance: random.Random) -> None:
    number, records = any_reading(history, chance)
    change(history, number, [*records, records[-2]])


def read_beyond_the_end(history: History, chance: random.Random) -> None:
    number, records = any_reading(history, chance)
    change(history, number, records, end=records[-1].offset)


def ack_out_of_order(history: History, chance: random.Random) -> None:
    message, _ = promises(history)[0]
    last, _ = promises(history)[-1]
    at = history.published[last].acked_at
    assert at is not None
    history.published[message].sent_at = at + 1
    history.published[message].acked_at = at + 2


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (lose_everywhere, LOST),
        (lose_the_tail, LOST),
        (lose_on_one, LOST),
        (lack_what_was_not_acked, MISSING),
        (ack_an_offset_twice, TWICE_ACKED),
        (store_what_no_one_sent, PHANTOM),
        (store_what_was_refused, REFUSED),
        (store_twice, DOUBLED),
        (ack_elsewhere, MISPLACED),
        (differ, DIVERGED),
        (swap_two, DIVERGED),
        (go_back, BACKWARDS),
        (read_beyond_the_end, OUTSIDE),
        (ack_out_of_order, REORDERED),
    ],
)
def test_each_fault_is_found(fault: Fault, kind: str, seed: int) -> None:
    chance = random.Random(seed)
    history = good(chance)
    fault(history, chance)
    assert kind in kinds(history)


def test_a_compacted_replica_without_the_newest_of_a_key_is_found() -> None:
    history = good(random.Random(1), is_compacted=True)
    last = max(number for number, reading in enumerate(history.readings) if reading.is_last)
    for gone in list(history.readings[last].records):
        before = history.readings[last]
        change(history, last, [it for it in before.records if it is not gone])
        assert kinds(history) <= {LOST, MISSING}
        assert kinds(history), gone
        history.readings[last] = before


def test_what_a_reader_was_told_to_be_damaged_is_not_missing() -> None:
    history = good(random.Random(2))
    last = len(history.readings) - 1
    records = list(history.readings[last].records)
    gone = records[5:9]
    told = (gone[0].offset, gone[-1].offset + 1)
    change(history, last, records[:5] + records[9:], damaged=[told])
    assert history.check() == []
    change(history, last, records[:5] + records[10:])
    assert kinds(history) <= {LOST, MISSING}
    assert kinds(history)


def test_an_ack_of_the_leader_alone_promises_nothing() -> None:
    history = History()
    history.sent("one", 1.0)
    history.acked("one", 1, 2.0, promised=False)
    history.sent("two", 3.0)
    history.acked("two", 1, 4.0)
    history.read(Reading("a", 1, 2, [Stored(1, "two")], is_last=True))
    assert history.check() == []


def test_an_answer_repeated_to_a_repeated_message_is_no_other_message() -> None:
    history = History()
    history.sent("one", 1.0)
    history.acked("one", 1, 2.0)
    history.sent("one", 3.0)
    history.acked("one", 1, 4.0)
    history.read(Reading("a", 1, 2, [Stored(1, "one")], is_last=True))
    assert history.check() == []
    with pytest.raises(ValueError, match="acked at 1, and again at 7"):
        history.acked("one", 7, 5.0)


def test_a_refusal_may_be_stored_where_the_disk_failed_meanwhile() -> None:
    history = History(refused_may_be_stored=True)
    history.sent("one", 1.0)
    history.refused("one", 10077)
    history.read(Reading("a", 1, 2, [Stored(1, "one")], is_last=True))
    assert history.check() == []


def test_a_finding_counts_all_and_shows_some() -> None:
    history = History()
    for number in range(9):
        history.sent(number, float(number))
        history.acked(number, number + 1, number + 0.5)
    history.read(Reading("b", 1, 1, [], is_last=True))
    [finding] = history.check()
    assert (finding.kind, finding.count, len(finding.examples)) == (LOST, 9, 5)
    assert str(finding).startswith("acked and lost (9): 0 at 1, not by b; ")
    assert str(finding).endswith(" and 4 more")


# --- many rounds ----------------------------------------------------------------------


def settled(chance: random.Random) -> tuple[History, list[Stored]]:
    """A history of which all has been put away, and what stands in it."""
    history = good(chance)
    records = list(history.readings[-1].records)
    assert history.check() == []
    history.settle(history.readings[-1].end)
    assert not history.readings
    return history, records


@pytest.mark.parametrize("seed", range(10))
def test_what_was_put_away_is_compared_with_later_readings(seed: int) -> None:
    chance = random.Random(seed)
    history, records = settled(chance)
    end = records[-1].offset + 1
    history.sent("new", 1_000.0)
    history.acked("new", end, 1_001.0)
    new = Stored(end, "new", "content")
    whole, rest = Reading("a", 1, end + 1, [*records, new]), Reading("b", end, end + 1, [new])
    history.readings = [whole, rest]
    assert history.check() == []
    lost = records.pop(chance.randrange(len(records)))
    for content, kind in (
        ([*records, new], MISSING),
        ([*records, lost._replace(content="rot"), new], DIVERGED),
        ([*records, lost, new, lost._replace(offset=end + 1)], DOUBLED),
    ):
        content.sort()
        history.readings = [replace(whole, records=content, end=end + 2), rest]
        assert kinds(history) == {kind}
    history.readings = [replace(rest, records=[])]
    assert kinds(history) == {LOST}


def test_a_late_ack_of_what_was_put_away_must_fit() -> None:
    history, records = settled(random.Random(1))
    history.acked(records[3].message, records[3].offset, 1_000.0)
    with pytest.raises(ValueError, match="stands at"):
        history.acked(records[3].message, records[4].offset, 1_000.0)


def test_a_message_sent_after_an_ack_stands_behind_also_when_it_was_put_away() -> None:
    history, records = settled(random.Random(1))
    history.sent("early", 0.0)
    history.acked("early", records[-1].offset + 1, 0.1)
    assert kinds(history) == {REORDERED}


def test_a_tombstone_may_go_after_what_it_deletes_and_not_before() -> None:
    history = History(is_compacted=True)
    log = [Stored(1, "m1", "1", b"k"), Stored(2, "m2", "2", b"k", deletes=True)]
    other = Stored(3, "m3", "3", b"other")
    for number, record in enumerate([*log, other]):
        history.sent(record.message, float(number), record.key, deletes=record.deletes)
        history.acked(record.message, record.offset, number + 0.5)
    good = [[*log, other], [log[1], other], [other]]
    for _ in range(2):  # also when the tombstone is known from before only
        history.readings = [Reading("a", 1, 4, records) for records in good]
        assert history.check() == []
        history.read(Reading("b", 1, 4, [log[0], other]))
        assert kinds(history) == {REVIVED}
        history.readings = [Reading("b", 1, 4, log)]
        assert kinds(history) <= {LOST, MISSING}
        assert kinds(history)
        history.readings = [Reading("a", 1, 4, good[-1])]
        history.settle(4)


def test_what_was_deleted_from_the_front_is_not_missing() -> None:
    history, records = settled(random.Random(1))
    end = records[-1].offset + 1
    history.read(Reading("a", 1, end, records[20:]))
    assert kinds(history) == {MISSING}, "nothing says that the log begins later"
    history.readings = [Reading("a", records[20].offset, end, records[20:])]
    assert history.check() == []
    history.read(Reading("b", records[10].offset, end, records[10:]))
    assert history.check() == [], "one replica may keep more than another"
