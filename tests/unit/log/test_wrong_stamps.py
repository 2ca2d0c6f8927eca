"""A log with records from a clock that was ahead: look-ups by time, rolls, ids."""

from __future__ import annotations

from support.disks.logs import BASE_NS, DIRECTORY, FakeClock, encode, environment
from support.disks.simfs import SimFileSystem

from liftlog.log import Log, LogConfig
from liftlog.records import decode_batch, encode_batch
from liftlog.sequencing.dedupe import StoredHeaders

SECOND = 10**9
HOUR = 3600 * SECOND
CONFIG = LogConfig(segment_max_bytes=400, segment_max_age_ns=HOUR)


def filled(*hours: float) -> tuple[Log, FakeClock]:
    """Return a log with one record for each timestamp, from offset 1 on, in hours from `BASE_NS`,
    which is the present."""
    clock = FakeClock()
    log = Log.create(DIRECTORY, environment(SimFileSystem(), clock), CONFIG)
    for hour in hours:
        log.append([encode(log, [b"x" * 100], stamp=BASE_NS + int(hour * HOUR))])
        log.commit_up_to(log.sync())
    return log, clock


def test_a_look_up_passes_over_stamps_that_are_ahead() -> None:
    log, _ = filled(-4, 2, 2.1, 2.2, 2.3, 2.4, -3, -2, -1)
    assert log.segment_count > 3
    found = [log.offset_for_timestamp(BASE_NS - int(h * HOUR)) for h in (5, 4, 3.5, 3, 2, 1.5, 0.5)]
    # Between 4 and 3 hours ago: those that are ahead may be as young as the next right stamp.
    assert found == [1, 1, 2, 2, 8, 9, 10]


def test_a_look_up_in_the_future_believes_them() -> None:
    log, _ = filled(-4, 2, 2.5, -1)
    assert log.offset_for_timestamp(BASE_NS + HOUR) == 2
    assert log.offset_for_timestamp(BASE_NS + int(2.2 * HOUR)) == 3
    assert log.offset_for_timestamp(BASE_NS + 3 * HOUR) == 5


def test_a_look_up_where_all_are_ahead_keeps_them() -> None:
    log, _ = filled(2, 2.5, 3)
    assert log.offset_for_timestamp(BASE_NS - HOUR) == 1


def test_a_segment_that_begins_ahead_is_rolled_in_time() -> None:
    log, clock = filled(50)
    assert not log.writer.is_roll_due()
    clock.now += HOUR
    assert log.writer.is_roll_due()


def test_an_id_of_a_record_that_is_ahead_is_as_old_as_can_be_known() -> None:
    data = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=0,
        stamps=[(BASE_NS + HOUR, 1)],
        subjects=[b"orders.new"],
        values=[b"x"],
        headers=[b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"],
    )
    headers = StoredHeaders()
    headers.add(decode_batch(data), latest_ns=BASE_NS)
    assert list(headers.ids().stamps_ns) == [BASE_NS]
