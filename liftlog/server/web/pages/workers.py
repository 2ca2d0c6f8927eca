"""Shows consumers with acks: the consumers of a stream as a table, and a single consumer with its
settings."""

from __future__ import annotations

from typing import Any

from liftlog.errors import ConsumerNotFound, LiftlogError, NotLeader
from liftlog.protocol.workers import (
    ConsumerAnswer,
    ConsumerInfo,
    ConsumersAnswer,
    DescribeConsumer,
    ListConsumers,
)
from liftlog.server.web.asking import Asked, Shown

_DURATIONS = ("ack_wait", "inactive_threshold", "idle_heartbeat", "max_expires")
_DEFAULT_MAX_PENDING = 1000


async def workers_of(asked: Asked, stream: str) -> dict[str, Any]:
    """Return the consumers with acks of a stream, sorted by their number of messages, the largest
    first. Also return True if there are more consumers. If they are not known, `problem` contains
    the reason."""
    broker = asked.parts.broker
    if broker.consumers is None:
        return {"workers": [], "more_workers": False, "workers_problem": ""}
    try:
        page = await asked.carry_out(ListConsumers(stream))
    except NotLeader:
        problem = "the node that leads the stream has them"
        return {"workers": [], "more_workers": False, "workers_problem": problem}
    except LiftlogError as error:
        return {"workers": [], "more_workers": False, "workers_problem": error.message}
    assert isinstance(page, ConsumersAnswer), "the answer to consumers"
    rows = [_row(one) for one in page.infos]
    rows.sort(key=lambda row: (-row["waiting"] - row["pending"], row["name"]))
    return {"workers": rows, "more_workers": page.after is not None, "workers_problem": ""}


def _row(info: ConsumerInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "kind": "push" if info.config.get("deliver_subject") else "pull",
        "waiting": info.num_pending,
        "pending": info.num_ack_pending,
        "redelivered": info.num_redelivered,
        "requests": info.num_waiting,
        "ack_floor": info.ack_floor,
        "state": _state(info),
    }


def _state(info: ConsumerInfo) -> str:
    """Return a word for the state of a consumer that delivers no new messages although messages
    wait; an empty text for other consumers."""
    if info.pause_remaining_ns:
        return "paused"
    limit = info.config.get("max_ack_pending") or _DEFAULT_MAX_PENDING
    if info.num_pending and info.num_ack_pending >= limit:
        return "at max_ack_pending"
    is_pull = not info.config.get("deliver_subject")
    if info.num_pending and is_pull and not info.num_waiting and not info.num_ack_pending:
        return "no worker asks"
    return ""


async def worker(asked: Asked) -> Shown:
    """Show one consumer with acks, or a note that it does not exist."""
    stream, name = asked.authorize("read"), asked.request.match_info["worker"]
    info, problem = await _described(asked, stream, name)
    asked.authorize("read")  # checked again after the await
    data: dict[str, Any] = {
        "stream": stream,
        "worker": name,
        "exists": info is not None,
        "problem": problem,
    }
    if info is not None:
        data |= {
            **_row(info),
            "deliveries": info.deliveries,
            "next_offset": info.next_offset,
            "pause_remaining_seconds": info.pause_remaining_ns / 1e9,
            "created_ns": info.created_ns,
            "exhausted": info.exhausted[::-1],
            "config": info.config,
        }
    data["shape"] = [data.get(one) for one in ("exists", "problem", "state", "exhausted", "config")]
    settings = [] if info is None else _settings(info.config)
    return Shown(f"Consumer {name} of {stream}", data, {"settings": settings})


async def _described(asked: Asked, stream: str, name: str) -> tuple[ConsumerInfo | None, str]:
    """Return the consumer and an empty text. If this node does not know the consumer, return None
    and the reason. The reason is empty if the consumer does not exist."""
    if asked.parts.broker.consumers is None:
        return None, "This daemon serves no consumers with acks: see nats.jetstream_api."
    try:
        answer = await asked.carry_out(DescribeConsumer(stream, name))
    except ConsumerNotFound:
        return None, ""
    except NotLeader:
        return None, "Only the node that leads the stream knows its consumers with acks."
    assert isinstance(answer, ConsumerAnswer), "the answer to consumer"
    return answer.info, ""


def _settings(config: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings as text. Converts durations from ns, as in JetStream's form, to
    seconds."""
    found = []
    for name, value in config.items():
        shown = value
        if name in _DURATIONS and isinstance(value, int):
            shown = f"{value / 1e9:g} s"
        elif name == "backoff" and isinstance(value, list):
            shown = ", ".join(f"{one / 1e9:g} s" for one in value)
        elif isinstance(value, list):
            shown = ", ".join(map(str, value))
        elif isinstance(value, dict):
            shown = ", ".join(f"{key}={one}" for key, one in value.items()) or "none"
        elif isinstance(value, bool):
            shown = "yes" if value else "no"
        found.append((name, str(shown)))
    return found
