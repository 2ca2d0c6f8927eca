"""Shows the paths of messages: the filters of the streams, the streams, and their readers. For one
subject, the page also explains which streams record the subject, and why."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from acl.subjects import is_literal, is_subset, overlaps, why_invalid
from liftlog.errors import InvalidArgument
from liftlog.protocol.messages import StreamInfo
from liftlog.server.vitals.slices import Slices
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.pages.cluster import leader_of
from liftlog.server.web.picture import drawn
from liftlog.server.web.readers import Row, StreamReaders

PER_PAGE = 25
"""Maximum number of streams in one picture."""
_MAX_NEAR = 5


async def topology(asked: Asked) -> Shown:
    subject, wanted = asked.text("subject"), asked.text("q")
    problem = (why_invalid(subject) or "") if subject else ""
    number = max(1, asked.number("page", 1, 10**6))
    rows: list[Row] = []
    near: list[Row] = []
    has_more = False
    if not problem:
        rows, has_more = await _rows(asked, subject)
        near = _near(rows, subject) if subject else []
        rows = [row for row in rows if row["why"] is not None and _is_about(row, wanted)]
    rows.sort(key=lambda row: (row["filters"], row["name"]))
    pages = max(1, -(-len(rows) // PER_PAGE))
    number = min(number, pages)
    shown = rows[(number - 1) * PER_PAGE : number * PER_PAGE]
    data: dict[str, Any] = {
        "subject": subject,
        "matching": len(rows),
        "recording": sum(row["records"] for row in rows),
        "page": number,
        "pages": pages,
        "streams": shown,
        "readers": [reader for row in shown for reader in row["readers"]],
        "near": [] if rows else near,
        "more_readers": has_more,
    }
    data["shape"] = [
        [row["name"], row["filters"], row["state"], row["more"]]
        + [[one["id"], one["problem"], one["lag"] is None] for one in row["readers"]]
        for row in shown
    ]
    query = {name: text for name, text in (("subject", subject), ("q", wanted)) if text}
    extra = {
        "form": {"subject": subject, "q": wanted},
        "problem": problem,
        "is_literal": is_literal(subject) if subject else False,
        "may_create": asked.gate.may_somewhere(asked.viewer.principal, "create"),
        "previous": "?" + urlencode({**query, "page": number - 1}) if number > 1 else "",
        "next": "?" + urlencode({**query, "page": number + 1}) if number < pages else "",
    }
    refused = InvalidArgument(f"subject: {problem}") if problem else None

    async def draw() -> dict[str, Any]:
        return {"picture": drawn(shown)}

    return Shown("Topology", data, extra, refused, draw=draw)


async def _rows(asked: Asked, subject: str) -> tuple[list[Row], bool]:
    """Return all streams that the viewer may read. Also return True if some consumers were not
    examined."""
    parts = asked.parts
    listing = await parts.readers.listing()
    readers = await listing.of_streams()
    names = [name for name in parts.broker.stream_names() if asked.may("read", name)]
    infos = await parts.descriptions.of(names)
    rows = []
    slices = Slices()
    for info in infos:
        await slices.pause()
        rows.append(_row(asked, info, subject, readers.get(info.name, _NO_READERS)))
    # Checked again after the last await: the ACL may have changed.
    return [row for row in rows if asked.may("read", row["name"])], listing.has_more


_NO_READERS = StreamReaders([], 0, "")


def _row(asked: Asked, info: StreamInfo, subject: str, readers: StreamReaders) -> Row:
    replication = leader_of(asked, info.name)
    filters = info.recorded_subjects
    return {
        "name": info.name,
        "filters": filters,
        "queue_group": info.queue_group,
        "state": info.state,
        "acks": info.acks,
        "records": info.state in _RECORDING,
        "leader": replication["leader"] if replication else "",
        "why": why_recorded(filters, subject) if subject else "",
        "may_administer": asked.may("admin", info.name),
        "readers": readers.shown,
        "more": readers.more,
        "names": readers.names,
    }


_RECORDING = frozenset({"attached", "follower", "elsewhere"})
"""States in which a stream records messages. In all other states, messages are refused or
missed."""


def _is_about(row: Row, wanted: str) -> bool:
    lowered = wanted.lower()
    names = row.pop("names")
    return lowered in row["name"].lower() or lowered in names.lower()


# --- why ---


def why_recorded(filters: list[str], subject: str) -> str | None:
    """Return the reason why a stream with these filters records messages on `subject`. Return None
    if no filter matches. `subject` may be a pattern."""
    for one in filters:
        if not overlaps(one, subject):
            continue
        if is_literal(subject):
            return f"`{one}` is this subject" if one == subject else _stands_for(one, subject)
        if is_subset(subject, one):
            return f"`{one}` covers all subjects of `{subject}`"
        if is_subset(one, subject):
            return f"`{one}` lies within `{subject}`"
        return f"`{one}` has some subjects in common with `{subject}`"
    return None


def _stands_for(pattern: str, subject: str) -> str:
    given = subject.split(".")
    parts = []
    for at, token in enumerate(pattern.split(".")):
        if token == "*":
            parts.append(f"`*` stands for `{given[at]}`")
        elif token == ">":
            parts.append(f"`>` stands for `{'.'.join(given[at:])}`")
    return f"`{pattern}` matches: {', '.join(parts)}"


def why_not(pattern: str, subject: str) -> str:
    """Describe the first difference between `subject` and a `pattern` that does not match it."""
    wanted, given = pattern.split("."), subject.split(".")
    for number, (want, have) in enumerate(zip(wanted, given, strict=False), 1):
        if want in ("*", have) or have in ("*", ">"):
            continue
        if want == ">":
            break
        case = ", and NATS subjects are case-sensitive" if want.lower() == have.lower() else ""
        return f"token {number} is `{have}`; `{pattern}` has `{want}` there{case}"
    least = len(wanted)
    how = f"at least {least}" if wanted[-1] == ">" else str(least)
    tokens = "token" if len(given) == 1 else "tokens"
    return f"the subject has {len(given)} {tokens}; `{pattern}` needs {how}"


def _near(rows: list[Row], subject: str) -> list[Row]:
    """Return the streams that have a filter with the longest beginning in common with the
    subject."""
    found = sorted(
        (-shared, row["name"], one)
        for row in rows
        for one in row["filters"]
        if row["why"] is None and (shared := _shared(one, subject))
    )
    return [
        {"name": name, "filter": one, "why_not": why_not(one, subject)}
        for _, name, one in found[:_MAX_NEAR]
    ]


def _shared(pattern: str, subject: str) -> int:
    """Return the number of leading tokens that are equal without regard to case. A wildcard token
    counts as equal. If only wildcards match, return 0."""
    count = literal = 0
    for want, have in zip(pattern.lower().split("."), subject.lower().split("."), strict=False):
        if want not in ("*", have):
            break
        count += 1
        literal += want == have
    return count if literal else 0
