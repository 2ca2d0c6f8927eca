"""Files behind a URL, through pyarrow: for Delta tables only.

A file is there, whole, when it was closed, and durable as far as the store promises that.
Credentials come from the environment, on every host, as pyarrow and delta-rs find them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import fs

from liftlog.errors import InvalidArgument
from liftlog.log.filesystem import storage_errors
from liftlog.spark.export.store import join


class RemoteStore:
    """A URL that `pyarrow.fs` knows: s3, gs, abfs, hdfs."""

    def __init__(self, url: str) -> None:
        # s3a is what Spark calls the stores that pyarrow and delta-rs call s3.
        self.uri = re.sub("^s3a://", "s3://", url.rstrip("/"))
        try:
            self._files, self._root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, OSError) as error:
            raise InvalidArgument(
                f"{url} cannot be written to: {str(error).splitlines()[0]}",
                hint="use a directory, or a URL of s3, gs, abfs or hdfs",
            ) from error

    def make_directory(self, path: str) -> None:
        with storage_errors(f"creating {self.uri}/{path}"):
            self._files.create_dir(self._at(path), recursive=True)

    def names(self, path: str) -> list[str]:
        selector = fs.FileSelector(self._at(path), allow_not_found=True)
        with storage_errors(f"listing {self.uri}/{path}"):
            return sorted(info.base_name for info in self._files.get_file_info(selector))

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        with storage_errors(f"reading {self.uri}/{path}"):
            with self._files.open_input_file(self._at(path)) as file:
                yield file

    def size(self, path: str) -> int | None:
        with storage_errors(f"looking at {self.uri}/{path}"):
            info = self._files.get_file_info(self._at(path))
        return info.size if info.type == fs.FileType.File else None

    def sync(self, path: str) -> None:
        """What is stored there is durable."""

    def remove(self, path: str) -> None:
        where = self._at(path)
        with storage_errors(f"removing {self.uri}/{path}"):
            kind = self._files.get_file_info(where).type
            if kind == fs.FileType.Directory:
                self._files.delete_dir(where)
            elif kind == fs.FileType.File:
                self._files.delete_file(where)

    @contextmanager
    def writing(self, path: str) -> Iterator[Any]:
        with storage_errors(f"writing {self.uri}/{path}"):
            with self._files.open_output_stream(self._at(path)) as file:
                yield file

    def _at(self, path: str) -> str:
        return join(self._root, path)
