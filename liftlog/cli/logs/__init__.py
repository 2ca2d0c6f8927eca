"""Commands that work on the files of a log.

log_files    `liftlog log`; log_reading: verify and dump; log_repair: repair and reindex
backup       `liftlog backup`; backup_run does the work
backup_ends  asks the daemon how far its replicas are committed
"""
