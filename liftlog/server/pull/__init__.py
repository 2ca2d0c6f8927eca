"""The pull API's server: sockets in front of the streams.

seams        what it needs of the daemon: Broker, ReadableStream, Policy
limits       bounds
listener     addresses, listening sockets
transport    one connected non-blocking socket
page_cache   whether sending a slice would wait for the disk
outbox       what waits to be sent on a connection: frames and slices of log files
fetches      the fetches of one connection on one stream, in order, with long poll
origins      where a client comes from, as the kernel says
guessing     how often who may be wrong about a token
authentication  who a client is
gate         every request passes here: names, authorization
audit        who logged in, who was refused what, who changed something
connection   one connected client
server       `PullServer`
"""

from __future__ import annotations

from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.seams import Broker, LogSlice, ReadableLog, ReadableStream
from liftlog.server.pull.server import PullServer

__all__ = ["Broker", "LogSlice", "PullLimits", "PullServer", "ReadableLog", "ReadableStream"]
