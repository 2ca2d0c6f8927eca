"""The gate that every request passes before it reaches the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from acl.policy import Decision, Policy, ReadDecision
from acl.rules import IN_WORDS, Operation
from liftlog.errors import Forbidden
from liftlog.names import check_stream_name
from liftlog.protocol.messages import ANONYMOUS
from liftlog.server.access.audit import Audit

Key = TypeVar("Key")
Kept = TypeVar("Kept")

_CHANGES = frozenset({"create", "delete", "erase"})
_MAX_KEPT = 4096
_MAX_SHOWN = 80

PRIVILEGED = frozenset({"create", "delete", "admin", "erase"})
"""Operations that are audited even if they are allowed."""


class Gate:
    """Authorizes requests. If `policy` is None, no ACL is configured: all clients are anonymous and
    may do everything.

    One gate serves the pull port and the HTTP port. It belongs to the event loop, and a reload of
    the ACL changes its policy. So a decision is valid only until the next await.
    """

    def __init__(self, policy: Policy | None, audit: Audit | None = None) -> None:
        self.policy = policy
        self._audit = audit or Audit()
        self._kept: dict[tuple[str, Operation, str], Decision] = {}
        self._kept_reads: dict[tuple[str, str], ReadDecision] = {}
        self._kept_work: dict[tuple[str, str, str], Decision] = {}

    def set_policy(self, policy: Policy | None) -> None:
        """Apply `policy` from now on."""
        self.policy = policy
        self._kept.clear()
        self._kept_reads.clear()
        self._kept_work.clear()

    def authorize(
        self,
        principal: str | None,
        operation: Operation,
        stream: str,
        *,
        peer: str = "",
        subjects: Sequence[str] = (),
    ) -> None:
        """Check a request. Raises InvalidArgument for a bad name, then Forbidden. Both checks come
        before any look-up.

        `subjects` are the subjects of a stream to be created. The policy must allow each of them.
        The audit log names `peer`.

        The operation `read` permits access to the stream itself: its description, offsets, leases,
        checkpoints. Code that returns records must also call `readable_subjects`.
        """
        if operation == "read":
            self.readable_subjects(principal, stream, peer=peer)
            return
        check_stream_name(stream, may_be_system=operation not in _CHANGES)
        if self.policy is None:
            return
        for subject in subjects or (None,):
            decision = self._decide(self.policy, principal or ANONYMOUS, operation, stream, subject)
            if not decision.allowed:
                self._audit.denied(principal, peer, operation, stream, decision.explanation)
                raise _forbidden(principal, operation, stream, decision.explanation)
        if operation in PRIVILEGED:
            self._audit.allowed(principal, peer, operation, stream, decision.explanation)

    def authorize_work(
        self, principal: str | None, stream: str, consumer: str, *, peer: str = ""
    ) -> None:
        """Check the right to use a consumer with acks. Raises the errors of `authorize`. Code that
        delivers records to the consumer must also check their subjects against
        `readable_subjects`."""
        check_stream_name(stream, may_be_system=True)
        if self.policy is None:
            return
        decision = self._decide_work(self.policy, principal or ANONYMOUS, stream, consumer)
        if not decision.allowed:
            self._audit.denied(principal, peer, "work", stream, decision.explanation)
            raise _forbidden(principal, "work", stream, decision.explanation)

    def may_work(self, principal: str, stream: str, consumer: str) -> bool:
        """Return the result of `authorize_work` as True or False, without a line in the audit
        log."""
        if self.policy is None:
            return True
        return self._decide_work(self.policy, principal, stream, consumer).allowed

    def readable_subjects(
        self, principal: str | None, stream: str, *, peer: str = ""
    ) -> tuple[str, ...] | None:
        """Return the subjects on which records of `stream` may be returned; None means all.

        Raises the errors of `authorize`.
        """
        check_stream_name(stream, may_be_system=True)
        if self.policy is None:
            return None
        decision = self._decide_read(self.policy, principal or ANONYMOUS, stream)
        if not decision.allowed:
            self._audit.denied(principal, peer, "read", stream, decision.explanation)
            raise _forbidden(principal, "read", stream, decision.explanation)
        return decision.subjects

    def erasable_subjects(
        self, principal: str | None, stream: str, *, peer: str = ""
    ) -> tuple[str, ...] | None:
        """Return the subjects on which records of `stream` may be erased; None means all. Raises
        the errors of `authorize`."""
        check_stream_name(stream)
        if self.policy is None:
            return None
        decision = self.policy.decide_subjects(principal or ANONYMOUS, "erase", stream)
        if not decision.allowed:
            self._audit.denied(principal, peer, "erase", stream, decision.explanation)
            raise _forbidden(principal, "erase", stream, decision.explanation)
        return decision.subjects

    @property
    def deliverable(self) -> tuple[str, ...] | None:
        """Return the subjects to which the daemon may send records for clients of NATS, in addition
        to inboxes; None means any."""
        return None if self.policy is None else self.policy.deliverable

    def delivery_denied(self, principal: str, stream: str, subject: str, *, peer: str) -> Forbidden:
        """Return the error for a client that requests records of `stream` on a forbidden subject,
        and write a line to the audit log."""
        why = (
            f"denied: {subject[:_MAX_SHOWN]!a} is not an inbox, and `deliver` in the section nats "
            "leaves it out"
        )
        self._audit.denied(principal, peer, "read", stream, why)
        return Forbidden(f"records of {stream!r} may not be sent there", hint=why)

    def may(self, principal: str | None, operation: Operation, stream: str) -> bool:
        """Return True if the operation is allowed. Used for answers that show only the data that
        the principal may see."""
        if self.policy is None:
            return True
        if operation == "read":
            return self._decide_read(self.policy, principal or ANONYMOUS, stream).allowed
        return self._decide(self.policy, principal or ANONYMOUS, operation, stream, None).allowed

    def may_somewhere(self, principal: str | None, operation: Operation) -> bool:
        """Return True if the operation is allowed for some stream. Used for links to forms with a
        field for the name of the stream."""
        return self.policy is None or self.policy.has_rule(principal or ANONYMOUS, operation)

    def _decide(
        self,
        policy: Policy,
        principal: str,
        operation: Operation,
        stream: str,
        subject: str | None,
    ) -> Decision:
        if subject is not None:
            return policy.decide(principal, operation, stream, subject)
        decision = self._kept.get((principal, operation, stream))
        if decision is None:
            decision = policy.decide(principal, operation, stream)
            _keep(self._kept, (principal, operation, stream), decision)
        return decision

    def _decide_work(self, policy: Policy, principal: str, stream: str, consumer: str) -> Decision:
        key = principal, stream, consumer
        decision = self._kept_work.get(key)
        if decision is None:
            decision = policy.decide(principal, "work", stream, consumer)
            _keep(self._kept_work, key, decision)
        return decision

    def _decide_read(self, policy: Policy, principal: str, stream: str) -> ReadDecision:
        """Return the decision from a cache, because the server needs it each time that it examines
        a waiting fetch."""
        decision = self._kept_reads.get((principal, stream))
        if decision is None:
            decision = policy.decide_read(principal, stream)
            _keep(self._kept_reads, (principal, stream), decision)
        return decision


def _keep(kept: dict[Key, Kept], key: Key, decision: Kept) -> None:
    if len(kept) >= _MAX_KEPT:
        kept.clear()  # a client that requests invented names must not fill the memory
    kept[key] = decision


def _forbidden(
    principal: str | None, operation: Operation, stream: str, explanation: str
) -> Forbidden:
    what = f"{IN_WORDS[operation]} the stream {stream!r}"
    why = explanation.removeprefix("denied: ")
    return Forbidden(
        f"{principal!r} may not {what}: {why}",
        hint="ask the administrator of the ACL file; `liftlog acl explain` shows what is allowed",
    )
