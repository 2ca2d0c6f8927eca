"""What an answer to a published message means. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from liftlog.cli.exit_codes import ExitCode

_NO_RESPONDERS = "503"


class Result(NamedTuple):
    """What came of one message: an ack, or why there is none.

    After one that is `final` nothing more is sent: the next ones would fare no better.
    """

    subject: str
    ack: dict[str, Any] | None = None
    problem: str = ""
    hint: str = ""
    final: bool = False
    code: ExitCode = ExitCode.NOT_ACKED

    def to_object(self) -> dict[str, Any]:
        if self.ack is not None:
            return {"subject": self.subject, **self.ack}
        return {"subject": self.subject, "problem": self.problem}

    def to_line(self) -> str:
        """Stream, offset, and whatever else an ack says."""
        ack = self.ack or {}
        line = f"{ack.get('stream')} {ack.get('seq')}"
        if ack.get("duplicate"):
            line += " duplicate"
        if "durability" in ack:
            line += f" durability={ack['durability']}"
        return line


def judge_answer(subject: str, payload: bytes, status: str | None) -> Result:
    """`status` is the status line of the answer's header block, if it has one."""
    if status == _NO_RESPONDERS:
        return Result(
            subject,
            problem=f"nobody listens on {subject}",
            hint="no stream records this subject, or the daemon is down: `liftlog stream ls`",
            final=True,
        )
    try:
        answer = json.loads(payload)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict):
        stream, sequence, refusal = (answer.get(name) for name in ("stream", "seq", "error"))
        if isinstance(refusal, dict):
            code = refusal.get("err_code") or refusal.get("code")
            who = stream if isinstance(stream, str) else "the stream"
            reason = f"{who} refused it: {refusal.get('description')} (error {code})"
            return Result(subject, problem=reason)
        if isinstance(stream, str) and type(sequence) is int and sequence > 0:
            return Result(subject, answer)
    return Result(
        subject,
        problem=f"what answered on {subject} is no stream",
        hint="a service replies on this subject: use --no-ack, and `acks: off` for the stream",
    )


def no_answer(subject: str, timeout: float, nats_error: str) -> Result:
    hint = nats_error or "the stream may have `acks: off` (then use --no-ack), or be overloaded"
    return Result(subject, problem=f"no ack came in {timeout:g} s", hint=hint, final=True)


def connection_lost(subject: str, nats_error: str) -> Result:
    return Result(
        subject,
        problem="the connection to NATS was lost before the ack came",
        hint=nats_error or "publish it again, with --msg-id so that it is not stored twice",
        final=True,
        code=ExitCode.CANNOT_CONNECT,
    )
