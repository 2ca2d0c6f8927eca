"""`liftlog log`: look into a log's files without a daemon, or beside a running one.

files    finds the streams of a directory; a file system that cannot write
verify   judges a stream: what is damaged, what is only unfinished
dump     prints batches and records
command  the click commands
mending  `repair` and `reindex`; the work is done by liftlog.log.repair

All but `mending` only reads. A running daemon may append, roll and delete meanwhile.
"""
