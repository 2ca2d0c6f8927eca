"""The content of a table after a run of the export, and its encoding. Pure.

A manifest is one JSON object; docs/reference/export.md lists its fields. The last field is the
CRC-32C of all bytes before it, so a damaged manifest causes an error, and never a table with fewer
rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias, get_args

from crc32c import crc32c

from liftlog.errors import CorruptMetadata, UnsupportedFormat
from liftlog.spark.export.buckets import ALL_KEYS, Bucket

FORMAT = "liftlog-export"
VERSIONS = (1, 2)
"""The supported versions of manifests. A table of version 2 has rows that do not count, or files of
kind "changed", so that readers that only support version 1 must stop."""

Mode: TypeAlias = Literal["compacted", "append"]
Layout: TypeAlias = Literal["copy-on-write", "merge-on-read"]
Kind: TypeAlias = Literal["keyed", "keyless", "records", "changed", "removed"]

_TAIL = re.compile(rb',\n"crc32c":"([0-9a-f]{8})"\}\n\Z')


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file; `path` is relative to the table.

    `kind` is the content of the file. "keyed": the newest records of keys; "changed": the newest
    records of keys that have changed since the "keyed" files were written; "keyless": records
    without a key; "records": every record of a range; "removed": only offsets. `min_offset` and
    `max_offset` are the smallest and the largest offset of its rows. All keys of the file are in
    `bucket`. `removed_rows` is the number of its rows with offsets in files of kind "removed".
    """

    path: str
    kind: Kind
    rows: int
    size_bytes: int
    min_offset: int
    max_offset: int
    bucket: Bucket = ALL_KEYS
    removed_rows: int = 0

    @property
    def live_rows(self) -> int:
        return self.rows - self.removed_rows


@dataclass(frozen=True, slots=True)
class Lost:
    """Records [first_offset, next_offset) were damaged or removed before they could be exported."""

    first_offset: int
    next_offset: int
    reason: str


def merged_losses(losses: Iterable[Lost]) -> tuple[Lost, ...]:
    """Return losses with the same offsets, in order and without overlaps. Adjacent losses with the
    same reason become one."""
    merged: list[Lost] = []
    for one in sorted(losses, key=lambda lost: (lost.first_offset, -lost.next_offset)):
        last = merged[-1] if merged else None
        if last is not None and one.first_offset < last.next_offset:
            one = replace(one, first_offset=min(last.next_offset, one.next_offset))
        if one.first_offset == one.next_offset:
            continue
        if last is not None and (last.next_offset, last.reason) == (one.first_offset, one.reason):
            merged[-1] = replace(last, next_offset=one.next_offset)
        else:
            merged.append(one)
    return tuple(merged)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a table after one run, which read the offsets [from_offset, to_offset).

    In mode "compacted" the files contain the newest value of each key below `to_offset`, and all
    records without a key, from `log_start_offset` on. In mode "append" they contain all records
    that were exported since the last full run. `lost` are the records that these runs could not
    read, so that the files lack them. Rows whose offset is in a file of `removed` do not count;
    only the layout "merge-on-read" has such files.
    """

    sequence: int
    run: str
    previous_run: str
    stream: str
    incarnation: str
    epoch: int
    mode: Mode
    full: bool
    reason: str
    from_offset: int
    to_offset: int
    log_start_offset: int
    columns: tuple[str, ...]
    created_ns: int
    files: tuple[DataFile, ...]
    lost: tuple[Lost, ...] = ()
    removed: tuple[DataFile, ...] = ()
    layout: Layout = "copy-on-write"
    erasures: str = ""
    """The erasures whose rows the table lacks (`ErasedOffsets.newest`); empty if there was none."""

    @property
    def all_files(self) -> tuple[DataFile, ...]:
        return self.files + self.removed

    @property
    def has_changes(self) -> bool:
        """True if the table has files of changes or of removed offsets, which a fold would
        merge."""
        return bool(self.removed) or any(file.kind == "changed" for file in self.files)

    @property
    def doubtful_below(self) -> int:
        """The end of the last lost range. If the row of a key has a lower offset, a lost record may
        contain a newer value of the key."""
        if self.mode == "append":
            return 0
        return max([one.first_offset for one in self.lost], default=0)

    @property
    def rows(self) -> int:
        return sum(file.live_rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.all_files)


def to_content(snapshot: Snapshot) -> dict[str, Any]:
    """Return the fields of a snapshot, except for the files, as values for JSON."""
    content: dict[str, Any] = {"format": FORMAT, "version": _version(snapshot)}
    for one in fields(snapshot):
        if one.name not in ("files", "removed", "lost"):
            content[one.name] = getattr(snapshot, one.name)
    content["rows"], content["size_bytes"] = snapshot.rows, snapshot.size_bytes
    content["lost"] = [asdict(one) for one in snapshot.lost]
    return content


def encode_manifest(snapshot: Snapshot) -> bytes:
    lines = [f"{json.dumps(name)}:{_dumps(value)}" for name, value in to_content(snapshot).items()]
    lines.append(_listed("files", snapshot.files))
    if snapshot.removed:
        lines.append(_listed("removed", snapshot.removed))
    body = ("{" + ",\n".join(lines)).encode()
    return body + b',\n"crc32c":"%08x"}\n' % crc32c(body)


def _version(snapshot: Snapshot) -> int:
    """Return the lowest format version with which readers get the right rows."""
    return 2 if snapshot.has_changes else 1


def _listed(name: str, files: Iterable[DataFile]) -> str:
    lines = ",\n  ".join(_dumps(asdict(file)) for file in files)
    return f'"{name}":[{lines and chr(10) + "  "}{lines}]'


def decode_manifest(raw: bytes, name: str) -> Snapshot:
    """Decode a manifest. `name` appears in the texts of errors. Raises CorruptMetadata, and
    UnsupportedFormat if the manifest has a newer version."""
    tail = _TAIL.search(raw)
    if tail is None:
        raise _damaged(name, "it has no checksum at its end")
    if int(tail[1], 16) != crc32c(raw[: tail.start()]):
        raise _damaged(name, "its checksum does not match")
    try:
        content = json.loads(raw)
    except ValueError:
        raise _damaged(name, "it is not JSON") from None
    return from_content(content, content.get("files"), name)


def from_content(content: Any, files: Any, name: str) -> Snapshot:
    """Return the snapshot from the result of `to_content`, and files as in a manifest. Raises the
    errors of `decode_manifest`."""
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _damaged(name, f"it is not a {FORMAT}")
    if content.get("version") not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        raise UnsupportedFormat(
            f"{name} has version {content.get('version')!r} of its format; {known} are known",
            hint="use the liftlog that wrote it, or a newer one",
        )
    try:
        return _snapshot(content, files)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(name, f"its fields make no sense: {error!r}") from None


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _damaged(name: str, what: str) -> CorruptMetadata:
    return CorruptMetadata(
        f"{name} is damaged: {what}",
        hint="restore the file, or export everything again with --full",
    )


_WANTED: dict[str, type] = {
    "str": str,
    "int": int,
    "bool": bool,
    "Mode": str,
    "Kind": str,
    "Layout": str,
}
_LATER = {"layout": "copy-on-write", "removed_rows": 0, "erasures": ""}
"""Fields that manifests of the first versions lack, with the values to use in this case."""


def _snapshot(content: Mapping[str, Any], listed: Any) -> Snapshot:
    plain = _fields(Snapshot, content)
    if plain["mode"] not in get_args(Mode) or plain["sequence"] < 1:
        raise ValueError("mode, sequence")
    if plain["layout"] not in get_args(Layout):
        raise ValueError("layout")
    columns = content["columns"]
    if not isinstance(columns, list) or not all(isinstance(one, str) for one in columns):
        raise TypeError("columns")
    files = tuple(map(file_from, listed))
    removed = tuple(map(file_from, content.get("removed", [])))
    if any(file.kind == "removed" for file in files) or any(
        file.kind != "removed" for file in removed
    ):
        raise ValueError("removed")
    lost = tuple([Lost(**_fields(Lost, one)) for one in content["lost"]])
    return Snapshot(columns=tuple(columns), files=files, removed=removed, lost=lost, **plain)


def file_from(content: Mapping[str, Any]) -> DataFile:
    """Return the file for `content`, which is the result of `asdict`. Raises KeyError, TypeError,
    ValueError."""
    number, total = content.get("bucket", ALL_KEYS)  # the first versions had no buckets
    if type(number) is not int or type(total) is not int:
        raise TypeError("bucket")
    file = DataFile(**_fields(DataFile, content), bucket=Bucket(number, total))
    if file.kind not in get_args(Kind) or not is_safe_path(file.path):
        raise ValueError(file.path)
    if total.bit_count() != 1 or not 0 <= number < total:
        raise ValueError("bucket")
    if file.live_rows < 0:
        raise ValueError("removed_rows")
    return file


def _fields(kind: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for one in fields(kind):
        wanted = _WANTED.get(str(one.type))
        if wanted is None:
            continue
        value = content.get(one.name, _LATER[one.name]) if one.name in _LATER else content[one.name]
        if type(value) is not wanted or (isinstance(value, int) and value < 0):
            raise TypeError(one.name)
        found[one.name] = value
    return found


def is_safe_path(path: str) -> bool:
    """Return True if the path is below the table, and names the same file in a file system and in a
    URL."""
    return bool(re.fullmatch(r"(?!/)[A-Za-z0-9_./=-]+", path)) and ".." not in path.split("/")


_FILE_NAME = re.compile(
    r"(keyed|keyless|records|changed|removed)-(?:(\d+)-(\d+)-)?[0-9a-f]{32}\.parquet"
)


def file_name(kind: Kind, bucket: Bucket, unique: str) -> str:
    """Return the name of a data file. The name contains the kind and the bucket, because a Delta
    log does not."""
    place = f"{bucket.number}-{bucket.total}-" if bucket.total > 1 else ""
    return f"{kind}-{place}{unique}.parquet"


def parse_file_name(name: str) -> tuple[Kind, Bucket] | None:
    """Return kind and bucket from a file's name; None for a file that another tool has written."""
    found = _FILE_NAME.fullmatch(name)
    if found is None:
        return None
    kind: Any = found[1]
    return kind, Bucket(int(found[2]), int(found[3])) if found[2] else ALL_KEYS
