"""Spark reads streams: `spark.read.format("liftlog")` and `spark.readStream.format("liftlog")`.

    options, columns       what a job asks for, checked before anything is read
    transport              where batches come from: a daemon (`daemon_transport`) or segment files
                           (`file_transport`)
    task_lease, losses     what a task does so that compaction cannot spoil a read, and what about
                           records that are gone
    planning               which offsets, and how they are split over tasks
    decoder, newest        batches of the log -> Arrow batches with Spark's columns; of each key the
                           newest record alone
    scan                   all of it together: plan a read, read one range
    source, streaming      what Spark calls; with `batch_reader`, `pushdown` and `partitions` the
                           only modules that import pyspark

Planning runs in a Python process on the driver's host, reading in those of the executors; all that
passes between them is the options and the ranges, pickled. So a batch read opens its transport anew
in each call; a streaming query keeps one on the driver, made after it was unpickled.
"""
