"""The exchange of the states of consumers with acks between a follower of a stream and its leader.
Registered in `messages.py`."""

from __future__ import annotations

from typing import ClassVar

from liftlog.protocol.wire import LABEL, NAME, Message, array_of, uint
from liftlog.protocol.wire import wire as key


class FetchConsumers(Message):
    """Asks for the changes of a stream's consumers with acks, and confirms the changes that the
    asking node has.

    `position` has four numbers of changes in the leader's epoch:

    - the change at which the leader began to send all consumers
    - the change up to which the node has written all changes
    - the change up to which the node has synced all changes
    - the newest change of the consumer that the node received last.

    The fourth number is used while consumers are sent as a whole. Without `position`, the node has
    no state of this epoch. A node has one open request per stream; a second request replaces the
    first.
    """

    KIND: ClassVar[str] = "consumerstates"
    stream: str = key("s", NAME)
    incarnation: str = key("x", LABEL)
    epoch: int = key("e", uint())
    position: list[int] | None = key("p", array_of(uint(), 4), default=None)


class ConsumerChanges(Message):
    """Answer to consumerstates; `body_length` bytes of changes follow the frame.

    `base`, `written` and `cursor` are the node's position after these changes. If `base` has
    changed, the leader begins to send all consumers. When the node reaches `base`, it drops the
    consumers that it has not received. If `sync` is above 0, an answer to a client waits until the
    node has synced the changes up to this number.
    """

    KIND: ClassVar[str] = "statechanges"
    epoch: int = key("e", uint())
    base: int = key("n", uint())
    written: int = key("w", uint())
    cursor: int = key("c", uint())
    sync: int = key("y", uint(), default=0)
    body_length: int = key("b", uint(), default=0)


REQUESTS: tuple[type[Message], ...] = (FetchConsumers,)
ANSWERS: tuple[type[Message], ...] = (ConsumerChanges,)
