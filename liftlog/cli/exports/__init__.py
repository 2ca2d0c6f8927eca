"""`liftlog export`: a stream as a table.

export         the command; export_run does the work
export_vacuum  removes old snapshots
"""
