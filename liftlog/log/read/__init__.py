"""Reads a log.

reading      across segments, on one view of the log
slices       inside one segment: the bytes of a file for a fetch (`sendfile`)
partial      a piece of which only some parts are read
sparse       a few records of a piece
by_subject   the records on few subjects, found by the subject index
measuring    bytes between offsets; the n-th record of a segment
ages         how old segments are
arrivals     when records arrived, by a clock that does not step
"""
