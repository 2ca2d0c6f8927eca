"""Makes `format("liftlog")` known: Spark imports every module whose name begins with `pyspark_`."""

from liftlog.spark.source import LiftlogSource as DefaultSource

__all__ = ["DefaultSource"]
