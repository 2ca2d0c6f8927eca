"""Reads a log.

reading      reads across segments, on one view of the log
slices       reads inside one segment: the bytes of a file for a fetch (`sendfile`)
one_now      reads one record that is in memory, without a wait for the disk
partial      reads some parts of a piece of a segment
sparse       reads a few records of a piece
by_subject   reads the records on few subjects, by the subject index
measuring    measures the bytes between offsets; finds the n-th record of a segment
ages         computes the ages of segments
arrivals     arrival times of records, by a clock that does not step
"""
