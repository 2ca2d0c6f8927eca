"""Opens a log after a stop.

opening           opens a log after a clean or an unclean stop
inventory         lists the files on disk, removes those that the manifest does not list
judging           decides about the end of a log that has no replicas: which bytes are kept or cut
replica_recovery  decides for a replica, which is cut at damage; reports missing records
"""
