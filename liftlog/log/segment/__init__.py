"""One segment: a file of record batches, and the files made from it.

segment        the file, and the walk over its headers
index          offset -> position, and time -> offset
sketch         shows which blocks can hold records of a subject, key or time
sketched       the part of a sketch that stays in memory
parts          checksums in the sketch: one for a batch's head, one for each of its values
subject_index  the places of the records on each subject
derived        common code for the files that are made from a segment
resync         finds the place where good batches continue after damage
tail           scans the active segment, and decides if a bad tail is cut or kept
walk           yields all batches and gaps of a segment, and finds new damage
"""
