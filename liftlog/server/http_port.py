"""The HTTP port of a daemon, put together from its settings."""

from __future__ import annotations

from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.http.appending import Appender
from liftlog.server.http.callers import Callers, HostNames
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.log_api import LogApi, LogApiLimits
from liftlog.server.http.server import HttpCounters, HttpServer, Mounted
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.monitoring import MonitoringPage
from liftlog.server.jetstream_api.overview import Overviews
from liftlog.server.life.health import Health
from liftlog.server.life.reloading import Reloads
from liftlog.server.metrics.exposition import Exposition
from liftlog.server.metrics.readings import Readings
from liftlog.server.metrics.values import Sources
from liftlog.server.pull import PullServer
from liftlog.server.streams.broker import Broker
from liftlog.server.vitals.delays import LoopWatch, SyncTimes
from liftlog.server.vitals.disk import DiskProbe
from liftlog.server.web.asking import Parts
from liftlog.server.web.history import History
from liftlog.server.web.pace import Pace
from liftlog.server.web.readers import Readers
from liftlog.server.web.sessions import Sessions
from liftlog.server.web.site import WebSite
from liftlog.server.web.watching import Descriptions
from liftlog.settings import Settings
from liftlog.settings.daemon import HttpSettings


def sources_of(
    broker: Broker,
    link: NatsLink,
    pull: PullServer,
    cleaner: Cleaner,
    health: Health,
    disk: DiskProbe,
    reloads: Reloads,
    loop_watch: LoopWatch,
    sync_times: SyncTimes,
    settings: HttpSettings,
    max_connections: int,
) -> Sources:
    """Return the parts of a daemon that have counters. The parts of the HTTP port are created
    here."""
    guard = ConnectionGuard(
        max_connections=max_connections, timeout_seconds=settings.timeout_seconds
    )
    parts = (broker, link, pull, cleaner, health, disk, reloads, loop_watch, sync_times)
    return Sources(*parts, guard, HttpCounters(), Sessions())


def make_http_server(settings: Settings, sources: Sources) -> HttpServer:
    """Return the HTTP server. It does not listen yet. It belongs to the running event loop. The
    gate of the pull server checks its requests."""
    http = settings.http
    mounted: list[Mounted] = []
    hosts = HostNames(http.allowed_hosts)
    if http.listen is not None:
        shared = sources.pull.services
        callers = Callers(
            shared.gate,
            shared.authenticator,
            shared.audit,
            failure_delay_seconds=shared.limits.auth_failure_delay_seconds,
            hosts=hosts,
        )
        appender = _appender(settings, sources.broker, sources.link)
        mounted.append(MonitoringPage(lambda: _overviews(sources), callers, hosts))
        if http.log_api:
            mounted.append(_log_api(settings, sources.broker, appender, callers))
        if http.web:
            mounted.append(_web_site(sources, appender, callers))
    return HttpServer(
        sources.health,
        Exposition(sources),
        mounted=mounted,
        guard=sources.http,
        counters=sources.requests,
        hosts=hosts,
        turns=sources.pull.services.turns,
    )


def _appender(settings: Settings, broker: Broker, link: NatsLink) -> Appender:
    return Appender(
        settings.nats,
        link.servers,
        lambda: link.connected,
        broker.recording,
        ack_timeout_seconds=settings.http.append_timeout_seconds,
    )


def _overviews(sources: Sources) -> Overviews | str:
    """Return the content of `/jsz`, or the reason why there is none."""
    if not sources.broker.settings.nats.jetstream_api:
        return "JetStream's API is off: set nats.jetstream_api to true"
    api = sources.health.jetstream_api
    if api is None:
        return "the daemon is starting"
    return api.overviews if not api.problem else f"JetStream's API does not answer: {api.problem}"


def _log_api(settings: Settings, broker: Broker, appender: Appender, callers: Callers) -> LogApi:
    http = settings.http
    limits = LogApiLimits(
        max_body_bytes=http.max_body_bytes, body_timeout_seconds=http.timeout_seconds
    )
    return LogApi(broker, broker.administration.truncate_prefix, appender, callers, limits)


def _web_site(sources: Sources, appender: Appender, callers: Callers) -> WebSite:
    broker = sources.broker
    history = History(Readings(sources))
    history.start()
    parts = Parts(
        broker,
        sources.health,
        callers.gate,
        sources.pull.services.scanners,
        history,
        Descriptions(broker),
        Readers(broker),
        sources.sessions,
        appender,
        Pace(lambda: sources.sync_times.count + broker.intake.ingested().chunks),
    )
    return WebSite(parts, callers)
