"""What an answer on a reply subject says. Pure; no input raises."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from liftlog.client.publishing.results import Ack, Refusal


class NoResponders:
    """NATS itself answered: nobody is subscribed to the subject, so nobody got the message."""


NO_RESPONDERS: Final = NoResponders()
_NO_RESPONDERS_STATUS = "503"
_USUAL_ACK = re.compile(rb'\{"stream":"([A-Za-z0-9_-]+)","seq":([1-9][0-9]{0,18})\}')
_parse = json.JSONDecoder().decode

Answer = Ack | Refusal | NoResponders


def read_answer(payload: bytes, status: str | None = None) -> Answer | None:
    """None for what is no answer of a stream, as of a service that replies on the same subject.

    `status` is the status line of the answer's header block, if it has one.
    """
    if status == _NO_RESPONDERS_STATUS and not payload:
        return NO_RESPONDERS
    usual = _USUAL_ACK.fullmatch(payload)
    if usual is not None:  # a third of the time that JSON takes
        return Ack(usual[1].decode(), int(usual[2]))
    try:
        found = _parse(payload.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    error = found.get("error")
    if isinstance(error, dict):
        return _refusal(found, error)
    stream, offset = found.get("stream"), found.get("seq")
    if not isinstance(stream, str) or type(offset) is not int or offset <= 0:
        return None
    durability = found.get("durability")
    return Ack(
        stream,
        offset,
        found.get("duplicate") is True,
        durability if isinstance(durability, str) else "fsync",
    )


def _refusal(found: dict[str, Any], error: dict[str, Any]) -> Refusal | None:
    code, err_code = error.get("code"), error.get("err_code", 0)
    if type(code) is not int or type(err_code) is not int:
        return None
    stream, description = found.get("stream"), error.get("description")
    return Refusal(
        stream if isinstance(stream, str) else "",
        code,
        err_code,
        description if isinstance(description, str) else "",
    )
