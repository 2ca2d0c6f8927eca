"""What an export is asked to do. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from liftlog.errors import InvalidArgument
from liftlog.names import check_consumer_name, check_stream_name
from liftlog.spark.columns import DEFAULT, DEFAULT_WITH_HEADERS
from liftlog.spark.export.snapshot import Mode
from liftlog.spark.options import DEFAULT_LEASE_SECONDS

Format: TypeAlias = Literal["parquet", "delta"]

DEFAULT_KEEP_SECONDS = 3600.0
CHECKPOINT_PREFIX = "export-"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """One run. `mode` None: the mode of the table; compacted for a new one.

    `full` reads the whole stream again and replaces the table, with `discard_rows` even if the
    stream no longer has all of its rows; `skip_lost` continues after records that are damaged or
    were removed; `optimize` merges small files; `keep_seconds` is how long files of superseded
    snapshots are kept for their readers.
    """

    stream: str
    to: str
    mode: Mode | None = None
    format: Format = "parquet"
    full: bool = False
    discard_rows: bool = False
    optimize: bool = False
    headers: bool = True
    skip_lost: bool = False
    name: str | None = None
    dry_run: bool = False
    keep_seconds: float = DEFAULT_KEEP_SECONDS
    lease_seconds: int = DEFAULT_LEASE_SECONDS
    partition_bytes: int | None = None

    def __post_init__(self) -> None:
        check_stream_name(self.stream, may_be_system=True)
        check_consumer_name(self.consumer)
        if self.discard_rows and not self.full:
            raise InvalidArgument("--discard-rows permits --full to remove rows: use both")
        if self.optimize and self.format == "delta":
            raise InvalidArgument(
                "--optimize is for Parquet tables",
                hint="run OPTIMIZE on a Delta table, with any Delta tool",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        return DEFAULT_WITH_HEADERS if self.headers else DEFAULT

    @property
    def consumer(self) -> str:
        """The checkpoint's name: `export-` and `name`, by default the last part of `to`."""
        name = self.name
        if name is None:
            last = self.to.rstrip("/").rpartition("/")[2]
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", last)[:64] or self.stream
        elif not name:
            raise InvalidArgument("the name of the checkpoint is empty")
        return CHECKPOINT_PREFIX + name
