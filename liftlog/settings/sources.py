"""Where values come from: file < environment < --set. One tree, and the origin of each value."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from acl.document import MAX_CHARACTERS, read_document
from liftlog.errors import ConfigError

from .findings import Finding
from .keys import KeyPath, is_text_field, known_keys

ENV_PREFIX = "LIFTLOG_"
_MAX_BYTES = 4 * MAX_CHARACTERS

# Read by the command line, not settings of the daemon.
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

# YAML indicators: `>` alone would be an empty block of text, `*` an alias.
_NOT_YAML = tuple(">|*&!%@`")
_QUOTES = ('"', "'")


class Sources:
    """Values merged in the order of the calls; a later value wins."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.tree: dict[str, Any] = {}
        self.findings: list[Finding] = []
        self._model = model
        self._origins: dict[KeyPath, str] = {}

    def origin_of(self, path: KeyPath) -> str:
        """The origin of the value at `path`, or of the closest section around it."""
        for length in range(len(path), -1, -1):
            origin = self._origins.get(path[:length])
            if origin is not None:
                return origin
        return ""

    def origin_of_setting(self, path: KeyPath) -> str:
        """Where the setting at `path` was set; empty if it was not."""
        there: Any = self.tree
        for part in path:
            if not isinstance(there, dict) or part not in there:
                return ""
            there = there[part]
        return self.origin_of(path)

    def add_file(self, file: Path) -> None:
        """Raises ConfigError when the file cannot be read."""
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
                # Without the value: it may be a secret.
                self.findings.append(Finding((), "expected KEY=VALUE", f"--set {key.strip()}"))
                continue
            self._put(path, value, f"--set {key.strip()}")

    def _path_of(self, words: list[str]) -> tuple[str, ...]:
        """Environment variables are upper case; the keys and stream names that they mean may not
        be."""
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
                # An alias in the file may have put one dict in two places.
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
        if is_text and document.value is not None and not stripped.startswith(_QUOTES):
            # A password 0123 is not the number 83.
            return text
        return document.value
