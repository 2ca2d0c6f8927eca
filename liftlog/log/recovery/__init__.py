"""Opens a log after a stop.

opening           opens a log after a clean or an unclean stop
inventory         lists the files on disk, removes those that the manifest does not list
judging           judges the end of a log that has no replicas, and carries out each verdict
replica_recovery  the same for a replica: it cuts at damage, and reports missing records
"""
