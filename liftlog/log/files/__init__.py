"""Files of a log and of a data directory. Nothing here depends on the format of records.

filesystem          the file operations that a log uses; tests replace them
unreadable          reads around pages that the disk cannot return
checkpoint_file     the form of all small files that are replaced as a whole
manifest            the file that lists a stream's segments: the commit point of every change
erased_file         the files with the offsets of erased records
erasures            the list of a stream's erasures
kept_ids            the hashes of the message ids of records whose bytes were removed early
acked_end           the file that stores the end of the acked records
leases              the file of a stream's leases
lock                the lock of a data directory
identity            distinguishes a data directory from a copy of it
shared_descriptors  limits the number of descriptors of files that are open for writing
"""
