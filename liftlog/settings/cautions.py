"""What is allowed and hardly meant: no finding, since somebody may want it so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from acl.policy import Policy

from .addresses import parse_host_port, parse_listen
from .daemon import Settings


class Caution(NamedTuple):
    setting: str
    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}: {self.advice}"


def cautions(settings: Settings, policy: Policy | None) -> Iterator[Caution]:
    """`policy` is that of the ACL file: whoever has one cares who reads what."""
    if policy is not None:
        yield from _unencrypted(settings, policy)


def _unencrypted(settings: Settings, policy: Policy) -> Iterator[Caution]:
    """Listening beyond this machine without TLS."""
    what = "tokens and records" if policy.accepts_tokens else "records"
    for index, url in enumerate(settings.pull.listen):
        address = parse_listen(url)
        if not (address.is_local or address.tls):
            yield Caution(
                f"pull.listen[{index}]",
                f"{what} pass {url} unencrypted",
                "listen on tls://HOST:PORT and set pull.tls",
            )
    http = settings.http
    takes_tokens = policy.accepts_tokens and (http.web or http.log_api)
    if http.listen is not None and takes_tokens and not parse_host_port(http.listen).is_local:
        yield Caution(
            "http.listen",
            f"tokens pass http://{http.listen} unencrypted",
            "put a proxy for TLS in front, or switch http.web and http.log_api off",
        )
