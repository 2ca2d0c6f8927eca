"""The support code itself: a raw client against a real server."""

from __future__ import annotations

import pytest
from support.clients.raw_nats import RawNats, ServerError, header_block, pub_frame
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration


def test_messages_arrive_verbatim(server: NatsServer) -> None:
    with RawNats(server.port) as publisher, RawNats(server.port) as subscriber:
        subscriber.sub("a.>")
        subscriber.ping()
        block = header_block({"Nats-Msg-Id": "1", "Two": "x"})
        publisher.pub("a.b", b"one\r\n\x00", reply="r.1")
        publisher.hpub("a.c", block, b"two")
        publisher.pub("a.empty")
        first, second, third = (subscriber.next_message() for _ in range(3))
        assert (first.subject, first.reply, first.headers, first.payload) == (
            b"a.b",
            b"r.1",
            b"",
            b"one\r\n\x00",
        )
        assert (second.reply, second.headers, second.payload) == (b"", block, b"two")
        assert third.payload == b""


def test_the_inputs_that_kill_other_clients_go_through(server: NatsServer) -> None:
    with RawNats(server.port) as publisher, RawNats(server.port) as subscriber:
        subscriber.sub("h.>")
        subscriber.ping()
        publisher.pub(b"h.\xff", b"1")
        publisher.pub("h.reply", b"2", reply=b"r.\xff")
        publisher.hpub("h.block", b"XX", b"3")
        publisher.hpub("h.crlf", b"NATS/1.0", b"4")
        publisher.hpub("h.status", b"NATS/1.0 \xff\xfe\r\n\r\n", b"5")
        publisher.pub(b"h.\x0b", b"6")
        got = [subscriber.next_message() for _ in range(6)]
        assert [m.payload for m in got] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        assert got[0].subject == b"h.\xff"
        assert got[1].reply == b"r.\xff"
        assert got[2].headers == b"XX"
        assert got[5].subject == b"h.\x0b"


def test_request_skips_other_messages_and_keeps_them(server: NatsServer) -> None:
    with RawNats(server.port) as asker, RawNats(server.port) as service:
        service.sub("service")
        service.ping()
        asker.sub("news")
        reply = asker.new_reply()
        asker.pub("service", "question", reply=reply)
        question = service.next_message()
        service.pub("news", "first")
        service.pub(question.reply, b'{"answer": 42}')
        assert asker.next_message().payload == b"first"
        assert asker.next_message().json() == {"answer": 42}
        answer = asker.request("no.such.service", "x")
        assert answer.headers.startswith(b"NATS/1.0 503")


def test_a_timeout_leaves_the_connection_usable(server: NatsServer) -> None:
    with RawNats(server.port) as client:
        client.sub("t")
        with pytest.raises(TimeoutError):
            client.next_message(timeout=0.05)
        assert client.no_message()
        client.pub("t", "x")
        assert client.next_message().payload == b"x"


def test_errors_of_the_server_are_raised(server: NatsServer) -> None:
    with RawNats(server.port) as client:
        client.send(b"BOGUS\r\n")
        with pytest.raises((ServerError, ConnectionError)):
            client.ping()


def test_restart_on_the_same_port_keeps_the_store() -> None:
    with NatsServer(jetstream=True, sync_always=True, max_payload=2 << 20) as server:
        with RawNats(server.port) as client:
            assert client.info["max_payload"] == 2 << 20
            created = client.request(
                "$JS.API.STREAM.CREATE.S", '{"name":"S","subjects":["s"],"storage":"file"}'
            ).json()
            assert "error" not in created
            assert client.request("s", "x").json() == {"stream": "S", "seq": 1}
        port, first_pid = server.port, server.pid
        server.kill()
        assert not server.running
        server.restart()
        assert (server.port, server.running) == (port, True)
        assert server.pid != first_pid
        with RawNats(server.port) as client:
            assert client.request("s", "y").json() == {"stream": "S", "seq": 2}


def test_frames() -> None:
    assert pub_frame("a", "xy", reply="r") == b"PUB a r 2\r\nxy\r\n"
