"""A form that publishes one message on NATS for a stream, and reports the offset at which it is
stored."""

from __future__ import annotations

from acl.subjects import is_literal
from liftlog.client.publishing.headers import HeaderText
from liftlog.client.publishing.results import PublishUnknown
from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.protocol.described import StreamInfo
from liftlog.server.http.bodies import PostedMessage
from liftlog.server.web.actions import check_changeable
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.browsing import parse_key
from liftlog.server.web.entering import MAX_FORM_BYTES, check_form, read_form

FIELDS = ("subject", "key", "headers", "message_id", "value", "tombstone")


async def publishing(asked: Asked) -> Shown:
    check_changeable(asked)
    described = await asked.describe()
    asked.authorize("admin")  # checked again after the await
    texts = {**dict.fromkeys(FIELDS, ""), "subject": asked.text("subject")}
    subjects = described.recorded_subjects
    if not texts["subject"] and len(subjects) == 1 and is_literal(subjects[0]):
        texts["subject"] = subjects[0]
    return _form(asked, described, texts)


async def publish(asked: Asked) -> Shown:
    """Publish the message over the daemon's own NATS connection. The viewer must have the right to
    administer the stream, as in the log API."""
    check_changeable(asked)
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, _purpose(asked))
    texts = {name: form.get(name, "") for name in FIELDS}
    described = await asked.describe()
    try:
        message = _message(texts)
        asked.authorize("admin")  # checked again after the awaits, and audited
        ack = await asked.parts.appender.append(
            described, message, lambda name: asked.may("admin", name)
        )
    except LiftlogError as error:
        return _form(asked, described, texts, error)
    extra = {
        "offset": ack.offset,
        "is_duplicate": ack.duplicate,
        "deletes_nothing": message.value is None and not described.is_compacted,
    }
    shown = _form(asked, described, texts)
    return Shown(shown.title, shown.data, {**shown.extra, "stored": extra})


def _form(
    asked: Asked, described: StreamInfo, texts: dict[str, str], error: LiftlogError | None = None
) -> Shown:
    data = {
        "stream": asked.stream,
        "subject": described.subject,
        "acks": described.acks,
        "state": described.state,
        "is_compacted": described.is_compacted,
        "form": texts,
    }
    extra = {
        "error": error,
        "is_unknown": isinstance(error, PublishUnknown),
        "stored": None,
        "max_bytes": MAX_FORM_BYTES,
        "form_token": asked.parts.sessions.form_token(asked.viewer.cookie, _purpose(asked)),
    }
    return Shown(f"Publish to {asked.stream}", data, extra, error)


def _message(texts: dict[str, str]) -> PostedMessage:
    """Convert the fields of the form to a message. Raises InvalidArgument."""
    is_tombstone = bool(texts["tombstone"])
    key = parse_key(texts["key"]) if texts["key"] else None
    if is_tombstone and key is None:
        raise InvalidArgument("a tombstone needs a key: it supersedes the records of that key")
    if is_tombstone and texts["value"]:
        raise InvalidArgument("a tombstone has no value")
    # A browser sends line ends as CR LF.
    value = texts["value"].replace("\r\n", "\n").encode()
    return PostedMessage(
        None if is_tombstone else value,
        subject=texts["subject"].strip() or None,
        key=key,
        headers=_headers(texts["headers"]),
        message_id=texts["message_id"].strip() or None,
    )


def _headers(text: str) -> list[tuple[HeaderText, HeaderText]]:
    """Parse lines of the form `Name: value`; a name may occur several times. Raises
    InvalidArgument."""
    found: list[tuple[HeaderText, HeaderText]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = line.partition(":")
        name = name.strip()
        if not colon or not name or not name.isascii() or not name.isprintable() or " " in name:
            raise InvalidArgument(f"headers, line {number}: expected Name: value")
        found.append((name, value.strip()))
    return found


def _purpose(asked: Asked) -> str:
    return f"publish to {asked.stream}"
