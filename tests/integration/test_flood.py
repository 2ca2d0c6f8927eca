"""More than anybody waits for: un-acked messages at full speed."""

from __future__ import annotations

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, refused, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

COUNT = 200_000
MIB = 1 << 20


def flood(raw: RawNats, count: int, size: int, subject: bytes = b"in.x") -> None:
    per_write = 1000
    for first in range(0, count, per_write):
        numbers = range(first, min(count, first + per_write))
        raw.send(b"".join([b"PUB %b %d\r\n%*d\r\n" % (subject, size, size, i) for i in numbers]))
    raw.ping()


@pytest.mark.parametrize("seam", ["parser", "client"])
def test_nothing_of_an_unacked_flood_is_lost(seam: str) -> None:
    settings = {"nats": {"seam": seam}, "streams": {"in": {"subject": "in.>"}}}
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        with RawNats(server.port, timeout=60) as raw:
            publish(raw, "in.x", b"")  # everything is loaded
            before = daemon.rss_bytes
            daemon.reset_peak_rss()
            flood(raw, COUNT, 128)
            until(lambda: describe(daemon, "in").high_watermark == COUNT + 2, timeout=60)
        # The stream's own bound and what NATS may push into a socket.
        assert daemon.peak_rss_bytes - before < 64 * MIB + 64 * MIB
        assert daemon.metric("liftlog_nats_disconnects_total") == 0
        assert refused(daemon, "in", "overloaded") == 0
        with connect_sync(daemon.pull_address) as client:
            found = 0
            for batch in client.read_batches("in", start=2, until="end"):
                assert list(map(int, map(bytes.strip, batch.values()))) == list(  # type: ignore[arg-type]
                    range(found, found + len(batch))
                )
                found += len(batch)
        assert found == COUNT
        assert_no_traceback(daemon)


def test_a_stream_that_cannot_keep_up_refuses_alone() -> None:
    """A tiny bound: what is too much is nacked with 429 and counted, the rest is stored."""
    streams = {
        "in": {"subject": "in.>", "max_pending_bytes": "64KiB", "max_message_bytes": "64KiB"},
        "other": {"subject": "other.>"},
    }
    settings = {"streams": streams, "commit": {"inline_max_messages": 0}}
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        with RawNats(server.port, timeout=60) as raw:
            inbox = raw.new_reply().rpartition(b".")[0]
            raw.ping()
            count = 20_000
            raw.send(
                b"".join(
                    [
                        b"PUB in.x %b.%d 1000\r\n%b\r\n" % (inbox, i, b"x" * 1000)
                        for i in range(count)
                    ]
                )
            )
            answers = [raw.next_message().json() for _ in range(count)]
            acked = [a["seq"] for a in answers if "error" not in a]
            errors = [a["error"] for a in answers if "error" in a]
            assert {(e["code"], e["err_code"]) for e in errors} <= {(429, 10167)}
            assert sorted(acked) == list(range(1, len(acked) + 1))
            assert refused(daemon, "in", "overloaded") == len(errors) > 0
            assert describe(daemon, "in").high_watermark == len(acked) + 1
            assert publish(raw, "other.x", b"1")["seq"] == 1
            assert refused(daemon, "other", "overloaded") == 0
        assert_no_traceback(daemon)


def test_empty_messages_are_bounded_too() -> None:
    settings = {
        "streams": {
            "in": {"subject": "in.>", "max_pending_bytes": "1MiB", "max_message_bytes": "64KiB"}
        },
        "commit": {"inline_max_messages": 0},
    }
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        with RawNats(server.port, timeout=60) as raw:
            publish(raw, "in.x", b"")
            raw.send(b"PUB in.x 0\r\n\r\n" * 100_000)
            raw.ping()
            until(
                lambda: (
                    describe(daemon, "in").high_watermark + refused(daemon, "in", "overloaded")
                    == 100_002
                )
            )
        assert daemon.metric("liftlog_pending_bytes", stream="in") == 0
        assert_no_traceback(daemon)
