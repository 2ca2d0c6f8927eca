"""Flipped bits, lost files and cut files: acked records are reported as lost, and all others are
read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from support.disks.logs import (
    DIRECTORY,
    SMALL,
    Promises,
    append,
    check,
    commit,
    create,
    encode,
    environment,
    flip,
    read_all,
    reopen,
)
from support.disks.simfs import SimFileSystem

from liftlog.errors import CorruptMetadata, CorruptRange, UnsupportedFormat
from liftlog.log import Log, LogConfig, open_log
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.segment.index import index_path
from liftlog.log.segment.resync import find_resync
from liftlog.log.segment.segment import walk_batches
from liftlog.records import BatchHeader, encode_batch, parse_header

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)


def _batches(fs: SimFileSystem, log: Log, segment: int = -1) -> list[tuple[int, BatchHeader]]:
    raw = fs.read(log.segments[segment].path)
    position, found = 0, []
    while position < log.segments[segment].size_bytes:
        header = parse_header(raw, position)
        found.append((position, header))
        position += header.length
    return found


def _written(groups: int = 6, config: LogConfig = BIG) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=config)
    for i in range(groups):
        commit(log, promises, *([2, 1] if i % 2 else [3]))
    return fs, log, promises


@pytest.mark.parametrize("where", ["header", "body"])
@pytest.mark.parametrize("slot", ["exact", "other boot", "lost"])
def test_a_bad_bit_in_the_active_segment_costs_one_batch(where: str, slot: str) -> None:
    fs, log, promises = _written()
    batches = _batches(fs, log)
    for i, (position, header) in enumerate(batches):
        image = fs.power_cut("all")
        flip(image, log.segments[-1].path, position + (9 if where == "header" else 70))
        if slot == "lost":
            image.remove(DIRECTORY / ACKED_END_NAME)
        boot = "boot-1" if slot == "exact" else "boot-2"
        before = image.read(log.segments[-1].path)[: log.segments[-1].size_bytes]
        again, report = reopen(image, boot=boot, config=BIG)
        lost = range(header.base_offset, header.next_offset)
        is_last = i == len(batches) - 1
        if slot == "lost" and is_last:
            # Nothing shows that it was acked; it looks like an interrupted write.
            assert set(read_all(again)) == set(range(1, header.base_offset))
            assert report.cut_bytes > 0
            assert again.log_end_offset >= log.log_end_offset, "it may have been acked all the same"
            assert not any(bad.is_loss for bad in again.view.manifest.quarantined)
            continue
        found = check(again, promises, lost=lost)
        assert set(found) == set(range(1, log.log_end_offset)) - set(lost)
        assert [(q.first_offset, q.position) for q in again.view.manifest.quarantined] == [
            (header.base_offset, position)
        ]
        assert report.cut_bytes == 0
        commit(again, promises, 2)
        # The next start finds the same damage and changes nothing.
        quarantined = again.view.manifest.quarantined
        third, _ = reopen(image.power_cut("none"), boot="boot-3", config=BIG)
        assert third.view.manifest.quarantined == quarantined
        check(third, promises, lost=lost)
        kept = image.read(log.segments[-1].path)
        assert kept[: len(before)] == before, "damaged bytes must stay where they are"
        promises = _same_but(promises, after=log.log_end_offset)


def _same_but(promises: Promises, *, after: int) -> Promises:
    twin = Promises()
    twin.written = promises.written
    twin.acked = {offset: v for offset, v in promises.acked.items() if offset < after}
    return twin


def test_a_quarantined_range_is_not_judged_again_by_fewer_witnesses() -> None:
    fs, log, promises = _written(2)
    batches = _batches(fs, log)
    assert batches[-1][1].commit_group == batches[-2][1].commit_group
    position, header = batches[-2]
    image = fs.power_cut("all")
    flip(image, log.segments[-1].path, position + 70)
    again, _ = reopen(image, boot="boot-1", config=BIG)
    lost = range(header.base_offset, header.next_offset)
    check(again, promises, lost=lost)
    later = image.power_cut("none")
    later.remove(DIRECTORY / ACKED_END_NAME)
    third, report = reopen(later, boot="boot-2", config=BIG)
    check(third, promises, lost=lost)
    assert report.cut_bytes == 0
    assert len(third.view.manifest.quarantined) == 1


def test_a_segment_whose_first_batch_is_damaged_keeps_its_file() -> None:
    fs, log, promises = _written(1)
    image = fs.power_cut("all")
    path = log.segments[-1].path
    flip(image, path, 70)
    before = image.read(path)[: log.segments[-1].size_bytes]
    for _ in range(3):
        again, _ = reopen(image, boot="boot-1", config=BIG)
        assert (again.log_end_offset, len(again.view.manifest.quarantined)) == (4, 1)
        check(again, promises, lost=range(1, 4))
        assert image.read(path)[: len(before)] == before
        image = image.power_cut("all")
    commit(again, promises, 2)
    assert set(read_all(again)) == {4, 5}


def test_a_batch_of_an_older_epoch_does_not_continue_the_log() -> None:
    fs, log, _ = _written(1)
    file = fs.open(log.segments[-1].path, writable=False)
    end = log.segments[-1].size_bytes
    for epoch, offset, expected in ((1, 0, True), (2, 0, False), (1, 1, False)):
        raw = b"\xff" * 64 + fs.read(log.segments[-1].path)[:end]
        fs.replace(log.segments[-1].path, raw)
        found = find_resync(file, 0, len(raw), offset=offset, epoch=epoch)
        assert (found is not None) is expected
        fs.replace(log.segments[-1].path, raw[64:])
    file.close()


def test_damage_below_the_recovery_point_needs_no_scan_to_be_survived() -> None:
    fs, log, promises = _written()
    state = log.checkpoint()
    commit(log, promises, 1)
    (_, first), (position, second), *_ = _batches(fs, log)
    image = fs.power_cut("none")
    flip(image, log.segments[-1].path, position + 3)
    again, _ = reopen(image, boot="boot-2", recovery_point=state, config=BIG)
    assert not again.view.manifest.quarantined
    with pytest.raises(CorruptRange) as caught:
        again.read(second.base_offset, 10)
    assert caught.value.first_offset == second.base_offset
    assert caught.value.next_offset == second.next_offset
    with again.read(first.base_offset, 10) as piece:  # type: ignore[union-attr]
        assert piece.next_offset == second.base_offset
    lost = range(second.base_offset, second.next_offset)
    assert set(check_readable(again, promises)) == set(promises.acked) - set(lost)


def check_readable(log: Log, promises: Promises) -> dict[int, bytes]:
    """Read records one by one, and continue after damage and after bodies that do not match."""
    found = read_all(log, max_bytes=1)
    assert all(promises.acked[offset] == value for offset, value in found.items())
    return found


@pytest.mark.parametrize("lose_index", [False, True])
def test_a_bad_header_in_a_sealed_segment_costs_one_batch(lose_index: bool) -> None:
    fs, log, promises = _written(40, LogConfig(segment_max_bytes=9000, segment_max_age_ns=None))
    assert log.segment_count >= 2
    state = log.close()
    for position, header in _batches(fs, log, 0):
        image = fs.kill().power_cut("all")
        path = log.segments[0].path
        flip(image, path, position + 17)
        if lose_index:
            image.remove(index_path(path))
        again, report = reopen(image, clean=state, config=BIG)
        assert report.clean
        found = check_readable(again, promises)
        assert set(promises.acked) - set(found) == set(
            range(header.base_offset, header.next_offset)
        )
        assert again.offset_for_timestamp(0) == (1 if position else header.next_offset)


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "entries lie", "empty"])
def test_a_bad_index_is_made_anew(damage: str) -> None:
    fs, log, promises = _written(60, LogConfig(segment_max_bytes=9000, segment_max_age_ns=None))
    state = log.close()
    for segment in log.segments:
        path = index_path(segment.path)
        raw = fs.read(path)
        if damage == "missing":
            fs.remove(path)
        elif damage == "cut":
            fs.replace(path, raw[:-5])
        elif damage == "garbage":
            fs.replace(path, b"\x07" * len(raw))
        elif damage == "empty":
            fs.replace(path, b"")
        else:
            fs.replace(path, raw[:4] + b"\x01" + raw[5:])
    again, _ = reopen(fs.kill(), clean=state)
    check(again, promises)
    for offset in (1, 17, 60, 100):
        with again.read(offset, 1) as piece:  # type: ignore[union-attr]
            assert piece.first_offset <= offset < piece.next_offset
    if damage != "missing":
        return
    sealed = again.segments[0]
    assert again.environment.fs.exists(index_path(sealed.path)), "it is stored for the next time"


def test_reading_needs_no_room_for_an_index() -> None:
    fs, log, promises = _written(60, LogConfig(segment_max_bytes=9000, segment_max_age_ns=None))
    state = log.close()
    fs.remove(index_path(log.segments[0].path))
    image = fs.kill()
    again, _ = reopen(image, clean=state)
    image.free_bytes = 0
    check(again, promises)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("cut_to", [None, 0, 100, 900])
def test_a_sealed_segment_that_is_gone_or_short(clean: bool, cut_to: int | None) -> None:
    fs, log, promises = _written(20, SMALL)
    assert log.segment_count > 3
    state = log.close()
    victim = log.segments[1]
    batches = _batches(fs, log, 1)
    image = fs.kill()
    if cut_to is None:
        image.remove(victim.path)
        first = victim.base_offset
    else:
        image.replace(victim.path, image.read(victim.path)[:cut_to])
        first = next(h.base_offset for p, h in batches if p + h.length > cut_to)
    again, report = reopen(image, clean=state if clean else None)
    assert report.clean is clean
    lost = range(first, victim.next_offset)
    check(again, promises, lost=lost)
    assert [(q.first_offset, q.next_offset) for q in again.view.manifest.quarantined] == [
        (lost[0], lost[-1] + 1)
    ]
    assert again.offset_for_timestamp(0) == 1
    third, _ = reopen(image.power_cut("none"), clean=again.close())
    assert third.view.manifest.quarantined == again.view.manifest.quarantined


@pytest.mark.parametrize("cut_to", [None, 0, 300])
def test_a_segment_with_known_damage_may_get_lost_as_well(cut_to: int | None) -> None:
    fs, log, promises = _written(20, SMALL)
    victim = log.segments[1]
    (_, first), (position, second), *_ = _batches(fs, log, 1)
    log.structure.quarantine(
        victim.path.name,
        [QuarantinedRange(second.base_offset, second.next_offset, "", position,
                          position + second.length, "rot")],
    )  # fmt: skip
    image = fs.power_cut("none")
    if cut_to is None:
        image.remove(victim.path)
    else:
        image.replace(victim.path, image.read(victim.path)[:cut_to])
    again, _ = reopen(image, boot="boot-2")
    lost = range(second.base_offset if cut_to else first.base_offset, victim.next_offset)
    check(again, promises, lost=lost)
    quarantined = again.view.manifest.quarantined
    assert len(quarantined) == 2
    third, _ = reopen(image.power_cut("none"), boot="boot-3")
    assert third.view.manifest.quarantined == quarantined


@pytest.mark.parametrize("slot", ["exact", "other boot", "lost"])
@pytest.mark.parametrize("known", ["nothing", "recovery point", "clean marker"])
def test_the_active_segment_is_gone(slot: str, known: str) -> None:
    fs, log, promises = _written(20, SMALL)
    commit(log, promises, 1)
    state = log.checkpoint() if known == "recovery point" else log.close()
    active = log.segments[-1]
    image = fs.power_cut("all")
    image.remove(active.path)
    if slot == "lost":
        image.remove(DIRECTORY / ACKED_END_NAME)
    again, _ = reopen(
        image,
        boot="boot-1" if slot == "exact" else "boot-2",
        recovery_point=state if known == "recovery point" else None,
        clean=state if known == "clean marker" else None,
    )
    check(again, promises, lost=range(active.base_offset, log.log_end_offset))
    if slot == "exact":
        assert again.log_end_offset == log.log_end_offset
    else:
        assert again.log_end_offset >= log.view.manifest.reserved_offset
    commit(again, promises, 3)


@pytest.mark.parametrize("known", ["recovery point", "slot"])
def test_an_active_segment_that_lost_its_end(known: str) -> None:
    fs, log, promises = _written()
    state = log.checkpoint()
    position, header = _batches(fs, log)[3]
    image = fs.power_cut("all")
    path = log.segments[-1].path
    image.replace(path, image.read(path)[:position])
    if known == "recovery point":
        image.remove(DIRECTORY / ACKED_END_NAME)
    again, _ = reopen(
        image, recovery_point=state if known == "recovery point" else None, config=BIG
    )
    check(again, promises, lost=range(header.base_offset, log.log_end_offset))
    reserved = log.view.manifest.reserved_offset
    assert again.log_end_offset == (log.log_end_offset if known == "slot" else reserved)


def test_a_manifest_is_never_made_anew_over_data() -> None:
    fs, log, _ = _written(20, SMALL)
    for harm in ("missing", "damaged", "newer"):
        image = fs.power_cut("all")
        raw = image.read(DIRECTORY / "manifest")
        for name in ("manifest", "manifest.copy"):
            if harm == "missing":
                image.remove(DIRECTORY / name)
            elif harm == "damaged":
                image.replace(DIRECTORY / name, raw.replace(b'"epochs"', b'"epoch5"'))
            else:
                image.replace(DIRECTORY / name, raw.replace(b"manifest 1 ", b"manifest 3 ", 1))
        image.open(DIRECTORY / "stray.log", create=True)
        before = {name: image.read(DIRECTORY / name) for name in image.list_directory(DIRECTORY)}
        with pytest.raises(UnsupportedFormat if harm == "newer" else CorruptMetadata):
            reopen(image)
        after = {name: image.read(DIRECTORY / name) for name in image.list_directory(DIRECTORY)}
        assert after == before
    assert log.segment_count > 1


def test_files_that_the_manifest_does_not_list_go_away() -> None:
    fs, _log, promises = _written(20, SMALL)
    strays = ["00000000000000000003.log", "00000000000000000001.2.log", "9.index", "manifest.tmp"]
    kept = ["00000000000000000001.log.64.broken", "dedupe", "notes.txt"]
    for name in strays + kept:
        fs.open(DIRECTORY / name, create=True)
    again, _ = reopen(fs.kill())
    names = set(again.environment.fs.list_directory(DIRECTORY))
    assert not names & set(strays)
    assert set(kept) <= names
    check(again, promises)


def test_a_batch_inside_a_value_is_not_taken_for_the_log() -> None:
    """The batch is torn after an unreadable header. The bytes that look like the next batch are the
    payload of a message."""
    fs, log, _promises = _written(2)
    fake = bytes(encode(log, [b"forged"] * 3, first=log.log_end_offset + 1).data)
    for lead in range(16):
        trial = fs.power_cut("all")
        again, _ = reopen(trial, boot="boot-2", config=BIG)
        offset = again.log_end_offset
        value = b"." * lead + fake + b"tail of the value"
        again.append([encode(again, [value], first=offset)])
        start = again.segments[-1].size_bytes - len(encode(again, [value], first=offset).data)
        image = trial.power_cut("all")
        flip(image, again.segments[-1].path, start + 9)
        image.remove(DIRECTORY / ACKED_END_NAME)
        last, report = reopen(image, boot="boot-3", config=BIG)
        assert b"forged" not in read_all(last).values()
        assert report.cut_bytes > 0
        assert last.log_end_offset > offset


def test_a_torn_group_behind_an_acked_and_damaged_batch() -> None:
    """The torn batch proves that the damaged one had been synced, so the damaged one is not cut
    with it."""
    fs, log, promises = _written(4)
    position, header = _batches(fs, log)[-1]
    assert header.next_offset == log.log_end_offset
    append(log, promises, 2)
    image = fs.power_cut("all")
    path = log.segments[-1].path
    end = log.segments[-1].size_bytes
    raw = bytearray(image.read(path))
    following = position + header.length
    raw[position + 70 : following] = bytes(following - position - 70)
    raw[end - 9 :] = bytes(len(raw) - end + 9)
    image.replace(path, bytes(raw))
    image.remove(DIRECTORY / ACKED_END_NAME)
    again, report = reopen(image, boot="boot-2", config=BIG)
    check(again, promises, lost=range(header.base_offset, header.next_offset))
    assert report.cut_bytes > 0
    # Its own offsets are not used again: it might as well have been acked and then rotted.
    assert again.log_end_offset == log.log_end_offset
    assert [bad.is_loss for bad in again.view.manifest.quarantined] == [True, False]
    # The file now ends with the zeros of the damaged batch; that is no reason to judge it again.
    third, report = reopen(image.power_cut("none"), boot="boot-3", config=BIG)
    assert third.view.manifest.quarantined == again.view.manifest.quarantined
    assert third.log_end_offset == again.log_end_offset
    assert report.cut_bytes == 0
    commit(third, promises, 2)
    check(third, promises, lost=range(header.base_offset, header.next_offset))


def test_searching_behind_damage_costs_bounded_memory_and_time() -> None:
    """A tail full of headers, each of which announces a long batch."""
    fs, log, promises = _written(1)
    path = log.segments[-1].path
    good = fs.read(path)[: log.segments[-1].size_bytes]
    head = bytearray(
        encode_batch(
            base_offset=5, leader_epoch=1, commit_group=1, stamps=[(1, 1)], subjects=[b"s"],
            values=[b"x" * 3_000_000],
        )
    )[:64]  # fmt: skip
    fs.replace(path, good + b"\xff" * 64 + bytes(head) * 60_000)
    fs.remove(DIRECTORY / ACKED_END_NAME)
    again, report = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
    assert report.cut_bytes > 3_000_000
    assert set(read_all(again)) == {1, 2, 3}
    assert promises.acked.keys() == {1, 2, 3}


def test_walking_steps_over_what_is_quarantined() -> None:
    fs, log, _ = _written()
    (_, _), (position, header), *_ = _batches(fs, log)
    image = fs.power_cut("all")
    flip(image, log.segments[-1].path, position + 3)
    again, _ = reopen(image, config=BIG)
    segment = again.segments[-1]
    file = image.open(segment.path, writable=False)
    index = again.view.active_index
    walked = list(
        walk_batches(
            file, index.floor(0)._replace(offset=1),
            index.floor(0)._replace(offset=segment.next_offset, position=segment.size_bytes),
            quarantined=again.view.manifest.quarantined,
        )
    )  # fmt: skip
    assert [h.base_offset for _, h in walked] == [
        h.base_offset for _, h in _batches(fs, log) if h.base_offset != header.base_offset
    ]
    file.close()


def test_time_look_up_passes_over_damage() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    for i in range(8):
        commit(log, promises, 2, stamp=1000 * i)
    batches = _batches(fs, log)
    for where in (9, 70):
        image = fs.power_cut("all")
        flip(image, log.segments[-1].path, batches[3][0] + where)
        again, _ = reopen(image, config=BIG)
        assert again.offset_for_timestamp(3000) == batches[4][1].base_offset
        assert again.offset_for_timestamp(2000) == batches[2][1].base_offset
        assert again.offset_for_timestamp(8000) == again.high_watermark


def test_the_slot_of_another_incarnation_says_nothing() -> None:
    fs, log, promises = _written()
    other = SimFileSystem()
    elsewhere = create(other, config=BIG)
    for _ in range(50):
        commit(elsewhere, Promises(), 5)
    fs.kill().replace(DIRECTORY / ACKED_END_NAME, other.read(DIRECTORY / ACKED_END_NAME))
    again, _ = reopen(fs.power_cut("none"), config=BIG)
    assert again.log_end_offset == log.log_end_offset
    check(again, promises)


def test_opening_closes_what_it_opened_when_it_fails() -> None:
    fs, log, _ = _written(20, SMALL)
    image = fs.power_cut("all")
    path = log.segments[-1].path
    raw = bytearray(image.read(path))
    raw[44] |= 3  # an unknown codec, with a correct checksum
    raw[60:64] = crc32c(bytes(raw[:60])).to_bytes(4, "little")
    image.replace(path, bytes(raw))
    with pytest.raises(UnsupportedFormat, match="codec 3"):
        open_log(DIRECTORY, environment(image), replace(SMALL), boot_id="boot-2")
    assert image.open_files == 0
    assert image.read(path) == bytes(raw)
