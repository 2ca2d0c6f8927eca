"""Registers `format("liftlog")`. Spark imports every module with a name that begins with
`pyspark_`."""

from liftlog.spark.source import LiftlogSource as DefaultSource

__all__ = ["DefaultSource"]
