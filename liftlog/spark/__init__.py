"""The Spark data source: `spark.read.format("liftlog")` and `spark.readStream.format("liftlog")`.

    options, columns       the options of a read, checked before anything is read
    transport              reads batches from a daemon (`daemon_transport`) or from segment files
                           (`file_transport`); handles lost records
    leases                 protection of a read from compaction and retention
    decoder, newest        convert batches of the log to Arrow batches with Spark's columns, and
                           keep only the newest record of each key
    scan                   combines the modules above: plans a read, divides its offsets among
                           tasks, reads one range
    source, batch, streaming   the classes that Spark calls: only these modules import pyspark
    export/                streams as tables: `liftlog export`
    jars/                  the same data source in Java, compiled from `spark-connector/`: Spark
                           prefers it if it is on the class path (`jar()`)

Planning runs in a Python process on the driver's host, and reading in Python processes of the
executors. Only the options and the ranges are passed between these processes, pickled. So a batch
read opens a new transport in each call. A streaming query keeps one transport on the driver, which
it opens after the query was unpickled.
"""

from __future__ import annotations

from pathlib import Path

from liftlog.errors import MissingDependency


def jar() -> str:
    """Return the path of the jar of the connector in Java, for Spark's setting `spark.jars`.

    Raises MissingDependency if this installation does not contain the jar.
    """
    path = Path(__file__).parent / "jars" / "liftlog-spark.jar"
    if not path.is_file():
        raise MissingDependency(
            "this installation of liftlog contains no jar for Spark",
            hint="install a wheel that was built after `make jar`; in a clone, run `make jar`",
        )
    return str(path)
