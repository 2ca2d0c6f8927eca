"""JetStream's configuration of a consumer. Pure.

Most checks, defaults and codes are the same as in nats-server (consumer.go, checkConsumerCfg and
setConsumerConfigDefaults). Settings of features that this daemon does not have are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from acl.subjects import first_overlap, why_no_subject
from liftlog.deliveries.settings import MAX_WAIT_NS, AckPolicy, PriorityPolicy, Settings
from liftlog.server.jetstream_api.answers import (
    ZERO_TIME,
    JetStreamError,
    invalid_json,
    is_utf8,
    time_text,
    to_text,
)
from liftlog.server.jetstream_api.config_fields import ConfigFields, is_empty, with_levels
from liftlog.server.jetstream_api.consumers.pull_body import PullLimits

_NS = 1_000_000_000
_DEFAULT_INACTIVE_SECONDS = 5.0
_MAX_INACTIVE_SECONDS = 3600.0
_LEAST_EXPIRES_NS = 1_000_000
MAX_WAITING = 512
_MAX_FILTERS = 256
_MAX_CONFIG_BYTES = 16 * 1024
"""Maximum size of a configuration in bytes. The daemon keeps a configuration as long as its
consumer exists, and repeats it in answers."""
_MAX_NAME = 255
_FAR = 2**63

_DEFAULT_ACK_WAIT_NS = 30 * _NS
_DEFAULT_ACK_PENDING = 1000
_DEFAULT_PINNED_NS = 120 * _NS

_ECHOED = ("description", "metadata", "num_replicas")
_ACK_POLICIES = {
    "none": AckPolicy.NONE,
    "all": AckPolicy.ALL,
    "explicit": AckPolicy.EXPLICIT,
}
_PRIORITIES = {
    "none": PriorityPolicy.NONE,
    "overflow": PriorityPolicy.OVERFLOW,
    "pinned_client": PriorityPolicy.PINNED_CLIENT,
    "prioritized": PriorityPolicy.PRIORITIZED,
}
GROUP_NAME = re.compile(r"[A-Za-z0-9/_=-]{1,16}")
_MAX_GROUPS = 16
_POLICIES = ("all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """The configuration of one consumer. Without `filters` the consumer delivers all records. A
    `heartbeat_seconds` of 0 means no heartbeats."""

    config: dict[str, Any]
    """The configuration in the form that answers show."""
    name: str
    policy: str
    start_sequence: int
    start_time_ns: int
    filters: tuple[str, ...]
    deliver_subject: str
    """The subject that records are pushed to; empty for a pull consumer."""
    deliver_group: str
    headers_only: bool
    flow_control: bool
    heartbeat_seconds: float
    inactive_seconds: float
    """Time after which a consumer without a client is deleted; 0 means never."""
    is_durable: bool
    limits: PullLimits
    sample_percent: int
    """The share of acks, in percent, about which a metric is published."""
    rate_limit_bps: int
    """Maximum number of bits per second that are pushed; 0 means no limit."""
    is_replayed: bool
    """True if records are delivered with the pauses between their timestamps."""
    settings: Settings
    """The settings that determine how messages are delivered."""

    @property
    def takes_parts(self) -> bool:
        """True if one delivery may contain only some of the records of a read. This is the case
        with priority groups, which divide records among pulls, and with a push window."""
        return bool(self.settings.priority_groups or self.deliver_subject)

    @property
    def is_kept(self) -> bool:
        """True if the state of the consumer is kept after its client or the daemon has ended."""
        return (
            self.is_durable
            or self.settings.ack_policy is not AckPolicy.NONE
            or self.settings.priority_policy is not PriorityPolicy.NONE
            or bool(self.rate_limit_bps or self.sample_percent or self.is_replayed)
        )


def refused(why: str) -> JetStreamError:
    return JetStreamError(400, 10012, why)


def parse_consumer(config: Mapping[str, Any], default_name: str) -> ConsumerSpec:
    """Parse and check the configuration of a consumer. Raises JetStreamError."""
    return _Reader(config).read(default_name)


def parse_time(text: str) -> int:
    """Convert RFC 3339 to ns since 1970. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("expected a time like 2026-01-31T12:00:00Z")
    head, fraction, zone = found.groups()
    seconds = datetime.fromisoformat(head + ("+00:00" if zone in "Zz" else zone)).timestamp()
    return int(seconds) * _NS + int((fraction or "0").ljust(9, "0"))


def check_group_name(name: str) -> None:
    """Check the name of a priority group. Raises JetStreamError."""
    if not name:
        raise JetStreamError(400, 10161, "Group name cannot be an empty string")
    if not GROUP_NAME.fullmatch(name):
        raise JetStreamError(
            400,
            10162,
            "Valid priority group name must match A-Z, a-z, 0-9, -_/=)+ and may not exceed 16 "
            "characters",
        )


def shown_config(spec: ConsumerSpec) -> dict[str, Any]:
    """Return the configuration for an answer. Adds two levels of JetStream's API: the level that
    the consumer needs, and the level that the daemon has."""
    settings = spec.settings
    needs_level_1 = settings.priority_groups or settings.pause_until_ns
    return with_levels(spec.config, 1 if needs_level_1 else 0)


class _Reader(ConfigFields):
    _is_durable = False
    _limits: PullLimits | None = None

    def read(self, default_name: str) -> ConsumerSpec:
        self._drop_levels()
        name = self._name(default_name)
        deliver = self._deliver_subject()
        policy = self._choice("deliver_policy", _POLICIES)
        spec = ConsumerSpec(
            config={},
            name=name,
            policy=policy,
            start_sequence=self._start_sequence(policy),
            start_time_ns=self._start_time(policy),
            filters=self._filters(),
            deliver_subject=deliver,
            deliver_group=self._text("deliver_group") if deliver else "",
            headers_only=self._flag("headers_only"),
            flow_control=self._flag("flow_control"),
            heartbeat_seconds=self._natural("idle_heartbeat") / _NS,
            inactive_seconds=self._inactive(),
            is_durable=self._is_durable,
            limits=self._pull_limits(),
            sample_percent=self._sample_percent(),
            rate_limit_bps=self._rate_limit(is_push=bool(deliver)),
            is_replayed=self._choice("replay_policy", ("instant", "original")) == "original",
            settings=self._settings(is_push=bool(deliver)),
        )
        self._check_kind_of_delivery(spec)
        spec.config.update(self._shown(spec))
        if len(spec.filters) > _MAX_FILTERS or len(to_text(spec.config)) > _MAX_CONFIG_BYTES:
            raise refused(
                f"expected at most {_MAX_FILTERS} filter subjects, and a configuration of at most "
                f"{_MAX_CONFIG_BYTES} bytes"
            )
        self._refuse_unknown()
        return spec

    def _name(self, default: str) -> str:
        durable, name = self._text("durable_name"), self._text("name")
        if durable and name and durable != name:
            raise JetStreamError(
                400, 10132, "Consumer Durable and Name have to be equal if both are provided"
            )
        self._is_durable = bool(durable)
        name = name or durable or default
        if len(name) > _MAX_NAME or re.search(r"[\s.*>/\\@\x00-\x20\x7f]", name):
            raise JetStreamError(400, 10103, "Invalid consumer name")
        return name

    def _deliver_subject(self) -> str:
        deliver = self._text("deliver_subject")
        if deliver and not {"*", ">"}.isdisjoint(deliver.split(".")):
            raise JetStreamError(400, 10079, "consumer deliver subject has wildcards")
        if deliver and (why_no_subject(deliver) or not is_utf8(deliver)):
            raise JetStreamError(400, 10112, "invalid push consumer deliver subject")
        return deliver

    def _check_kind_of_delivery(self, spec: ConsumerSpec) -> None:
        if not spec.deliver_subject:
            if spec.heartbeat_seconds:
                raise JetStreamError(
                    400, 10088, "consumer idle heartbeat requires a push based consumer"
                )
            if spec.flow_control:
                raise JetStreamError(
                    400, 10089, "consumer flow control requires a push based consumer"
                )
            if 0 < spec.limits.expires_ns < _LEAST_EXPIRES_NS:
                raise JetStreamError(400, 10115, "consumer max request expires needs to be >= 1ms")
        if spec.flow_control and not spec.heartbeat_seconds:
            raise JetStreamError(400, 10108, "consumer with flow control also needs heartbeats")
        if 0 < spec.heartbeat_seconds < 0.1:
            raise JetStreamError(400, 10083, "consumer idle heartbeat needs to be >= 100ms")

    def _settings(self, *, is_push: bool) -> Settings:
        acks = _ACK_POLICIES[self._choice("ack_policy", tuple(_ACK_POLICIES))]
        has_acks = acks is not AckPolicy.NONE
        backoff = self._durations("backoff")
        wait = self._natural("ack_wait") or _DEFAULT_ACK_WAIT_NS
        if backoff:
            wait = backoff[0]
        most = self._whole("max_deliver", least=-_FAR)
        if most <= 0:
            most = -1
        if backoff and 0 < most < len(backoff):
            raise JetStreamError(
                400, 10116, "max deliver is required to be > length of backoff values"
            )
        pending = self._whole("max_ack_pending", least=-_FAR)
        if not pending and has_acks:
            pending = _DEFAULT_ACK_PENDING
        waiting = self._whole("max_waiting", least=-_FAR)
        if waiting and is_push:
            raise JetStreamError(400, 10080, "consumer in push mode can not set max waiting")
        limits = self._pull_limits()
        policy, groups, pinned_ttl_ns = self._priorities(is_push=is_push)
        try:
            return Settings(
                ack_policy=acks,
                ack_wait_ns=wait,
                backoff_ns=backoff,
                max_deliver=most,
                max_ack_pending=pending if pending > 0 else -1,
                max_waiting=0 if is_push else waiting if waiting > 0 else MAX_WAITING,
                max_request_batch=limits.batch,
                max_request_expires_ns=limits.expires_ns,
                max_request_bytes=limits.max_bytes,
                pause_until_ns=self._pause_until(),
                priority_policy=policy,
                priority_groups=groups,
                pinned_ttl_ns=pinned_ttl_ns,
                is_push=is_push,
            )
        except ValueError as error:
            raise refused(str(error)) from None

    def _durations(self, key: str) -> tuple[int, ...]:
        found = self._left.pop(key, None) or []
        if not isinstance(found, list) or not all(
            type(one) is int and 0 < one <= MAX_WAIT_NS for one in found
        ):
            raise invalid_json(f"{key}: expected a list of durations in ns")
        return tuple(found)

    def _pause_until(self) -> int:
        text = self._text("pause_until")
        if text in ("", ZERO_TIME):
            return 0
        try:
            return max(parse_time(text), 0)
        except ValueError as error:
            raise invalid_json(f"pause_until: {error}") from None

    def _sample_percent(self) -> int:
        self._sampled = self._text("sample_freq")
        if not self._sampled:
            return 0
        digits = self._sampled.removesuffix("%")
        if not re.fullmatch(r"\+?[0-9]{1,18}", digits):
            raise JetStreamError(
                400,
                10095,
                "failed to parse consumer sampling configuration: expected a percentage, not "
                f"{self._sampled[:40]!r}",
            )
        return min(int(digits), 100)

    def _rate_limit(self, *, is_push: bool) -> int:
        rate = self._natural("rate_limit_bps")
        if rate and not is_push:
            raise JetStreamError(400, 10086, "consumer in pull mode can not have rate limit set")
        return rate

    def _priorities(self, *, is_push: bool) -> tuple[PriorityPolicy, tuple[str, ...], int]:
        """Return the policy, the groups, and the time after which a silent client is unpinned."""
        groups = self._left.pop("priority_groups", None) or []
        if not isinstance(groups, list) or not all(isinstance(name, str) for name in groups):
            raise invalid_json("priority_groups: expected a list of text")
        policy = _PRIORITIES[self._choice("priority_policy", tuple(_PRIORITIES))]
        self._pinned_ttl_ns = self._natural("priority_timeout")
        if policy is PriorityPolicy.NONE:
            if groups:
                raise JetStreamError(
                    400, 10196, "consumer can not have priority groups when policy is none"
                )
            return policy, (), _DEFAULT_PINNED_NS
        if is_push:
            raise JetStreamError(400, 10178, "priority groups can not be used with push consumers")
        if not groups:
            raise JetStreamError(
                400, 10159, "Setting PriorityPolicy requires at least one PriorityGroup to be set"
            )
        for name in groups:
            check_group_name(name)
        if len(groups) > _MAX_GROUPS:
            raise refused(f"expected at most {_MAX_GROUPS} priority groups")
        if policy is PriorityPolicy.PINNED_CLIENT:
            self._pinned_ttl_ns = min(self._pinned_ttl_ns or _DEFAULT_PINNED_NS, MAX_WAIT_NS)
        return policy, tuple(groups), self._pinned_ttl_ns or _DEFAULT_PINNED_NS

    def _refuse_unknown(self) -> None:
        for key in (*_ECHOED, "mem_storage", "direct"):
            self._left.pop(key, None)
        for key, value in self._left.items():
            if not is_empty(value):
                raise invalid_json(f"unknown field {key[:80]!r}")

    def _shown(self, spec: ConsumerSpec) -> dict[str, Any]:
        settings = spec.settings
        policy = next(name for name, one in _ACK_POLICIES.items() if one is settings.ack_policy)
        config: dict[str, Any] = {"name": spec.name, "deliver_policy": spec.policy}
        if spec.is_durable:
            config["durable_name"] = spec.name
        config |= {
            "ack_policy": policy,
            "replay_policy": "original" if spec.is_replayed else "instant",
        }
        config["num_replicas"] = 0  # that is, the replicas of the stream
        config |= {key: self._left[key] for key in _ECHOED if self._left.get(key)}
        config |= self._shown_features(spec)
        config["max_deliver"] = settings.max_deliver
        if settings.ack_policy is not AckPolicy.NONE:
            config["ack_wait"] = settings.ack_wait_ns
        if settings.ack_policy is not AckPolicy.NONE or settings.max_ack_pending > 0:
            config["max_ack_pending"] = settings.max_ack_pending
        if settings.backoff_ns:
            config["backoff"] = list(settings.backoff_ns)
        if settings.pause_until_ns:
            config["pause_until"] = time_text(settings.pause_until_ns)
        if self._left.get("mem_storage") is True:
            config["mem_storage"] = True
        if spec.inactive_seconds:
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
            if spec.deliver_group:
                config["deliver_group"] = spec.deliver_group
            if spec.flow_control:
                config["flow_control"] = True
            if spec.heartbeat_seconds:
                config["idle_heartbeat"] = round(spec.heartbeat_seconds * _NS)
        else:
            config["max_waiting"] = settings.max_waiting
            limits = spec.limits
            shown = (limits.batch, limits.expires_ns, limits.max_bytes)
            names = ("max_batch", "max_expires", "max_bytes")
            config |= {name: most for name, most in zip(names, shown, strict=True) if most}
        return config

    def _shown_features(self, spec: ConsumerSpec) -> dict[str, Any]:
        config: dict[str, Any] = {}
        if self._sampled:
            config["sample_freq"] = self._sampled
        if spec.rate_limit_bps:
            config["rate_limit_bps"] = spec.rate_limit_bps
        if spec.settings.priority_groups:
            config["priority_groups"] = list(spec.settings.priority_groups)
            config["priority_policy"] = next(
                name for name, one in _PRIORITIES.items() if one is spec.settings.priority_policy
            )
            if self._pinned_ttl_ns:
                config["priority_timeout"] = self._pinned_ttl_ns
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
        if first_overlap(filters) is not None:
            raise JetStreamError(400, 10138, "consumer subject filters cannot overlap")
        return () if ">" in filters else filters

    def _inactive(self) -> float:
        seconds = self._natural("inactive_threshold") / _NS
        if self._is_durable:
            return seconds
        return min(seconds or _DEFAULT_INACTIVE_SECONDS, _MAX_INACTIVE_SECONDS)

    def _pull_limits(self) -> PullLimits:
        if self._limits is None:
            self._limits = PullLimits(
                batch=self._natural("max_batch"),
                max_bytes=self._natural("max_bytes"),
                expires_ns=self._natural("max_expires"),
            )
        return self._limits

    def _natural(self, key: str) -> int:
        """Read a number; as in JetStream, a negative number counts as 0."""
        return max(self._whole(key, least=-_FAR), 0)
