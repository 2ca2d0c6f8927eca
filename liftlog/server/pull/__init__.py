"""The pull API's server: sockets in front of the streams.

server           `PullServer`: accepts, and keeps the connections
connection       one connected client: its socket, its login, its end
client_requests  its requests, from the frame to the answer

seams            what is needed of the daemon: Broker, ReadableStream
limits           bounds
counters         what is counted
listener         addresses, listening sockets
transport        one connected non-blocking socket
certificates     the daemon's own, for TLS
rounds           what clients send is handled for a bounded time in each turn of the loop
outbox           what waits to be sent on a connection: frames and slices of log files
page_cache       whether sending a slice would wait for the disk

fetches          the fetches of one connection on one stream, in order, with long poll
positions        where a fetch begins, and whether it means this stream
tailing          those who wait at the end of a stream: woken together
turns            the thread for filtered answers, in which everybody has a turn
filtering        the answer to a fetch with a filter or a choice of columns
building         ... and the batches made for it
read_share       what all of them may cost the event loop

requests         what each other request needs of the ACL, and what answers it
administration_requests, checkpoint_requests   more of them
"""

from __future__ import annotations

from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.seams import Broker, LogSlice, ReadableLog, ReadableStream
from liftlog.server.pull.server import PullServer

__all__ = ["Broker", "LogSlice", "PullLimits", "PullServer", "ReadableLog", "ReadableStream"]
