"""Measures decisions of the ACL, for requests that were not decided before."""

from __future__ import annotations

import itertools
import time

from acl.policy import Policy

from .figures import Measurements
from .progress import Progress
from .systems import LIFTLOG

_PRINCIPALS = 100
_DECISIONS = 20_000

_ROLES = """
  reader: [{allow: [read, commit], streams: ["orders*", "returns"], subjects: ["orders.eu.>"]}]
  auditor: [{allow: [read], streams: ["*-audit", "ledger*"]}]
  owner: [{allow: [create, delete, admin], streams: ["*"], attach: ["orders.>", "returns.*.new"]}]
"""


def policy() -> Policy:
    names = [f"principal-{number}" for number in range(_PRINCIPALS)]
    principals = "".join(f"  {name}: {{unix_uid: {uid}}}\n" for uid, name in enumerate(names))
    bindings = "".join(f"  {name}: [reader, auditor, owner]\n" for name in names)
    return Policy.load(f"principals:\n{principals}roles:{_ROLES}bindings:\n{bindings}")


def decisions(measured: Measurements, progress: Progress, *, rounds: int) -> None:
    """Measure reads, commits and creates, allowed and denied: the processor time of each in
    microseconds."""
    asked = policy()
    questions = [
        (f"principal-{number % _PRINCIPALS}", operation, stream, subject)
        for number, (operation, stream, subject) in zip(
            range(_DECISIONS),
            itertools.cycle(
                [
                    ("commit", "orders-2024", None),
                    ("read", "billing-audit", None),
                    ("read", "orders", "orders.eu.de"),
                    ("delete", "returns", None),
                    ("create", "returns", "returns.eu.new"),
                    ("commit", "payments", None),
                    ("read", "payments", None),
                ]
            ),
            strict=False,
        )
    ]
    for number in range(rounds):
        began = time.thread_time()
        for principal, operation, stream, subject in questions:
            asked.decide(principal, operation, stream, subject)  # type: ignore[arg-type]
        each = (time.thread_time() - began) / len(questions) * 1e6
        measured.add(LIFTLOG, "acl-decision", each)
        progress.say(f"round {number + 1}/{rounds} ACL decisions: {each:.1f} us each")
