"""Advisories are sent where someone listens, and not too many."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from liftlog.deliveries.instructions import Advisory, AdvisoryKind
from liftlog.server.jetstream_api.workers.advisories import MOST_PER_SECOND, Advisories

SECOND = 10**9
NAKED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_NAKED.s.c"


class Leaf:
    def __init__(self, *subjects: str) -> None:
        self.subjects = {subject.encode() for subject in subjects}
        self.groups = b""
        self.commands: list[bytes] = []
        self.is_open = True

    def has_interest(self, subject: bytes) -> bool:
        return subject in self.subjects

    def queues(self, subject: bytes) -> bytes:
        return self.groups

    def offer(self, commands: bytes) -> bool:
        if self.is_open:
            self.commands.append(commands)
        return self.is_open

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [
            json.loads(one) for one in re.findall(rb"\r\n(\{.*\})\r\n", b"".join(self.commands))
        ]


class Clock:
    def __init__(self) -> None:
        self.ns = 100 * SECOND

    def __call__(self) -> int:
        return self.ns


def some(count: int, kind: AdvisoryKind = AdvisoryKind.NAK) -> Advisory:
    numbers = np.arange(count)
    return Advisory(kind, numbers, numbers, np.ones(count, np.int64))


def test_only_where_someone_listens() -> None:
    leaf = Leaf(NAKED)
    advisories = Advisories(leaf)
    for kind in AdvisoryKind:
        advisories.about_messages("s", "c", some(3, kind))
        advisories.about_messages("s", "other", some(3, kind))
        advisories.about_messages("s", "c", some(0, kind))
    advisories.created("s", "c")
    advisories.deleted("s", "c")
    advisories.paused("s", "c", 0)
    assert len(leaf.bodies) == 3
    assert dict(advisories.sent) == {"MSG_NAKED": 3}
    assert not advisories.left_out.total()
    assert b"".join(leaf.commands).startswith(b"LMSG " + NAKED.encode() + b" ")


def test_members_of_queue_groups_listen_too() -> None:
    leaf = Leaf(NAKED)
    leaf.groups = b"watchers"
    Advisories(leaf).about_messages("s", "c", some(1))
    assert leaf.commands[0].startswith(b"LMSG %b | watchers " % NAKED.encode())


def test_at_most_so_many_a_second() -> None:
    leaf, clock = Leaf(NAKED), Clock()
    advisories = Advisories(leaf, clock, clock)
    for _ in range(3):
        advisories.about_messages("s", "c", some(400))
    assert len(leaf.bodies) == MOST_PER_SECOND
    assert advisories.left_out["MSG_NAKED"] == 200
    clock.ns += SECOND // 10
    advisories.about_messages("s", "c", some(400))
    assert len(leaf.bodies) == MOST_PER_SECOND + 100
    clock.ns += 3600 * SECOND  # it saves nothing up
    advisories.about_messages("s", "c", some(5000))
    assert len(leaf.bodies) == 2 * MOST_PER_SECOND + 100


def test_what_the_connection_does_not_take_is_left_out() -> None:
    leaf = Leaf(NAKED)
    advisories = Advisories(leaf)
    leaf.is_open = False
    advisories.about_messages("s", "c", some(MOST_PER_SECOND))
    assert advisories.left_out["MSG_NAKED"] == MOST_PER_SECOND
    leaf.is_open = True
    advisories.about_messages("s", "c", some(1))  # the room was not used
    assert advisories.sent["MSG_NAKED"] == 1
