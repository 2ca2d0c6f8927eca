"""The HTTP port of a daemon, put together from its settings."""

from __future__ import annotations

from liftlog.server.http.access import Access
from liftlog.server.http.appending import Appender
from liftlog.server.http.counters import HttpCounters
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.hosts import HostNames
from liftlog.server.http.log_api import LogApi, LogApiLimits
from liftlog.server.http.server import Health, HttpServer, Metrics, Mounted
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.pull import PullServer
from liftlog.server.streams.broker import Broker
from liftlog.server.web.asking import Parts
from liftlog.server.web.descriptions import Descriptions
from liftlog.server.web.rates import Counted, Rates
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.site import WebSite
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
    """Not listening yet; belongs to the running event loop. Requests pass the gate of `pull`, its
    policy of the moment."""
    http = settings.http
    mounted: list[Mounted] = []
    hosts = HostNames(http.allowed_hosts)
    if http.listen is not None:
        access = Access(
            pull,
            failure_delay_seconds=pull.limits.auth_failure_delay_seconds,
            hosts=hosts,
        )
        if http.log_api:
            mounted.append(_log_api(settings, broker, link, access))
        if http.web:
            mounted.append(_web_site(broker, health, pull, access, sessions))
    return HttpServer(
        health, exposition, mounted=mounted, guard=guard, counters=counters, hosts=hosts
    )


def _log_api(settings: Settings, broker: Broker, link: NatsLink, access: Access) -> LogApi:
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
    return LogApi(broker, broker.administration.truncate_prefix, appender, access, limits)


def _web_site(
    broker: Broker, health: Health, pull: PullServer, access: Access, sessions: Sessions
) -> WebSite:
    def counters() -> list[Counted]:
        hosts = broker.hosts.values()
        return [
            Counted(host.name, host.observed.records, host.observed.received_bytes)
            for host in hosts
        ]

    rates = Rates(counters)
    rates.start()
    return WebSite(Parts(broker, health, pull, rates, Descriptions(broker), sessions), access)
