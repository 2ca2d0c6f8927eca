"""The commit-log HTTP API of a real daemon behind a real nats-server."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from support.daemon import Daemon
from support.ingesting import assert_no_traceback, publish, records_of, until
from support.nats_server import NatsServer
from support.raw_nats import RawNats

from acl.tokens import hash_token

pytestmark = pytest.mark.integration

STREAMS = {
    "orders": {"subject": "orders.>"},
    "single": {"subject": "single", "max_message_bytes": "1KiB"},
    "enveloped": {"subject": "enveloped", "acks": "envelope"},
    "witness": {"subject": "witness.>", "acks": "off"},
}
HTTP = {"log_api": True, "timeout": "1s", "max_body": "64KiB", "append_timeout": "2s"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json["error"]["name"])


class Caller:
    """One kept connection."""

    def __init__(self, daemon: Daemon, token: str | None = None) -> None:
        self.connection = http.client.HTTPConnection(daemon.http_address, timeout=10)
        self._token = token

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Answer:
        sent = dict(headers or {})
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        self.connection.request(method, f"/api/v1/streams/{path}", body, sent)
        response = self.connection.getresponse()
        data = response.read()
        return Answer(response.status, dict(response.getheaders()), data)

    def append(self, stream: str, **message: Any) -> Answer:
        return self("POST", f"{stream}/records", message)

    def append_raw(self, stream: str, body: bytes, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["Content-Type"] = "application/octet-stream"
        return self("POST", f"{stream}/records", body, named)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS, "http": HTTP}) as daemon:
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture
def call(daemon: Daemon) -> Iterator[Caller]:
    caller = Caller(daemon)
    yield caller
    caller.connection.close()


# --- append and read ---


def test_what_is_appended_as_json_is_read_back(call: Caller, daemon: Daemon) -> None:
    message = {
        "subject": "orders.new",
        "key": "k-1",
        "value": "café",
        "headers": {"Trace": "a b", "Other": "ü"},
    }
    stored = call.append("orders", **message)
    assert stored.status == 201
    offset = stored.json["offset"]
    assert stored.json == {
        "stream": "orders", "offset": offset, "duplicate": False, "durability": "fsync",
    }  # fmt: skip
    found = call("GET", stored.headers["Location"].removeprefix("/api/v1/streams/"))
    assert found.status == 200
    shown = found.json
    assert shown["headers"].pop("Liftlog-Key") == "k-1"
    assert {name: shown[name] for name in message} == message
    assert (shown["stream"], shown["offset"]) == ("orders", offset)
    (record,) = records_of(daemon, "orders", offset)
    assert (record.key, record.value) == (b"k-1", "café".encode())
    assert record.timestamp_ns == shown["timestamp_ns"]


@pytest.mark.parametrize(
    ("key", "value"), [(b"k", b"\x00\xff"), (b"\xff\x00", b"v"), (b" k ", b""), (None, b"\r\n")]
)
def test_bytes_go_through_unchanged(
    call: Caller, key: bytes | None, value: bytes
) -> None:
    document: dict[str, Any] = {
        "subject": "orders.bytes",
        "value": base64.b64encode(value).decode(),
        "value_encoding": "base64",
    }
    if key is not None:
        document |= {"key": base64.b64encode(key).decode(), "key_encoding": "base64"}
    offset = call.append("orders", **document).json["offset"]
    shown = call("GET", f"orders/records/{offset}?encoding=base64").json
    assert base64.b64decode(shown["value"]) == value
    assert (None if shown["key"] is None else base64.b64decode(shown["key"])) == key
    raw = call("GET", f"orders/records/{offset}?format=raw")
    assert raw.body == value
    again = call.append_raw(
        "orders",
        raw.body,
        **{name: raw.headers[name] for name in ("Liftlog-Key", "Liftlog-Subject") if name in raw.headers},
    )
    other = call("GET", f"orders/records/{again.json['offset']}?encoding=base64").json
    assert (other["key"], other["value"]) == (shown["key"], shown["value"])
