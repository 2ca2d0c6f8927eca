"""Reads the fields of a configuration that a client of JetStream sends, one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftlog import __version__
from liftlog.server.jetstream_api.answers import API_LEVEL, invalid_json, is_utf8

_FAR = 2**63
_ADDED_METADATA = ("_nats.level", "_nats.req.level", "_nats.ver")


def with_levels(config: Mapping[str, Any], required: int = 0) -> dict[str, Any]:
    """Return the configuration of a stream or consumer for an answer. Adds two levels of
    JetStream's API to its metadata: the level that the configuration needs, and the level that the
    daemon supports."""
    levels = {
        "_nats.level": f"{API_LEVEL}",
        "_nats.req.level": f"{required}",
        "_nats.ver": __version__,
    }
    return {**config, "metadata": {**config.get("metadata", {}), **levels}}


def is_empty(value: object) -> bool:
    """Return True for the zero value of a type, and for an object that contains only zero values.
    Go programs send such values for fields that are not set."""
    if isinstance(value, dict):
        return all(map(is_empty, value.values()))
    return value in (None, False, 0, "", [])


class ConfigFields:
    """The fields of one configuration. Each field is removed from `_left` when it is read, so
    unknown fields remain there. All methods treat null as a missing field, and raise JetStreamError
    for a value of another type."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._left = dict(config)

    def _drop_levels(self) -> None:
        """Remove the metadata that `with_levels` adds, because clients send back configurations
        that they have read."""
        metadata = self._left.get("metadata")
        if isinstance(metadata, dict):
            self._left["metadata"] = {
                key: value for key, value in metadata.items() if key not in _ADDED_METADATA
            }

    def _whole(self, key: str, *, least: int = 0) -> int:
        value = self._left.pop(key, None)
        if value is None:
            return 0
        if type(value) is not int or not least <= value < _FAR:
            raise invalid_json(f"{key}: expected a whole number")
        return value

    def _choice(self, key: str, known: tuple[str, ...]) -> str:
        """Read a field. Its value must be one of `known`; the first value of `known` is the
        default."""
        value = self._left.pop(key, None)
        if value is None:
            return known[0]
        if value not in known:
            raise invalid_json(f"{key}: expected one of {', '.join(filter(None, known))}")
        return str(value)

    def _text(self, key: str) -> str:
        value = self._left.pop(key, None)
        if value is None:
            return ""
        if not isinstance(value, str) or not is_utf8(value):
            raise invalid_json(f"{key}: expected text")
        return value

    def _flag(self, key: str) -> bool:
        value = self._left.pop(key, None)
        if not isinstance(value, bool | None):
            raise invalid_json(f"{key}: expected true or false")
        return bool(value)
