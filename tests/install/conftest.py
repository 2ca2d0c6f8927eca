"""Both wheels in fresh environments. Needs an index of packages; `make test-install` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemons.nats_server import NatsServer
from support.installed import Environment, build
from support.repository import REPOSITORY


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(scope="session")
def whole_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(REPOSITORY / "packaging/client", tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="session")
def minimal(whole_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install liftlog`, without extras."""
    environment = Environment(tmp_path_factory.mktemp("minimal") / "env")
    environment.install(str(whole_wheel))
    return environment


@pytest.fixture(scope="session")
def reader(client_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """`pip install liftlog-client`, without extras."""
    environment = Environment(tmp_path_factory.mktemp("reader") / "env")
    environment.install(str(client_wheel))
    return environment
