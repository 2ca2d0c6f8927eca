"""Counts orders per country in a batch query, and appends all orders to a lake in a streaming
query. For spark-submit.

    spark-submit orders_by_country.py SERVER LAKE [TOKEN_FILE]

The script does not depend on the place where it runs: it works on one machine, on a standalone
cluster, on YARN and on Kubernetes.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession


def by_country(spark: SparkSession, source: dict[str, str]) -> DataFrame:
    """Count the messages on orders.<country>.new by country. All executors read in parallel."""
    orders = (
        spark.read.format("liftlog")
        .options(**source)
        .option("subject", "orders.*.new")
        .option("columns", "subject,value")
        .load()
    )
    orders.createOrReplaceTempView("new_orders")
    return spark.sql(
        """
        SELECT
            split_part(subject, '.', 2) AS country,
            count(*) AS orders,
            sum(cast(get_json_object(cast(value AS string), '$.cents') AS bigint)) AS cents
        FROM new_orders
        GROUP BY country
        ORDER BY country
        """
    )


def append_new(spark: SparkSession, source: dict[str, str], lake: str) -> None:
    """Append the records since the last run, each once. The checkpoint stores the end of the last
    run."""
    query = (
        spark.readStream.format("liftlog")
        .options(**source)
        .load()
        .writeStream.format("parquet")
        .option("path", f"{lake}/orders")
        .option("checkpointLocation", f"{lake}/_checkpoints/orders")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(server: str, lake: str, token_file: str | None = None) -> None:
    source = {"server": server, "stream": "orders", "targetPartitionBytes": "1MiB"}
    if token_file is not None:
        source["tokenFile"] = token_file
    spark = SparkSession.builder.appName("orders by country").getOrCreate()
    result = by_country(spark, source)
    result.write.mode("overwrite").parquet(f"{lake}/by_country")
    spark.read.parquet(f"{lake}/by_country").show()
    append_new(spark, source, lake)


if __name__ == "__main__":
    main(*sys.argv[1:])
