"""What one stream does with a batch of messages. Pure: events in, effects out."""

from liftlog.stream.ack_subjects import AckSubjects
from liftlog.stream.acks import AckFormat
from liftlog.stream.config import SequencerConfig
from liftlog.stream.dedupe import DedupeWindow
from liftlog.stream.group import CommitGroup
from liftlog.stream.run import MessageRun
from liftlog.stream.sequencer import Sequencer

__all__ = [
    "AckFormat",
    "AckSubjects",
    "CommitGroup",
    "DedupeWindow",
    "MessageRun",
    "Sequencer",
    "SequencerConfig",
]
