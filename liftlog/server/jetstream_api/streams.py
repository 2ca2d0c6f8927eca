"""INFO and STREAM.*: describes, creates, changes and deletes streams."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from typing import Any, TypeVar

import liftlog
from acl.subjects import overlap_any, why_no_subject
from liftlog.errors import (
    Conflict,
    InternalError,
    NatsRefused,
    NatsUnavailable,
    StreamNotFound,
)
from liftlog.log.state import ReadView
from liftlog.names import is_stream_name
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import (
    CreateStream,
    DeleteStream,
    DescribeStream,
    ListStreams,
    Message,
    StreamAnswer,
    StreamsAnswer,
)
from liftlog.server.commits.host import StreamHost
from liftlog.server.ingest.jetstream import MARK
from liftlog.server.jetstream_api.answers import (
    API_LEVEL,
    ZERO_TIME,
    JetStreamError,
    bad_request,
    invalid_config,
    invalid_json,
    time_text,
    to_text,
    unavailable,
)
from liftlog.server.jetstream_api.config_fields import with_levels
from liftlog.server.jetstream_api.creations import CREATE
from liftlog.server.jetstream_api.fields import flag, text, whole
from liftlog.server.jetstream_api.lookups import (
    MAX_HOLES,
    MAX_SUBJECTS,
    TooManyResults,
    open_lookup,
)
from liftlog.server.jetstream_api.messages.ages import first_message
from liftlog.server.jetstream_api.methods import Answer, Request, always, answers, without
from liftlog.server.jetstream_api.stream_config import (
    NO_ROLLUPS_IN_CLUSTER,
    changes_from,
    check_unchangeable,
    config_of,
    settings_from,
)
from liftlog.server.requests.rights import carry_out
from liftlog.settings import StreamSettings, parse_stream_settings

_NAMES_LIMIT, _LIST_LIMIT = 1024, 256
"""Maximum number of streams in one page, as in JetStream."""
_PAGE_SHARE = 0.9
"""Maximum size of a page of descriptions, as a share of NATS's maximum message size."""
_DEFAULT_PAYLOAD = 2**20
_SUBJECTS_LIMIT = 100_000
"""Maximum number of subjects in one page, as in JetStream."""
_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
"""Pattern of texts whose length does not change when they are encoded as JSON."""

_NO_LIMITS = {
    "max_memory": 0,
    "max_storage": -1,
    "max_streams": -1,
    "max_consumers": -1,
    "max_ack_pending": -1,
    "memory_max_stream_bytes": -1,
    "storage_max_stream_bytes": -1,
    "max_bytes_required": False,
}

Kind = TypeVar("Kind", bound=Message)


@answers("INFO", "account_info", is_cheap=always)
async def _info(request: Request) -> Answer:
    broker = request.broker
    counters = request.parts.counters
    names = [name for name in broker.stream_names() if request.may_read(name)]
    hosts = [broker.hosts[name] for name in names if name in broker.hosts]
    return {
        "memory": 0,
        "storage": sum(host.log.view.size_bytes for host in hosts),
        "reserved_memory": 0,
        "reserved_storage": 0,
        "streams": len(names),
        "consumers": request.parts.consumers.count() + request.parts.acked.count(),
        "limits": _NO_LIMITS,
        "api": {"level": API_LEVEL, "total": counters.requests.total(), "errors": counters.errors},
        MARK: request.parts.mark,
        "liftlog_version": liftlog.__version__,
    }


# --- the description of one stream ---


@answers(
    "STREAM.INFO",
    "stream_info",
    arguments=(1, 1),
    at_leader=True,
    is_cheap=without(b"subjects_filter", b"deleted_details"),
)
async def _stream_info(request: Request) -> Answer:
    request.authorize("read")
    body = request.body()
    pattern, wants_holes = text(body, "subjects_filter"), flag(body, "deleted_details")
    if pattern and why_no_subject(pattern) is not None:
        raise bad_request("invalid subject")
    described = await _described(request, await description(request))
    state = described["state"]
    try:
        if wants_holes and state["num_deleted"]:
            if state["num_deleted"] > MAX_HOLES:
                raise TooManyResults
            lookup = open_lookup(request)[1]
            state["deleted"] = await lookup.holes(state["first_seq"], state["last_seq"] + 1)
        if pattern:
            offset = whole(body, "offset", least=-(2**63))
            described |= await _subjects_page(request, state, pattern, offset)
    except TooManyResults:
        raise JetStreamError(500, 10117, "subject details would exceed maximum allowed") from None
    return described


async def _subjects_page(
    request: Request, state: dict[str, Any], pattern: str, offset: int
) -> dict[str, Any]:
    """Add the number of messages of each subject to `state`, for as many subjects as fit into one
    answer. Return the fields that describe the page."""
    counts = await open_lookup(request)[1].subjects(pattern, MAX_SUBJECTS)
    names = sorted(counts)
    offset = max(0, min(offset, len(names)))
    most_bytes = _PAGE_SHARE * (request.parts.max_payload_bytes() or _DEFAULT_PAYLOAD)
    longest = max(map(len, names), default=0)
    if not _PLAIN.fullmatch(b"".join(names)):
        longest = 6 * longest + 12  # this is the longest form in JSON
    # All pages have the same number of subjects, because clients multiply the limit of the first
    # page.
    limit = int((most_bytes - len(to_text(state))) / (longest + 12))
    limit = max(1, limit) if len(names) > limit else _SUBJECTS_LIMIT
    limit = min(limit, _SUBJECTS_LIMIT)
    if page := names[offset : offset + limit]:
        state["subjects"] = {name.decode("utf-8", "replace"): counts[name] for name in page}
    return _page(len(names), offset, limit)


async def description(request: Request) -> StreamInfo:
    return (await asked(request, DescribeStream(request.stream), StreamAnswer)).info


async def asked(request: Request, message: Message, kind: type[Kind]) -> Kind:
    """Return the answer of the responsible node to an authorized request."""
    answer = await carry_out(request.caller, message)
    if not isinstance(answer, kind):
        raise InternalError(f"{message.KIND} was answered with {answer.KIND}")
    return answer


async def _described(request: Request, info: StreamInfo) -> dict[str, Any]:
    """Return JetStream's description of a stream."""
    host = request.broker.hosts.get(info.name)
    if host is not None and host.log.incarnation != info.incarnation:
        host = None
    settings = host.settings if host is not None and info.settings else settings_of(info)
    own, log = settings.jetstream, host.log if host is not None else None
    has_records = log is not None and info.high_watermark > info.log_start_offset
    first, first_ns = info.log_start_offset, 0
    if host is not None and has_records:
        first = max(first, request.parts.ages.first_offset(host))
        first, first_ns = await asyncio.to_thread(first_message, host.log, first)
    view = None if log is None else log.view
    state = _state(info, min(first, info.high_watermark), first_ns, view)
    parts = request.parts
    state["consumer_count"] = len(parts.consumers.of(info.name)) + len(parts.acked.of(info.name))
    if host is not None:
        await _count_shown(request, host, state)
    return {
        "config": with_levels(config_of(info.name, settings)),
        "created": own.created if own is not None and own.created else ZERO_TIME,
        "state": state,
        "ts": time_text(time.time_ns()),
    }


async def _count_shown(request: Request, host: StreamHost, state: dict[str, Any]) -> None:
    """Count only the shown messages of a bucket. Superseded records do not count: they are never
    delivered, and compaction deletes them later."""
    known, own = host.sequencer.subjects, host.settings.jetstream
    subjects = None if known is None else known.count()
    history = None if own is None else own.max_msgs_per_subject
    shown = subjects if history == 1 else None
    if history is not None and shown is None:
        index = await request.parts.buckets.index(host)
        if index is not None:
            shown, subjects = index.count, index.subject_count
    if subjects is not None:
        state["num_subjects"] = subjects
    if shown is not None:
        shown = min(state["messages"], shown)
        state["num_deleted"] += state["messages"] - shown
        state["messages"] = shown


def settings_of(info: StreamInfo) -> StreamSettings:
    if not info.settings:
        raise JetStreamError(500, 10194, f"stream is offline: {'; '.join(info.warnings)}")
    return parse_stream_settings(info.settings, exists=True)


def _state(info: StreamInfo, start: int, first_ns: int, view: ReadView | None) -> dict[str, Any]:
    """Return the state of a stream in JetStream's form. Sequences are offsets; `start` is the
    offset of the first shown message, or the end of the stream."""
    end, last_ns = info.high_watermark, 0 if view is None else view.max_timestamp_ns
    erased = None if view is None else view.erased
    hidden = 0 if erased is None else erased.count_in(start, end)
    count = min(info.record_count or 0, end - start - hidden)
    # The segment files also contain records that were purged or erased.
    stored = sum([one.record_count for one in view.segments]) if view is not None else count
    is_new = start == end == 1
    return {
        "messages": count,
        "bytes": info.size_bytes * count // max(stored, count, 1),
        "first_seq": 0 if is_new else start,
        "first_ts": time_text(first_ns) if count and first_ns else ZERO_TIME,
        "last_seq": 0 if is_new else end - 1,
        "last_ts": time_text(last_ns) if last_ns > 0 else ZERO_TIME,
        "num_deleted": end - start - count,
        "consumer_count": 0,
    }


# --- lists ---


@answers("STREAM.NAMES", "stream_names", is_cheap=always)
async def _names(request: Request) -> Answer:
    body = request.body()
    found = _readable_names(request, _subject_in(body))
    offset = min(whole(body, "offset", least=-(2**63)), len(found))
    page = found[max(offset, 0) :][:_NAMES_LIMIT]
    return _page(len(found), max(offset, 0), _NAMES_LIMIT) | {
        "streams": page or None,
        MARK: request.parts.mark,
    }


@answers("STREAM.LIST", "stream_list")
async def _list(request: Request) -> Answer:
    body = request.body()
    found = [one for one in await _listed(request, body) if one.settings]
    offset = max(0, min(whole(body, "offset", least=-(2**63)), len(found)))
    left = _PAGE_SHARE * (request.parts.max_payload_bytes() or _DEFAULT_PAYLOAD)
    page: list[dict[str, Any]] = []
    for info in found[offset:][:_LIST_LIMIT]:
        await asyncio.sleep(0)
        described = await _described(request, info)
        left -= len(to_text(described))
        if page and left < 0:
            break
        page.append(described)
    return _page(len(found), offset, _LIST_LIMIT) | {"streams": page}


def _page(total: int, offset: int, limit: int) -> dict[str, Any]:
    return {"total": total, "offset": offset, "limit": limit}


async def _listed(request: Request, body: dict[str, Any]) -> list[StreamInfo]:
    """Return the streams that may be read, sorted by name. Streams on a failed disk are
    included."""
    subject = _subject_in(body)
    answer = await asked(request, ListStreams(), StreamsAnswer)
    found = [StreamInfo.from_wire(one) for one in answer.streams]
    return [one for one in found if not subject or overlap_any(one.recorded_subjects, (subject,))]


def _subject_in(body: dict[str, Any]) -> str:
    subject = text(body, "subject")
    if subject and why_no_subject(subject) is not None:
        raise bad_request("invalid subject")
    return subject


def _readable_names(request: Request, subject: str) -> list[str]:
    """Return the names of the streams that `_listed` would return. Does not describe the streams,
    which would take longer. Called for every new stream, whose name is compared with these
    names."""
    names: Iterable[str] = request.broker.stream_names()
    if subject:
        found = request.broker.overlapping((subject,))
        names = sorted(name for name in found if is_stream_name(name))
    return list(filter(request.may_read, names))


# --- creating, changing, deleting ---


@answers(CREATE, "stream_create", arguments=(1, 1))
async def _create(request: Request) -> Answer:
    settings = _wanted(request)
    request.authorize("create", subjects=settings["subject"])
    wanted = config_of(request.stream, parse_stream_settings(settings))
    existing = await _existing(request)
    if existing is not None:
        return await _same(request, existing, wanted)
    _check_neighbours(request, wanted)
    _check_rollups(request, settings)
    if settings["replicas"] > 1 and not request.broker.catalog.in_cluster:
        raise JetStreamError(500, 10074, "replicas > 1 not supported in non-clustered mode")
    settings["jetstream"]["created"] = time_text(time.time_ns())
    try:
        with request.parts.creations.of(request.stream, wanted):
            answer = await asked(request, CreateStream(request.stream, settings), StreamAnswer)
    except Conflict:
        # Another client, or an earlier request of this one, created the stream in the meantime.
        await request.broker.catalog.look_for(request.stream)
        try:
            return await _same(request, await description(request), wanted)
        except StreamNotFound:
            raise unavailable("the stream is being created") from None
    except (NatsRefused, NatsUnavailable) as error:
        raise JetStreamError(500, 10049, str(error)) from None
    return await _described(request, answer.info) | {"did_create": True}


def _wanted(request: Request) -> dict[str, Any]:
    """Return the settings of the configuration in the request."""
    body = request.body()
    if not body:
        raise invalid_json("expected the configuration of a stream")
    # Pedantic mode is always on: the daemon never silently replaces a setting.
    body.pop("pedantic", None)
    return settings_from(request.stream, body)


async def _existing(request: Request) -> StreamInfo | None:
    # Programs create a stream again as soon as its deletion is answered, and any node may receive
    # that request.
    await request.broker.catalog.look_again(request.stream)
    try:
        request.check_exists()
        return await description(request)
    except StreamNotFound:
        return None


async def _same(request: Request, existing: StreamInfo, wanted: dict[str, Any]) -> Answer:
    """Return the answer if a client creates a stream again with the same configuration."""
    if config_of(existing.name, settings_of(existing)) != wanted:
        raise JetStreamError(
            400, 10058, "stream name already in use with a different configuration"
        )
    if not request.may_read(existing.name):
        empty = _state(StreamInfo(), 0, 0, None)
        return {"config": with_levels(wanted), "created": ZERO_TIME, "state": empty}
    return await _described(request, existing)


def _check_neighbours(request: Request, wanted: dict[str, Any]) -> None:
    """Refuse a stream whose subjects overlap with another stream's subjects, as JetStream does.
    Otherwise both streams would ack the same message, and its publisher would get two acks. Clients
    of the pull port may create such streams; they get a warning."""
    if wanted.get("no_ack"):
        return
    # Streams that this client may not read count, too, although the client can thereby detect that
    # the subject is in use.
    near = request.broker.overlapping(wanted["subjects"])
    is_used = any(
        one.acks == "on" and name != request.stream and is_stream_name(name)
        for name, one in near.items()
    )
    if is_used or request.parts.creations.overlap(request.stream, wanted["subjects"]):
        raise JetStreamError(400, 10065, "subjects overlap with an existing stream")


def _check_rollups(request: Request, settings: dict[str, Any]) -> None:
    if settings["jetstream"]["allow_rollup_hdrs"] and request.broker.catalog.in_cluster:
        raise invalid_config(NO_ROLLUPS_IN_CLUSTER)


@answers("STREAM.UPDATE", "stream_update", arguments=(1, 1), at_leader=True)
async def _update(request: Request) -> Answer:
    settings = _wanted(request)
    request.authorize("create", subjects=settings["subject"])
    _check_rollups(request, settings)
    want = config_of(request.stream, parse_stream_settings(settings))
    existing = await description(request)
    have = config_of(existing.name, settings_of(existing))
    check_unchangeable(have, want)
    if have["subjects"] != want["subjects"]:
        _check_neighbours(request, want)

    def changes(present: StreamSettings) -> dict[str, Any]:
        """Compute the change from the present settings, because other clients may have changed the
        settings in the meantime."""
        have = config_of(request.stream, present)
        check_unchangeable(have, want)
        if have["subjects"] != want["subjects"]:
            _check_neighbours(request, want)
        return changes_from(settings, have, want)

    update_stream = request.broker.administration.update_stream
    try:
        with request.parts.creations.of(request.stream, want):
            update = await update_stream(request.stream, changes, allow_deletion=True)
    except (Conflict, NatsRefused) as error:
        raise JetStreamError(500, 10069, str(error)) from None
    return await _described(request, update.info)


@answers("STREAM.DELETE", "stream_delete", arguments=(1, 1), at_leader=True)
async def _delete(request: Request) -> Answer:
    # Any node could carry out the change. But a node that does not have the stream's metadata yet
    # asks the leader, and the leader then carries out the change.
    request.authorize("delete")
    _expect_empty(request)
    try:
        await carry_out(request.caller, DeleteStream(request.stream))
    except Conflict as error:
        raise JetStreamError(500, 10050, str(error)) from None
    return {"success": True}


def _expect_empty(request: Request) -> None:
    if request.payload.strip() not in (b"", b"{}"):
        raise JetStreamError(400, 10038, "expected an empty request payload")


def _refuse(name: str, kind: str, why: str) -> None:
    async def perform(request: Request) -> Answer:
        request.authorize("read")
        raise invalid_config(why)

    answers(name, kind, arguments=(1, 1))(perform)


_refuse("STREAM.SNAPSHOT", "stream_snapshot", "snapshots are not supported; use liftlog backup")
_refuse("STREAM.RESTORE", "stream_restore", "snapshots are not supported; use liftlog backup")
_refuse(
    "STREAM.PEER.REMOVE",
    "stream_remove_peer",
    "peers are managed with liftlog cluster move and drain",
)
_refuse(
    "STREAM.LEADER.STEPDOWN",
    "stream_leader_stepdown",
    "leaders are moved with liftlog cluster elect",
)
