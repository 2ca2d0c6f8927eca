"""The page about refused features names every setting, request and header that the code refuses."""

from __future__ import annotations

import re

from support.repository import REPOSITORY

from liftlog.server.jetstream_api.stream_config import REFUSED

PAGE = (REPOSITORY / "docs/explanation/refusals.md").read_text()


def test_it_names_every_refused_setting_of_a_stream() -> None:
    assert [key for key in REFUSED if f"`{key}`" not in PAGE] == []


def test_it_names_every_refused_request() -> None:
    source = (REPOSITORY / "liftlog/server/jetstream_api/streams.py").read_text()
    refused = re.findall(r'_refuse\(\s*"([A-Z.]+)"', source)
    assert "STREAM.SNAPSHOT" in refused
    assert [request for request in refused if f"`{request}`" not in PAGE] == []


def test_it_names_every_refused_header() -> None:
    acks = (REPOSITORY / "docs/how-to/acks.md").read_text()
    table = acks.partition("| message | code |")[2].partition("\n\n")[0]
    refused = re.findall(r"^\| `(Nats-[A-Za-z]+)", table, re.M)
    assert "Nats-Incr" in refused
    assert [header for header in refused if header not in PAGE] == []
