"""The commit-log HTTP API of a real daemon behind a real nats-server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, publish, records_of, until
from support.clients.log_api import HTTP, STREAMS, Caller
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.tokens import hash_token

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS, "http": HTTP}) as daemon:
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture
def call(daemon: Daemon) -> Iterator[Caller]:
    with Caller(daemon) as caller:
        yield caller


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
def test_bytes_go_through_unchanged(call: Caller, key: bytes | None, value: bytes) -> None:
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
        **{
            name: raw.headers[name]
            for name in ("Liftlog-Key", "Liftlog-Subject")
            if name in raw.headers
        },
    )
    other = call("GET", f"orders/records/{again.json['offset']}?encoding=base64").json
    assert (other["key"], other["value"]) == (shown["key"], shown["value"])


def test_a_tombstone(call: Caller) -> None:
    as_json = call.append("orders", subject="orders.gone", key="k", value=None)
    as_raw = call.append_raw("orders", b"", Liftlog_Subject="orders.gone", Liftlog_Key="k",
                             Liftlog_Tombstone="true")  # fmt: skip
    for answer in (as_json, as_raw):
        offset = answer.json["offset"]
        assert call("GET", f"orders/records/{offset}").json["value"] is None
        raw = call("GET", f"orders/records/{offset}?format=raw")
        assert (raw.headers["Liftlog-Tombstone"], raw.body) == ("true", b"")


def test_raw_answers_carry_what_belongs_to_the_value(call: Caller, server: NatsServer) -> None:
    with RawNats(server.port) as raw:
        offset = publish(raw, "orders.a", b"<script>", Liftlog_Key="50% \u00fc", A="b")["seq"]
    found = call("GET", f"orders/records/{offset}?format=raw")
    assert found.headers["Server"] == "liftlog"
    assert found.headers["Liftlog-Offset"] == str(offset)
    assert found.headers["Liftlog-Subject"] == "orders.a"
    assert found.headers["Liftlog-Key"] == "50%25 %C3%BC"
    assert found.headers["Liftlog-Header-A"] == "b"
    assert found.headers["Content-Type"] == "application/octet-stream"
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Content-Disposition"].startswith("attachment")
    assert found.body == b"<script>"


def test_a_head_that_does_not_fit_is_refused_in_raw_form_only(
    call: Caller, server: NatsServer
) -> None:
    with RawNats(server.port) as raw:
        offset = publish(raw, "orders.a", b"v", Long="x" * 8000)["seq"]
    assert call("GET", f"orders/records/{offset}?format=raw").error == "NOT_REPRESENTABLE"
    assert call("GET", f"orders/records/{offset}").json["headers"]["Long"] == "x" * 8000


def test_a_message_id_makes_an_append_repeatable(call: Caller) -> None:
    first = call.append("single", value="v", message_id="one")
    again = call.append_raw("single", b"v", Nats_Msg_Id="one")
    assert (first.status, again.status) == (201, 200)
    assert again.json == {**first.json, "duplicate": True}


def test_an_expected_last_offset(call: Caller) -> None:
    last = call.append("single", value="v").json["offset"]
    wrong = call.append("single", value="w", expected_last_offset=last - 1)
    assert (wrong.status, wrong.error) == (412, "PUBLISH_REFUSED")
    assert wrong.json["error"]["details"]["err_code"] == 10071
    right = call.append_raw("single", b"w", Liftlog_Expected_Last_Offset=str(last))
    assert (right.status, right.json["offset"]) == (201, last + 1)


def test_a_stream_that_answers_envelopes_only(call: Caller) -> None:
    offset = call.append("enveloped", value="v", headers={"A": "b"}).json["offset"]
    shown = call("GET", f"enveloped/records/{offset}").json
    assert (shown["value"], shown["headers"]) == ("v", {"A": "b"})


def test_bounds_and_truncation(call: Caller, daemon: Daemon) -> None:
    offsets = [call.append("single", value=str(i)).json["offset"] for i in range(5)]
    before = call("GET", "single/bounds").json
    assert before["high_watermark"] == before["log_end_offset"] == offsets[-1] + 1
    assert call("DELETE", "single/records").error == "INVALID_ARGUMENT"
    beyond = call("DELETE", f"single/records?before={offsets[-1] + 2}")
    assert (beyond.status, beyond.error) == (404, "OFFSET_OUT_OF_RANGE")
    done = call("DELETE", f"single/records?before={offsets[2]}")
    assert (done.status, done.json["log_start_offset"]) == (200, offsets[2])
    assert call("DELETE", f"single/records?before={offsets[0]}").json == done.json
    gone = call("GET", f"single/records/{offsets[1]}")
    assert (gone.status, gone.error) == (404, "OFFSET_OUT_OF_RANGE")
    assert gone.json["error"]["details"] == {
        "log_start_offset": offsets[2], "log_end_offset": offsets[-1] + 1,
    }  # fmt: skip
    assert call("GET", f"single/records/{offsets[2]}").json["value"] == "2"
    assert [record.offset for record in records_of(daemon, "single")] == offsets[2:]


# --- refusals ---

DEEP = b"[" * 30_000 + b"]" * 30_000
REFUSED: dict[str, tuple[str, str, bytes | None, dict[str, str], int, str]] = {
    "no such stream": ("GET", "nothing/bounds", None, {}, 404, "STREAM_NOT_FOUND"),
    "no such path": ("GET", "orders/what", None, {}, 404, "NOT_FOUND"),
    "no such method": ("PUT", "orders/records", b"", {}, 405, "METHOD_NOT_ALLOWED"),
    "a path as a name": ("GET", "..%2f..%2fetc/bounds", None, {}, 400, "INVALID_ARGUMENT"),
    "a line end in the name": ("GET", "or%0d%0aders/bounds", None, {}, 400, "INVALID_ARGUMENT"),
    "an endless name": ("GET", "o" * 2000 + "/bounds", None, {}, 400, "INVALID_ARGUMENT"),
    "no number": ("GET", "orders/records/last", None, {}, 400, "INVALID_ARGUMENT"),
    "a negative number": ("GET", "orders/records/-1", None, {}, 400, "INVALID_ARGUMENT"),
    "a huge number": ("GET", f"orders/records/{2**63}", None, {}, 400, "INVALID_ARGUMENT"),
    "endless digits": ("GET", "orders/records/" + "9" * 5000, None, {}, 400, "INVALID_ARGUMENT"),
    "other digits": ("GET", "orders/records/%D9%A1", None, {}, 400, "INVALID_ARGUMENT"),
    "far beyond": ("GET", f"orders/records/{2**62}", None, {}, 404, "OFFSET_OUT_OF_RANGE"),
    "no such form": ("GET", "orders/records/1?format=xml", None, {}, 400, "INVALID_ARGUMENT"),
    "no such encoding": ("GET", "orders/records/1?encoding=x", None, {}, 400, "INVALID_ARGUMENT"),
    "no JSON": ("POST", "orders/records", b"{", {}, 400, "INVALID_ARGUMENT"),
    "JSON too deep": ("POST", "orders/records", DEEP, {}, 400, "INVALID_ARGUMENT"),
    "a list": ("POST", "orders/records", b"[]", {}, 400, "INVALID_ARGUMENT"),
    "not UTF-8": ("POST", "orders/records", b'{"value":"\xff"}', {}, 400, "INVALID_ARGUMENT"),
    "half a surrogate": (
        "POST", "single/records", b'{"value":"\\ud800"}', {}, 400, "INVALID_ARGUMENT",
    ),
    "no value": ("POST", "single/records", b"{}", {}, 400, "INVALID_ARGUMENT"),
    "an unknown field": (
        "POST", "single/records", b'{"value":"v","ttl":1}', {}, 400, "INVALID_ARGUMENT",
    ),
    "a number as value": ("POST", "single/records", b'{"value":1}', {}, 400, "INVALID_ARGUMENT"),
    "no base64": (
        "POST", "single/records", b'{"value":"?","value_encoding":"base64"}', {}, 400,
        "INVALID_ARGUMENT",
    ),
    "a line end in a header": (
        "POST", "single/records", b'{"value":"v","headers":{"A":"b\\r\\nNats-TTL: 1s"}}', {}, 400,
        "INVALID_ARGUMENT",
    ),
    "a header that we do not do": (
        "POST", "single/records", b'{"value":"v","headers":{"Nats-TTL":"1s"}}', {}, 400,
        "PUBLISH_REFUSED",
    ),
    "no subject": ("POST", "orders/records", b'{"value":"v"}', {}, 400, "INVALID_ARGUMENT"),
    "another subject": (
        "POST", "orders/records", b'{"value":"v","subject":"other.x"}', {}, 400,
        "INVALID_ARGUMENT",
    ),
    "a wildcard": (
        "POST", "orders/records", b'{"value":"v","subject":"orders.*"}', {}, 400,
        "INVALID_ARGUMENT",
    ),
    "JetStream's API": (
        "POST", "orders/records", b'{"value":"v","subject":"$JS.API.STREAM.PURGE.X"}', {}, 400,
        "INVALID_ARGUMENT",
    ),
    "a forged command": (
        "POST", "orders/records", b'{"value":"v","subject":"orders.a\\r\\nPUB b 0"}', {}, 400,
        "INVALID_ARGUMENT",
    ),
    "no acks": (
        "POST", "witness/records", b'{"value":"v","subject":"witness.a"}', {}, 409, "CONFLICT",
    ),
    "the system's own": ("POST", "_offsets/records", b'{"value":"v"}', {}, 400,
                         "INVALID_ARGUMENT"),
    "the system's own, cut": ("DELETE", "_offsets/records?before=9", None, {}, 400,
                              "INVALID_ARGUMENT"),
    "larger than the stream takes": (
        "POST", "single/records", b'{"value":"' + b"x" * 1100 + b'"}', {}, 413, "PUBLISH_REFUSED",
    ),
    "larger than a body may be": (
        "POST", "single/records", b'{"value":"' + b"x" * 65_536 + b'"}', {}, 413, "BODY_TOO_LARGE",
    ),
    "a form": (
        "POST", "single/records", b"value=v",
        {"Content-Type": "application/x-www-form-urlencoded"}, 415, "UNSUPPORTED_MEDIA",
    ),
    "packed": (
        "POST", "single/records", b"\x1f\x8b", {"Content-Encoding": "gzip"}, 415,
        "UNSUPPORTED_MEDIA",
    ),
    "a page of another site": (
        "GET", "orders/bounds", None, {"Origin": "https://evil.example"}, 403, "FORBIDDEN",
    ),
    "a script of another site": (
        "GET", "orders/bounds", None, {"Sec-Fetch-Site": "cross-site"}, 403, "FORBIDDEN",
    ),
    "a name that was made to resolve to us": (
        "GET", "orders/bounds", None, {"Host": "evil.example:8292"}, 403, "FORBIDDEN",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, call: Caller) -> None:
    method, path, body, headers, status, error = REFUSED[name]
    end = call("GET", "single/bounds").json["log_end_offset"]
    if body is not None:
        headers = {"Content-Type": "application/json", **headers}
    answer = call(method, path, body, headers)
    assert (answer.status, answer.error) == (status, error)
    assert call("GET", "single/bounds").json["log_end_offset"] == end


def test_what_is_not_written_yet(call: Caller) -> None:
    bounds = call("GET", "orders/bounds").json
    answer = call("GET", f"orders/records/{bounds['high_watermark']}")
    assert (answer.status, answer.error) == (404, "NO_RECORD")
    assert answer.json["error"]["details"] == {"high_watermark": bounds["high_watermark"]}


# --- who may ---

SECRET, OWNER = "a-secret-that-is-long-enough", "another-secret-that-is-long"
ACL_FILE = f"""
principals:
  reader: {{token_hash: "{hash_token(SECRET)}"}}
  owner: {{token_hash: "{hash_token(OWNER)}"}}
roles:
  look: [{{allow: [read], streams: ["orders"]}}]
  own: [{{allow: [read, admin], streams: ["*"]}}]
bindings:
  reader: [look]
  owner: [own]
"""


def test_every_request_passes_the_gate(server: NatsServer, tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text(ACL_FILE)
    settings = {
        "streams": {"orders": {"subject": "guarded.orders"}, "other": {"subject": "guarded.other"}},
        "http": HTTP,
        "acl": {"file": str(tmp_path / "acl.yaml")},
    }
    message = json.dumps({"value": "v"}).encode()
    requests: list[tuple[str, str, bytes | None]] = [
        ("GET", "{}/bounds", None),
        ("GET", "{}/records/1", None),
        ("POST", "{}/records", message),
        ("DELETE", "{}/records?before=1", None),
    ]
    expected = {
        (None, "orders"): [401, 401, 401, 401],
        ("reader.wrong", "orders"): [401, 401, 401, 401],
        (f"reader.{SECRET}", "orders"): [200, 404, 403, 403],
        (f"reader.{SECRET}", "other"): [403, 403, 403, 403],
        (f"owner.{OWNER}", "other"): [200, 404, 201, 200],
    }
    with Daemon(server.url, settings, directory=tmp_path / "d") as daemon:
        for (token, stream), statuses in expected.items():
            with Caller(daemon, token) as caller:
                answers = [
                    caller(method, path.format(stream), body, {"Content-Type": "application/json"})
                    for method, path, body in requests
                ]
                assert [answer.status for answer in answers] == statuses
                for answer in answers:
                    if answer.status == 401:
                        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        with Caller(daemon) as caller:
            basic = caller("GET", "orders/bounds", None, {"Authorization": "Basic eDp5"})
            assert basic.status == 401
        assert SECRET not in daemon.log
        assert_no_traceback(daemon)


# --- when NATS is away ---


def test_appending_without_nats_and_after_it_came_back(tmp_path: Path) -> None:
    settings = {"streams": {"orders": {"subject": "orders"}}, "http": HTTP}
    settings["nats"] = {"reconnect_wait": "50ms"}
    with NatsServer() as nats, Daemon(nats.url, settings, directory=tmp_path) as daemon:
        with Caller(daemon) as caller:
            assert caller.append("orders", value="1").json["offset"] == 1
            nats.kill()
            until(lambda: not daemon.ready)
            away = caller.append("orders", value="2")
            assert (away.status, away.error) == (503, "NATS_UNAVAILABLE")
            assert away.headers["Retry-After"] == "1"
            assert caller("GET", "orders/records/1").json["value"] == "1"
            nats.start()
            until(lambda: daemon.ready)
            until(lambda: caller.append("orders", value="3").status == 201)
        assert [record.value for record in records_of(daemon, "orders")] == [b"1", b"3"]
        assert_no_traceback(daemon)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    with NatsServer() as nats:
        with Daemon(nats.url, {"streams": {"orders": {"subject": "orders"}}}) as daemon:
            assert daemon.get("/api/v1/streams/orders/bounds")[0] == 404


# --- erase ---


def test_erase(call: Caller, daemon: Daemon) -> None:
    offsets = [
        call.append("orders", subject="orders.erase", key=f"e{n % 2}", value="secret").json[
            "offset"
        ]
        for n in range(6)
    ]
    tried = call("POST", "orders/erasures", {"keys": ["e1"], "offsets": [offsets], "dry_run": True})
    assert tried.status == 400  # not a pair
    wanted = {"keys": ["e1"], "offsets": [[offsets[0], offsets[-1]]]}
    tried = call("POST", "orders/erasures", {**wanted, "dry_run": True})
    assert (tried.status, tried.json["records"], tried.json["ranges"]) == (200, 3, 3)
    assert tried.json["subjects"] == ["orders.erase"]
    done = call("POST", "orders/erasures", {**wanted, "reason": "request 17", "now": True})
    assert (done.status, done.json["records"]) == (201, 3)
    assert [one.offset for one in records_of(daemon, "orders", offsets[0])][:3] == offsets[::2]
    until(lambda: call("GET", "orders/erasures").json["erasures"][0]["left"] == 0)
    (listed, *_) = call("GET", "orders/erasures").json["erasures"]
    assert (listed["erasure"], listed["reason"]) == (done.json["erasure"], "request 17")
    assert daemon.metric("liftlog_erased_total", stream="orders", cause="request") == 3
    assert daemon.metric("liftlog_erased_left", stream="orders") == 0
    assert call("POST", "orders/erasures", wanted).status == 200
    for bad in (
        {},
        {"key": "x"},
        {"offsets": [-1]},
        {"offsets": [[5, 4]]},
        {"since": "2026-01-31"},
        {"since": "yesterday"},
        {"keys": ["?"], "keys_encoding": "base64"},
        {"subjects": ["a..b"]},
        {"dry_run": 1, "offsets": [1]},
    ):
        assert call("POST", "orders/erasures", bad).status == 400, bad
    old = {"until": "2000-01-01T00:00:00Z", "keys": ["ZTE="], "keys_encoding": "base64"}
    assert call("POST", "orders/erasures", old).json["records"] == 0
