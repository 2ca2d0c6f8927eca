from __future__ import annotations

from typing import Any

import pytest

from liftlog import errors
from liftlog.protocol.client_connection import ClientConnection, Exchange
from liftlog.protocol.frames import encode_frame
from liftlog.protocol.handshake import Credentials, LocalProtocolError, State, text_to_sign
from liftlog.protocol.limits import WireLimits
from liftlog.protocol.messages import (
    Auth,
    Cancel,
    Done,
    Fetch,
    FetchHeader,
    Hello,
    Ping,
    Pong,
    StreamsAnswer,
)
from liftlog.protocol.server_connection import ServerConnection
from liftlog.protocol.wire import Message

NONCE = b"n" * 16


def deliver(data: bytes, end: ClientConnection | ServerConnection) -> None:
    view = memoryview(data)
    while view:
        room = end.get_buffer()
        count = min(len(room), len(view))
        room[:count] = view[:count]
        end.buffer_updated(count)
        view = view[count:]
        if isinstance(end, ClientConnection):
            end.receive()


def pair(limits: WireLimits | None = None) -> tuple[ClientConnection, ServerConnection]:
    """A client and a server that have greeted each other."""
    client = ClientConnection(nonce=NONCE, software="test")
    server = ServerConnection(limits or WireLimits())
    client.greet()
    deliver(client.take_outgoing(), server)
    request_id, hello = server.next_event() or (0, None)
    assert isinstance(hello, Hello)
    deliver(server.challenge(request_id, "sid", NONCE, ["anonymous"]), client)
    client.authenticate(Credentials("never sent"))
    deliver(client.take_outgoing(), server)
    _, proof = server.next_event() or (0, None)
    assert proof == Auth("anonymous")
    deliver(server.welcome(None, "srv"), client)
    assert client.state is server.state is State.READY
    return client, server


def ask(client: ClientConnection, message: Message, **callbacks: Any) -> Exchange:
    exchange = Exchange(**callbacks)
    client.request(message, exchange)
    return exchange


def events(server: ServerConnection) -> list[tuple[int, Any]]:
    return list(iter(server.next_event, None))  # type: ignore[arg-type]


def test_answers_are_matched_by_id_in_any_order() -> None:
    client, server = pair()
    first, second = ask(client, Ping()), ask(client, Ping())
    deliver(client.take_outgoing(), server)
    (id_1, _), (id_2, _) = events(server)
    deliver(server.answer(id_2, Pong()), client)
    assert (first.done, second.done) == (False, True)
    deliver(server.error(id_1, errors.Forbidden("no")), client)
    assert isinstance(first.error, errors.Forbidden)
    assert client.in_flight == server.in_flight == 0


def test_the_header_is_told_before_the_body_is_here() -> None:
    client, server = pair()
    seen: list[str] = []
    exchange = ask(
        client,
        Fetch("s", start=1),
        on_header=lambda header: seen.append(f"header {header.next_offset}"),
        on_done=lambda one: seen.append(f"done {bytes(one.body or b'')!r}"),
    )
    deliver(client.take_outgoing(), server)
    ((request_id, _),) = events(server)
    header = FetchHeader(1, 1, 3, 2, 3, 1, 3, 1, "inc", body_length=4)
    deliver(server.answer(request_id, header) + b"ab", client)
    assert seen == ["header 3"]
    deliver(b"cd", client)
    assert seen == ["header 3", "done b'abcd'"]
    assert exchange.answer == header


def test_requests_beyond_the_servers_bound_wait_for_room() -> None:
    client, server = pair(WireLimits(max_in_flight=2))
    asked = [ask(client, Ping()) for _ in range(4)]
    deliver(client.take_outgoing(), server)
    ids = [request_id for request_id, _ in events(server)]
    assert len(ids) == server.in_flight == 2
    client.give_up(asked[2])  # one that was never sent
    deliver(server.answer(ids[0], Pong()), client)
    deliver(client.take_outgoing(), server)
    ((late, _),) = events(server)
    deliver(server.answer(late, Pong()), client)
    assert [one.done for one in asked] == [True, False, False, True]


def test_fetches_leave_room_to_other_requests() -> None:
    """They may wait for minutes until their streams move."""
    client, server = pair(WireLimits(max_in_flight=10))
    fetches = [ask(client, Fetch(f"s{i}", start=1, max_wait_ms=1000)) for i in range(12)]
    assert [one.sent for one in fetches] == [True] * 6 + [False] * 6
    others = [ask(client, Ping()) for _ in range(5)]
    assert [one.sent for one in others] == [True] * 4 + [False]
    deliver(client.take_outgoing(), server)
    asked = events(server)
    for request_id, message in asked:
        if message == Ping():
            deliver(server.answer(request_id, Pong()), client)
    deliver(client.take_outgoing(), server)
    ((last, message),) = events(server)
    assert message == Ping(), "what waits longest of these comes before all fetches"
    client.give_up(fetches[6])  # one that was never sent
    header = FetchHeader(1, 1, 3, 2, 3, 1, 3, 1, "inc")
    for request_id in (last, asked[0][0], asked[1][0]):
        answer = Pong() if request_id == last else header
        deliver(server.answer(request_id, answer), client)
    assert [one.sent for one in fetches] == [True] * 6 + [False] + [True] * 2 + [False] * 3
    error = errors.ConnectionLost("gone")
    client.close(error)
    assert [one.error for one in fetches] == [None] * 2 + [error] * 4 + [None] + [error] * 5


def test_a_cancel_is_heard_when_nothing_else_has_room() -> None:
    client, server = pair(WireLimits(max_in_flight=2))
    asked = [ask(client, Ping()) for _ in range(2)]
    deliver(client.take_outgoing(), server)
    (first, _), (second, _) = events(server)
    client.give_up(asked[1])
    frames = client.take_outgoing()
    more = b"".join(encode_frame(Ping().to_map(i)) for i in (90, 91, 92))
    deliver(frames + more + encode_frame(Cancel().to_map(first)), server)
    assert events(server) == [(second, Cancel())]
    assert server.saturated
    assert server.next_event() is None
    server.answer(second, Pong())
    assert not server.saturated
    assert events(server) == [(90, Ping())]
    server.answer(90, Pong())
    server.answer(first, Pong())
    assert events(server) == [(91, Ping()), (92, Ping()), (first, Cancel())]
    assert server.in_flight == 2


def test_what_was_given_up_is_cancelled_and_its_answer_dropped() -> None:
    client, server = pair()
    exchange = ask(client, Fetch("s", start=1), on_done=lambda _: pytest.fail("told"))
    deliver(client.take_outgoing(), server)
    ((request_id, _),) = events(server)
    client.give_up(exchange)
    client.give_up(exchange)
    deliver(client.take_outgoing(), server)
    assert events(server) == [(request_id, Cancel())]
    header = FetchHeader(1, 1, 3, 2, 3, 1, 3, 1, "inc", body_length=4)
    deliver(server.answer(request_id, header) + b"abcd", client)
    assert client.in_flight == 0
    later = ask(client, Ping())
    deliver(client.take_outgoing(), server)
    ((request_id, _),) = events(server)
    deliver(server.answer(request_id, Pong()), client)
    assert later.done


def test_closing_ends_every_exchange() -> None:
    client, _ = pair(WireLimits(max_in_flight=1))
    asked = [ask(client, Ping()) for _ in range(3)]
    error = errors.ConnectionLost("gone")
    client.close(error)
    assert [one.error for one in asked] == [error] * 3


@pytest.mark.parametrize(
    "data",
    [
        encode_frame({"k": "pong", "i": 77}),
        encode_frame({"k": "data", "i": 77}),
        encode_frame({"k": "nonsense", "i": 1}),
        encode_frame({"i": 1}),
        encode_frame({"k": "pong"}),
        encode_frame({"k": "welcome", "i": 1}),
        encode_frame(FetchHeader(1, 1, 3, 2, 3, 1, 3, 1, "inc", 4).to_map(77)),
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x01\x00\x00\x00\xc1",
    ],
)
def test_a_server_that_breaks_the_protocol_is_the_remote_s_fault(data: bytes) -> None:
    client, _ = pair()
    with pytest.raises(errors.ProtocolViolation) as raised:
        deliver(data, client)
    assert not isinstance(raised.value, LocalProtocolError)


def test_an_error_about_the_connection_is_raised_as_itself() -> None:
    client, server = pair()
    with pytest.raises(errors.ShuttingDown):
        deliver(server.error(0, errors.ShuttingDown("bye")), client)


def test_using_a_client_in_the_wrong_state_is_a_local_error() -> None:
    client = ClientConnection(nonce=NONCE, software="test")
    with pytest.raises(LocalProtocolError):
        client.request(Ping(), Exchange())
    with pytest.raises(LocalProtocolError):
        client.authenticate(Credentials())
    client.greet()
    with pytest.raises(LocalProtocolError):
        client.greet()


def test_using_a_server_in_the_wrong_state_is_a_local_error() -> None:
    server = ServerConnection(WireLimits())
    with pytest.raises(LocalProtocolError):
        server.challenge(1, "sid", NONCE, [])
    with pytest.raises(LocalProtocolError):
        server.welcome(None, "x")


def opening(*maps: dict[str, Any]) -> list[Any]:
    server = ServerConnection(WireLimits())
    found = []
    for one in maps:
        deliver(encode_frame(one), server)
        for request_id, message in events(server):
            found.append(message)
            if isinstance(message, Hello):
                server.challenge(request_id, "sid", NONCE, ["token"])
    return found


GOOD_HELLO = {"k": "hello", "i": 1, "v": [1, 9], "n": NONCE}


def test_the_server_takes_the_opening_in_its_order_only() -> None:
    proof = {"k": "auth", "i": 2, "m": "token", "t": "x"}
    assert [type(one) for one in opening(GOOD_HELLO, proof)] == [Hello, Auth]
    with pytest.raises(errors.Unauthenticated):
        opening({"k": "ping", "i": 1})
    with pytest.raises(errors.Unauthenticated):
        opening(proof)
    with pytest.raises(errors.Unauthenticated):
        opening(GOOD_HELLO, GOOD_HELLO)
    with pytest.raises(errors.Unauthenticated, match="not offered"):
        opening(GOOD_HELLO, {**proof, "m": "anonymous"})
    with pytest.raises(errors.UnsupportedVersion) as raised:
        opening({**GOOD_HELLO, "v": [2, 3]})
    assert raised.value.details == {"supported": [1]}
    with pytest.raises(errors.BadRequest):
        opening({**GOOD_HELLO, "n": "text"})


def test_frames_are_small_before_the_welcome() -> None:
    with pytest.raises(errors.LimitExceeded):
        opening({**GOOD_HELLO, "pad": "x" * 5000})


def refused(server: ServerConnection, message: dict[str, Any]) -> Any:
    deliver(encode_frame(message), server)
    ((_, event),) = events(server)
    return event


def test_a_bad_request_with_an_id_is_refused_and_the_connection_goes_on() -> None:
    _, server = pair()
    assert isinstance(refused(server, {"k": "dance", "i": 8}), errors.UnknownRequest)
    assert isinstance(refused(server, {"k": "fetch", "i": 9}), errors.BadRequest)
    assert refused(server, {"k": "ping", "i": 10, "new": 1}) == Ping()


@pytest.mark.parametrize("message", [{"k": "ping"}, {"k": "ping", "i": 0}, {"k": 5, "i": 1}])
def test_a_request_that_cannot_be_answered_ends_the_connection(message: dict[str, Any]) -> None:
    _, server = pair()
    with pytest.raises(errors.BadRequest):
        refused(server, message)


def test_an_id_in_use_ends_the_connection_and_is_free_after_its_answer() -> None:
    _, server = pair()
    assert refused(server, {"k": "ping", "i": 5}) == Ping()
    server.answer(5, Pong())
    assert refused(server, {"k": "ping", "i": 5}) == Ping()
    with pytest.raises(errors.BadRequest, match="in use"):
        refused(server, {"k": "ping", "i": 5})


def test_a_body_after_a_request_is_refused() -> None:
    _, server = pair()
    with pytest.raises(errors.LimitExceeded):
        refused(server, {"k": "ping", "i": 5, "b": 1})


def test_a_request_longer_than_the_server_accepts_is_refused_locally() -> None:
    client, _ = pair(WireLimits(max_request_bytes=50))
    with pytest.raises(errors.LimitExceeded):
        client.request(Fetch("s" * 100, start=1), Exchange())
    assert client.in_flight == 0


def test_a_token_is_needed_when_the_server_asks_for_one() -> None:
    client = ClientConnection(nonce=NONCE, software="test")
    client.greet()
    server = ServerConnection(WireLimits())
    deliver(client.take_outgoing(), server)
    server.next_event()
    deliver(server.challenge(1, "sid", NONCE, ["token", "nkey"]), client)
    with pytest.raises(errors.Unauthenticated, match="token"):
        client.authenticate(Credentials())
    client.authenticate(Credentials("p.s"))
    deliver(client.take_outgoing(), server)
    assert server.next_event() == (2, Auth("token", "p.s"))


def test_answers_that_hold_lists() -> None:
    client, server = pair()
    exchange = ask(client, Ping())
    deliver(client.take_outgoing(), server)
    ((request_id, _),) = events(server)
    deliver(server.answer(request_id, StreamsAnswer([{"name": "a", "subject": "b"}])), client)
    assert isinstance(exchange.answer, StreamsAnswer)
    assert [info.name for info in exchange.answer.infos] == ["a"]
    assert Done() == Done()


# --- nkeys -------------------------------------------------------------------------


class Fake:
    """An nkey that tells what it has signed."""

    public_key = "UFAKE"

    def __init__(self) -> None:
        self.signed: list[bytes] = []

    def sign(self, text: bytes) -> bytes:
        self.signed.append(text)
        return bytes(64)


def challenged(methods: list[str]) -> tuple[ClientConnection, ServerConnection]:
    client = ClientConnection(nonce=NONCE, software="test")
    client.greet()
    server = ServerConnection(WireLimits())
    deliver(client.take_outgoing(), server)
    server.next_event()
    deliver(server.challenge(1, "sid", b"m" * 16, methods), client)
    return client, server


@pytest.mark.parametrize("certificate", [None, b"der"])
def test_both_ends_speak_of_the_same_text(certificate: bytes | None) -> None:
    client, server = challenged(["token", "nkey", "anonymous"])
    nkey = Fake()
    client.authenticate(Credentials("p.s", nkey), certificate)
    assert nkey.signed == [server.text_to_sign(certificate)]
    assert nkey.signed != [server.text_to_sign(b"another")]
    deliver(client.take_outgoing(), server)
    proof = Auth("nkey", public_key="UFAKE", signature=bytes(64))
    assert server.next_event() == (2, proof)


@pytest.mark.parametrize(
    ("methods", "chosen"),
    [
        (["anonymous", "unix", "certificate", "token", "nkey"], "nkey"),
        (["anonymous", "unix", "certificate", "token"], "token"),
        (["anonymous", "unix", "certificate"], "certificate"),
        (["anonymous", "unix"], "unix"),
        (["anonymous"], "anonymous"),
        (["of the future", "anonymous"], "anonymous"),
    ],
)
def test_what_it_was_given_comes_first(methods: list[str], chosen: str) -> None:
    client, server = challenged(methods)
    nkey = Fake()
    client.authenticate(Credentials("p.s", nkey))
    deliver(client.take_outgoing(), server)
    event = server.next_event()
    assert event is not None
    proof = event[1]
    assert isinstance(proof, Auth)
    assert proof.method == chosen
    assert (proof.token is not None) == (chosen == "token")
    assert bool(nkey.signed) == (chosen == "nkey")


@pytest.mark.parametrize(
    ("methods", "said"),
    [(["nkey"], "an nkey"), (["nkey", "token"], "an nkey or a token"),
     ([], "only clients that it knows"),
     (["x" * 200], "xxx only")],
)  # fmt: skip
def test_what_the_server_wants_is_said(methods: list[str], said: str) -> None:
    client, _ = challenged(methods)
    with pytest.raises(errors.Unauthenticated, match=said):
        client.authenticate(Credentials())


def test_no_signed_text_is_another_one_nor_text_of_nats() -> None:
    parts = [(b"a" * 16, b"b" * 16, "sid", None), (b"a" * 17, b"b" * 15, "sid", None),
             (b"a" * 16, b"b" * 16, "si", b"d"), (b"a" * 16, b"b" * 16, "sid", b"d"),
             (b"a" * 16, b"b" * 16 + b"sid", "", None),
             (b"b" * 16, b"a" * 16, "sid", None)]  # fmt: skip
    texts = [text_to_sign(*one) for one in parts]
    assert len(set(texts)) == len(texts)
    for text in texts:
        with pytest.raises(UnicodeDecodeError):
            text.decode()
