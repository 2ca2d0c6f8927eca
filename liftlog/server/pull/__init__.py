"""The pull API's server: sockets in front of the streams.

Imports run one way, downwards in this list; `make lint` checks that.

server           `PullServer`: accepts, and keeps the connections within their bounds
certificates     TLS files -> the context, at the start and at each reload
connection       one connected client: its socket, its login, its end
client_requests  its requests, each handed to the code that answers it

fetches          the fetches of one connection on one stream, in order, with long poll
group_handlers   the code that answers requests about consumer groups
handlers         the code that answers each other request
peers            the requests of another node of the cluster
requests         what each of those needs of the ACL
answers          what one client is sent
services         what all connections share: made by the server, handed down
walking          the wanted records of a log, a bounded step at a time, forwards or backwards

send_queue       what waits to be sent on a connection: frames and slices of log files
tailing          the consumers that wait at the end of a stream: woken together
filtering        the answer to a fetch with a filter or a choice of columns
answer_builder   the batches of such an answer
pieces           what filters read of the log; the members of a group share it
shares           the slots that the members ask for, and what is kept together because of it

turns            the turns in which requests compute in the event loop
fairness         the time that reading from clients takes in a turn of the loop, and the threads for
                 filtered answers, both shared fairly
read_share       what all consumers together may take of the event loop

sockets          addresses and the sockets that listen on them; one connected socket
limits           bounds
"""

from __future__ import annotations

from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.server import PullServer

__all__ = ["PullLimits", "PullServer"]
