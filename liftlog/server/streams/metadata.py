"""What the manifest of a stream holds beside the log's own: settings, origin, switches, losses."""

from __future__ import annotations

import logging

from liftlog.errors import LiftlogError, StreamUnavailable
from liftlog.log import Log
from liftlog.server.commits.host import StreamHost
from liftlog.settings import StreamSettings, parse_stream_settings

logger = logging.getLogger("liftlog.server")


async def save_metadata(host: StreamHost) -> None:
    """As it is when the stream's turn comes. Failures are logged: what holds now holds anyway."""
    try:
        await host.run_exclusive(lambda: host.log.set_metadata(host.metadata()))
    except LiftlogError as error:
        logger.warning("metadata-not-saved stream=%s error=%s", host.name, error)


def stored_settings(name: str, log: Log) -> StreamSettings:
    """Those in the manifest. Raises StreamUnavailable, InvalidArgument."""
    try:
        return parse_stream_settings(log.metadata["settings"], exists=True)
    except (KeyError, TypeError) as error:
        raise StreamUnavailable(f"the manifest of stream {name} holds no settings") from error


def has_new_settings(host: StreamHost) -> bool:
    """Whether its settings are others than those that it was last served with. Those of another
    version of liftlog need not be understood: then nobody knows."""
    try:
        return host.settings != stored_settings(host.name, host.log)
    except LiftlogError:
        return True
