"""Settings of streams: their differences, the changes that are allowed, and their form in the
manifest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    Conflict,
    InvalidArgument,
    LiftlogError,
    StaleIncarnation,
    StreamUnavailable,
)
from liftlog.log import Log
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings, parse_stream_settings
from liftlog.settings.stored import stored_form

logger = logging.getLogger("liftlog.server")

Difference = tuple[str, Any, Any]
"""A tuple: the dotted name of the setting, the existing value, the requested value."""

SWITCHES = ("paused", "read_only")
"""Settings with which an operator stops publishers for a limited time."""


def is_overridable(setting: str) -> bool:
    """Return True if the API may change this setting even for a stream of the configuration file.
    With such a setting, an operator stops publishers or frees disk space."""
    return setting in SWITCHES or setting.startswith("retention.")


_FIXED = {
    "queue_group": "with whom a stream shares messages belongs to its identity",
    "initial_offset": "the first offset was assigned when the stream was created",
    "replicas": "a move changes which nodes hold a stream",
}


_WHOLE = ("metadata",)
"""Settings that are mappings with keys of the user's choice. A change replaces such a mapping as a
whole."""


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def differences(have: StreamSettings, want: StreamSettings) -> list[Difference]:
    """Return every setting that differs."""
    left, right = _flatten(have.to_yaml_dict()), _flatten(want.to_yaml_dict())
    return [
        (path, left.get(path), right.get(path))
        for path in sorted({*left, *right})
        if left.get(path) != right.get(path)
    ]


def check_same(name: str, origin: str, have: StreamSettings, want: StreamSettings) -> None:
    """Raise Conflict if a stream is created again with other settings. Creating it again with the
    same settings is allowed.

    A stream that an operator has paused or set read-only may be created again without these
    settings. An application that creates its streams at each start should not resume them.
    """
    found = [
        (path, old, new)
        for path, old, new in differences(have, want)
        if not (path in SWITCHES and old is True)
    ]
    if not found:
        return
    text = "; ".join(f"{path}: {old} here, {new} asked" for path, old, new in found)
    hint = (
        "the stream comes from the configuration file; change it there"
        if origin == "config"
        else "update the stream, or ask for the settings that it has"
    )
    raise Conflict(
        f"stream {name} exists with other settings: {text}",
        hint=hint,
        differences=[
            {"setting": path, "existing": old, "requested": new} for path, old, new in found
        ],
    )


# --- changes of an existing stream ---


def merged_settings(have: StreamSettings, changes: Mapping[str, Any]) -> StreamSettings:
    """Return `have` with `changes` merged into it: sections are merged key by key, other values are
    replaced.

    Raises InvalidArgument; its message names all problems.
    """
    if not isinstance(changes, Mapping):
        raise InvalidArgument("the settings of a stream must be a mapping with text as keys")
    return parse_stream_settings(_merge(have.to_yaml_dict(), changes))


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping) and key not in _WHOLE:
            merged[key] = _merge(old, value)
        else:
            merged[key] = value
    return merged


def check_changeable(name: str, found: Sequence[Difference]) -> None:
    """Raise InvalidArgument if a setting cannot be changed. The message names all such settings."""
    fixed = [path for path, _, _ in found if path in _FIXED]
    if fixed:
        reasons = dict.fromkeys(_FIXED[path] for path in fixed)
        raise InvalidArgument(
            f"{' and '.join(fixed)} of stream {name} cannot be changed: {'; '.join(reasons)}",
            hint=f"in a cluster, `liftlog cluster move {name} --replicas a,b,c` does that"
            if fixed == ["replicas"]
            else "create another stream, on the same subject if necessary",
            settings=fixed,
        )


def with_overrides(
    configured: StreamSettings, stored: object
) -> tuple[StreamSettings, dict[str, list[Any]]]:
    """Return the settings of the file with the overrides of the API, and the overrides. An override
    is dropped if the value in the file has changed since the override was set. `stored` comes from
    the manifest. Unusable content in it is ignored."""
    if not stored or not isinstance(stored, Mapping):
        return configured, {}
    in_file = _flatten(configured.to_yaml_dict())
    kept: dict[str, list[Any]] = {}
    changes: dict[str, Any] = {}
    for name, pair in stored.items():
        if not (is_overridable(name) and isinstance(pair, list) and len(pair) == 2):
            continue
        before, value = pair
        if name in in_file and _is_same(before, in_file[name]) and not _is_same(value, before):
            kept[name] = [before, value]
            section, _, key = name.rpartition(".")
            if section:
                changes.setdefault(section, {})[key] = value
            else:
                changes[name] = value
    if not kept:
        return configured, {}
    try:
        return parse_stream_settings(_merge(configured.to_yaml_dict(), changes), exists=True), kept
    except InvalidArgument as error:
        logger.warning("overrides-dropped overrides=%s error=%s", ",".join(sorted(kept)), error)
        return configured, {}


def _is_same(one: object, other: object) -> bool:
    return type(one) is type(other) and one == other


# --- settings in the metadata record of a replicated stream ---


def record_settings(settings: StreamSettings, origin: str) -> dict[str, Any]:
    """Return the settings in the form of the metadata record. `origin` names the creator of the
    stream: `config` or `api`."""
    return {**stored_form(settings), "origin": origin}


def settings_of(record: StreamMetadata) -> StreamSettings:
    """Return the settings in the metadata record. Raises InvalidArgument, NewerFormat."""
    settings = {name: value for name, value in record.settings.items() if name != "origin"}
    return parse_stream_settings(settings, exists=True)


def origin_of(record: StreamMetadata) -> str:
    """Return the origin, which decides who may change the stream.

    A configuration file can create a replicated stream, but cannot change it. The reason is that
    each node has its own file, and nodes start one after the other. So the metadata record takes
    precedence, and only the API changes the stream.
    """
    origin = str(record.settings.get("origin", "api"))
    return "api" if origin == "config" else origin


def differences_from_file(record: StreamMetadata, configured: StreamSettings) -> list[Difference]:
    """Return the settings of a node's file that differ from the metadata record. Switches
    (`SWITCHES`) are not compared. Raises InvalidArgument."""
    found = differences(settings_of(record), configured)
    return [one for one in found if one[0] not in SWITCHES]


# --- settings in the manifest ---


async def save_metadata(host: StreamHost) -> None:
    """Store the value that `host.metadata()` returns when the exclusive call runs. A failure is
    only logged: the values in memory are in force, and the next change stores them."""
    try:
        await host.run_exclusive(lambda: host.log.structure.set_metadata(host.metadata()))
    except LiftlogError as error:
        logger.warning("metadata-not-saved stream=%s error=%s", host.name, error)


def stored_settings(name: str, log: Log) -> StreamSettings:
    """Return the settings in the manifest. Raises StreamUnavailable, InvalidArgument,
    NewerFormat."""
    try:
        return parse_stream_settings(log.view.manifest.metadata["settings"], exists=True)
    except (KeyError, TypeError) as error:
        raise StreamUnavailable(f"the manifest of stream {name} holds no settings") from error


def has_new_settings(host: StreamHost) -> bool:
    """Return True if the settings differ from the settings with which the stream was last served.
    Also return True if the earlier settings cannot be parsed because another version of liftlog has
    written them."""
    try:
        return host.settings != stored_settings(host.name, host.log)
    except LiftlogError:
        return True


def check_incarnation(name: str, present: str, wanted: str | None) -> None:
    """Raise StaleIncarnation if the incarnation `wanted` differs from `present`. A `wanted` of None
    accepts any incarnation."""
    if wanted is not None and wanted != present:
        raise StaleIncarnation(f"stream {name} was deleted and created again", incarnation=present)
