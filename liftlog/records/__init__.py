"""The record batch: the unit of checksum, of writing and of transfer. Pure bytes and values.

    format, header   the constants, escaped subjects, and the 64 bytes in front of each batch
    layout           where the columns lie, of one batch or of many: the one walk over them
    encode, decode   lists to the bytes of a batch; a lazy view over its bytes
    codecs           compressed bodies
    place            whether a batch stands where it belongs
    message_headers  header blocks
    json_form        a record as JSON

With numpy, for those who work on many records at a time:

    column_set, columns   records as arrays; from a batch and to one
    small_batches         many small batches, checked and held together
    positions, many       many batches as one set of columns, or as records
    scattered             records left where they lie, for code that copies some of them
    slots                 the slot of each record in a consumer group
    selection             which records are selected, and which columns
    arrow                 one batch, or many, for Arrow
"""

from liftlog.records.decode import Record, RecordBatch, decode_batch, iter_batches
from liftlog.records.encode import encode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header, verify_body
from liftlog.records.message_headers import MessageHeaders
from liftlog.records.place import Place

__all__ = [
    "HEADER_SIZE",
    "BatchHeader",
    "MessageHeaders",
    "Place",
    "Record",
    "RecordBatch",
    "decode_batch",
    "encode_batch",
    "iter_batches",
    "parse_header",
    "verify_body",
]
