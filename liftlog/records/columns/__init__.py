"""Records as numpy columns, for code that works on many records at a time. Needs numpy.

column_set     records as arrays: selects some, joins several
batch_columns  one batch to columns and back
cutting        cuts records out of a batch, in its bytes
chunks         groups batches that are processed in one step
small_batches  checks and stores runs of small batches together
positions      finds the columns of many batches
many           decodes many batches to one set of columns, or to records
heads          decodes records of batches whose values were not read
scattered      records that stay in the bytes of their batches until they are copied
slots          computes the slot of each record in a consumer group
selection      selects the records and columns that a reader requests
arrow          converts one batch to Arrow; imports pyarrow
arrow_rows     converts many batches to one Arrow batch
"""
