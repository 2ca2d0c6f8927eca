"""Reads logs for clients: with filters, in bounded steps, with a fair share for each client.

Imports run one way, downwards in this list; `make lint` checks that.

walking          walks over the matching records of a log, forwards or backwards
selecting        finds the offsets of matching records, for an erasure
filtering        answers a fetch that has a filter or a choice of columns
scan             the input and the result of a filtered read
answer_builder   builds the batches of the answer to a filtered read
pieces           decoded parts of the log; the members of a consumer group share them

shares           the slots that members of groups request, and how records are grouped by them
tailing          wakes the consumers that wait at the end of a stream, in rounds
turns            the turns in which requests compute in the event loop
one_record       reads one record by its offset

fairness         divides the time of the event loop and the scan threads fairly among clients
read_share       limits the time of the event loop that all consumers together use
"""
