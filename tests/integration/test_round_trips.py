"""Hostile messages on every way through and out of a daemon: what comes out is what went in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from support.clients.command_line import Cli
from support.clients.hostile_messages import MAX_PAYLOAD, messages
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.clients.round_trips import COMPACTED, SOURCE, WAYS, World, round_trip
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of, rounds

import liftlog.server.jetstream_api.service  # noqa: F401  # its methods are registered
from liftlog.cli.lib.options import OUTPUTS
from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.protocol.messages import REQUESTS
from liftlog.server.jetstream_api.methods import METHODS
from liftlog.server.web.site import FORMS, PAGES

pytestmark = pytest.mark.integration

STREAMS = {
    SOURCE: {"subject": f"{SOURCE}.>", "segment": {"max_bytes": "64KiB"}},
    "packed": {"subject": f"{SOURCE}.>", "compression": "zstd"},
    COMPACTED: {
        "subject": f"{SOURCE}.>",
        "compaction": {},
        "dedupe_window": "0s",
        "segment": {"max_bytes": "64KiB"},
    },
}
FEW = 40


def settings_for(nats: NatsServer) -> dict[str, Any]:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", nats.log)
    assert found is not None
    leafnode = found[1]
    return {
        "nats": {"jetstream_api": True, "leafnode": leafnode},
        "http": {"log_api": True},
        "streams": STREAMS,
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    sent = list(messages(chance_of("round trips"), rounds(FEW)))
    with (
        NatsServer(max_payload=MAX_PAYLOAD, leafnodes={"listen": "127.0.0.1:-1"}) as nats,
        NatsServer(jetstream=True, max_payload=MAX_PAYLOAD) as other,
        Daemon(nats.url, settings_for(nats)) as daemon,
        RawNats(nats.port) as publisher,
    ):
        for one in sent:
            subject = f"{SOURCE}.{one.tail}"
            answer = publisher.request(subject, one.value, headers=one.block).json()
            assert "error" not in answer, (one, answer)
        with connect_sync(daemon.pull_address) as client:  # the other stream acks, too
            everything = {len(sent) + 1}
            until(
                lambda: (
                    {client.describe_stream(name).high_watermark for name in STREAMS} == everything
                )
            )
        directory: Path = tmp_path_factory.mktemp("round-trips")
        yield World(nats, other, daemon, Cli(daemon, nats), directory, sent)


@pytest.mark.parametrize("name", WAYS)
def test_what_comes_out_is_what_went_in(world: World, name: str) -> None:
    assert round_trip(world, name) >= 15


# --- that no way is missing ---

COMMANDS = {
    "pub": {"pub"},
    "consume": {"consume --exec", "consume --dead-letter"},
    "tail": {"consume -o jsonl"},  # the same command
    "get": {"get"},
    "stream compact": {"read, compacted"},
    "import jetstream": {"import jetstream"},
    "import jsonl": {
        "import jsonl --form records",
        "import jsonl --form records --subject --key --value",
        "import jsonl --form copied",
    },
    "import parquet": {"import parquet"},
    "export": {"export"},
    "log dump": {"log dump"},
    "log repair": "moves whole batches: tests/unit/log",
    "backup create": {"backup"},
    "backup restore": {"backup"},
}
OUTPUTS_OF_RECORDS = {
    "json": {"consume -o json"},
    "jsonl": {"consume -o jsonl"},
    "yaml": {"consume -o yaml"},
    "csv": "cells of the same objects: tests/unit/cli/test_output.py",
    "table": "for people: tests/unit/cli/test_output.py",
    "wide": "for people: tests/unit/cli/test_output.py",
}
REQUESTS_OF_RECORDS = {
    "fetch": {"read", "read, filtered", "read, compressed", "read with asyncio, as Arrow"},
    "compact": {"read, compacted"},
    "extents": {"Spark over the socket"},
    "replicate": {"replicas"},
    "work": {"a worker", "a worker, filtered"},
    "copies": "batches as they are on another disk: test_lost_copies.py",
}
METHODS_OF_RECORDS = {
    "STREAM.MSG.GET": {"JetStream: STREAM.MSG.GET"},
    "CONSUMER.MSG.NEXT": {"JetStream: a consumer"},
    "CONSUMER.CREATE": {"JetStream: a consumer"},
    "DIRECT.GET": {"JetStream: DIRECT.GET"},
}
PAGES_OF_RECORDS = {
    "/ui/streams/{stream}/records/{offset}": {"web page of a record"},
    "/ui/streams/{stream}/records": "for people: the first bytes of values and headers",
    "/ui/streams/{stream}/versions": "for people: the first bytes of values and headers",
    "/ui/streams/{stream}/publish": "the text of a form: tests/unit/web/test_editing.py",
}
ROUTES_OF_RECORDS = {
    "GET /api/v1/streams/{stream}/records/{offset}": {"HTTP GET", "HTTP GET raw"},
    "POST /api/v1/streams/{stream}/records": {"HTTP POST", "HTTP POST raw"},
    "GET /ui/streams/{stream}/records/{offset}/value": {"web download"},
}
LIBRARY = {
    "Publisher", "Publisher with envelopes", "SyncPublisher", "DeadLetters", "SyncDeadLetters",
    "Spark from files",
}  # fmt: skip
"""Functions for users that no table lists."""
WITHOUT = {
    "commands": """stream create, stream ls, stream info, stream for, stream update, stream pause,
        stream resume, stream read-only, stream truncate, erase records, erase ls, erase show,
        erase prove, erase remove, stream lease ls,
        stream lease acquire,
        stream lease renew, stream lease release, stream rm, export-vacuum,
        offsets ls, offsets get, offsets seek, offsets rm, group ls, group info, group seek,
        group rm, consumer add, consumer ls, consumer info, consumer edit, consumer pause,
        consumer resume, consumer reset, consumer rm,
        serve, info, health, top, reload, drain, cluster move, cluster drain,
        cluster undrain, cluster forget, cluster adopt, cluster restore-metadata, cluster init,
        cluster status, cluster elect, config init, config check, config show, config schema,
        acl check, acl explain, acl who, acl hash-token, acl new-nkey, doctor, log verify,
        log reindex, backup info, backup verify, context add, context use, context ls,
        context info, context rm, docs, errors ls, errors lookup, completion, demo,
        demo-cluster""",
    "requests": """ping, create, describe, list, delete, cancel, update, pause, resume,
        readonly, truncate, erase, erasures, erasedoffsets, prove, eraseremove, lease, renew,
        release, leases,
        streamsfor, metadata, commit,
        checkpoint, checkpoints, forget, groupjoin, groupbeat, groupcommit, groupleave, group,
        groups,
        groupseek, groupremove, peer, suspect, forward, handover, look, elect, cluster, move, drain,
        forgetnode, restore, ends, resign, rest, ack, consumer, consumers, consumercreate,
        consumerupdate, consumerdelete, consumerpause, consumerreset, consumerstates""",
    "methods": """CONSUMER.DURABLE.CREATE, CONSUMER.INFO, CONSUMER.DELETE, CONSUMER.NAMES,
        CONSUMER.LIST, CONSUMER.PAUSE, CONSUMER.RESET, CONSUMER.UNPIN,
        INFO, STREAM.INFO, STREAM.NAMES, STREAM.LIST, STREAM.CREATE,
        STREAM.UPDATE,
        STREAM.DELETE, STREAM.MSG.DELETE, STREAM.SNAPSHOT, STREAM.RESTORE, STREAM.PEER.REMOVE,
        STREAM.LEADER.STEPDOWN, STREAM.PURGE""",
    "pages": """/ui/streams, /ui/consumers, /ui/topology, /ui/charts, /ui/access, /ui/create,
        /ui/health, /ui/cluster, /ui/streams/{stream}/edit, /ui/streams/{stream}/erase,
        /ui/streams/{stream}/consumers/{consumer}, /ui/streams/{stream}/groups/{group},
        /ui/streams/{stream}/workers/{worker},
        /ui/streams/{stream}/charts, /ui/streams/{stream}/pause, /ui/streams/{stream}/resume,
        /ui/streams/{stream}/compact, /ui/streams/{stream}""",
}  # fmt: skip
"""Functions that neither return nor take records."""


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(command)
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


@pytest.mark.parametrize(
    ("kind", "listed", "of_records"),
    [
        ("commands", lambda: commands(cli), COMMANDS),
        ("outputs", lambda: OUTPUTS, OUTPUTS_OF_RECORDS),
        ("requests", lambda: REQUESTS, REQUESTS_OF_RECORDS),
        ("methods", lambda: METHODS, METHODS_OF_RECORDS),
        ("pages", lambda: [one.path for one in (*PAGES, *FORMS)], PAGES_OF_RECORDS),
    ],
)
def test_whatever_may_change_a_record_has_a_way(
    kind: str, listed: Callable[[], Iterable[str]], of_records: dict[str, set[str] | str]
) -> None:
    """Something new is named here, with its way, or with the reason for having none."""
    without = {" ".join(one.split()) for one in WITHOUT.get(kind, "").split(",")} - {""}
    assert set(listed()) - without == set(of_records)
    assert not without & set(of_records)


def test_each_way_is_named_by_something() -> None:
    tables = (COMMANDS, OUTPUTS_OF_RECORDS, REQUESTS_OF_RECORDS, METHODS_OF_RECORDS,
              PAGES_OF_RECORDS, ROUTES_OF_RECORDS)  # fmt: skip
    named = {way for table in tables for ways in table.values() if isinstance(ways, set)
             for way in ways}  # fmt: skip
    assert named | LIBRARY == set(WAYS)
