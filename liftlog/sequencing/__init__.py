"""Sequences the messages of one stream: decides if each is stored, refused or a duplicate. Pure,
without I/O.

run         messages in the form in which they come from NATS
sequencer   judges, numbers and groups them; then builds acks or nacks
tail        judged messages that are not committed yet, and messages that wait for other replicas
judging     checks that need only the message itself, one at a time or for a whole run, by column;
            header_columns extracts keys and ids of headers, opened the fields of envelopes
control, enveloped, liftbridge   parse requests in headers and envelopes
dedupe      message ids received within the window; marks, which replace text of publishers
subject_sequences   the last offset of each subject
room        checks the limits of a stream that refuses messages at a limit
commit_group  messages that one write and one fsync make durable, and the answers that wait for it
acks, destinations, refusals     the content of answers, and the subjects that they are sent to
config      the settings of a stream that affect its sequencer
"""

from liftlog.sequencing.acks import AckFormat
from liftlog.sequencing.commit_group import CommitGroup
from liftlog.sequencing.config import SequencerConfig
from liftlog.sequencing.dedupe import DedupeWindow
from liftlog.sequencing.destinations import Destinations
from liftlog.sequencing.run import MessageRun
from liftlog.sequencing.sequencer import Sequencer

__all__ = [
    "AckFormat",
    "CommitGroup",
    "DedupeWindow",
    "Destinations",
    "MessageRun",
    "Sequencer",
    "SequencerConfig",
]
