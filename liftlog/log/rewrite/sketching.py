"""Making the sketch of a sealed segment, for reads that want few of its records."""

from __future__ import annotations

from contextlib import closing, suppress

from liftlog.log.filesystem import FileSystem
from liftlog.log.index import read_index
from liftlog.log.rewrite.job import (
    OnProgress,
    Progress,
    SketchJob,
    SketchResult,
    Throttle,
    no_progress,
    no_throttle,
    path_of,
)
from liftlog.log.rewrite.segments import WINDOW_BYTES
from liftlog.log.sketch import SketchBuilder, sketch_path, write_sketch
from liftlog.log.walk import Missing, walk


def make_sketch(
    job: SketchJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> SketchResult:
    """Write the sketch of `job.source`; none for a segment in which anything is missing, since a
    reader has to come across that.

    Raises OSError; UnsupportedFormat for what a newer liftlog wrote.
    """
    entry = job.source
    path = path_of(job.directory, entry)
    index = read_index(fs, path, entry.base_offset)
    builder = SketchBuilder(entry.base_offset)
    paid = 0
    with closing(fs.open(path, writable=False)) as file:
        size = min(file.size(), entry.size_bytes)
        end_offset = entry.next_offset
        items = walk(
            file, entry.base_offset, size, size, index, end_offset=end_offset, epochs=job.epochs
        )
        for item in items:
            if isinstance(item, Missing) or size < entry.size_bytes:
                return SketchResult(entry.file_name, 0)
            builder.add(item.position, item.batch)
            if item.position - paid >= WINDOW_BYTES:
                throttle(item.position - paid)
                paid = item.position
                progress(Progress("sketch", paid, entry.size_bytes))
    content = builder.to_bytes(entry, job.lineage)
    write_sketch(fs, path, content)
    if not fs.exists(path):
        # Retention was quicker, and removed the segment before this file was there.
        with suppress(FileNotFoundError):
            fs.unlink(sketch_path(path))
    return SketchResult(entry.file_name, len(content))
