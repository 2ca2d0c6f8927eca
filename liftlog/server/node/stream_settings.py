"""The settings of all streams of the cluster, from their records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import LiftlogError
from liftlog.server.streams.settings import settings_of
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")


class RecordedSettings:
    """The parsed settings of all streams. `on_change` is called after each change. It is also
    called for streams without a copy on this node, because their subjects may overlap with the
    subjects of this node's streams."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.by_stream: dict[str, StreamSettings] = {}
        self._raw: dict[str, Mapping[str, Any]] = {}
        self._on_change = on_change

    def note(self, record: StreamMetadata) -> None:
        """Take the settings of a newer record."""
        name = record.name
        if record.deleted:
            if self._raw.pop(name, None) is not None:
                self.by_stream.pop(name, None)
                self._on_change()
        elif self._raw.get(name) != record.settings:
            self._raw[name] = record.settings
            try:
                self.by_stream[name] = settings_of(record)
            except LiftlogError as error:  # written by a newer version: keep the old ones
                logger.warning("settings-not-read stream=%s error=%s", name, error)
            self._on_change()
