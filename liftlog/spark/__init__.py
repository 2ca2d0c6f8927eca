"""The Spark data source: `spark.read.format("liftlog")` and `spark.readStream.format("liftlog")`.

    options, columns       what a job asks for, checked before anything is read
    transport              where batches come from: a daemon (`daemon_transport`) or segment files
                           (`file_transport`)
    task_lease, losses     how a task protects its read from compaction, and what it does about
                           records that are gone
    planning               which offsets, and how they are divided among tasks
    decoder, newest        batches of the log -> Arrow batches with Spark's columns; only the newest
                           record of each key
    scan                   combines these: plans a read, reads one range
    source, streaming, batch_reader, pushdown   what Spark calls: the only modules that import
                           pyspark

Planning runs in a Python process on the driver's host, reading in those of the executors. Only the
options and the ranges pass between them, pickled. So a batch read opens a new transport in each
call; a streaming query keeps one on the driver, opened after it was unpickled.
"""
