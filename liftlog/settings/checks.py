"""Checks across fields. The checks yield findings (errors) and cautions (settings that are allowed
but risky).

The checks only get settings whose fields are valid, and never raise.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import NamedTuple

from acl.policy import Policy
from acl.subjects import overlaps

from .addresses import parse_host_port, parse_listen
from .cluster import NATS_STORE
from .daemon import NatsSettings, Settings
from .findings import Finding
from .keys import KeyPath
from .stream import StreamSettings

_SHORTEST_NATS_SESSION_SECONDS = 12.0
_CODEC_PACKAGES = {"lz4": "lz4", "zstd": "zstandard"}


def check_stream(stream: StreamSettings, at: KeyPath = ()) -> Iterator[Finding]:
    for subject in stream.subjects if stream.acks != "off" else ():
        reserved = _reserved(subject)
        if reserved is not None:
            # The ack would compete with the answer that the requester waits for, or the stream
            # would ack its own acks.
            yield Finding(
                (*at, "acks"),
                f"{stream.acks!r}: expected off, because the subject {subject!r} "
                f"can match {reserved}",
                involved=((*at, "subject"),),
            )
            break
    if stream.max_message_bytes > stream.max_pending_bytes:
        yield Finding(
            (*at, "max_message_bytes"),
            f"{stream.max_message_bytes}: expected at most max_pending_bytes "
            f"({stream.max_pending_bytes}); otherwise a message of that size is never accepted",
            involved=((*at, "max_pending_bytes"),),
        )

    if stream.liftbridge and stream.acks == "off":
        yield Finding(
            (*at, "liftbridge"),
            "true: expected false with acks: off, which stores everything verbatim",
            involved=((*at, "acks"),),
        )

    if stream.subject_sequences is not None and stream.acks != "on":
        yield Finding(
            (*at, "subject_sequences"),
            f"expected null with acks: {stream.acks}, which ignores JetStream's headers",
            involved=((*at, "acks"),),
        )

    own = stream.jetstream
    if (
        own is not None
        and own.discard_new_per_subject
        and (own.max_msgs_per_subject != 1 or stream.subject_sequences is None)
    ):
        yield Finding(
            (*at, "jetstream", "discard_new_per_subject"),
            "true: expected false without max_msgs_per_subject: 1 and subject_sequences, by which "
            "it is known what a subject has",
            involved=((*at, "jetstream", "max_msgs_per_subject"), (*at, "subject_sequences")),
        )

    if own is not None and own.allow_rollup_hdrs and (stream.acks != "on" or stream.replicas > 1):
        yield Finding(
            (*at, "jetstream", "allow_rollup_hdrs"),
            "true: expected false with more than one replica, and without acks: on",
            involved=((*at, "acks"), (*at, "replicas")),
        )

    is_bucket = own is not None and own.max_msgs_per_subject == 1
    if (
        stream.retention.discard == "new"
        and stream.compaction is not None
        and not (is_bucket and stream.retention.max_messages is None)
    ):
        # A new value of a key would be refused although it supersedes an old value.
        yield Finding(
            (*at, "retention", "discard"),
            "'new': expected old with compaction, except for max_bytes with "
            "jetstream.max_msgs_per_subject: 1",
            involved=((*at, "compaction"),),
        )
    yield from _check_replicas(stream, at)
    yield from _check_compaction(stream, at)


def check_history(stream: StreamSettings, at: KeyPath = ()) -> Iterator[Finding]:
    """Check the history of a bucket. For an existing stream a wrong history is no finding, because
    the stream must open; the stream gets a warning."""
    own = stream.jetstream
    history = None if own is None else own.max_msgs_per_subject
    compaction = stream.compaction
    if history is not None and history > 1 and compaction is not None and compaction.enabled:
        yield Finding(
            (*at, "jetstream", "max_msgs_per_subject"),
            f"{history}: expected 1 with compaction, which keeps only the newest record of each "
            "subject; for a longer history set compaction: null",
            involved=((*at, "compaction"),),
        )


def _check_replicas(stream: StreamSettings, at: KeyPath) -> Iterator[Finding]:
    if stream.min_isr > stream.replicas:
        yield Finding(
            (*at, "min_isr"),
            f"{stream.min_isr}: expected at most replicas ({stream.replicas})",
            involved=((*at, "replicas"),),
        )
    if stream.replicas > 1 and stream.durability != "fsync":
        # Each node must sync before it confirms. Otherwise a crash of all nodes could lose acked
        # messages.
        yield Finding(
            (*at, "durability"),
            f"{stream.durability!r}: expected fsync with replicas: {stream.replicas}",
            involved=((*at, "replicas"),),
        )


def check_installed(stream: StreamSettings) -> Iterator[Finding]:
    """Check that this machine has the packages that a stream needs.

    A missing package makes neither a configuration file nor an existing stream invalid, because
    other streams must start without the package.
    """
    package = _CODEC_PACKAGES.get(stream.compression)
    if package is not None and importlib.util.find_spec(package) is None:
        yield Finding(
            ("compression",),
            f"{stream.compression!r}: needs the package {package}, which is not installed: "
            "pip install 'liftlog[compression]'",
        )


def _check_compaction(stream: StreamSettings, at: KeyPath) -> Iterator[Finding]:
    compaction = stream.compaction
    if compaction is None or compaction.max_lag_seconds is None:
        return
    if compaction.max_lag_seconds < compaction.min_lag_seconds:
        yield Finding(
            (*at, "compaction", "max_lag"),
            f"{compaction.max_lag_seconds:g} s: expected at least compaction.min_lag "
            f"({compaction.min_lag_seconds:g} s)",
            involved=((*at, "compaction", "min_lag"),),
        )


def _reserved(subject: str) -> str | None:
    first = subject.partition(".")[0]
    if overlaps(subject, "_INBOX.>"):
        return "_INBOX.>"
    if overlaps(subject, "liftlog.>"):
        return "liftlog.>"
    if subject.startswith(("$KV.", "$O.")):
        return None  # key-value buckets and object stores
    if first in ("*", ">") or first.startswith("$"):
        return "$*.>"
    return None


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield from _check_nats(settings)
    yield from _check_cluster(settings)
    yield from _check_listening(settings)
    if settings.http.log_api and settings.http.listen is None:
        yield Finding(
            ("http", "log_api"),
            "true: needs http.listen, which is null",
            involved=(("http", "listen"),),
        )
    yield from _check_pull_tls(settings)
    pull = settings.pull
    for small, large in (
        ("default_fetch_bytes", "max_fetch_bytes"),
        ("max_hello_frame_bytes", "max_frame_bytes"),
    ):
        low, high = getattr(pull, small), getattr(pull, large)
        if low > high:
            yield Finding(
                ("pull", small),
                f"{low}: expected at most pull.{large} ({high})",
                involved=(("pull", large),),
            )
    for name, stream in settings.streams.items():
        at: KeyPath = ("streams", name)
        yield from check_stream(stream, at)
        yield from check_history(stream, at)
        if stream.max_message_bytes > settings.ingest.max_pending_bytes:
            yield Finding(
                (*at, "max_message_bytes"),
                f"{stream.max_message_bytes}: expected at most ingest.max_pending_bytes "
                f"({settings.ingest.max_pending_bytes})",
                involved=(("ingest", "max_pending_bytes"),),
            )


def _check_cluster(settings: Settings) -> Iterator[Finding]:
    if settings.cluster is not None:
        if settings.cluster.store == NATS_STORE and settings.nats.embedded:
            yield Finding(
                ("nats", "embedded"),
                "true: cluster.store: nats needs NATS servers that all nodes share, with JetStream",
                involved=(("cluster", "store"),),
            )
        if settings.cluster.store == NATS_STORE and settings.nats.jetstream_api:
            yield Finding(
                ("nats", "jetstream_api"),
                "true: cluster.store: nats needs JetStream on the NATS servers, which then answers "
                "its clients itself; expected false, or cluster.store: file:///DIR, a directory "
                "that all nodes share",
                involved=(("cluster", "store"),),
            )
        return
    for name, stream in settings.streams.items():
        if stream.replicas > 1:
            yield Finding(
                ("streams", name, "replicas"),
                f"{stream.replicas}: expected 1, because this daemon is no node of a cluster: add "
                "the section cluster",
            )


def _check_nats(settings: Settings) -> Iterator[Finding]:
    nats = settings.nats
    if nats.embedded and nats.servers != NatsSettings().servers:
        # A user who names servers expects a connection to them.
        yield Finding(
            ("nats", "servers"),
            "has no effect with nats.embedded: true, which starts a nats-server on 127.0.0.1:4222 "
            "(on a free port if that is taken): leave it out, or set nats.embedded: false",
            involved=(("nats", "embedded"),),
        )
    ways = [
        key for key in ("user", "token", "credentials", "nkey") if getattr(nats, key) is not None
    ]
    if len(ways) > 1:
        yield Finding(
            ("nats", ways[-1]),
            f"expected one way to authenticate, got {' and '.join(ways)}",
            involved=tuple(("nats", key) for key in ways[:-1]),
        )
    if nats.password is not None and nats.user is None:
        yield Finding(("nats", "password"), "needs nats.user", involved=(("nats", "user"),))
    if (nats.tls.cert is None) != (nats.tls.key is None):
        there, absent = ("cert", "key") if nats.tls.key is None else ("key", "cert")
        yield Finding(
            ("nats", "tls", there),
            f"needs nats.tls.{absent}",
            involved=(("nats", "tls", absent),),
        )


def _check_pull_tls(settings: Settings) -> Iterator[Finding]:
    tls = settings.pull.tls
    secured = [i for i, url in enumerate(settings.pull.listen) if parse_listen(url).tls]
    for key, given in (("cert", tls.cert), ("key", tls.key)):
        if given is None and secured:
            yield Finding(
                ("pull", "tls", key),
                f"expected a file, because pull.listen has {settings.pull.listen[secured[0]]!r}",
                involved=(("pull", "listen", secured[0]),),
            )
    if not secured:
        for key in ("cert", "key", "client_ca"):
            if getattr(tls, key) is not None:
                # A user who sets this expects encrypted connections.
                yield Finding(
                    ("pull", "tls", key),
                    "has no effect without an address tls://HOST:PORT in pull.listen",
                    involved=(("pull", "listen"),),
                )


def _check_listening(settings: Settings) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, url in enumerate(settings.pull.listen):
        if url in seen and not url.endswith(":0"):
            yield Finding(("pull", "listen", index), f"{url!r} is listed twice")
        seen.add(url)
    if settings.allow_anonymous or settings.acl.file is not None:
        return
    addresses = [
        (("pull", "listen", index), url, parse_listen(url))
        for index, url in enumerate(settings.pull.listen)
    ]
    places: list[tuple[KeyPath, str, bool]] = [(p, text, a.is_local) for p, text, a in addresses]
    if settings.http.listen is not None:
        local = parse_host_port(settings.http.listen).is_local
        places.append((("http", "listen"), settings.http.listen, local))
    for path, text, is_local in places:
        if not is_local:
            yield Finding(
                path,
                f"{text!r} can be reached from other machines: "
                "set acl.file, or allow_anonymous: true, or listen on 127.0.0.1",
                involved=(("acl", "file"), ("allow_anonymous",)),
            )


class Caution(NamedTuple):
    """A setting that is allowed but hardly intended. A caution is not a finding, because an
    operator may want this setting."""

    setting: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}: {self.advice}"


def cautions(settings: Settings, policy: Policy | None) -> Iterator[Caution]:
    """Yield the cautions. `policy` is the policy of the ACL file."""
    if policy is not None:
        yield from _unencrypted(settings, policy)
    elif settings.nats.jetstream_api:
        yield Caution(
            "nats.jetstream_api",
            "every client of NATS may create, read and delete streams",
            "set acl.file, with a section nats, or restrict $JS.API.> in NATS",
        )
    cluster = settings.cluster
    if (
        cluster is not None
        and cluster.store == NATS_STORE
        and cluster.session_seconds < _SHORTEST_NATS_SESSION_SECONDS
    ):
        yield Caution(
            "cluster.session",
            f"{cluster.session_seconds:g} s can pass while NATS elects a leader",
            "set it to 12s or more: elections take up to 9 s",
        )


def _unencrypted(settings: Settings, policy: Policy) -> Iterator[Caution]:
    """Yield a caution for each address without TLS that other machines can reach."""
    what = "tokens and records" if policy.accepts_tokens else "records"
    for index, url in enumerate(settings.pull.listen):
        address = parse_listen(url)
        if not (address.is_local or address.tls):
            yield Caution(
                f"pull.listen[{index}]",
                f"{what} are sent unencrypted over {url}",
                "listen on tls://HOST:PORT and set pull.tls",
            )
    http = settings.http
    takes_tokens = policy.accepts_tokens and (http.web or http.log_api)
    if http.listen is not None and takes_tokens and not parse_host_port(http.listen).is_local:
        yield Caution(
            "http.listen",
            f"tokens are sent unencrypted over http://{http.listen}",
            "put a TLS proxy in front, or switch off http.web and http.log_api",
        )
