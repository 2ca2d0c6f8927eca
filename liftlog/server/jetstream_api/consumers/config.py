"""JetStream's configuration of a consumer, restricted to ordered reading. Pure.

A consumer here keeps a position for one reader, and is deleted with the reader. Settings that need
acks per message, or a consumer that outlives its client, are refused; the refusal names liftlog's
alternative.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from acl.subjects import why_no_subject
from liftlog.server.jetstream_api.answers import (
    ZERO_TIME,
    JetStreamError,
    invalid_json,
    is_utf8,
    to_text,
)
from liftlog.server.jetstream_api.config_fields import ConfigFields, is_empty
from liftlog.server.jetstream_api.consumers.pull_body import PullLimits

_NS = 1_000_000_000
_DEFAULT_INACTIVE_SECONDS = 5.0
_MAX_INACTIVE_SECONDS = 3600.0
_LEAST_EXPIRES_NS = 1_000_000
MAX_WAITING = 512
_MAX_FILTERS = 256
_MAX_CONFIG_BYTES = 16 * 1024
"""It is kept as long as the consumer, and repeated in answers."""
_MAX_NAME = 255
_FAR = 2**63
_PAGER = "stream_pager_"

_INSTEAD = (
    "read with liftlog's pull API, where checkpoints and consumer groups keep positions (see "
    "docs: how-to/consume, how-to/groups)"
)
_REFUSED = {
    "deliver_group": "delivery to a queue group is not supported: " + _INSTEAD,
    "backoff": "redelivery is not supported: " + _INSTEAD,
    "rate_limit_bps": "rate limits of consumers are not supported",
    "sample_freq": "sampling of acks is not supported",
    "pause_until": "paused consumers are not supported",
    "priority_groups": "priority groups are not supported",
    "priority_policy": "priority groups are not supported",
    "priority_timeout": "priority groups are not supported",
}
_ECHOED = ("description", "ack_wait", "max_deliver", "max_ack_pending", "metadata", "num_replicas")
_POLICIES = ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """Empty `filters`: all records. `heartbeat_seconds` 0: no heartbeats."""

    config: dict[str, Any]
    """The configuration as answers repeat it."""
    name: str
    policy: str
    start_sequence: int
    start_time_ns: int
    filters: tuple[str, ...]
    deliver_subject: str
    """Empty: a pull consumer."""
    headers_only: bool
    flow_control: bool
    heartbeat_seconds: float
    inactive_seconds: float
    max_waiting: int
    limits: PullLimits


def refused(why: str) -> JetStreamError:
    return JetStreamError(400, 10012, why)


def parse_consumer(config: Mapping[str, Any], default_name: str) -> ConsumerSpec:
    """Raises JetStreamError."""
    return _Reader(config).read(default_name)


def parse_time(text: str) -> int:
    """Convert RFC 3339 to ns since 1970. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("expected a time like 2026-01-31T12:00:00Z")
    head, fraction, zone = found.groups()
    seconds = datetime.fromisoformat(head + ("+00:00" if zone in "Zz" else zone)).timestamp()
    return int(seconds) * _NS + int((fraction or "0").ljust(9, "0"))


class _Reader(ConfigFields):
    def read(self, default_name: str) -> ConsumerSpec:
        self._refuse_what_is_not_promised()
        name = self._text("name") or default_name
        if len(name) > _MAX_NAME or re.search(r"[\s.*>/\\\x00-\x20\x7f]", name):
            raise JetStreamError(400, 10103, "Invalid consumer name")
        deliver = self._text("deliver_subject")
        if deliver and not {"*", ">"}.isdisjoint(deliver.split(".")):
            raise JetStreamError(400, 10079, "consumer deliver subject has wildcards")
        if deliver and (why_no_subject(deliver) or not is_utf8(deliver)):
            raise JetStreamError(400, 10112, "invalid push consumer deliver subject")
        policy = self._choice("deliver_policy", _POLICIES)
        spec = ConsumerSpec(
            config={},
            name=name,
            policy=policy,
            start_sequence=self._start_sequence(policy),
            start_time_ns=self._start_time(policy),
            filters=self._filters(),
            deliver_subject=deliver,
            headers_only=self._flag("headers_only"),
            flow_control=self._flag("flow_control"),
            heartbeat_seconds=self._natural("idle_heartbeat") / _NS,
            inactive_seconds=self._inactive(),
            max_waiting=min(self._natural("max_waiting") or MAX_WAITING, MAX_WAITING),
            limits=self._pull_limits(),
        )
        if not deliver and (spec.flow_control or spec.heartbeat_seconds):
            raise refused("flow control and idle heartbeats of the consumer need a deliver subject")
        if spec.flow_control and not spec.heartbeat_seconds:
            raise JetStreamError(400, 10108, "consumer with flow control also needs heartbeats")
        if 0 < spec.heartbeat_seconds < 0.1:
            raise refused("idle_heartbeat: expected at least 100ms")
        if not deliver and 0 < spec.limits.expires_ns < _LEAST_EXPIRES_NS:
            raise JetStreamError(400, 10115, "consumer max request expires needs to be >= 1ms")
        spec.config.update(self._shown(spec))
        if len(spec.filters) > _MAX_FILTERS or len(to_text(spec.config)) > _MAX_CONFIG_BYTES:
            raise refused(
                f"expected at most {_MAX_FILTERS} filter subjects, and a configuration of at most "
                f"{_MAX_CONFIG_BYTES} bytes"
            )
        self._refuse_unknown()
        return spec

    def _refuse_what_is_not_promised(self) -> None:
        is_pager = self._is_pager()
        if self._left.get("durable_name") and not is_pager:
            raise refused(f"durable consumers are not supported over NATS: {_INSTEAD}")
        acks = self._choice("ack_policy", ("explicit", "all", "none", "flow_control"))
        if acks != "none" and not is_pager:
            raise refused(
                f"acks per message are not supported over NATS; ack_policy: expected none, or "
                f"{_INSTEAD}"
            )
        if self._choice("replay_policy", ("instant", "original")) != "instant":
            raise refused("replay_policy: only instant is supported")
        for key, why in _REFUSED.items():
            value = self._left.pop(key, None)
            if value not in ("none", ZERO_TIME) and not is_empty(value):
                raise refused(f"{key}: {why}")

    def _is_pager(self) -> bool:
        """Return True for the consumer of `nats stream view`: durable by name and with acks, but in
        memory and with an inactivity threshold. The command deletes it at its end, and never
        acks."""
        durable = self._left.get("durable_name")
        return (
            isinstance(durable, str)
            and durable.startswith(_PAGER)
            and self._left.get("mem_storage") is True
            and bool(self._left.get("inactive_threshold"))
        )

    def _refuse_unknown(self) -> None:
        for key in (*_ECHOED, "mem_storage", "durable_name", "direct"):
            self._left.pop(key, None)
        for key, value in self._left.items():
            if not is_empty(value):
                raise invalid_json(f"unknown field {key[:80]!r}")

    def _shown(self, spec: ConsumerSpec) -> dict[str, Any]:
        config: dict[str, Any] = {"name": spec.name, "deliver_policy": spec.policy}
        config |= {"ack_policy": "none", "replay_policy": "instant", "num_replicas": 1}
        config |= {key: self._left[key] for key in _ECHOED if self._left.get(key)}
        config.setdefault("max_deliver", -1)
        config["mem_storage"] = True
        config["inactive_threshold"] = round(spec.inactive_seconds * _NS)
        if spec.start_sequence:
            config["opt_start_seq"] = spec.start_sequence
        if self._start_text:
            config["opt_start_time"] = self._start_text
        config |= self._shown_filters
        if spec.headers_only:
            config["headers_only"] = True
        if spec.deliver_subject:
            config["deliver_subject"] = spec.deliver_subject
            if spec.flow_control:
                config["flow_control"] = True
            if spec.heartbeat_seconds:
                config["idle_heartbeat"] = round(spec.heartbeat_seconds * _NS)
        else:
            config["max_waiting"] = spec.max_waiting
            limits = spec.limits
            shown = (limits.batch, limits.expires_ns, limits.max_bytes)
            names = ("max_batch", "max_expires", "max_bytes")
            config |= {name: most for name, most in zip(names, shown, strict=True) if most}
        return config

    def _start_sequence(self, policy: str) -> int:
        sequence = self._natural("opt_start_seq")
        if bool(sequence) != (policy == "by_start_sequence"):
            raise JetStreamError(
                400,
                10094,
                f"consumer delivery policy is deliver {policy}, and "
                "opt_start_seq is for by_start_sequence",
            )
        return sequence

    def _start_time(self, policy: str) -> int:
        self._start_text = self._text("opt_start_time")
        if bool(self._start_text) != (policy == "by_start_time"):
            raise JetStreamError(
                400,
                10094,
                f"consumer delivery policy is deliver {policy}, and "
                "opt_start_time is for by_start_time",
            )
        if not self._start_text:
            return 0
        try:
            return parse_time(self._start_text)
        except ValueError as error:
            raise invalid_json(f"opt_start_time: {error}") from None

    def _filters(self) -> tuple[str, ...]:
        one = self._text("filter_subject")
        many = self._left.pop("filter_subjects", None) or []
        if not isinstance(many, list) or not all(isinstance(name, str) for name in many):
            raise invalid_json("filter_subjects: expected a list of text")
        if one and many:
            raise JetStreamError(
                400, 10136, "consumer cannot have both FilterSubject and FilterSubjects specified"
            )
        if "" in many:
            raise JetStreamError(400, 10139, "consumer filter in FilterSubjects cannot be empty")
        filters = tuple(many) or ((one,) if one else ())
        self._shown_filters: dict[str, Any] = {}
        if one:
            self._shown_filters["filter_subject"] = one
        elif many:
            self._shown_filters["filter_subjects"] = many
        for name in filters:
            if not is_utf8(name) or why_no_subject(name) is not None:
                raise JetStreamError(400, 10093, "consumer filter subject is not a valid subject")
        return () if ">" in filters else filters

    def _inactive(self) -> float:
        seconds = self._natural("inactive_threshold") / _NS
        return min(seconds or _DEFAULT_INACTIVE_SECONDS, _MAX_INACTIVE_SECONDS)

    def _pull_limits(self) -> PullLimits:
        return PullLimits(
            batch=self._natural("max_batch"),
            max_bytes=self._natural("max_bytes"),
            expires_ns=self._natural("max_expires"),
        )

    def _natural(self, key: str) -> int:
        """Negative numbers count as 0, as in JetStream."""
        return max(self._whole(key, least=-_FAR), 0)
