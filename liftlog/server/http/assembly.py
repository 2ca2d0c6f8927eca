"""The HTTP port of a daemon, put together from its settings."""

from __future__ import annotations

from collections.abc import Callable

from liftlog.server.broker import Broker
from liftlog.server.http.access import Access
from liftlog.server.http.appending import Appender
from liftlog.server.http.log_api import LogApi, LogApiLimits
from liftlog.server.http.server import HttpLimits, HttpServer, Readiness
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.pull import PullServer
from liftlog.settings import Settings
from liftlog.settings.addresses import parse_host_port


def make_http_server(
    settings: Settings,
    *,
    readiness: Readiness,
    exposition: Callable[[], bytes],
    broker: Broker,
    pull: PullServer,
    link: NatsLink,
) -> HttpServer:
    """Not listening yet. Requests pass the gate of `pull`, its policy of the moment."""
    http = settings.http
    log_api = None
    if http.log_api and http.listen is not None:
        access = Access(
            pull,
            failure_delay_seconds=pull.limits.auth_failure_delay_seconds,
            loopback_only=parse_host_port(http.listen).is_local,
        )
        appender = Appender(
            settings.nats,
            link.servers,
            lambda: link.connected,
            ack_timeout_seconds=http.append_timeout_seconds,
        )
        limits = LogApiLimits(
            max_body_bytes=http.max_body_bytes, body_timeout_seconds=http.timeout_seconds
        )
        log_api = LogApi(broker, broker.administration.truncate_prefix, appender, access, limits)
    return HttpServer(
        readiness,
        exposition,
        mounted=log_api,
        limits=HttpLimits(http.max_connections, http.timeout_seconds),
    )
