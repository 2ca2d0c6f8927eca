"""`liftlog log`: look into a log's files without a daemon, or beside a running one.

files    finds the streams of a directory; a file system that cannot write
walk     the batches of one segment and every stretch where there is none
verify   judges a stream: what is damaged, what is only unfinished
dump     prints batches and records
command  the click commands

Everything here only reads. A running daemon may append, roll and delete meanwhile.
"""
