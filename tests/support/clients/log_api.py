"""Calls of the commit-log HTTP API, and streams for these calls."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple

from support.daemons.daemon import Daemon

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
    """A caller with one open connection."""

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

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def append(self, stream: str, **message: Any) -> Answer:
        return self("POST", f"{stream}/records", message)

    def append_raw(self, stream: str, body: bytes, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named["Content-Type"] = "application/octet-stream"
        return self("POST", f"{stream}/records", body, named)
