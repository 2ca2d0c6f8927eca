"""Actions on a stream, such as pause or compact.

A page asks for confirmation, its form carries out the action, and the browser returns to the page
of the stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from liftlog.errors import InvalidArgument
from liftlog.protocol.administration import PauseStream, ResumeStream
from liftlog.protocol.messages import CompactStream, Message
from liftlog.server.web import answers
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.entering import check_form, read_form

logger = logging.getLogger("liftlog.server.web")


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    label: str
    question: str
    consequence: str
    done: str
    request: Callable[[str], Message]


ACTIONS = {
    action.name: action
    for action in (
        Action(
            "pause",
            "Pause",
            "Pause this stream?",
            "New messages are refused until it is resumed, also after a restart: publishers that "
            "ask for an ack get an error, and messages of others are not stored. Reading stays "
            "possible.",
            "Paused: new messages are refused.",
            PauseStream,
        ),
        Action(
            "resume",
            "Resume",
            "Resume this stream?",
            "Messages are stored again from now on. What was published while it was paused is "
            "missing.",
            "Resumed: messages are stored again.",
            ResumeStream,
        ),
        Action(
            "compact",
            "Compact now",
            "Compact this stream now?",
            "A pass begins as soon as the cleaner is free, whatever the dirty ratio. Only the "
            "newest record of each key stays; the others cannot be recovered.",
            "A compaction pass was requested; it begins as soon as the cleaner is free.",
            CompactStream,
        ),
    )
}


def action_of(asked: Asked) -> Action:
    return ACTIONS[asked.request.path.rsplit("/", 1)[1]]


DONE = {
    "create": "The stream records its subject from now on.",
    "edit": "The settings are changed.",
    **{action.name: action.done for action in ACTIONS.values()},
}
"""The text that the page of the stream shows after a change."""


def check_changeable(asked: Asked) -> None:
    """Check that the viewer may change the stream. Raises Forbidden, and InvalidArgument for a
    stream of the daemon's own.

    Opening a page changes nothing, so only refusals are written to the audit log.
    """
    if asked.stream.startswith("_") or not asked.may("admin", asked.stream):
        asked.authorize("admin")
        raise InvalidArgument(f"the stream {asked.stream} belongs to the daemon")


async def confirm(asked: Asked) -> Shown:
    check_changeable(asked)
    action = action_of(asked)
    described = await asked.describe()
    token = asked.parts.sessions.form_token(asked.viewer.cookie, purpose(action, asked.stream))
    data = {"stream": asked.stream, "action": action.name, "state": described.state}
    extra = {"action": action, "form_token": token}
    return Shown(f"{action.label}: {asked.stream}", data, extra)


async def perform(asked: Asked) -> web.Response:
    check_changeable(asked)
    action, stream = action_of(asked), asked.stream
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, purpose(action, stream))
    asked.authorize("admin")  # checked again after the await, and audited
    await asked.carry_out(action.request(stream))
    asked.parts.descriptions.forget(stream)
    logger.info("stream-changed-by-page stream=%s action=%s", stream, action.name)
    return answers.see_other(f"/ui/streams/{stream}?done={action.name}")


def purpose(action: Action, stream: str) -> str:
    return f"{action.name} {stream}"
