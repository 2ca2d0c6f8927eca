"""docs/reference/http.md names every path, parameter, header and error of the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from liftlog.errors import WIRE_ERRORS, DiskFull, InternalError, StorageError
from liftlog.server.http import bodies, erasing, failures
from liftlog.server.http.log_api import LogApi

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "http.md").read_text()


def test_every_route() -> None:
    unused: Any = None
    api = LogApi(unused, unused, unused, unused)
    for route in api.routes():
        assert f"`{route.method} {route.path}" in PAGE


def test_every_field_and_header() -> None:
    for name in (*bodies.FIELDS, *erasing.FIELDS):
        assert f"`{name}`" in PAGE
    for name in (bodies.OFFSET, bodies.TIMESTAMP, bodies.SUBJECT, bodies.KEY, bodies.TOMBSTONE,
                 bodies.EXPECTED_LAST_OFFSET, bodies.MESSAGE_ID):  # fmt: skip
        assert f"`{name}" in PAGE
    assert f"`{bodies.HEADER_PREFIX}NAME`" in PAGE


def test_every_error_with_its_status() -> None:
    rows = {
        status.strip(): row
        for row in PAGE.splitlines()
        if row.startswith("| ")
        for status in row.split("|")[1].split(",")
    }
    for kind, status in failures.STATUS.items():
        if kind.name in ("UNSUPPORTED_VERSION",):
            continue
        assert f"`{kind.name}`" in rows[str(status)], kind.name


def test_what_the_table_lacks() -> None:
    for code, kind in WIRE_ERRORS.items():
        details: dict[str, Any] = {}
        if kind.name == "CORRUPT_RANGE":
            details = {"first_offset": 1, "next_offset": 2}
        status = failures.status_of(kind("x", **details))
        assert 400 <= status < 600, code
        assert (status == 500) == (kind is InternalError)
    assert failures.status_of(StorageError("x")) == 500
    assert failures.status_of(DiskFull("x")) == 507


def test_what_is_not_meant_for_clients_is_masked() -> None:
    for error, status in ((RuntimeError("secret"), 500), (StorageError("/secret/path"), 503)):
        response = failures.failure(error)
        assert response.status == status
        assert response.text is not None
        assert "secret" not in response.text
