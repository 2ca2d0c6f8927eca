"""From the sources to checked settings, or to an error that lists everything that is wrong; and the
ACL file, read within bounds and checked.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from acl import AclError
from acl.document import MAX_CHARACTERS
from acl.policy import Policy
from liftlog.errors import ConfigError, InvalidArgument

from .checks import check_installed, check_settings, check_stream
from .daemon import Settings
from .findings import Finding, from_validation, message_of
from .keys import KeyPath, SettingsModel
from .sources import Sources
from .stream import StreamSettings

_Model = TypeVar("_Model", bound=SettingsModel)

_MAX_ROUNDS = 4
_MAX_KEYS = 64

_MAX_BYTES = 4 * MAX_CHARACTERS


def load_settings(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Settings:
    """The settings of the YAML file `path` < `environ` < `overrides` (`a.b=c`).

    Raises ConfigError with every finding, its path and its origin. The error contains no value
    that may be a secret. Its `details["findings"]` holds the findings as dicts.
    """
    return load_with_sources(path, environ, overrides)[0]


def load_with_sources(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> tuple[Settings, Sources]:
    """Like `load_settings`; the sources tell where each value comes from."""
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
    """The settings of one stream from the keys of the YAML file.

    Raises InvalidArgument with every finding. For a stream that `exists`, a missing package (such
    as a codec) is not a finding.
    """
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        raise InvalidArgument("the settings of a stream must be a mapping whose keys are text")
    sections = [item for item in values.values() if isinstance(item, (Mapping, list, tuple))]
    if max(len(values), *map(len, sections), 0) > _MAX_KEYS:
        # They come from a client, and the event loop checks them: bound the work.
        raise InvalidArgument(f"more than {_MAX_KEYS} settings in one section")

    def check(stream: StreamSettings) -> Iterator[Finding]:
        yield from check_stream(stream)
        if not exists:
            yield from check_installed(stream)

    settings, findings = _validate(StreamSettings, dict(values), check)
    if findings or settings is None:
        raise InvalidArgument(
            message_of(findings, "the stream settings"), findings=_as_dicts(findings)
        )
    return settings


def _validate(
    model: type[_Model], raw: dict[str, Any], cross_check: Callable[[_Model], Iterator[Finding]]
) -> tuple[_Model | None, list[Finding]]:
    """Cross checks need a complete model, so leave out bad values and validate the rest again.

    What a later round finds about a value that was left out is an echo, and is not reported.
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
    """The path to leave out so that the rest can be validated."""
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
    """Raises ConfigError that lists everything wrong with the file; it never shows a credential."""
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
            hint="docs/reference/acl.md describes the format",
            findings=list(error.findings),
        ) from error
