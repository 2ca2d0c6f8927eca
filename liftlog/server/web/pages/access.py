"""Shows rights, and the rules that grant or deny them. Viewers may see their own rights; only
administrators of a stream may see the rights of others."""

from __future__ import annotations

from typing import Any

from acl.policy import Policy
from acl.rules import OPERATIONS, Operation
from acl.subjects import why_invalid
from liftlog.errors import Forbidden, InvalidArgument
from liftlog.names import check_stream_name
from liftlog.protocol.messages import ANONYMOUS
from liftlog.server.web.asking import Asked, Shown

MAX_STREAMS = 200
MAX_PRINCIPALS = 500


async def access(asked: Asked) -> Shown:
    policy = asked.gate.policy
    stream, principal = asked.text("stream"), asked.text("principal")
    subject = asked.text("subject")
    if stream:
        check_stream_name(stream, may_be_system=True)
    if subject and why_invalid(subject) is not None:
        raise InvalidArgument(f"subject: {why_invalid(subject)}")
    data: dict[str, Any] = {
        "acl": policy is not None,
        "principal": asked.viewer.principal,
        "roles": [],
        "streams": [],
        "answers": [],
        "others": [],
    }
    form = {"stream": stream, "principal": principal, "subject": subject}
    if not isinstance(policy, Policy):
        return Shown("Access", data, {"form": form, "operations": OPERATIONS})
    me = asked.viewer.principal or ANONYMOUS
    data["roles"] = list(policy.roles_of(me))
    data["streams"] = _mine(asked, policy, me)
    if stream:
        whom = principal or me
        if whom != me and not asked.may("admin", stream):
            raise Forbidden(
                f"{me!r} may not ask about others on the stream {stream!r}",
                hint="that needs admin on the stream",
            )
        data["answers"] = [
            _answer(policy, whom, operation, stream, subject) for operation in OPERATIONS
        ]
        if asked.may("admin", stream):
            data["others"] = [
                {
                    "principal": one.name,
                    "roles": list(policy.roles_of(one.name)),
                    "answers": [
                        _answer(policy, one.name, operation, stream, subject)
                        for operation in OPERATIONS
                    ],
                }
                for one in policy.principals[:MAX_PRINCIPALS]
            ]
    return Shown("Access", data, {"form": form, "operations": OPERATIONS})


def _mine(asked: Asked, policy: Policy, me: str) -> list[dict[str, Any]]:
    """Return the viewer's rights on each stream that the viewer may read. Other streams are left
    out, so that the page does not reveal that they exist."""
    names = [name for name in asked.parts.broker.stream_names() if asked.may("read", name)]
    return [
        {
            "name": name,
            "answers": [_answer(policy, me, operation, name, "") for operation in OPERATIONS],
        }
        for name in names[:MAX_STREAMS]
    ]


def _answer(
    policy: Policy, principal: str, operation: Operation, stream: str, subject: str
) -> dict[str, Any]:
    """Return the decision about one operation. `allowed` is None if the decision depends on the
    subject. `subjects` are the subjects to which reading is limited."""
    subjects: tuple[str, ...] | None = None
    if operation == "read" and not subject:
        decision = policy.decide_read(principal, stream)
        subjects = decision.subjects if decision.allowed else None
        allowed, explanation = decision.allowed, decision.explanation
    else:
        asked_for = subject if operation in ("read", "create") else ""
        allowed, explanation = policy.decide(principal, operation, stream, asked_for or None)
    # The right to create a stream depends on its subject.
    open_question = operation == "create" and not subject and explanation.endswith(" to attach")
    return {
        "operation": operation,
        "allowed": None if open_question else allowed,
        "explanation": explanation.partition(": ")[2] or explanation,
        "subjects": None if subjects is None else list(subjects),
    }
