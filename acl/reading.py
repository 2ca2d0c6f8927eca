"""Parses the text of an ACL file to `Rules`, or to a list of all its problems."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any, cast

from .document import Document, Path, read_document
from .nkeys import NotAnNkey, public_key_bytes
from .rules import (
    ANONYMOUS,
    OPERATIONS,
    OVER_NATS,
    AclError,
    Operation,
    Principal,
    Rule,
    Rules,
    is_consumer_pattern,
    is_name,
    is_stream_pattern,
)
from .subjects import why_invalid
from .tokens import wrong_hash

_SECTIONS = ("principals", "roles", "bindings", "nats")
_NATS_OPERATIONS = ("create", "read", "work", "delete")
_CREDENTIALS = ("token_hash", "nkey", "certificate_cn", "unix_uid")
_RULE_KEYS = ("allow", "streams", "subjects", "attach", "consumers")
_NATS_KEYS = (*_RULE_KEYS, "deliver")
_MAX_UID = 2**32 - 2


def read_rules(text: str) -> Rules:
    """Return the rules in `text`. Raises AclError with all findings, which show no credential."""
    return _Reader(read_document(text)).read()


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._findings: list[str] = []

    def read(self) -> Rules:
        for path, line, problem in self._document.findings:
            self._say(path, problem, line)
        value = self._document.value
        principals: dict[str, Principal] = {}
        roles: dict[str, tuple[Rule, ...]] = {}
        bindings: dict[str, tuple[str, ...]] = {}
        nats: Rule | None = None
        if value is not None or not self._findings:
            whole = self._mapping(value, ())
            self._known(whole, (), _SECTIONS)
            for name, item in self._named(whole, "principals"):
                principals[name] = self._principal(name, item, ("principals", name))
            for name, item in self._named(whole, "roles"):
                roles[name] = self._role(name, item, ("roles", name))
            for name, item in self._mapping(whole.get("bindings"), ("bindings",), True).items():
                bindings[name] = self._binding(name, item, principals, roles)
            if "nats" in whole:
                nats = self._nats(whole["nats"])
            self._unambiguous(principals.values())
            if not principals:
                self._say((), "it names no principals, so no client could do anything")
        if self._findings:
            raise AclError(self._findings)
        return Rules(principals, roles, bindings, nats)

    # --- principals ---------------------------------------------------------------

    def _principal(self, name: str, value: Any, at: Path) -> Principal:
        item = self._mapping(value, at, empty_is_fine=name == ANONYMOUS)
        self._known(item, at, _CREDENTIALS)
        given = {key: item[key] for key in _CREDENTIALS if item.get(key) is not None}
        if name == ANONYMOUS and given:
            self._say(at, "stands for clients that did not authenticate: it has no credentials")
        elif name != ANONYMOUS and isinstance(value, dict) and not given:
            self._say(at, f"expected at least one of {', '.join(_CREDENTIALS)}")
        wrong = {
            "token_hash": wrong_hash,
            "nkey": _wrong_nkey,
            "certificate_cn": _wrong_cn,
            "unix_uid": _wrong_uid,
        }
        good = {}
        for key, credential in given.items():
            problem = wrong[key](credential)
            if problem is None:
                good[key] = credential
            else:
                self._say((*at, key), problem)
        return Principal(name, **good)

    def _unambiguous(self, principals: Iterable[Principal]) -> None:
        seen: dict[tuple[str, object], str] = {}
        for principal in principals:
            for key in _CREDENTIALS:
                credential = getattr(principal, key)
                if credential is None:
                    continue
                first = seen.setdefault((key, credential), principal.name)
                if first != principal.name:
                    at = ("principals", principal.name, key)
                    self._say(at, f"principal {first!r} has the same one")

    # --- roles --------------------------------------------------------------------

    def _role(self, name: str, value: Any, at: Path) -> tuple[Rule, ...]:
        if not isinstance(value, list) or not value:
            self._say(at, "expected a list of rules")
            return ()
        return tuple(self._rule(name, n, item, (*at, n)) for n, item in enumerate(value))

    def _rule(
        self, role: str, index: int, value: Any, at: Path, known: tuple[str, ...] = _RULE_KEYS
    ) -> Rule:
        item = self._mapping(value, at)
        self._known(item, at, known)
        allow = self._texts(item, "allow", at, _wrong_operation, required=True)
        streams = self._texts(item, "streams", at, _wrong_stream_pattern, required=True)
        subjects = self._texts(item, "subjects", at, _wrong_subject)
        attach = self._texts(item, "attach", at, _wrong_subject)
        deliver = self._texts(item, "deliver", at, _wrong_subject)
        consumers = self._texts(item, "consumers", at, _wrong_consumer_pattern)
        # Half a rule could allow more than its author intended.
        if "create" in allow and "attach" not in item:
            self._say(at, "`create` needs `attach`: the NATS subjects that a stream may record")
        if "attach" in item and allow and "create" not in allow:
            self._say((*at, "attach"), "has no effect without `create` in `allow`")
        if "subjects" in item and allow and not {"read", "erase"} & set(allow):
            self._say((*at, "subjects"), "has no effect without `read` or `erase` in `allow`")
        if "deliver" in item and allow and "read" not in allow:
            self._say((*at, "deliver"), "has no effect without `read` in `allow`")
        if "consumers" in item and allow and "work" not in allow:
            self._say((*at, "consumers"), "has no effect without `work` in `allow`")
        return Rule(
            role,
            index + 1,
            frozenset(cast(Operation, operation) for operation in allow),
            streams,
            subjects if "subjects" in item else None,
            attach,
            deliver,
            consumers if "consumers" in item else None,
        )

    def _nats(self, value: Any) -> Rule:
        rule = self._rule(OVER_NATS, 0, value, ("nats",), _NATS_KEYS)
        for operation in sorted(rule.operations - set(_NATS_OPERATIONS)):
            expected = ", ".join(_NATS_OPERATIONS)
            self._say(("nats", "allow"), f"{operation}: expected some of {expected}")
        return rule

    # --- bindings -----------------------------------------------------------------

    def _binding(
        self, name: str, value: Any, principals: dict[str, Principal], roles: dict[str, Any]
    ) -> tuple[str, ...]:
        at: Path = ("bindings", name)
        if name not in principals:
            self._say(at, f"unknown principal{_close(name, principals)}")
        if not isinstance(value, list):
            self._say(at, "expected a list of role names")
            return ()
        for index, role in enumerate(value):
            if not isinstance(role, str) or role not in roles:
                hint = _close(role, roles) if isinstance(role, str) else ""
                self._say((*at, index), f"unknown role{hint}")
        return tuple(role for role in value if isinstance(role, str))

    # --- pieces -------------------------------------------------------------------

    def _named(self, whole: dict[str, Any], section: str) -> Iterable[tuple[str, Any]]:
        for name, item in self._mapping(whole.get(section), (section,), True).items():
            if not is_name(name):
                problem = "expected a name of 1 to 64 letters, digits, '_' or '-'"
                self._say((section, name), problem)
            yield name, item

    def _mapping(self, value: Any, at: Path, empty_is_fine: bool = False) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        if value is not None or not empty_is_fine:
            self._say(at, "expected a mapping")
        return {}

    def _known(self, item: dict[str, Any], at: Path, known: tuple[str, ...]) -> None:
        for key in item:
            if key not in known:
                hint = _close(key, known) or f"; known here: {', '.join(known)}"
                self._say((*at, key), f"unknown key{hint}")

    def _texts(
        self,
        item: dict[str, Any],
        key: str,
        at: Path,
        wrong: Callable[[str], str | None],
        required: bool = False,
    ) -> tuple[str, ...]:
        if key not in item and not required:
            return ()
        value = item.get(key)
        # A key without a value, or with an empty list, is a mistake: it must not mean "all".
        if not isinstance(value, list) or not value:
            self._say((*at, key), "expected a list with at least one entry")
            return ()
        good = []
        for index, text in enumerate(value):
            problem = wrong(text) if isinstance(text, str) else "expected text (put it in quotes)"
            if problem is None:
                good.append(text)
            else:
                self._say((*at, key, index), problem)
        return tuple(good)

    def _say(self, path: Path, problem: str, line: int | None = None) -> None:
        where = ""
        for part in path:
            if isinstance(part, int):
                where += f"[{part}]"
            else:
                word = part if is_name(part) or part in _CREDENTIALS else repr(part[:80])
                where += f".{word}" if where else word
        if line is None:
            line = self._document.lines.get(path, 0)
        text = f"{where}: {problem}" if where else problem
        self._findings.append(f"{text} [line {line}]" if line else text)


def _close(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word[:80], list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def _wrong_nkey(value: object) -> str | None:
    try:
        public_key_bytes(value if isinstance(value, str) else "")
    except NotAnNkey as error:
        return str(error)
    return None


def _wrong_cn(value: object) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= 255 and value.isprintable():
        return None
    return "expected the common name of a certificate"


def _wrong_uid(value: object) -> str | None:
    if type(value) is int and 0 <= value <= _MAX_UID:
        return None
    return "expected a user id"


def _wrong_operation(text: str) -> str | None:
    if text in OPERATIONS:
        return None
    hint = _close(text, OPERATIONS) or f"; expected one of {', '.join(OPERATIONS)}"
    return f"unknown operation{hint}"


def _wrong_stream_pattern(text: str) -> str | None:
    if is_stream_pattern(text):
        return None
    return "expected a stream name, in which '*' matches any characters"


def _wrong_consumer_pattern(text: str) -> str | None:
    if is_consumer_pattern(text):
        return None
    return "expected a consumer's name, in which '*' matches any characters"


def _wrong_subject(text: str) -> str | None:
    problem = why_invalid(text)
    return None if problem is None else f"not a NATS subject: {problem}"
