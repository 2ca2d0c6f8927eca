"""Shows one group with its members, the slots that each member owns, and
the lag of each slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from liftlog.errors import LiftlogError
from liftlog.names import check_consumer_name
from liftlog.protocol.groups import (
    DescribeGroup,
    GroupAnswer,
    GroupInfo,
)
from liftlog.server.web import formats
from liftlog.server.web.asking import Asked, Shown

MAX_MEMBERS = 100
STRIP_HEIGHT = 20


async def group(asked: Asked) -> Shown:
    """Show one group, or a note that the group does not exist."""
    stream, name = asked.authorize("read"), asked.request.match_info["group"]
    check_consumer_name(name)
    answer = await asked.carry_out(DescribeGroup(stream, name))
    assert isinstance(answer, GroupAnswer), "the answer to group"
    info = answer.info
    lags = None if info is None else await _lags(asked, info)
    asked.authorize("read")  # checked again after the await
    data: dict[str, Any] = {"stream": stream, "group": name, "exists": info is not None}
    if info is not None:
        data |= _described(info, lags)
    # The daemon draws the pictures, so the page is loaded again when one of these values changes.
    # The lags are included, because the lag of a slot grows even without a commit.
    data["shape"] = [data.get(name) for name in ("generation", "members", "without_owner", "lags")]
    top = max(lags or [0])
    strips = {
        one["name"]: _strip(one["owned"], lags or [], top)
        for one in [*data.get("members", []), *data.get("without_owner", [])]
    }
    whole = _strip(range(len(lags or [])), lags or [], top)
    extra = {"strips": strips, "whole": whole, "strip_height": STRIP_HEIGHT, "top": top}
    return Shown(f"Group {name} of {stream}", data, extra)


async def _lags(asked: Asked, info: GroupInfo) -> list[int] | None:
    """Return the lag of each slot, in records; None if the stream cannot be described."""
    try:
        stream = await asked.describe()
    except LiftlogError:
        return None
    end, start = stream.high_watermark, stream.log_start_offset
    return [max(end - max(offset, start), 0) for offset in info.offsets]


def _described(info: GroupInfo, lags: list[int] | None) -> dict[str, Any]:
    owned: dict[str, list[int]] = {}
    for slot, owner in enumerate(info.owners):
        owned.setdefault(owner, []).append(slot)
    members = [{**one, "owned": owned.get(one["name"], [])} for one in info.members]
    members.sort(key=lambda one: (-(one["lag"] or 0), one["name"]))
    free = owned.get("", [])
    behind = max([lags[slot] for slot in free], default=0) if lags else None
    return {
        "generation": info.generation,
        "slot_count": info.slot_count,
        "lag": info.lag,
        "time_ns": info.time_ns,
        "principal": info.principal,
        "member_count": len(members),
        "members": members[:MAX_MEMBERS],
        "without_owner": [{"name": "", "slots": len(free), "lag": behind, "owned": free}]
        if free
        else [],
        "offsets": info.offsets,
        "lags": lags,
    }


def _strip(owned: Sequence[int], lags: Sequence[int], top: int) -> dict[str, Any]:
    """Return the template's values for the slots of one member: one block for each slot, with a bar
    as high as the lag."""
    texts = [_range(first, last) for first, last in _ranges(owned)]
    label = f"slots {', '.join(texts)}" if texts else "no slots"
    worst = max(owned, key=lambda slot: lags[slot], default=None) if lags else None
    if worst is not None and lags[worst]:
        label += f"; farthest behind is slot {worst}, by {formats.count(lags[worst])}"
    bars = []
    for slot in owned:
        lag = lags[slot] if lags else 0
        height = max(round(STRIP_HEIGHT * lag / top, 1), 1) if lag else 0
        said = f"slot {slot}: {formats.count(lag)} behind" if lags else f"slot {slot}"
        bars.append({"x": slot, "y": STRIP_HEIGHT - height, "height": height, "text": said})
    return {"label": label, "bars": bars}


def _ranges(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each stretch without a gap."""
    if not slots:
        return
    first = slots[0]
    for one, following in pairwise(slots):
        if following != one + 1:
            yield first, one
            first = following
    yield first, slots[-1]


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"
