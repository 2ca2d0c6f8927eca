"""The HTTP port of a daemon, put together from its settings."""

from __future__ import annotations

from liftlog.server.http.appending import Appender
from liftlog.server.http.callers import Callers, HostNames
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.log_api import LogApi, LogApiLimits
from liftlog.server.http.server import Health, HttpCounters, HttpServer, Metrics, Mounted
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.pull import PullServer
from liftlog.server.pull.fairness import FairThreads
from liftlog.server.streams.broker import Broker
from liftlog.server.web.asking import Parts
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.site import WebSite
from liftlog.server.web.watching import Counted, Descriptions, Rates
from liftlog.settings import Settings


def make_http_server(
    settings: Settings,
    *,
    health: Health,
    exposition: Metrics,
    broker: Broker,
    pull: PullServer,
    link: NatsLink,
    guard: ConnectionGuard,
    counters: HttpCounters,
    sessions: Sessions,
) -> HttpServer:
    """Not listening yet; belongs to the running event loop. Requests pass the gate of `pull`."""
    http = settings.http
    mounted: list[Mounted] = []
    hosts = HostNames(http.allowed_hosts)
    if http.listen is not None:
        shared = pull.services
        callers = Callers(
            shared.gate,
            shared.authenticator,
            shared.audit,
            failure_delay_seconds=shared.limits.auth_failure_delay_seconds,
            hosts=hosts,
        )
        if http.log_api:
            mounted.append(_log_api(settings, broker, link, callers))
        if http.web:
            mounted.append(_web_site(broker, health, shared.scanners, callers, sessions))
    return HttpServer(
        health, exposition, mounted=mounted, guard=guard, counters=counters, hosts=hosts
    )


def _log_api(settings: Settings, broker: Broker, link: NatsLink, callers: Callers) -> LogApi:
    http = settings.http
    appender = Appender(
        settings.nats,
        link.servers,
        lambda: link.connected,
        ack_timeout_seconds=http.append_timeout_seconds,
    )
    limits = LogApiLimits(
        max_body_bytes=http.max_body_bytes, body_timeout_seconds=http.timeout_seconds
    )
    return LogApi(broker, broker.administration.truncate_prefix, appender, callers, limits)


def _web_site(
    broker: Broker,
    health: Health,
    scanners: FairThreads,
    callers: Callers,
    sessions: Sessions,
) -> WebSite:
    def counters() -> list[Counted]:
        hosts = broker.hosts.values()
        return [
            Counted(host.name, host.observed.records, host.observed.received_bytes)
            for host in hosts
        ]

    rates = Rates(counters)
    rates.start()
    parts = Parts(broker, health, callers.gate, scanners, rates, Descriptions(broker), sessions)
    return WebSite(parts, callers)
