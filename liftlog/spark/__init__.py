"""The Spark data source: `spark.read.format("liftlog")` and `spark.readStream.format("liftlog")`.

    options, columns       the options of a read, checked before anything is read
    transport              the source of batches: a daemon (`daemon_transport`) or segment files
                           (`file_transport`); the handling of records that are gone
    leases                 protection of a read from compaction and retention
    decoder, newest        batches of the log -> Arrow batches with Spark's columns; only the newest
                           record of each key
    scan                   combines these: plans a read, divides its offsets among tasks, reads one
                           range
    source, batch, streaming   the classes that Spark calls: only these modules import pyspark
    export/                streams as tables: `liftlog export`
    jars/                  the same data source in Java, compiled from `spark-connector/`: Spark
                           prefers it where it is on the class path (`jar()`)

Planning runs in a Python process on the driver's host, reading in those of the executors. Only the
options and the ranges pass between them, pickled. So a batch read opens a new transport in each
call; a streaming query keeps one on the driver, opened after the query was unpickled.
"""

from __future__ import annotations

from pathlib import Path

from liftlog.errors import MissingDependency


def jar() -> str:
    """Return the path of the connector in Java, for Spark's setting `spark.jars`.

    Raises MissingDependency if this installation contains none.
    """
    path = Path(__file__).parent / "jars" / "liftlog-spark.jar"
    if not path.is_file():
        raise MissingDependency(
            "this installation of liftlog contains no jar for Spark",
            hint="install a wheel that was built after `make jar`; in a clone, run `make jar`",
        )
    return str(path)
