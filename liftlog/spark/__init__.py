"""The Spark data source: `spark.read.format("liftlog")` and `spark.readStream.format("liftlog")`.

    options, columns       what a job asks for, checked before anything is read
    transport              where batches come from: a daemon (`daemon_transport`) or segment files
                           (`file_transport`); what a read does about records that are gone
    leases                 how a read is protected from compaction and retention
    planning               which offsets, and how they are divided among tasks
    decoder, newest        batches of the log -> Arrow batches with Spark's columns; only the newest
                           record of each key
    scan                   combines these: plans a read, reads one range
    source, batch, streaming   what Spark calls: the only modules here that import pyspark
    export/                streams as tables: `liftlog export`

Planning runs in a Python process on the driver's host, reading in those of the executors. Only the
options and the ranges pass between them, pickled. So a batch read opens a new transport in each
call; a streaming query keeps one on the driver, opened after the query was unpickled.
"""
