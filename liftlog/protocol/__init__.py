"""The pull protocol, sans-io: frames, messages, limits, connection states.

Nothing here opens a socket or reads a clock. `docs/reference/protocol.md` is the
normative description; this package is its only implementation in this project,
shared by the server and by both clients.
"""

from __future__ import annotations

from liftlog.protocol.messages import (
    Auth,
    Cancel,
    Challenge,
    CreateStream,
    DeleteStream,
    DescribeStream,
    Done,
    ErrorAnswer,
    Fetch,
    FetchHeader,
    Hello,
    ListStreams,
    Message,
    Ping,
    Pong,
    StreamAnswer,
    StreamInfo,
    StreamsAnswer,
    Welcome,
)

__all__ = [
    "Auth",
    "Cancel",
    "Challenge",
    "CreateStream",
    "DeleteStream",
    "DescribeStream",
    "Done",
    "ErrorAnswer",
    "Fetch",
    "FetchHeader",
    "Hello",
    "ListStreams",
    "Message",
    "Ping",
    "Pong",
    "StreamAnswer",
    "StreamInfo",
    "StreamsAnswer",
    "Welcome",
]
