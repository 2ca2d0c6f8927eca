"""What the client library logs, in the words of the command line."""

from __future__ import annotations

import logging
from typing import Any

from liftlog.cli.problems import note, warn


class ClientEvents(logging.Handler):
    """For the logger of the client: on stderr, a sentence for each event."""

    def emit(self, record: logging.LogRecord) -> None:
        event = str(record.msg).partition(" ")[0]
        arguments: Any = record.args
        if event == "position-reset":
            return  # `consume` is told by its callback, and says so itself
        if event == "connection-lost":
            warn(f"{arguments[1]}; trying again")
        elif event == "token-unencrypted":
            warn(
                f"the token passes {arguments[0]} unencrypted: use tls://, a Unix socket or --nkey"
            )
        elif event == "connected-again":
            note(f"connected again after {arguments[1]:.1f} s")
        elif record.levelno >= logging.WARNING:
            warn(record.getMessage())


def tell_client_events() -> None:
    logger = logging.getLogger("liftlog.client")
    logger.setLevel(logging.INFO)
    logger.addHandler(ClientEvents())
    logger.propagate = False
