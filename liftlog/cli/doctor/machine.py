"""Checks the machine: data directory, its sync time, file descriptors, clock."""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from liftlog.cli.doctor import FAILED, OK, SKIPPED, WARNING, Checkup
from liftlog.cli.lib.text import show_size
from liftlog.log.files.acked_end import BOOT_ID_UNKNOWN, current_boot_id
from liftlog.log.offline.files import existing_part
from liftlog.server.vitals.descriptors import KEPT_BACK, LEAST
from liftlog.settings import Settings

_SYNCS = 32
_SLOW_SYNC_SECONDS = 0.05
_FREE_PART = 0.1
_FEW_BYTES = 1 << 30
_SHARED_FILES = 512
_YEAR_2024 = 1_704_067_200
_STA_UNSYNC = 0x40
_VOLATILE = {"tmpfs": "is in memory: nothing survives a restart", "ramfs": "is in memory"}
_REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")


def check_data_dir(settings: Settings) -> Iterator[Checkup]:
    """Check permissions, kind and free space of the data directory. If it does not exist, its
    nearest existing parent is checked."""
    path = settings.data_dir.absolute()
    there = existing_part(path)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        advice = "set another data_dir, or run this as the daemon's user"
        yield Checkup("data_dir", FAILED, f"{path}: {error.strerror}", advice)
        return
    if not there.is_dir():
        yield Checkup("data_dir", FAILED, f"{there} is not a directory", "set another data_dir")
        return
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        who = f"user {os.geteuid()} may not write {there}"
        yield Checkup("data_dir", FAILED, who, "run this as the daemon's user, or chown it to it")
    elif there == path and there.stat().st_mode & stat.S_IWOTH:
        yield Checkup("data_dir", WARNING, f"all users may write {path}", f"chmod o-w {path}")
    else:
        made = "" if there == path else " (it will be created)"
        yield Checkup("data_dir", OK, f"{path} can be written{made}")
    yield from _file_system(there)
    yield _room(there)


def _file_system(path: Path) -> Iterator[Checkup]:
    kind = _mounted_kind(path)
    if kind in _VOLATILE:
        yield Checkup("file system", FAILED, f"{kind} {_VOLATILE[kind]}", "use a disk")
    elif kind in _REMOTE:
        yield Checkup(
            "file system",
            WARNING,
            f"{kind}: what fdatasync and locks promise there depends on the server",
            "use a local disk or a block device",
        )
    else:
        yield Checkup("file system", OK if kind else SKIPPED, kind or "unknown")


def _mounted_kind(path: Path) -> str:
    """Return the type of the file system that contains `path`; the deepest mount counts."""
    best, kind = "", ""
    real = str(path.resolve())
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split()[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind


def _room(path: Path) -> Checkup:
    found = os.statvfs(path)
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    detail = f"{show_size(free)} of {show_size(size)} are free at {path}"
    advice = "free space, or let retention keep less (retention.max_bytes)"
    if free < 16 << 20 or (found.f_files and not found.f_favail):
        return Checkup("free space", FAILED, detail, advice)
    if free < _FEW_BYTES or free < size * _FREE_PART:
        return Checkup("free space", WARNING, detail, advice)
    return Checkup("free space", OK, detail)


def check_sync(settings: Settings) -> Iterator[Checkup]:
    """Measure the duration of an fdatasync. Every ack waits for an fdatasync, so this duration
    limits a publisher that waits for each ack."""
    try:
        seconds = measure_syncs(existing_part(settings.data_dir))
    except OSError as error:
        yield Checkup("fdatasync", SKIPPED, f"cannot measure it: {error.strerror}")
        return
    median, worst = statistics.median(seconds), max(seconds)
    detail = f"{median * 1000:.2f} ms, at worst {worst * 1000:.1f} ms ({_SYNCS} times 4 KiB)"
    if median > _SLOW_SYNC_SECONDS:
        advice = "use a faster disk: a synchronous publisher waits that long for each ack"
        yield Checkup("fdatasync", WARNING, detail, advice)
    else:
        yield Checkup("fdatasync", OK, detail)


def measure_syncs(directory: Path) -> list[float]:
    """Time some small writes with fdatasync in this directory; return the seconds that each took.
    Raises OSError."""
    path = directory / f".liftlog-doctor-{os.getpid()}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        found = []
        for number in range(_SYNCS):
            began = time.perf_counter()
            os.pwrite(fd, b"\1" * 4096, number * 4096)
            os.fdatasync(fd)
            found.append(time.perf_counter() - began)
        return found
    finally:
        os.close(fd)
        path.unlink()


def check_file_descriptors(settings: Settings) -> Iterator[Checkup]:
    """Compare the limits in the settings with the number of files that this process may open. The
    check counts two files for each stream, but at most 512 for all streams together, because idle
    streams keep no files open."""
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = (
        settings.log.max_open_files
        + settings.pull.max_connections
        + settings.http.max_connections
        + min(2 * len(settings.streams), _SHARED_FILES)
        + KEPT_BACK
    )
    if 0 <= hard < LEAST:
        detail = f"{hard:,} may be open, the daemon does not start with less than {LEAST}"
        yield Checkup("file descriptors", FAILED, detail, f"LimitNOFILE={needed}")
        return
    detail = f"{limit:,} may be open in this shell, the daemon needs up to {needed:,}"
    if limit != resource.RLIM_INFINITY and limit < needed:
        more = f"ulimit -n {needed}" if hard >= needed or hard < 0 else f"LimitNOFILE={needed}"
        yield Checkup("file descriptors", WARNING, detail, f"{more}, or lower pull.max_connections")
    else:
        yield Checkup("file descriptors", OK, detail)


def check_boot_id() -> Iterator[Checkup]:
    """Check that the kernel provides a boot id. After a kill, the restarted daemon compares boot
    ids: an equal id means that the machine has not rebooted, and that acked data is still in the
    page cache."""
    if current_boot_id():
        yield Checkup("boot id", OK, "can be read")
    else:
        yield Checkup("boot id", WARNING, *BOOT_ID_UNKNOWN)


def check_clock() -> Iterator[Checkup]:
    """Check the wall clock, which timestamps and retention by age depend on."""
    if time.time() < _YEAR_2024:
        yield Checkup(
            "clock",
            FAILED,
            f"it says {time.strftime('%Y-%m-%d %H:%M')}",
            "set it: run an NTP client",
        )
        return
    synchronised = _is_synchronised()
    if synchronised is None:
        yield Checkup("clock", SKIPPED, "the kernel does not say whether it is synchronised")
    elif synchronised:
        yield Checkup("clock", OK, "synchronised")
    else:
        advice = "run an NTP client (chrony, systemd-timesyncd); a container shows its host's clock"
        yield Checkup("clock", WARNING, "the kernel reports that it is not synchronised", advice)


def _is_synchronised() -> bool | None:
    """Return the state of the clock from adjtimex(2), which changes nothing if `modes` is 0."""
    buffer = ctypes.create_string_buffer(512)  # struct timex is smaller on all systems
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        return None
    if state < 0:
        return None
    long_size = ctypes.sizeof(ctypes.c_long)
    # modes, offset, freq, maxerror, esterror, status; the first field is padded to a long.
    status = ctypes.c_int.from_buffer(buffer, 5 * long_size).value
    return not status & _STA_UNSYNC
