"""Loads settings from their sources (file < environment < --set) and checks them.

The result is a set of valid settings, or one error that lists all findings. Also reads and checks
the ACL file, within limits.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from acl import AclError
from acl.document import MAX_CHARACTERS, read_document
from acl.policy import Policy
from liftlog.errors import ConfigError, InvalidArgument, NewerFormat

from .checks import check_history, check_installed, check_settings, check_stream
from .daemon import Settings
from .findings import Finding, from_validation, message_of
from .keys import KeyPath, SettingsModel, is_text_field, is_texts_field, known_keys
from .stream import StreamSettings

ENV_PREFIX = "LIFTLOG_"
_MAX_BYTES = 4 * MAX_CHARACTERS
_MAX_ROUNDS = 4
_MAX_KEYS = 64

# The command line reads these; they are no settings of the daemon.
_CLIENT_VARIABLES = frozenset(
    f"{ENV_PREFIX}{name}"
    for name in (
        *("SERVER", "TOKEN", "TOKEN_FILE", "NKEY", "TLS_CA", "TLS_CERT", "TLS_KEY"),
        *("CONFIG", "OUTPUT", "HTTP_ADDRESS"),
    )
)
# Kubernetes sets these in every pod when a service is called "liftlog". Click sets
# _LIFTLOG_COMPLETE, which does not begin with our prefix.
_SERVICE_VARIABLE = re.compile(r"LIFTLOG_(SERVICE_(HOST|PORT)|PORT($|_\d))")

# Indicators of YAML: `>` alone would be an empty block of text, `*` an alias.
_NOT_YAML = tuple(">|*&!%@`")
_QUOTES = ('"', "'")


_Model = TypeVar("_Model", bound=SettingsModel)


class Sources:
    """Merges values in the order of the calls, and stores the origin of each. A later value
    replaces an earlier one."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.tree: dict[str, Any] = {}
        self.findings: list[Finding] = []
        self._model = model
        self._origins: dict[KeyPath, str] = {}

    def origin_of(self, path: KeyPath) -> str:
        """Return the origin of the value at `path`, or of the closest section around it."""
        for length in range(len(path), -1, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return origin
        return ""

    def origin_of_setting(self, path: KeyPath) -> str:
        """Return the origin of the setting at `path`; empty if it was not set."""
        there: Any = self.tree
        for part in path:
            if not isinstance(there, dict) or part not in there:
                return ""
            there = there[part]
        return self.origin_of(path)

    def add_file(self, file: Path) -> None:
        """Merge the values of a file. Raises ConfigError if the file cannot be read."""
        try:
            with file.open("rb") as opened:
                content = opened.read(_MAX_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        if len(content) > _MAX_BYTES:
            raise ConfigError(f"{file} is longer than {_MAX_BYTES} bytes")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"cannot read {file}: it is not UTF-8 text") from error
        document = read_document(text)
        for path, line, problem in document.findings:
            self.findings.append(Finding(path, problem, f"{file}:{line}" if line else str(file)))
        if document.value is None:
            return
        if not isinstance(document.value, dict):
            self.findings.append(Finding((), "expected a mapping of settings", str(file)))
            return
        self.tree = document.value
        self._origins.update((path, f"{file}:{line}") for path, line in document.lines.items())
        self._origins[()] = str(file)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        for variable in sorted(environ):
            if not variable.startswith(ENV_PREFIX) or variable in _CLIENT_VARIABLES:
                continue
            if _SERVICE_VARIABLE.match(variable):
                continue
            path = self._path_of(variable.removeprefix(ENV_PREFIX).split("__"))
            self._put(path, environ[variable], variable)

    def add_overrides(self, overrides: Sequence[str]) -> None:
        for text in overrides:
            key, equals, value = text.partition("=")
            path = tuple(key.strip().split("."))
            if not equals or "" in path:
                # The value is not shown, because it may be a secret.
                self.findings.append(Finding((), "expected KEY=VALUE", f"--set {key.strip()}"))
                continue
            self._put(path, value, f"--set {key.strip()}")

    def _path_of(self, words: list[str]) -> tuple[str, ...]:
        """Return the path of an environment variable. The name of the variable is upper case, but
        keys and names of streams in the path may be lower case."""
        path: list[str] = []
        for word in words:
            there: Any = self.tree
            for part in path:
                there = there.get(part) if isinstance(there, dict) else None
            known = [
                *(there if isinstance(there, dict) else ()),
                *known_keys(self._model, tuple(path)),
            ]
            same = [key for key in known if key.lower() == word.lower()]
            path.append(same[0] if same else word.lower())
        return tuple(path)

    def _put(self, path: tuple[str, ...], text: str, origin: str) -> None:
        if "" in path:
            self.findings.append(Finding((), "expected names separated by '__'", origin))
            return
        value = self._parse(path, text, origin)
        there = self.tree
        for part in path[:-1]:
            inner = there.get(part)
            if not isinstance(inner, dict):
                inner = there[part] = {}
            else:
                # An alias in the file may have put the same dict into two places.
                inner = there[part] = dict(inner)
            there = inner
        there[path[-1]] = value
        for known in [known for known in self._origins if known[: len(path)] == path]:
            del self._origins[known]
        self._origins[path] = origin

    def _parse(self, path: KeyPath, text: str, origin: str) -> Any:
        is_text = is_text_field(self._model, path)
        stripped = text.strip()
        if stripped.startswith(_NOT_YAML):
            return text
        document = read_document(text)
        if document.findings:
            if not is_text:
                problem = document.findings[0][2]
                self.findings.append(Finding(path, problem, origin))
            return text
        is_list = isinstance(document.value, list) and is_texts_field(self._model, path)
        if is_list:
            return document.value
        if is_text and document.value is not None and not stripped.startswith(_QUOTES):
            # A password 0123 must not become the number 83.
            return text
        return document.value


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Settings:
    """Return the settings of the YAML file `path` < `environ` < `overrides` (`a.b=c`).

    Raises ConfigError with every finding, its path and its origin. The error contains no value
    that may be a secret. Its `details["findings"]` holds the findings as dicts.
    """
    return load_with_sources(path, environ, overrides)[0]


def load_with_sources(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> tuple[Settings, Sources]:
    """Like `load_settings`, and also return the sources, with the origin of each value."""
    sources = Sources(Settings)
    if path is not None:
        sources.add_file(path)
    sources.add_environment(environ)
    sources.add_overrides(overrides)
    settings, found = _validate(Settings, sources.tree, check_settings)
    findings = list(sources.findings)
    for item in found:
        origin = next(filter(None, map(sources.origin_of, (item.path, *item.involved))), "")
        findings.append(replace(item, origin=origin))
    if findings or settings is None:
        raise ConfigError(message_of(findings, "the configuration"), findings=_as_dicts(findings))
    return settings, sources


def parse_stream_settings(values: Mapping[str, Any], *, exists: bool = False) -> StreamSettings:
    """Return the settings of one stream from the keys of the YAML file.

    Raises InvalidArgument with every finding. If the stream `exists`, it gets a warning, and no
    finding, for a missing package (such as a codec) and for compaction that deletes a history.
    Unknown keys of an existing stream come from a newer version, and raise NewerFormat.
    """
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidArgument("the settings of a stream must be a mapping whose keys are text")
    sections = [item for item in values.values() if isinstance(item, (Mapping, list, tuple))]
    if max(len(values), *map(len, sections), 0) > _MAX_KEYS:
        # The settings come from a client, and the event loop checks them, so the work is limited.
        raise InvalidArgument(f"more than {_MAX_KEYS} settings in one section")

    def check(stream: StreamSettings) -> Iterator[Finding]:
        yield from check_stream(stream)
        if not exists:
            yield from check_history(stream)
            yield from check_installed(stream)

    settings, findings = _validate(StreamSettings, dict(values), check)
    if exists and (newer := [one.dotted for one in findings if one.is_unknown]):
        raise NewerFormat(
            f"a newer liftlog has stored settings that this one does not know: {', '.join(newer)}"
        )
    if findings or settings is None:
        raise InvalidArgument(
            message_of(findings, "the stream settings"), findings=_as_dicts(findings)
        )
    return settings


def _validate(
    model: type[_Model], raw: dict[str, Any], cross_check: Callable[[_Model], Iterator[Finding]]
) -> tuple[_Model | None, list[Finding]]:
    """Validate the settings. Checks across fields need a complete model, so the function leaves out
    bad values and validates the rest again.

    A later round may report that a value is missing because it was left out. Such a finding is only
    a consequence of another finding, and is dropped.
    """
    findings: list[Finding] = []
    left_out: set[KeyPath] = set()
    current: Any = raw
    for _ in range(_MAX_ROUNDS):
        try:
            settings = model.model_validate(current)
        except ValidationError as error:
            wrong = list(from_validation(error, model, current))
            findings += [finding for finding in wrong if not _echo(finding, findings)]
            fresh = {_removable(finding) for finding in wrong} - left_out
            if not fresh or () in fresh:
                return None, findings
            left_out |= fresh
            current = _without(current, left_out, ())
        else:
            findings += [f for f in cross_check(settings) if not _echo(f, findings)]
            return (None if findings else settings), findings
    return None, findings


def _removable(finding: Finding) -> KeyPath:
    """Return the path to leave out so that the rest can be validated."""
    if finding.is_missing:
        return finding.path[:-1]  # the section that lacks it
    for index, part in enumerate(finding.path):
        if isinstance(part, int):
            return finding.path[:index]  # the whole list: other items keep their numbers
    return finding.path


def _echo(finding: Finding, earlier: Sequence[Finding]) -> bool:
    return any(
        _related(path, known.path)
        for path in (finding.path, *finding.involved)
        for known in earlier
    )


def _related(first: KeyPath, second: KeyPath) -> bool:
    shorter = min(len(first), len(second))
    return first[:shorter] == second[:shorter]


def _without(value: Any, left_out: set[KeyPath], at: KeyPath) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        key: _without(item, left_out, (*at, key))
        for key, item in value.items()
        if (*at, key) not in left_out
    }


def _as_dicts(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"path": f.dotted, "problem": f.problem, "origin": f.origin} for f in findings]


def load_policy(file: Path) -> Policy:
    """Load the policy of the ACL file. Raises ConfigError, which lists all errors of the file and
    never shows a credential."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"acl.file: cannot read {file}: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise ConfigError(
            f"acl.file: every user of this machine can write to {file}", hint=f"chmod o-w {file}"
        )
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"acl.file: {file} is longer than {_MAX_BYTES} bytes")
    try:
        return Policy.load(content.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"acl.file: {file} is not UTF-8 text") from None
    except AclError as error:
        raise ConfigError(
            f"acl.file: {file}: {error}",
            hint="`liftlog docs reference/acl` describes the format",
            findings=list(error.findings),
        ) from error
