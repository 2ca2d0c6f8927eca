"""One segment: a file of record batches, and the files made from it.

segment        the file, and the walk over its headers
index          offset -> position, and time -> offset
sketch         the blocks that can hold records of a subject, key or time
sketched       the part of a sketch that stays in memory
parts          checksums in the sketch: of a batch's head, and of its values
subject_index  the places of the records on each subject
derived        common to the files that are made from a segment
resync         finds the place where good batches continue after damage
tail           scans the end of the active segment; the verdict on a bad end: cut it, or keep it
walk           all batches and gaps of a segment, and its damage that is not yet known
"""
