"""The pull API's server: sockets in front of the streams.

Imports run one way, downwards in this list; `make lint` checks that.

server           `PullServer`: accepts connections and enforces the limits on them
certificates     creates the TLS context from files, at the start and at each reload
connection       one connected client: its socket, its login, its close
client_requests  passes each request of a client to the code that answers it

fetches          the fetches of one connection on one stream, in order, with long poll
working          the requests of a worker: messages of consumers with acks, and acks
peers            the requests of another node of the cluster
answers          encodes and sends the answers to one client
services         objects that all connections share

send_queue       frames and slices of log files that wait to be sent on a connection
sockets          addresses, the sockets that listen on them, and one connected socket
limits           the limits of the server
waiting_fetch    one fetch: its state while it waits, and the header of its answer
identity         compares the history of a stream with the history that a client has read

`liftlog.server.requests` answers all requests except fetches. `liftlog.server.reading` reads logs.
"""

from __future__ import annotations

from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.server import PullServer

__all__ = ["PullLimits", "PullServer"]
