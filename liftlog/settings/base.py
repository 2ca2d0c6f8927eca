"""What all setting models share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


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
