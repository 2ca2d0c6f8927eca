"""`liftlog log`: look into a log's files without a daemon, or beside a running one.

files    finds the streams of a directory; a file system that cannot write
verify   judges a stream: what is damaged, what is only unfinished
dump     prints batches and records
command  the click commands
repair, reindex   the two that write; the work is done by liftlog.log.repair

All others only read. A running daemon may append, roll and delete meanwhile.
"""
