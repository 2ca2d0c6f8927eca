"""`Policy` authenticates clients and decides whether they may do an operation.

A policy is immutable and can be shared between threads. A reload builds a new policy, which
replaces the old policy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .nkeys import is_signed
from .reading import read_rules
from .rules import (
    ANONYMOUS,
    IN_WORDS,
    OPERATIONS,
    OVER_NATS,
    Operation,
    Principal,
    Rule,
    Rules,
    StreamMatcher,
    name_matches,
)
from .subjects import is_subset, is_valid_pattern
from .tokens import MAX_TOKEN_CHARACTERS, slowest_hash, verify_secret

_MAX_SHOWN = 80


class Decision(NamedTuple):
    """A decision. `explanation` is meant for people: the audit log, `acl explain`, the client's
    error."""

    allowed: bool
    explanation: str

    def __bool__(self) -> bool:
        return self.allowed


class ReadDecision(NamedTuple):
    """A decision about reading or erasing. It concerns only records on `subjects`; None stands for
    all. The caller must enforce this with a filter."""

    allowed: bool
    explanation: str
    subjects: tuple[str, ...] | None


class Policy:
    """The rules of an ACL file, prepared for decisions. Every operation that no rule allows is
    denied."""

    def __init__(self, rules: Rules) -> None:
        self._principals = rules.principals
        self._bindings = {name: tuple(dict.fromkeys(some)) for name, some in rules.bindings.items()}
        self._roles = rules.roles
        self._nkeys = {one.nkey: one.name for one in self.principals if one.nkey}
        self._certificates = {
            one.certificate_cn: one.name for one in self.principals if one.certificate_cn
        }
        self._uids = {one.unix_uid: one.name for one in self.principals if one.unix_uid is not None}
        self._decoy = slowest_hash(one.token_hash for one in self.principals)
        self._rules: dict[tuple[str, Operation], tuple[tuple[StreamMatcher, Rule], ...]] = {}
        # Built once per rule, not once per principal: thousands may be bound to the same rule.
        matchers = {
            role: [(StreamMatcher(rule.streams), rule) for rule in some]
            for role, some in rules.roles.items()
        }
        for name in rules.principals:
            for operation in OPERATIONS:
                self._rules[name, operation] = tuple(
                    (matcher, rule)
                    for role in self._bindings.get(name, ())
                    for matcher, rule in matchers[role]
                    if operation in rule.operations
                )

        self.deliverable = () if rules.nats is None else rules.nats.deliver
        """The subjects to which NATS clients may request delivery, in addition to inboxes."""
        if rules.nats is not None:
            matcher = StreamMatcher(rules.nats.streams)
            for operation in rules.nats.operations:
                self._rules[OVER_NATS, operation] = ((matcher, rules.nats),)
            # Files from before `work` existed let every reader over NATS use consumers with acks.
            if "read" in rules.nats.operations:
                self._rules.setdefault((OVER_NATS, "work"), ((matcher, rules.nats),))

    @classmethod
    def load(cls, text: str) -> Policy:
        """Read a policy from the text of an ACL file. Raises AclError with all findings."""
        return cls(read_rules(text))

    @property
    def principals(self) -> tuple[Principal, ...]:
        return tuple(self._principals.values())

    def roles_of(self, name: str) -> tuple[str, ...]:
        return self._bindings.get(name, ())

    def has_rule(self, principal: str, operation: Operation) -> bool:
        """Return True if a rule allows the operation on some stream."""
        return bool(self._rules.get((principal, operation)))

    def oddities(self) -> list[str]:
        """Describe the parts of the ACL that are valid but probably a mistake, in one sentence
        each."""
        found = [
            f"principal {name} has no role, so it may do nothing"
            for name in self._principals
            if not self.roles_of(name)
        ]
        used = {role for roles in self._bindings.values() for role in roles}
        found += [f"no principal has the role {role}" for role in self._roles if role not in used]
        found += [
            f"clients of NATS may have records sent to {one}: to services, too, as from the daemon"
            for one in self.deliverable
            if one.split(".")[0] in ("*", ">")
        ]
        for role in self.roles_of(ANONYMOUS):
            for rule in self._roles[role]:
                changing = sorted(
                    rule.operations & {"create", "delete", "admin", "erase", "replicate"}
                )
                if changing:
                    what = ", ".join(changing)
                    found.append(f"clients that did not authenticate may {what} by {rule}")
        return found

    @property
    def allows_anonymous(self) -> bool:
        """True if a client may continue without authenticating, as the principal `anonymous`."""
        return ANONYMOUS in self._principals

    @property
    def accepts_tokens(self) -> bool:
        return self._decoy is not None

    @property
    def accepts_nkeys(self) -> bool:
        return bool(self._nkeys)

    def authenticate_token(self, token: str) -> str | None:
        """Return the principal of `<principal>.<secret>`; None if the token is wrong.

        For an unknown principal, the slowest hash in the file is checked, so that the refusal takes
        as long as for a wrong secret. With an argon2 hash the call blocks for tens of milliseconds:
        call it outside the event loop, and limit its rate first.
        """
        if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARACTERS:
            return None
        name, _, secret = token.partition(".")
        principal = self._principals.get(name)
        expected = None if principal is None else principal.token_hash
        return name if verify_secret(expected, secret, decoy=self._decoy) else None

    def authenticate_nkey(self, public_key: str, text: bytes, signature: bytes) -> str | None:
        """Return the principal whose nkey signed `text`; None if there is no such principal."""
        name = self._nkeys.get(public_key)
        return name if name is not None and is_signed(public_key, text, signature) else None

    def principal_of_certificate(self, names: Iterable[str]) -> str | None:
        """Return the principal of a verified certificate with these names (common name, alternative
        names); None if no principal has these names, or several principals have them."""
        found = {self._certificates[name] for name in names if name in self._certificates}
        return found.pop() if len(found) == 1 else None

    def principal_of_uid(self, uid: int) -> str | None:
        return self._uids.get(uid)

    def credential(self, name: str, method: str) -> object:
        """Return the credential of `name` for this method (token, nkey, certificate, unix or
        anonymous), for comparison with another policy; None if `name` cannot use this method."""
        principal = self._principals.get(name)
        if principal is None:
            return None
        return {
            "token": principal.token_hash,
            "nkey": principal.nkey,
            "certificate": principal.certificate_cn,
            "unix": principal.unix_uid,
            "anonymous": True if name == ANONYMOUS else None,
        }.get(method)

    def decide(
        self, principal: str, operation: Operation, stream: str, subject: str | None = None
    ) -> Decision:
        """Decide whether `principal` may do `operation` on `stream`.

        For `create`, `subject` is the pattern that the stream records; it must be a subset of an
        allowed pattern. For `work`, it is the name of the consumer. Without a name, the method
        decides whether the principal may use at least one consumer. For `read`, it is the pattern
        to filter by. Without a pattern the decision concerns all subjects, so a principal that may
        read only some subjects (see `readable_subjects`) is denied. For `erase`, it is the pattern
        whose records are erased; without a pattern the method decides whether the principal may
        erase records on at least one subject. Raises ValueError for an unknown operation.
        """
        if operation not in OPERATIONS:
            raise ValueError(f"unknown operation {operation!r}")
        if principal not in self._principals and principal != OVER_NATS:
            return Decision(False, f"denied: there is no principal {_show(principal)}")
        rules = self._covering(principal, operation, stream)
        what = f"{IN_WORDS[operation]} stream {_show(stream)}"
        if not rules:
            return Decision(False, f"denied: no rule allows {principal} to {what}")
        if operation == "work":
            return _decide_work(principal, what, rules, subject)
        if operation not in ("create", "read", "erase") or (operation == "erase" and not subject):
            return _allowed(principal, what, rules[0])
        if subject is not None and not is_valid_pattern(subject):
            return Decision(False, f"denied: {_show(subject)} is not a NATS subject")
        if operation == "create":
            return self._decide_create(principal, what, rules, subject)
        return self._decide_read(principal, what, rules, subject)

    def decide_read(self, principal: str, stream: str) -> ReadDecision:
        """Decide whether `principal` may read records of `stream`, and on which subjects."""
        return self.decide_subjects(principal, "read", stream)

    def decide_subjects(self, principal: str, operation: Operation, stream: str) -> ReadDecision:
        """Decide whether `principal` may read or erase records of `stream`, and on which
        subjects."""
        rules = self._covering(principal, operation, stream)
        if not rules:
            return ReadDecision(False, self.decide(principal, operation, stream).explanation, ())
        what = f"{IN_WORDS[operation]} stream {_show(stream)}"
        for rule in rules:
            if rule.subjects is None:
                return ReadDecision(True, _allowed(principal, what, rule).explanation, None)
        subjects = tuple(dict.fromkeys(one for rule in rules for one in rule.subjects or ()))
        by = " and ".join(map(str, rules))
        shown = f"allowed: {principal} may {what}, only records on {', '.join(subjects)}, by {by}"
        return ReadDecision(True, shown, subjects)

    def readable_subjects(self, principal: str, stream: str) -> tuple[str, ...] | None:
        """Return the subjects in `stream` that `principal` may read. None stands for all subjects,
        an empty tuple for none.

        The caller must use the result as a filter.
        """
        return self.decide_read(principal, stream).subjects

    def _covering(self, principal: str, operation: Operation, stream: str) -> list[Rule]:
        candidates = self._rules.get((principal, operation), ())
        return [rule for streams, rule in candidates if streams.matches(stream)]

    def _decide_create(
        self, principal: str, what: str, rules: list[Rule], subject: str | None
    ) -> Decision:
        if subject is None:
            return Decision(False, f"denied: to {what} needs the subject to attach")
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
                return _allowed(principal, f"{what}, subject {_show(subject)},", rule)
        patterns = ", ".join(dict.fromkeys(p for rule in rules for p in rule.subjects or ()))
        asked = "all subjects" if subject is None else _show(subject)
        return Decision(
            False, f"denied: {principal} may {what} only on subjects {patterns}, not on {asked}"
        )


def _decide_work(principal: str, what: str, rules: list[Rule], consumer: str | None) -> Decision:
    for rule in rules:
        names = rule.consumers
        if consumer is None or names is None or any(name_matches(one, consumer) for one in names):
            return _allowed(principal, what, rule)
    names_shown = ", ".join(dict.fromkeys(one for rule in rules for one in rule.consumers or ()))
    return Decision(
        False,
        f"denied: {principal} may {what}, but only {names_shown}, not {_show(consumer or '')}",
    )


def _allowed(principal: str, what: str, rule: Rule) -> Decision:
    return Decision(True, f"allowed: {principal} may {what} by {rule}")


def _show(text: str) -> str:
    """Quote and shorten a text that came from a client and may go into a log."""
    return ascii(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
