"""What all setting models share."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
"""Use `fullmatch`. Names become directories, metric labels and parts of NATS subjects."""

STREAM_NAME_HELP = (
    "expected 1 to 128 letters, digits, '_' or '-', the first one a letter or a digit"
)


def is_valid_stream_name(name: str) -> bool:
    """Names that begin with '_' are the system's own and not valid here."""
    return STREAM_NAME.fullmatch(name) is not None


class SettingsModel(BaseModel):
    """Immutable; unknown keys are refused; keys are the YAML keys, not the attribute names."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_section(cls, value: Any) -> Any:
        # In YAML a section whose lines are all commented out is null.
        return {} if value is None else value

    def to_yaml_dict(self) -> dict[str, Any]:
        """Canonical keys and values as a user writes them; secrets are masked."""
        return self.model_dump(mode="json", by_alias=True)
