"""Every request passes here before it reaches the daemon."""

from __future__ import annotations

from liftlog.errors import Forbidden
from liftlog.protocol.messages import ANONYMOUS, TOKEN
from liftlog.protocol.names import check_stream_name
from liftlog.server.pull.seams import Policy

CREATE, DELETE, READ = "create", "delete", "read"

_CHANGES = frozenset({CREATE, DELETE})


class Gate:
    """`policy` None means that no ACL is configured: everyone is anonymous and may do all."""

    def __init__(self, policy: Policy | None) -> None:
        self.policy = policy

    @property
    def methods(self) -> list[str]:
        return [ANONYMOUS] if self.policy is None else [TOKEN]

    def authorize(self, principal: str | None, operation: str, stream: str) -> None:
        """Raises InvalidArgument for a bad name, then Forbidden, before anything is looked up."""
        check_stream_name(stream, may_be_system=operation not in _CHANGES)
        if self.policy is None:
            return
        decision = self.policy.decide(principal or "", operation, stream)
        if not decision.allowed:
            raise Forbidden(
                f"{principal!r} may not {operation} the stream {stream!r}",
                hint=decision.explanation,
            )

    def may_read(self, principal: str | None, stream: str) -> bool:
        if self.policy is None:
            return True
        return self.policy.decide(principal or "", READ, stream).allowed
