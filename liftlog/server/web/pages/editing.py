"""Forms that create a stream, and that change the settings of a stream after a preview. The daemon
checks their input in the same way as the input of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from acl.document import read_document
from liftlog.errors import Forbidden, InvalidArgument, LiftlogError
from liftlog.protocol.administration import StreamUpdate, Updated, UpdateStream
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import ANONYMOUS, CreateStream
from liftlog.server.requests.rights import subjects_of
from liftlog.server.web.actions import check_changeable
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.entering import check_form, read_form

FIELDS = {
    "subject": "subject",
    "queue_group": "queue_group",
    "max_age": "retention.max_age",
    "max_bytes": "retention.max_bytes",
    "max_messages": "retention.max_messages",
    "dedupe_window": "dedupe_window",
    "compaction": "compaction",
    "acks": "acks",
    "durability": "durability",
    "compression": "compression",
}
"""Fields of the forms, each with the setting that it shows. The field `more` holds all other
settings."""
CHOICES = {
    "compaction": ("off", "on"),
    "acks": ("on", "envelope", "off"),
    "durability": ("fsync", "interval", "os"),
    "compression": ("none", "lz4", "zstd"),
}
_FIXED = ("subject", "queue_group")
_NUMBERS = ("max_messages",)
_CREATE = "create a stream"
_NEW = {"compaction": "off", "acks": "on", "durability": "fsync", "compression": "none"}

Texts = dict[str, str]
Tree = dict[str, Any]


# --- a new one ---


async def creating(asked: Asked) -> Shown:
    _check_may_create(asked)
    texts = {**dict.fromkeys(FIELDS, ""), **_NEW, "subject": asked.text("subject")}
    return _create_form(asked, {**texts, "name": "", "more": ""})


async def create(asked: Asked) -> Shown:
    _check_may_create(asked)
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, _CREATE)
    texts = _texts(form, ("name", *FIELDS, "more"))
    try:
        settings = _settings({**texts, "compaction": "on" if texts["compaction"] == "on" else ""})
        if "subject" not in settings:
            raise InvalidArgument("subject: it is missing; enter the subjects to record")
        name = texts["name"]
        subjects = subjects_of(settings)
        asked.gate.authorize(
            asked.viewer.principal, "create", name, peer=asked.peer, subjects=subjects
        )
        await asked.carry_out(CreateStream(name, settings))
    except LiftlogError as error:
        return _create_form(asked, texts, error)
    asked.parts.descriptions.forget(name)
    # The user who created the stream may not be allowed to see its page.
    readable = asked.may("read", name)
    where = f"/ui/streams/{name}?done=create" if readable else "/ui/streams"
    return Shown("Created", {"stream": name}, moved_to=where)


def _check_may_create(asked: Asked) -> None:
    """Check that the viewer may create streams. The name of the stream is checked when the form
    arrives. Raises Forbidden."""
    who = asked.viewer.principal
    if not asked.gate.may_somewhere(who, "create"):
        raise Forbidden(f"{who or ANONYMOUS!r} may not create streams", hint="no rule allows it")


def _create_form(asked: Asked, texts: Texts, error: LiftlogError | None = None) -> Shown:
    data = {"form": texts, "stream": ""}
    extra = _extra(asked, texts, _CREATE, error)
    return Shown("Create a stream", data, {**extra, "update": None}, error)


# --- change a stream ---


async def editing(asked: Asked) -> Shown:
    check_changeable(asked)
    described = await asked.describe()
    asked.authorize("admin")  # checked again after the await
    return _edit_form(asked, described, _present(described.settings))


async def edit(asked: Asked) -> Shown:
    """Show a preview of the change. If the form comes from such a preview, carry out the change in
    the preview."""
    check_changeable(asked)
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, _edits(asked))
    described = await asked.describe()
    present = _present(described.settings)
    texts = {**present, **_texts(form, (*FIELDS, "more"), present)}
    is_agreed = "settings" in form
    try:
        changes = _agreed(form) if is_agreed else _changes(texts, present, described.settings)
        asked.authorize("admin")  # checked again after the awaits, and audited
        update = await _update(asked, changes, form if is_agreed else None)
    except LiftlogError as error:
        return _edit_form(asked, described, texts, error)
    if is_agreed:
        asked.parts.descriptions.forget(asked.stream)
        where = f"/ui/streams/{asked.stream}?done=edit"
        return Shown("Changed", {"stream": asked.stream}, moved_to=where)
    return _edit_form(asked, described, texts, None, update, json.dumps(changes))


async def _update(asked: Asked, changes: Tree, agreed: Texts | None) -> StreamUpdate:
    """If `agreed` is None, request a preview of the change; otherwise carry out the change. The
    form `agreed` states whether the change may delete records."""
    answer = await asked.carry_out(
        UpdateStream(
            asked.stream,
            changes,
            dry_run=agreed is None,
            allow_deletion=agreed is not None and agreed.get("deletes") == "yes",
        )
    )
    assert isinstance(answer, Updated), "the answer to update"
    return StreamUpdate.from_answer(answer)


def _agreed(form: Texts) -> Tree:
    """Return the changes that the preview stored in its form. Raises InvalidArgument."""
    try:
        found = json.loads(form["settings"])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidArgument("the form is broken", hint="go back, and preview again")
    return found


def _edit_form(
    asked: Asked,
    described: StreamInfo,
    texts: Texts,
    error: LiftlogError | None = None,
    update: StreamUpdate | None = None,
    changes: str = "",
) -> Shown:
    shown = None
    if update is not None:
        removal = update.removal
        shown = {
            "differences": update.differences,
            "removal": None if removal is None or not removal.records else removal.to_wire(),
        }
    data = {"stream": asked.stream, "origin": described.origin, "form": texts, "preview": shown}
    extra = _extra(asked, texts, _edits(asked), error)
    extra |= {"update": shown, "changes": changes}
    return Shown(f"Edit {asked.stream}", data, extra, error)


def _edits(asked: Asked) -> str:
    return f"edit {asked.stream}"


def _present(settings: Mapping[str, Any]) -> Texts:
    """Return the contents of the fields for an existing stream."""
    found = {name: _text(_at(settings, path)) for name, path in FIELDS.items()}
    compaction = settings.get("compaction")
    is_on = isinstance(compaction, Mapping) and compaction.get("enabled", True)
    return {**found, "compaction": "on" if is_on else "off", "more": ""}


def _changes(texts: Texts, present: Texts, settings: Mapping[str, Any]) -> Tree:
    """Return the settings whose fields have changed. Raises InvalidArgument."""
    changed = [name for name in FIELDS if name not in _FIXED and texts[name] != present[name]]
    kept = {name: texts[name] for name in changed if name != "compaction"}
    tree = _settings({**kept, "more": texts["more"]})
    for name in changed:
        if name == "compaction":
            is_on, exists = texts[name] == "on", bool(settings.get("compaction"))
            path = "compaction.enabled" if exists else "compaction"
            _put(tree, path, is_on if exists else {} if is_on else None)
        elif not texts[name]:
            _put(tree, FIELDS[name], None)
    return tree


# --- fields and settings ---


def _extra(asked: Asked, texts: Texts, purpose: str, error: LiftlogError | None) -> Tree:
    said = "" if error is None else error.message
    wrong = [name for name, path in FIELDS.items() if path in said]
    if texts.get("name") is not None and "stream name" in said:
        wrong.append("name")
    return {
        "choices": CHOICES,
        "error": error,
        "wrong": wrong,
        "form_token": asked.parts.sessions.form_token(asked.viewer.cookie, purpose),
    }


def _texts(form: Texts, names: tuple[str, ...], instead: Mapping[str, str] | None = None) -> Texts:
    kept = instead or {}
    found = {name: form.get(name, kept.get(name, "")) for name in names}
    return {name: text.strip() if name != "more" else text for name, text in found.items()}


def _settings(texts: Texts) -> Tree:
    """Return the settings of all fields that are not empty. Settings in `more` take precedence.
    Raises InvalidArgument."""
    tree: Tree = {}
    for name, path in FIELDS.items():
        text = texts.get(name, "")
        if not text:
            continue
        value: Any = int(text) if name in _NUMBERS and _is_number(text) else text
        if name == "compaction":
            value = {} if text == "on" else None
        _put(tree, path, value)
    return _merged(tree, _more(texts.get("more", "")))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _more(text: str) -> Tree:
    """Parse settings written as in the YAML file. Raises InvalidArgument."""
    document = read_document(text)
    if document.findings:
        _, line, what = document.findings[0]
        raise InvalidArgument(f"more settings, line {line}: {what}")
    if document.value is None:
        return {}
    if not isinstance(document.value, dict):
        raise InvalidArgument(
            "more settings: expected lines such as `max_message_bytes: 1MiB`",
            hint="the keys are those of the YAML file",
        )
    return document.value


def _merged(base: Tree, other: Tree) -> Tree:
    merged = dict(base)
    for key, value in other.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merged(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _put(tree: Tree, path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for name in sections:
        inner = tree.setdefault(name, {})
        if not isinstance(inner, dict):
            return  # `more` replaces the whole section
        tree = inner
    tree.setdefault(last, value)


def _at(tree: Mapping[str, Any], path: str) -> Any:
    found: Any = tree
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or isinstance(value, Mapping) else str(value)
