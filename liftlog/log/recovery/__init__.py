"""Opens a log after a stop.

opening           after a clean stop, and after any other
inventory         lists the files that are there, removes those that are not listed in the manifest
judging           judges the end of a log that has no replicas, and carries out each verdict
replica_recovery  the same for a replica: it cuts at damage, and reports what is missing
"""
