"""What one stream does with a batch of messages. Pure: events in, effects out.

run         messages as they come from NATS
sequencer   judges, numbers and groups them; then words acks or nacks
tail        what is judged and not committed, and what is stored here and waits for other replicas
judging     what of a message is judged by itself, one at a time or for a whole run, by column;
            header_columns has the keys and ids of headers, opened the fields of envelopes
control, enveloped, liftbridge   what headers and envelopes ask for
dedupe      message ids seen within the window; marks, which stand for text of publishers
subject_sequences   the last offset of each subject
room        how much more is stored, where a limit refuses messages
group       what one write and one fsync make durable, and who is to be told
acks, destinations, refusals     what is answered, and where that may go
config      what of a stream's settings matters here
"""

from liftlog.stream.acks import AckFormat
from liftlog.stream.config import SequencerConfig
from liftlog.stream.dedupe import DedupeWindow
from liftlog.stream.destinations import Destinations
from liftlog.stream.group import CommitGroup
from liftlog.stream.run import MessageRun
from liftlog.stream.sequencer import Sequencer

__all__ = [
    "AckFormat",
    "CommitGroup",
    "DedupeWindow",
    "Destinations",
    "MessageRun",
    "Sequencer",
    "SequencerConfig",
]
