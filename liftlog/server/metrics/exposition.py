"""`GET /metrics`: reads plain counters at the moment of the scrape.

The code on the path of messages only counts. A scrape of many streams takes a while, so it yields
to the event loop several times. Therefore the values of two metrics of a page may be some
milliseconds apart, but each histogram is consistent.

The text has the format of Prometheus, version 0.0.4. prometheus_client is not used, because it
takes about 10 us per sample. With 500 streams it would stop the event loop for half a second. This
module formats the labels of a stream once, and each sample of the stream with one f-string.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

from liftlog.groups.state import FREE, GroupState
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.groups import UNNAMED
from liftlog.server.checkpoints.groups import Progress
from liftlog.server.commits.host import StreamHost
from liftlog.server.metrics.ack_consumers import ACK_CONSUMER_VALUES, AckConsumerRows
from liftlog.server.metrics.table import CONSUMERS, GROUPS, METRICS, Metric
from liftlog.server.metrics.values import (
    CLEANING_VALUES,
    ERASED_COUNTS,
    ERASED_VALUES,
    STREAM_HISTOGRAMS,
    STREAM_VALUES,
    Sources,
    by_cause,
    daemon_histograms,
    daemon_values,
    erased_left,
    labelled_histograms,
    labelled_values,
    refused,
)
from liftlog.server.vitals.histogram import Histogram
from liftlog.server.vitals.slices import Slices

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Return labels such as `stream="orders",reason="paused"`, without braces, so that more labels
    can be appended."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in pairs)


def number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # bool is excluded, because True equals 1
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


@lru_cache
def _bucket_ends(bounds: tuple[float, ...]) -> list[str]:
    """Return, for each bucket, the text between its other labels and its count: the label `le`,
    the closing brace and a blank."""
    return [f'le="{number(float(bound))}"}} ' for bound in (*bounds, float("inf"))]


class Page:
    """The lines of the page in their order. All samples of a metric follow its `begin`."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def begin(self, metric: Metric) -> None:
        text = metric.help.translate(_HELP_ESCAPES)
        self._lines.append(f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n")

    def sample(self, name: str, labels: str, value: float) -> None:
        shown = f"{name}{{{labels}}}" if labels else name
        self._lines.append(f"{shown} {value if type(value) is int else number(value)}\n")

    def histogram(self, name: str, labels: str, histogram: Histogram) -> None:
        """Add a histogram in one call, so that its buckets and its count are of the same moment."""
        begin = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
        totals = list(accumulate(histogram.counts))
        self._lines += [
            f"{begin}{end}{total}\n"
            for end, total in zip(_bucket_ends(histogram.bounds), totals, strict=True)
        ]
        self.sample(f"{name}_sum", labels, histogram.sum)
        self.sample(f"{name}_count", labels, totals[-1])

    def to_bytes(self) -> bytes:
        return "".join(self._lines).encode("utf-8", "backslashreplace")


_LOOK_EVERY = 64
_PAGE = 250
"""Number of checkpoints that are written without a pause. Writing them takes about two
milliseconds."""
MAX_SHOWN_CHECKPOINTS = 10_000
MAX_SHOWN_GROUPS = 1_000
MAX_SHOWN_PARTS = 10_000

_GROUP_METRICS = [metric for metric in GROUPS if "group" in metric.labels]
_CHECKPOINT_METRICS = [metric for metric in CONSUMERS if metric.labels == ("consumer", "stream")]


class Exposition:
    """Renders the page. Belongs to the event loop."""

    content_type = CONTENT_TYPE

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._one_at_a_time = asyncio.Lock()
        self._slices = Slices()
        self._ack_consumers = AckConsumerRows()

    async def render(self) -> bytes:
        """Return the encoded page."""
        async with self._one_at_a_time:
            self._slices = Slices()
            page = Page()
            await self._streams(page)
            shown = await self._checkpoints(page)
            found = await self._sources.broker.conditions.now()
            values = daemon_values(self._sources, found)
            values["liftlog_checkpoints_not_shown"] = values["liftlog_checkpoints"] - shown
            values["liftlog_groups_not_shown"] = await self._groups(page)
            values["liftlog_ack_consumers_not_shown"] = await self._workers(page)
            for name, value in values.items():
                page.begin(METRICS[name])
                page.sample(name, "", value)
            for name, histogram in daemon_histograms(self._sources).items():
                page.begin(METRICS[name])
                page.histogram(name, "", histogram)
            for name, histograms in labelled_histograms(self._sources).items():
                page.begin(METRICS[name])
                for labels, histogram in histograms.items():
                    page.histogram(name, labels_text(METRICS[name].labels, labels), histogram)
            for name, samples in labelled_values(self._sources, found).items():
                page.begin(METRICS[name])
                for labels, number in samples.items():
                    page.sample(name, labels_text(METRICS[name].labels, labels), number)
            return page.to_bytes()

    async def _streams(self, page: Page) -> None:
        hosts = [
            (host, labels_text(("stream",), (name,)))
            for name, host in self._sources.broker.hosts.items()
        ]
        for name, value in STREAM_VALUES.items():
            page.begin(METRICS[name])
            for batch in _batches(hosts):
                for host, labels in batch:
                    page.sample(name, labels, value(host))
                await self._slices.pause()
        for name, cleaning in CLEANING_VALUES.items():
            page.begin(METRICS[name])
            for batch in _batches(hosts):
                for host, labels in batch:
                    page.sample(name, labels, cleaning(self._sources.cleaner.state_of(host)))
                await self._slices.pause()
        for name, histogram in STREAM_HISTOGRAMS.items():
            page.begin(METRICS[name])
            for batch in _batches(hosts):
                for host, labels in batch:
                    page.histogram(name, labels, histogram(host))
                await self._slices.pause()
        await self._erased(page, hosts)
        await self._attached_and_refused(page, hosts)

    async def _erased(self, page: Page, hosts: list[tuple[StreamHost, str]]) -> None:
        now_ns = self._sources.broker.now_ns()
        found = []
        for batch in _batches(hosts):
            found += [(erased_left(host, now_ns), labels) for host, labels in batch]
            await self._slices.pause()
        for name, value in ERASED_VALUES.items():
            page.begin(METRICS[name])
            for left, labels in found:
                page.sample(name, labels, value(left))
            await self._slices.pause()
        for name, counts in ERASED_COUNTS.items():
            page.begin(METRICS[name])
            for batch in _batches(hosts):
                for host, labels in batch:
                    for cause, count in by_cause(counts(host)).items():
                        both = f"{labels},{labels_text(('cause',), (cause,))}"
                        page.sample(name, both, count)
                await self._slices.pause()

    async def _attached_and_refused(self, page: Page, hosts: list[tuple[StreamHost, str]]) -> None:
        page.begin(METRICS["liftlog_stream_attached"])
        hosted = self._sources.broker.hosted
        for host, labels in hosts:
            if hosted.state_of(host) not in ("internal", "follower"):  # these receive no messages
                page.sample("liftlog_stream_attached", labels, hosted.attachments.is_attached(host))
        await self._slices.pause()
        page.begin(METRICS["liftlog_refused_total"])
        for batch in _batches(hosts):
            for host, labels in batch:
                for reason, count in refused(host).items():
                    both = f"{labels},{labels_text(('reason',), (reason,))}"
                    page.sample("liftlog_refused_total", both, count)
            await self._slices.pause()

    async def _checkpoints(self, page: Page) -> int:
        """Add the metrics of checkpoints. Returns the number of checkpoints that are shown.

        Each checkpoint is read once for all its metrics. The samples are written afterwards, metric
        by metric, because the samples of a metric must be adjacent.
        """
        rows: list[tuple[str, list[float | None]]] = []
        if self._sources.broker.has_checkpoints:
            checkpoints, after = self._sources.broker.checkpoints, None
            while len(rows) < MAX_SHOWN_CHECKPOINTS:
                found, after = checkpoints.page(lambda _: True, after=after, limit=_PAGE)
                rows += map(_row, found)
                if after is None:
                    break
                await self._slices.pause()
            del rows[MAX_SHOWN_CHECKPOINTS:]
        for column, metric in enumerate(_CHECKPOINT_METRICS):
            await self._column(page, metric, column, rows)
        return len(rows)

    async def _groups(self, page: Page) -> int:
        """Add the metrics of consumer groups. Returns the number of groups that are left out.

        The number of metrics is limited. A metric for each slot of every group, or for each random
        name of a member, would be too many for a monitoring system.
        """
        rows: dict[str, list[tuple[str, float]]] = {metric.name: [] for metric in _GROUP_METRICS}
        keys, parts_left = [], MAX_SHOWN_PARTS
        if self._sources.broker.has_checkpoints:
            groups = self._sources.broker.checkpoints.groups
            keys = groups.keys()
            for key in keys[:MAX_SHOWN_GROUPS]:
                found = groups.progress(key)
                if found is not None:  # the group was removed in the meantime
                    parts_left -= found.state.slots + len(found.state.members)
                    _add_group(rows, labels_text(("group", "stream"), key), found, parts_left >= 0)
                await self._slices.pause()
        for metric in _GROUP_METRICS:
            page.begin(metric)
            for number, (labels, value) in enumerate(rows[metric.name]):
                page.sample(metric.name, labels, value)
                if number % _LOOK_EVERY == 0:
                    await self._slices.pause()
        return max(len(keys) - MAX_SHOWN_GROUPS, 0)

    async def _workers(self, page: Page) -> int:
        """Add the metrics of consumers with acks. Returns the number of consumers that are left
        out."""
        api, streams = self._sources.health.jetstream_api, [*self._sources.broker.hosts]
        table = None if api is None else api.acked
        found, left_out = await self._ack_consumers.read(table, streams, self._slices)
        names = ("consumer", "stream")
        rows = [(labels_text(names, one), values) for one, values in found]
        for column, name in enumerate(ACK_CONSUMER_VALUES):
            await self._column(page, METRICS[name], column, rows)
        return left_out

    async def _column(
        self,
        page: Page,
        metric: Metric,
        column: int,
        rows: Sequence[tuple[str, Sequence[float | None]]],
    ) -> None:
        page.begin(metric)
        for number, (labels, values) in enumerate(rows):
            value = values[column]
            if value is not None:
                page.sample(metric.name, labels, value)
            if number % _LOOK_EVERY == 0:
                await self._slices.pause()


def _row(found: Checkpoint) -> tuple[str, list[float | None]]:
    """Return the labels of a checkpoint, and its values in the order of `_CHECKPOINT_METRICS`."""
    labels = labels_text(("consumer", "stream"), (found.consumer, found.stream))
    unreadable = 1 if found.problem else 0
    return labels, [found.lag, found.offset, found.time_ns / 1e9, unreadable]


def _add_group(
    rows: dict[str, list[tuple[str, float]]], labels: str, found: Progress, shows_parts: bool
) -> None:
    state, lags = found
    rows["liftlog_group_members"].append((labels, len(state.members)))
    rows["liftlog_group_generation"].append((labels, state.generation))
    rows["liftlog_group_free_slots"].append((labels, state.owners.count(FREE)))
    if lags:
        rows["liftlog_group_lag"].append((labels, max(lags)))
    if shows_parts:
        _add_parts(rows, labels, state, lags or [])


def _add_parts(
    rows: dict[str, list[tuple[str, float]]], labels: str, state: GroupState, lags: list[int]
) -> None:
    """Add the samples of a group's members. Members with random names are added up as one member,
    because each new random name would create new metrics."""
    owned: dict[str, list[int]] = {}
    for slot, owner in enumerate(state.owners):
        if owner != FREE:
            owned.setdefault("unnamed" if owner.startswith(UNNAMED) else owner, []).append(slot)
    for member in state.members:
        owned.setdefault("unnamed" if member.startswith(UNNAMED) else member, [])
    for member, slots in owned.items():
        of_member = f"{labels},{labels_text(('member',), (member,))}"
        rows["liftlog_group_member_slots"].append((of_member, len(slots)))
        if lags:
            behind = max([lags[slot] for slot in slots], default=0)
            rows["liftlog_group_member_lag"].append((of_member, behind))
    rows["liftlog_group_slot_lag"] += [
        (f'{labels},slot="{slot}"', lag) for slot, lag in enumerate(lags)
    ]


def _batches(hosts: list[tuple[StreamHost, str]]) -> Iterator[list[tuple[StreamHost, str]]]:
    for start in range(0, len(hosts), _LOOK_EVERY):
        yield hosts[start : start + _LOOK_EVERY]
