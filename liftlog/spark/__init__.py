"""Spark reads streams: `spark.read.format("liftlog")` and `spark.readStream.format("liftlog")`.

    options, columns       what a job asks for, checked before anything is read
    transport              where batches come from: a daemon (`daemon_transport`) or segment files
                           (`file_transport`)
    planning               which offsets, and how they are split over tasks
    decoder                batches of the log -> Arrow batches with Spark's columns
    scan                   all of it together: plan a read, read one range
    source, streaming      what Spark calls; with `batch_reader`, `pushdown` and `partitions` the
                           only modules that import pyspark

Planning runs in a Python process on the driver's host, reading in those of the executors; all that
passes between them is the options and the ranges, pickled. So nothing here holds a connection or a
file beyond one call.
"""
