"""The record batch: the unit of checksums, writes and transfers. Works on bytes, without I/O.

format, header   the constants, escaped subjects, and the 64 bytes in front of each batch
layout           finds the columns of one batch, or of many batches
encode, decode   converts lists to the bytes of a batch; reads these bytes through a lazy view
projection       makes a batch without some of its columns
codecs           compresses and decompresses bodies
checksum         computes CRC-32C
place            checks that a batch is at its place in the log
message_headers  parses and builds header blocks
json_form        converts a record to JSON and back
columns/         processes many records at a time, with numpy
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
