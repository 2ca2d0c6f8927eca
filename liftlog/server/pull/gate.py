"""Every request passes here before it reaches the daemon."""

from __future__ import annotations

from liftlog.errors import Forbidden
from liftlog.protocol.messages import ANONYMOUS, TOKEN
from liftlog.protocol.names import check_stream_name
from liftlog.server.pull.seams import Operation, Policy

_CHANGES = frozenset({"create", "delete"})


class Gate:
    """`policy` None means that no ACL is configured: everyone is anonymous and may do all."""

    def __init__(self, policy: Policy | None) -> None:
        self.policy = policy

    @property
    def methods(self) -> list[str]:
        """How clients may authenticate."""
        if self.policy is None:
            return [ANONYMOUS]
        return [TOKEN, ANONYMOUS] if self.policy.allows_anonymous else [TOKEN]

    def authorize(
        self,
        principal: str | None,
        operation: Operation,
        stream: str,
        *,
        subject: str | None = None,
    ) -> None:
        """Raises InvalidArgument for a bad name, then Forbidden, before anything is looked up."""
        check_stream_name(stream, may_be_system=operation not in _CHANGES)
        if self.policy is None:
            return
        decision = self.policy.decide(principal or ANONYMOUS, operation, stream, subject)
        if not decision.allowed:
            raise Forbidden(
                f"{principal!r} may not {operation} the stream {stream!r}",
                hint=decision.explanation,
            )

    def may(self, principal: str | None, operation: Operation, stream: str) -> bool:
        """Whether it is allowed, for answers that only show what the principal may see."""
        if self.policy is None:
            return True
        return self.policy.decide(principal or ANONYMOUS, operation, stream).allowed
