"""Metadata and replication: the shell around the pure `liftlog.cluster`.

records_file  keys, revisions and values in one checkpoint file; blocking
file_store    the metadata store on top of it, for one daemon or several on one machine
records       the records of a daemon on its own, which follow the manifests of its streams
"""
