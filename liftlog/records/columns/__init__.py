"""Records as numpy columns, for code that works on many at a time. Needs numpy.

column_set     records as arrays: selects some, joins several
batch_columns  one batch to columns and back
chunks         groups batches that are processed in one step
small_batches  runs of small batches, checked and stored together
positions      finds the columns of many batches
many           many batches as one set of columns, or as records
heads          records of batches whose values were not read
scattered      records left in their batches, for code that copies some of them
slots          the slot of each record in a consumer group
selection      the records, and their columns, that a reader selects
arrow          one batch for Arrow; imports pyarrow
arrow_rows     many batches for Arrow, as one
"""
