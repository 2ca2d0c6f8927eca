"""Determines which messages of a stream JetStream would still have.

newest   finds the newest records of each subject
ages     records that are older than the stream's `max_age`
buckets  the records of a bucket and their sizes, kept in memory
purges   the subjects that were purged, for consumers
shown    all of these together, for one stream
"""
