"""Reading sealed segments batch by batch, every checksum verified."""

from __future__ import annotations

from liftlog.errors import LiftlogError


class SourceDamaged(LiftlogError):
    """A source segment cannot be read to its end; `file_name` says which. Scrub it."""

    name = "SOURCE_DAMAGED"

    def __init__(self, message: str, *, file_name: str) -> None:
        super().__init__(message, file_name=file_name)
        self.file_name = file_name
