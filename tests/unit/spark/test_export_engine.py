"""Reports of an export about a Spark whose JVM has ended. Without a JVM."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from liftlog.errors import StorageError
from liftlog.spark.export.engine import SparkEngine


class LosingItsJvm:
    """A session whose JVM has ended from the call named `at` on."""

    def __init__(self, at: str) -> None:
        self.at = at
        self.gone = False
        self.dataSource = self

    def __getattr__(self, name: str) -> Any:
        if name == "sparkContext":
            raise AttributeError(name)

        def call(*arguments: Any) -> None:
            self.gone = self.gone or name == self.at
            if self.gone:
                raise Py4JNetworkError(f"no answer to {name}")

        return call


@pytest.mark.parametrize("at", ["createDataFrame", "addTag", "register"])
def test_a_jvm_that_goes(at: str) -> None:
    session: Any = LosingItsJvm(at)
    engine = SparkEngine(session)
    with pytest.raises(StorageError, match=f"Spark failed: .*no answer to {at}"):
        engine.run("scan", [], lambda phase, done, total: None)
    engine.cancel()
    assert session.gone
