"""Groups wait for followers while the next groups are written, and every operation may fail."""

from __future__ import annotations

import asyncio
import errno
import random
from typing import Any

import pytest
from support.disks.logs import read_all
from support.disks.simfs import Fault
from support.rounds import seeds
from support.worlds.gated_stream import GatedStream, Published

from liftlog.errors import LiftlogError
from liftlog.sequencing.refusals import NOT_ENOUGH_REPLICAS, NOT_LEADING, OVERLOADED

STEPS = 200


class Driver:
    """Makes random steps on one stream, and records the promises to publishers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stream = GatedStream(
            {
                "max_pending_bytes": self.rng.choice([6000, 40_000]),
                "max_message_bytes": 1000,
                "segment": {"max_bytes": self.rng.choice([1024, 4096, 65536])},
                "compression": self.rng.choice(["none", "lz4"]),
            }
        )
        self.serial = 0
        self.told: dict[int, list[object]] = {}
        self.own_ends: dict[int, int] = {}
        self.abandoned: set[bytes] = set()
        """Payloads that were written when a leadership ended. They may exist at any offset, and get
        no answer."""
        self.exclusive: list[Any] = []
        self.refused_own: set[bytes] = set()
        self.wanted_too_much: list[Published] = []
        """Messages published with a reply while there were too few copies."""
        self.loop_errors: list[dict[str, Any]] = []

    # --- steps ---

    def publish(self) -> None:
        rng, stream = self.rng, self.stream
        sequencer = stream.host.sequencer
        rows = []
        for _ in range(rng.randint(1, 8)):
            self.serial += 1
            headers = {}
            kind = rng.random()
            if kind < 0.3:
                headers["Nats-Msg-Id"] = f"id{rng.randint(max(self.serial - 12, 0), self.serial)}"
            elif kind < 0.4:
                expected = sequencer.next_offset - 1 + rng.choice([0, 0, 1])
                headers["Nats-Expected-Last-Sequence"] = str(expected)
            payload = b"%d/" % self.serial + b"x" * rng.choice([0, 10, 300])
            rows.append((payload, rng.random() < 0.8, headers))
        before, bound = sequencer.pending_bytes, stream.settings.max_pending_bytes
        sent = stream.publish(rows)
        if stream.gate.refuses is not None:
            self.wanted_too_much += [one for one in sent if one.reply]
        codes = {code_of(one.answer) for one in sent} - {0}
        if OVERLOADED.err_code in codes:
            assert codes == {OVERLOADED.err_code}
            assert before
            assert sequencer.pending_bytes == before
        elif 0 < before < sequencer.pending_bytes:
            assert sequencer.pending_bytes <= bound

    def kick(self) -> None:
        self.stream.kick()

    def store_own(self) -> None:
        number = len(self.told)
        told: list[object] = []
        self.told[number] = told

        def hear(error: LiftlogError | None) -> None:
            if error is None:
                assert self.stream.log.high_watermark >= self.own_ends[number]
            elif self.stream.host._refuse_with is None and not self.stream.host.turns.is_closed:
                self.refused_own.add(b"own %d" % number)
            told.append(error)

        sequencer = self.stream.host.sequencer
        self.own_ends[number] = sequencer.next_offset + 1
        self.stream.host.store([b"in"], [None], [b"own %d" % number], hear)

    def work(self) -> None:
        self.stream.pool.step()

    async def tick(self) -> None:
        await self.stream.tick()

    def confirm(self) -> None:
        stream = self.stream
        gate = stream.gate
        if gate.lead_ended:
            return
        before = stream.sends
        offset = self.rng.randint(gate.high_watermark, gate.durable_end)
        stream.host.commit_up_to(gate.confirm(offset))
        assert stream.sends <= before + 1, "one send for all that is released"

    def change_pace(self) -> None:
        self.stream.gate.confirms_at_once = self.rng.random() < 0.3
        self.stream.inline.max_messages = self.rng.choice([0, 64])

    def change_copies(self) -> None:
        refuses = NOT_ENOUGH_REPLICAS if self.rng.random() < 0.3 else None
        self.stream.gate.refuses = refuses

    def break_write(self) -> None:
        error, short = self.rng.choice([(errno.EIO, None), (errno.ENOSPC, None), (0, 30)])
        self.stream.fs.faults.append(Fault("write", error, ".log", 1, short=short))
        if short is not None:
            self.stream.fs.faults.append(Fault("write", errno.EIO, ".log", 1))

    def break_sync(self) -> None:
        self.stream.fs.faults.append(Fault("fsync", errno.EIO, ".log", 1))

    def break_truncate(self) -> None:
        self.stream.fs.faults.append(Fault("truncate", errno.EIO, ".log", 1))

    def roll(self) -> None:
        future = self.stream.host.run_exclusive(self.stream.log.writer.roll)
        self.exclusive.append(future)
        if self.rng.random() < 0.3:
            future.cancel()

    def end_lead(self) -> None:
        """Another node leads now."""
        stream = self.stream
        sequencer = stream.host.sequencer
        waiting = {one.reply for one in stream.unanswered()}
        written = sequencer.unanswered_messages - sequencer.pending_messages
        stream.host.step_down("the test said so")
        left = {one.reply for one in stream.unanswered()}
        assert len(left) <= written
        for reply in waiting - left:
            assert code_of(stream.messages[reply].answer) == NOT_LEADING.err_code

    async def lead_again(self) -> None:
        """Lead again, after another leader or as the next one: all records in the log are
        committed."""
        stream = self.stream
        await stream.finish_jobs()
        assert not stream.host.sequencer.unanswered_messages
        self.abandoned |= {one.payload for one in stream.unanswered()}
        for one in stream.unanswered():
            one.reply = b""  # nobody would receive an answer
            one.answer = {"abandoned": True}
        assert all(self.told.values()), "records of the daemon's own are told of when a lead ends"
        if stream.host.failure:
            return
        stream.log.commit_up_to(stream.log.log_end_offset)
        stream.host.close()
        stream.lead(stream.log.log_end_offset)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.loop_errors.append(context))
        steps: list[tuple[Any, int]] = [
            (self.publish, 30),
            (self.kick, 25),
            (self.work, 40),
            (self.tick, 40),
            (self.confirm, 25),
            (self.store_own, 5),
            (self.change_pace, 4),
            (self.change_copies, 3),
            (self.break_write, 2),
            (self.break_sync, 2),
            (self.break_truncate, 1),
            (self.roll, 3),
            (self.end_lead, 1),
        ]
        calls = [step for step, _ in steps]
        weights = [weight for _, weight in steps]
        for step in self.rng.choices(calls, weights, k=STEPS):
            found = step()
            if found is not None:
                await found
            if self.stream.gate.lead_ended:
                await self.stream.tick()
                await self.lead_again()
            if self.stream.host.failure:
                break
            self.check()

    # --- what must hold ---

    def check(self) -> None:
        stream = self.stream
        sequencer = stream.host.sequencer
        assert stream.log.high_watermark <= stream.gate.high_watermark
        assert stream.gate.durable_end <= stream.log.durable_end_offset
        assert 0 <= sequencer.held_bytes <= sequencer.pending_bytes
        assert bool(sequencer.held_bytes) == sequencer.is_holding
        assert sequencer.release(stream.log.high_watermark) is None, "they wait for no one"
        assert stream.host.sequencer.next_offset >= stream.log.log_end_offset

    def check_records(self, found: dict[int, bytes]) -> None:
        """Check that every ack names the offset of its message, and is not sent before readers find
        the message. Refused messages are not stored."""
        offsets = {payload: offset for offset, payload in found.items()}
        assert len(offsets) == len(found), "nothing is stored twice"
        by_id: dict[str, set[int]] = {}
        for message in self.stream.messages.values():
            answer = message.answer or {}
            if "error" in answer:
                assert message.payload not in offsets, answer
            elif answer.get("duplicate"):
                assert message.payload not in offsets
                assert answer["seq"] < message.heard_at
                by_id.setdefault(message.message_id, set()).add(answer["seq"])
            elif "seq" in answer:
                assert found.get(answer["seq"]) == message.payload
                assert answer["seq"] < message.heard_at
        assert self.refused_own.isdisjoint(offsets)
        for message in self.wanted_too_much:
            assert message.payload not in offsets
            assert "seq" not in (message.answer or {}) or code_of(message.answer)
        originals = {
            message.payload: message.message_id
            for message in self.stream.messages.values()
            if message.message_id
        }
        for name, seqs in by_id.items():
            [seq] = seqs
            assert originals[found[seq]] == name

    async def finish(self, how: str) -> None:
        stream = self.stream
        acked = {
            message.answer["seq"]: message.payload
            for message in stream.messages.values()
            if message.answer and "error" not in message.answer and "seq" in message.answer
            if not message.answer.get("duplicate")
        }
        if how == "power cut":
            log = stream.power_cut(seed=1)
            found = read_all(log)
            assert acked.items() <= found.items()
            log.close()
        stream.fs.faults.clear()
        if how == "close" or stream.host.failure:
            stream.host.close()
            before = stream.sends
            await stream.finish_jobs()
            assert stream.sends <= before + 1, "the write that was under way may be answered"
        else:
            await stream.settle()
            if stream.gate.lead_ended:  # a sync had failed, but this was not handled yet
                await self.lead_again()
            assert stream.unanswered() == []
            assert stream.host.sequencer.pending_bytes == 0
            await stream.host.drained()
        stream.log.commit_up_to(stream.log.log_end_offset)
        found = read_all(stream.log)
        if not stream.host.failure:
            self.check_records(found)
        assert acked.items() <= found.items()
        for told in self.told.values():
            assert len(told) == 1, "each is told once"
        for future in self.exclusive:
            assert future.done()
            if not future.cancelled():
                future.exception()
        stream.close()
        assert self.loop_errors == []


def code_of(answer: dict[str, Any] | None) -> int:
    found: int = (answer or {}).get("error", {}).get("err_code", 0)
    return found


@pytest.mark.parametrize("how", ["settle", "close", "power cut"])
@pytest.mark.parametrize("seed", seeds(40))
async def test_what_is_answered_is_committed_and_the_rest_is_not(seed: int, how: str) -> None:
    driver = Driver(seed)
    await driver.run()
    await driver.finish(how)
