"""Reads logs for clients: filtered, a bounded step at a time, shared fairly.

Imports run one way, downwards in this list; `make lint` checks that.

walking          walks over the wanted records of a log, forwards or backwards
filtering        answers a fetch that has a filter or a choice of columns
scan             the records that a filter looks for, and what it has found
answer_builder   builds the batches of such an answer
pieces           the parts of the log that filters read; the members of a group share them

shares           the slots that members of a group ask for, and what is kept for several of them
tailing          wakes the consumers that wait at the end of a stream, all together
turns            the turns in which requests compute in the event loop
one_record       reads one record by its offset

fairness         shares out the time of the event loop, and the threads for filtered answers
read_share       bounds what all consumers together take of the event loop
"""
