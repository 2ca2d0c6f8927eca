"""A form that erases records after a preview, and the list of a stream's erasures."""

from __future__ import annotations

import re
from typing import Any

from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.protocol.administration import Erased, EraseRecords, ErasuresAnswer, ListErasures
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.browsing import parse_key
from liftlog.server.web.entering import check_form, read_form
from liftlog.server.web.formats import parse_moment

FIELDS = ("offsets", "subject", "key", "header", "since", "until", "reason", "now")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_SHOWN = 50
"""Maximum number of erasures in the list."""


async def erasing(asked: Asked) -> Shown:
    _check_may_erase(asked)
    texts = {
        **dict.fromkeys(FIELDS, ""),
        "subject": asked.text("subject"),
        "key": asked.text("key"),
    }
    texts["offsets"] = asked.text("offset")
    return await _form(asked, texts, done=asked.text("done"))


async def erase(asked: Asked) -> Shown:
    """Show a preview. If the form comes from such a preview, erase the records of the preview."""
    _check_may_erase(asked)
    form = await read_form(asked.request)
    check_form(asked.parts.sessions, asked.request, form, _purpose(asked))
    texts = {name: form.get(name, "").strip() for name in FIELDS}
    end = form.get("end", "")
    is_agreed = end.isascii() and end.isdecimal() and len(end) < 19
    try:
        message = _message(asked.stream, texts, int(end) if is_agreed else None)
        if is_agreed:
            asked.authorize("erase")  # checked again after the await, and audited
        answer = await asked.carry_out(message.replaced(dry_run=not is_agreed))
        assert isinstance(answer, Erased), "the answer to erase"
    except LiftlogError as error:
        return await _form(asked, texts, error)
    if is_agreed:
        asked.parts.descriptions.forget(asked.stream)
        where = f"/ui/streams/{asked.stream}/erase?done={answer.erasure_id or 'nothing'}"
        return Shown("Erased", {"stream": asked.stream}, moved_to=where)
    return await _form(asked, texts, preview=answer)


def _check_may_erase(asked: Asked) -> None:
    """Check that the viewer may erase records of the stream. Raises Forbidden, InvalidArgument.
    Writes only refusals to the audit log, because the page and a preview change nothing."""
    if asked.stream.startswith("_") or not asked.may("erase", asked.stream):
        asked.authorize("erase")
        raise InvalidArgument(f"the stream {asked.stream} belongs to the daemon")


async def _form(
    asked: Asked,
    texts: dict[str, str],
    error: LiftlogError | None = None,
    preview: Erased | None = None,
    done: str = "",
) -> Shown:
    answer = await asked.carry_out(ListErasures(asked.stream))
    assert isinstance(answer, ErasuresAnswer), "the answer to erasures"
    listed = [one.to_wire() for one in answer.infos[:_SHOWN]]
    data: dict[str, Any] = {
        "stream": asked.stream,
        "form": texts,
        "erasures": listed,
        "erasure_count": answer.total,
        "preview": None if preview is None else _shown(preview),
    }
    extra = {
        "error": error,
        "done": next((one for one in listed if done and one["erasure_id"] == done), None),
        "form_token": asked.parts.sessions.form_token(asked.viewer.cookie, _purpose(asked)),
    }
    return Shown(f"Erase records of {asked.stream}", data, extra, error)


def _shown(preview: Erased) -> dict[str, Any]:
    return {
        "count": preview.count,
        "first_offset": preview.first_offset,
        "last_offset": preview.last_offset,
        "range_count": preview.range_count,
        "end_offset": preview.end_offset,
        "subjects": preview.subjects,
        "unreadable": [list(one) for one in preview.unreadable_ranges[:_SHOWN]],
    }


def _message(stream: str, texts: dict[str, str], end: int | None) -> EraseRecords:
    """Convert the fields of the form to a request. If `end` is set, the request covers only offsets
    below it, as in the preview. Raises InvalidArgument."""
    borders = _borders(texts["offsets"])
    subjects, header, key = texts["subject"].split(), texts["header"], texts["key"]
    since_ns, until_ns = _moment("From time", texts["since"]), _moment("Until", texts["until"])
    if not (borders or subjects or header or key) and since_ns is None and until_ns is None:
        raise InvalidArgument("fill in at least one field that selects records")
    if end is not None:
        pairs = zip(borders[::2], borders[1::2], strict=True) if borders else ((0, end),)
        borders = [border for low, high in pairs if low < end for border in (low, min(high, end))]
    return EraseRecords(
        stream,
        borders,
        texts["reason"],
        filter_subjects=subjects or None,
        filter_keys=[parse_key(key)] if key else None,
        filter_headers=[header] if header else None,
        since_ns=since_ns,
        until_ns=until_ns,
        now=bool(texts["now"]),
    )


def _borders(text: str) -> list[int]:
    borders: list[int] = []
    for part in re.split(r"[,\s]+", text) if text else ():
        match = _RANGE.fullmatch(part)
        last = int(match[2] or match[1]) if match else -1
        if match is None or last < int(match[1]):
            raise InvalidArgument(
                f"offsets: {part[:40]!r} is neither an offset nor a range FIRST-LAST"
            )
        borders += (int(match[1]), last + 1)
    return borders


def _moment(label: str, text: str) -> int | None:
    if not text:
        return None
    found = parse_moment(text)
    if found is None:
        raise InvalidArgument(
            f"{label}: expected a time such as 2026-01-31 15:00 or yesterday 15:00, or 15m, 2h, 3d "
            "for a time ago"
        )
    return max(found, 0)


def _purpose(asked: Asked) -> str:
    return f"erase records of {asked.stream}"
