"""A configuration file to start from: every setting, commented out, with its meaning and default.

Lines that begin with `# ` are prose; `#key: value` is a setting with its default, commented out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .daemon import Settings
from .keys import fields_of, section_of, summary_of
from .stream import StreamSettings

_WIDTH = 96
_HEAD = """\
# Configuration of the liftlog daemon:  liftlog serve -c FILE
#
# Every setting is here with its default, commented out: remove the # where you change a value.
# The environment (LIFTLOG_NATS__SERVERS=nats://a:4222) and --set nats.servers=... override this
# file. `liftlog config check -c FILE` checks it.
# Durations: 250ms, 1s, 2m, 1h30m, 7d. Sizes: 4096, 64KiB, 8MiB, 1GB.
"""
_STREAM_HEAD = """\
# One section per stream. You can also create streams with `liftlog stream create`.
#streams:
  #orders:
    #subject: orders.>
"""
_EXAMPLE_SUBJECT = "orders.>"


def render_template() -> str:
    """The text of the file."""
    lines = [_HEAD]
    lines += _section(Settings, Settings().to_yaml_dict(), "")
    lines += ["", _STREAM_HEAD.rstrip()]
    defaults = StreamSettings(subject=_EXAMPLE_SUBJECT).to_yaml_dict()
    lines += _plain(StreamSettings, defaults, "    ")
    return "\n".join(lines) + "\n"


def _section(model: type[BaseModel], values: dict[str, Any], indent: str) -> Iterator[str]:
    lead = False  # a blank line between settings, but none after the name of a section
    for key, info in fields_of(model):
        section = section_of(info)
        if (model, key) == (Settings, "streams"):
            continue
        if lead:
            yield ""
        lead = True
        if section is not None and not _may_be_null(info):
            yield from _prose(summary_of(section), indent)
            yield f"{indent}{key}:"
            yield from _section(section, values[key], f"{indent}  ")
        else:
            yield from _prose(info.description or "", indent)
            yield f"{indent}#{_setting(key, values[key])}"


def _plain(model: type[BaseModel], values: dict[str, Any], indent: str) -> Iterator[str]:
    """Settings without prose, for a section that is commented out as a whole."""
    for key, info in fields_of(model):
        section = section_of(info)
        if key == "subject":
            continue
        if section is not None and _may_be_null(info):
            yield f"{indent}#{_setting(key, None)}"
        elif section is not None:
            yield f"{indent}#{key}:"
            yield from _plain(section, values[key], f"{indent}  ")
        else:
            yield f"{indent}#{_setting(key, values[key])}"


def _setting(key: str, value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return f"{key}: {text.strip().removesuffix('...').strip()}"


def _may_be_null(info: FieldInfo) -> bool:
    return info.default is None


def _prose(text: str, indent: str) -> Sequence[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
    )
