"""The record batch: the unit of checksum, of writing and of transfer. Pure bytes and values."""

from liftlog.records.decode import Record, RecordBatch, decode_batch, iter_batches
from liftlog.records.encode import encode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header, verify_body
from liftlog.records.message_headers import MessageHeaders

__all__ = [
    "HEADER_SIZE",
    "BatchHeader",
    "MessageHeaders",
    "Record",
    "RecordBatch",
    "decode_batch",
    "encode_batch",
    "iter_batches",
    "parse_header",
    "verify_body",
]
