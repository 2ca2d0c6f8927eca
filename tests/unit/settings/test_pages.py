"""The example file and the reference page say what the model says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from liftlog.settings import Settings, StreamSettings, load_settings
from tools.pages.settings import render

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "config" / "liftlog.yaml"


def keys_of(value: Any) -> Any:
    return {k: keys_of(v) for k, v in value.items()} if isinstance(value, dict) else None


def test_the_example_holds_the_defaults() -> None:
    settings = load_settings(EXAMPLE, {})
    assert settings.streams == {"orders": StreamSettings(subject="orders.>")}
    assert settings.model_copy(update={"streams": {}}) == Settings()


def test_the_example_names_every_setting_in_canonical_form() -> None:
    written = yaml.safe_load(EXAMPLE.read_text())
    written["streams"]["orders"]["acks"] = "on"
    model = load_settings(EXAMPLE, {}).to_yaml_dict()
    assert keys_of(written) == keys_of(model)
    assert written["nats"] == model["nats"] | {"password": None, "token": None}
    assert written["streams"] == model["streams"]


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert page == render(), "run: make pages"


@pytest.mark.parametrize(
    "section", ["nats.tls", "pull", "cleaner", "streams.NAME.retention", "streams.NAME.compaction"]
)
def test_every_section_has_its_heading(section: str) -> None:
    assert f"# {section}\n" in render()


def test_a_section_that_may_be_null_is_also_a_setting() -> None:
    assert "| `compaction` | `null` | Key compaction. `null`: off. |" in render()


def test_every_setting_has_a_meaning() -> None:
    rows = [line.split(" | ") for line in render().splitlines() if line.startswith("| `")]
    table = [row for row in rows if len(row) == 3]
    assert len(table) > 60
    assert all(row[2].strip(" |") for row in table)
