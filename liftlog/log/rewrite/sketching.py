"""Makes the sketch and the subject index of a sealed segment, for reads of a few records of the
segment."""

from __future__ import annotations

from contextlib import closing, suppress

from liftlog.log.files.filesystem import FileSystem
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
from liftlog.log.rewrite.subject_indexing import SubjectIndexBuilder
from liftlog.log.segment.derived import sketch_path, subject_index_path, write_derived
from liftlog.log.segment.index import read_index
from liftlog.log.segment.sketch import SketchBuilder, is_sketched, write_sketch
from liftlog.log.segment.subject_index import is_indexed
from liftlog.log.segment.walk import Missing, walk


def make_sketch(
    job: SketchJob,
    fs: FileSystem,
    progress: OnProgress = no_progress,
    throttle: Throttle = no_throttle,
) -> SketchResult:
    """Write the sketch of `job.source` if it is missing, and also the subject index if the job
    includes it.

    Writes no file for a segment with a gap or damage: with a sketch, readers would skip parts of
    the segment, and would not detect the problem. Raises OSError, and UnsupportedFormat for data of
    a newer liftlog.
    """
    entry = job.source
    path = path_of(job.directory, entry)
    sketch: SketchBuilder | None = None
    subjects: SubjectIndexBuilder | None = None
    if not is_sketched(fs, path, entry, job.lineage):
        sketch = SketchBuilder(entry.base_offset)
    if job.with_subjects and not is_indexed(fs, path, entry, job.lineage):
        subjects = SubjectIndexBuilder(entry.base_offset)
    paid = 0
    with closing(fs.open(path, writable=False)) as file:
        index = read_index(fs, file, entry, job.lineage.partition(":")[0])
        size = min(file.size(), entry.size_bytes)
        end_offset = entry.next_offset
        items = walk(
            file, entry.base_offset, size, size, index, end_offset=end_offset, epochs=job.epochs
        )
        for item in items:
            if sketch is None and (subjects is None or not subjects.is_useful):
                break  # no file is left to make
            if isinstance(item, Missing) or size < entry.size_bytes:
                return SketchResult(entry.file_name, 0)
            if sketch is not None:
                sketch.add(item.position, item.batch)
            if subjects is not None:
                subjects.add(item.position, item.batch)
            if item.position - paid >= WINDOW_BYTES:
                throttle(item.position - paid)
                paid = item.position
                progress(Progress("sketch", paid, entry.size_bytes))
    written = 0
    if sketch is not None:
        content = sketch.to_bytes(entry, job.lineage)
        write_sketch(fs, path, content)
        written += len(content)
    if subjects is not None:
        parts = subjects.parts(entry, job.lineage)
        written += write_derived(fs, subject_index_path(path), parts)
    if not fs.exists(path):
        # Retention removed the segment before these files were written.
        for beside in (sketch_path(path), subject_index_path(path)):
            with suppress(FileNotFoundError):
                fs.unlink(beside)
    return SketchResult(entry.file_name, written)
