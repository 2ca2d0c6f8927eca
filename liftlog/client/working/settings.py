"""The settings of consumers with acks: as arguments of the clients, and in the form that is
sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict

from liftlog.errors import InvalidArgument
from liftlog.protocol.workers import MAX_BATCH

BATCH = 500
"""Default number of messages in one delivery."""
WAIT_SECONDS = 20.0
"""Longest time that one request of a worker waits for messages."""

_NS = 1_000_000_000
_MAX_SECONDS = 50 * 365 * 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_POLICIES = ("all", "new", "last", "last_per_subject")

Deliver: TypeAlias = Literal["all", "new", "last", "last_per_subject"] | int | datetime
"""The start of a new consumer: with all messages, with messages published after its creation, with
the last message, with the last message of each subject, at an offset, or at a time."""


class ConsumerOptions(TypedDict, total=False):
    """The settings of a consumer with acks. All of them are optional.

    - `ack_wait`: seconds after which a message that is not acked is delivered again; default 30.
    - `max_deliver`: largest number of deliveries of a message; -1, the default, is no limit.
    - `backoff`: the waits in seconds after the first delivery, the second delivery, and so on,
      instead of `ack_wait`. The last wait also applies after all later deliveries.
    - `max_ack_pending`: maximum number of delivered messages that are not done. At this maximum,
      the consumer delivers no further messages for the first time. Default 1,000; with -1 only the
      limit of the daemon applies.
    - `filters`: NATS subject patterns; the consumer delivers only messages on these subjects.
    - `deliver`: the start of a new consumer, see `Deliver`; default "all".
    - `inactive`: the consumer is deleted if no worker has used it for this number of seconds.
    - `description`, `metadata`: texts for people and tools.
    """

    ack_wait: float
    max_deliver: int
    backoff: Sequence[float]
    max_ack_pending: int
    filters: Sequence[str]
    deliver: Deliver
    inactive: float
    description: str
    metadata: Mapping[str, str]


def config_of(options: ConsumerOptions) -> dict[str, Any]:
    """Return the options as a configuration with JetStream's keys. Raises InvalidArgument. The
    daemon checks numbers and patterns."""
    config: dict[str, Any] = {}
    for key, value in options.items():
        if key == "deliver":
            config |= deliver_fields(value)  # type: ignore[arg-type]
        elif key == "filters":
            config["filter_subjects"] = _texts(key, value)
        elif key == "backoff":
            if isinstance(value, str | bytes) or not isinstance(value, Sequence):
                raise InvalidArgument(f"backoff={value!r} is not a list of seconds")
            config["backoff"] = [nanoseconds("backoff", one) for one in value]
        elif key == "ack_wait":
            config["ack_wait"] = nanoseconds(key, value)
        elif key == "inactive":
            config["inactive_threshold"] = nanoseconds(key, value)
        elif key in ("max_deliver", "max_ack_pending"):
            if type(value) is not int:
                raise InvalidArgument(f"{key}={value!r} is not a number")
            config[key] = value
        elif key in ("description", "metadata"):
            config[key] = value
        else:
            raise InvalidArgument(f"{key!r} is not a setting of a consumer with acks")
    return config


def deliver_fields(deliver: Deliver) -> dict[str, Any]:
    """Return the keys of a configuration for the start of a consumer. Raises InvalidArgument."""
    if isinstance(deliver, datetime):
        text = deliver.astimezone(UTC).isoformat(timespec="microseconds")
        return {
            "deliver_policy": "by_start_time",
            "opt_start_time": text.replace("+00:00", "Z"),
        }
    if type(deliver) is int and deliver >= 0:
        if deliver == 0:
            return {"deliver_policy": "all"}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": deliver}
    if deliver in _POLICIES:
        return {"deliver_policy": deliver}
    raise InvalidArgument(
        f"deliver={deliver!r} is not a start",
        hint=f"use an offset, a datetime, or one of {', '.join(_POLICIES)}",
    )


def nanoseconds(name: str, seconds: Any) -> int:
    """Convert seconds to nanoseconds. `name` is for the error. Raises InvalidArgument."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not math.isfinite(seconds) or not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidArgument(f"{name}={seconds!r} is not a number of seconds")
    ns: int = round(seconds * _NS)
    return ns


def time_ns(until: datetime | float | None) -> int:
    """Return the end of a pause in ns since 1970. `until` is a time, or a number of seconds from
    now; for None the result is 0. Raises InvalidArgument."""
    if until is None:
        return 0
    moment = until
    if not isinstance(moment, datetime):
        moment = datetime.now(UTC) + timedelta(microseconds=nanoseconds("pause", until) // 1000)
    micros: int = (moment.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    return max(micros, 0) * 1000


def _texts(key: str, value: Any) -> list[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise InvalidArgument(f"{key}={value!r} is not a list of texts")
    if not all(isinstance(one, str) for one in value):
        raise InvalidArgument(f"{key}={value!r} is not a list of texts")
    return list(value)


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The arguments of `Client.worker`."""

    stream: str
    consumer: str
    batch: int
    max_bytes: int | None
    prefetch: bool
    create: bool
    options: ConsumerOptions = field(default_factory=ConsumerOptions)

    def check(self) -> None:
        """Check the arguments. Raises InvalidArgument."""
        if type(self.batch) is not int or not 1 <= self.batch <= MAX_BATCH:
            raise InvalidArgument(f"batch={self.batch!r} is not 1 to {MAX_BATCH} messages")
        if self.max_bytes is not None and (type(self.max_bytes) is not int or self.max_bytes < 1):
            raise InvalidArgument(f"max_bytes={self.max_bytes!r} is not a number of bytes")
        if self.options and not self.create:
            raise InvalidArgument(
                f"create=False, but there are settings for a new consumer: "
                f"{', '.join(sorted(self.options))}",
                hint="change a consumer with `update_consumer`",
            )
        config_of(self.options)
