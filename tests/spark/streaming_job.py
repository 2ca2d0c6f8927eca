"""A streaming query in a driver of its own, to be killed: `streaming_job.py <directory> <server>`.

Writes what it reads to Parquet, in micro-batches of 50 offsets, until there is no more.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.spark.session import patiently, start_spark


def main(directory: Path, server: str) -> None:
    spark = start_spark(directory / "driver")

    def run() -> None:
        (
            spark.readStream.format("liftlog")
            .options(server=server, stream="orders", maxOffsetsPerTrigger="50")
            .load()
            .writeStream.format("parquet")
            .option("path", str(directory / "lake"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    patiently(run)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
