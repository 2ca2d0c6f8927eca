"""`Policy`: who is it, and may they do it.

Immutable and safe to share between threads; a reload builds a new one and swaps it in.
"""

from __future__ import annotations

from typing import NamedTuple

from .reading import read_rules
from .rules import ANONYMOUS, OPERATIONS, Operation, Principal, Rule, Rules
from .subjects import is_subset, is_valid_pattern
from .tokens import MAX_TOKEN_CHARACTERS, verify_secret

_MAX_SHOWN = 80


class Decision(NamedTuple):
    """`explanation` is for people: an audit log, `acl explain`, the error to the client."""

    allowed: bool
    explanation: str

    def __bool__(self) -> bool:
        return self.allowed


class Policy:
    """Deny by default: what no rule allows is denied."""

    def __init__(self, rules: Rules) -> None:
        self._principals = rules.principals
        self._rules: dict[tuple[str, Operation], tuple[Rule, ...]] = {}
        for name in rules.principals:
            roles = dict.fromkeys(rules.bindings.get(name, ()))
            for operation in OPERATIONS:
                self._rules[name, operation] = tuple(
                    rule
                    for role in roles
                    for rule in rules.roles[role]
                    if operation in rule.operations
                )

    @classmethod
    def load(cls, text: str) -> Policy:
        """From the text of an ACL file. Raises AclError with all findings."""
        return cls(read_rules(text))

    @property
    def principals(self) -> tuple[Principal, ...]:
        return tuple(self._principals.values())

    @property
    def allows_anonymous(self) -> bool:
        """Whether a client may go on without authenticating, as the principal `anonymous`."""
        return ANONYMOUS in self._principals

    def authenticate_token(self, token: str) -> str | None:
        """The principal of `<principal>.<secret>`, or None.

        Takes the same time for an unknown principal as for a wrong secret. Blocks for tens of
        milliseconds when the hash is argon2: call it off the event loop then, and limit its rate
        first.
        """
        if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARACTERS:
            return None
        name, _, secret = token.partition(".")
        principal = self._principals.get(name)
        expected = None if principal is None else principal.token_hash
        return name if verify_secret(expected, secret) else None

    def decide(
        self, principal: str, operation: Operation, stream: str, subject: str | None = None
    ) -> Decision:
        """Whether `principal` may do `operation` on `stream`.

        For `create`, `subject` is the pattern to attach: it must be a subset of one that may be
        attached. For `read` it is the pattern to filter by; without one the question is about
        all subjects, so a principal who may read only some is denied (`readable_subjects` says
        which). Raises ValueError for an unknown operation.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"unknown operation {operation!r}")
        if principal not in self._principals:
            return Decision(False, f"denied: there is no principal {_show(principal)}")
        rules = [r for r in self._rules[principal, operation] if r.covers(stream)]
        what = f"{operation} on stream {_show(stream)}"
        if not rules:
            return Decision(False, f"denied: no rule allows {principal} to {what}")
        if operation not in ("create", "read"):
            return _allowed(principal, what, rules[0])
        if subject is not None and not is_valid_pattern(subject):
            return Decision(False, f"denied: {_show(subject)} is not a NATS subject")
        if operation == "create":
            return self._decide_create(principal, what, rules, subject)
        return self._decide_read(principal, what, rules, subject)

    def readable_subjects(self, principal: str, stream: str) -> tuple[str, ...] | None:
        """The subjects within `stream` that `principal` may read; None: all, (): nothing.

        Whoever answers a read must enforce them as a filter.
        """
        subjects: dict[str, None] = {}
        for rule in self._rules.get((principal, "read"), ()):
            if rule.covers(stream):
                if rule.subjects is None:
                    return None
                subjects.update(dict.fromkeys(rule.subjects))
        return tuple(subjects)

    def _decide_create(
        self, principal: str, what: str, rules: list[Rule], subject: str | None
    ) -> Decision:
        if subject is None:
            return Decision(False, f"denied: {what} needs the subject to attach")
        for rule in rules:
            if any(is_subset(subject, allowed) for allowed in rule.attach):
                return _allowed(principal, f"{what} attached to {_show(subject)}", rule)
        patterns = ", ".join(dict.fromkeys(p for rule in rules for p in rule.attach))
        return Decision(
            False,
            f"denied: {principal} may {what}, but attach it only to {patterns}, "
            f"not to {_show(subject)}",
        )

    def _decide_read(
        self, principal: str, what: str, rules: list[Rule], subject: str | None
    ) -> Decision:
        for rule in rules:
            if rule.subjects is None:
                return _allowed(principal, what, rule)
            if subject is not None and any(is_subset(subject, one) for one in rule.subjects):
                return _allowed(principal, f"{what}, subject {_show(subject)}", rule)
        patterns = ", ".join(dict.fromkeys(p for rule in rules for p in rule.subjects or ()))
        asked = "all subjects" if subject is None else _show(subject)
        return Decision(
            False, f"denied: {principal} may {what} only on subjects {patterns}, not on {asked}"
        )


def _allowed(principal: str, what: str, rule: Rule) -> Decision:
    return Decision(True, f"allowed: {principal} may {what} by {rule}")


def _show(text: str) -> str:
    """Quoted and shortened: it came from a client and may go into a log."""
    return ascii(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
