"""Reads a log.

reading      across segments, on one view of the log slices       inside one segment: the bytes of a
file for a fetch (`sendfile`) partial      some parts of a piece of a segment sparse       a few
records of a piece by_subject   the records on few subjects, found by the subject index measuring
bytes between offsets; the n-th record of a segment ages         ages of segments arrivals
arrival times of records, by a clock that does not step
"""
