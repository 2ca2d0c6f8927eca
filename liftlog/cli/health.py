"""`liftlog health`: reports with its exit code whether the daemon is alive and ready."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

import click

from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.conditions import UNREADY, Shown, conditions_of, shown
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import connect_to_server, debug_option, output_format, server_options
from liftlog.cli.lib.output import print_pairs, write_object
from liftlog.cli.lib.problems import Problem

_MAX_ANSWER_BYTES = 1_000_000


@click.command(cls=Command)
@click.option(
    "--http",
    "http_address",
    metavar="HOST:PORT",
    help="Request /readyz at this address, instead of using the pull address. [env: "
    "LIFTLOG_HTTP_ADDRESS]",
)
@click.option(
    "--live",
    is_flag=True,
    help="With --http: request /livez instead, to check that the daemon is alive.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=5.0,
    metavar="SECONDS",
    help="Longest wait for the answer. Default: 5.",
)
@server_options
@debug_option
def health(http_address: str | None, live: bool, timeout: float) -> ExitCode:
    """Show whether the daemon is ready.

    The exit code is 0 for a ready daemon, 11 for a daemon that is not ready, and 4 if the daemon
    does not answer. The pull address and the HTTP address give the same result and the same
    conditions, each with its next step. At the pull address, you may need a token, and the command
    shows only conditions of streams that you may read. Over HTTP, the command also shows the checks
    of /readyz. Warnings and errors of single streams (lost records, failing compaction) do not
    change the exit code.

    \b
    Examples:
      liftlog health
      liftlog health --http 127.0.0.1:8292 --output json
    """
    address = http_address or os.environ.get("LIFTLOG_HTTP_ADDRESS")
    if live and not address:
        raise click.UsageError("--live needs --http.", click.get_current_context())
    if address:
        ready, found = _ask_http(address, "/livez" if live else "/readyz", timeout)
    else:
        ready, found = _ask_pull(timeout)
    style = output_format()
    if style == "table":
        print_pairs(_facts(ready, found))
    else:
        write_object({"ready": ready, **found}, style)
    return ExitCode.OK if ready else ExitCode.TRY_AGAIN


def _ask_pull(timeout: float) -> tuple[bool, dict[str, Any]]:
    with connect_to_server(
        connect_timeout=timeout, request_timeout=timeout, reconnect_for=0
    ) as client:
        found = client.metadata()
    conditions = conditions_of(found)
    problems = [one for one in conditions if one.severity == UNREADY]
    return not problems, {
        "status": "not ready" if problems else "ok",
        "problems": _by_name(problems),
        "warnings": _by_name(one for one in conditions if one.severity != UNREADY),
        "conditions": found.conditions,
        "name": found.name,
    }


def _by_name(conditions: Iterable[Shown]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for one in conditions:
        found.setdefault(one.name, []).append(one.text)
    return {name: "; ".join(texts) for name, texts in found.items()}


def _ask_http(address: str, path: str, timeout: float) -> tuple[bool, dict[str, Any]]:
    host, port = _host_and_port(address)
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        found = json.loads(answer.read(_MAX_ANSWER_BYTES))
        if not isinstance(found, dict) or not isinstance(found.get("status"), str):
            raise ValueError("not the answer of a daemon")
        return answer.status == 200, found
    except (OSError, HTTPException, ValueError) as error:
        raise Problem(
            f"no answer from http://{address}{path}: {error}",
            ExitCode.CANNOT_CONNECT,
            hint="check --http (http.listen of the daemon) and that `liftlog serve` runs",
        ) from error
    finally:
        connection.close()


def _host_and_port(address: str) -> tuple[str, int]:
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme != "http" or not parts.hostname or not parts.port or parts.path.strip("/"):
            raise ValueError
    except ValueError:
        raise click.UsageError(
            f"--http {address!r}: expected HOST:PORT.", click.get_current_context()
        ) from None
    return parts.hostname, parts.port


def _facts(ready: bool, found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the verdict, the checks if the answer contains them, and the conditions."""
    facts = [("ready" if "uptime_seconds" not in found else "alive", "yes" if ready else "no")]
    checks, problems, warnings = (found.get(one) for one in ("checks", "problems", "warnings"))
    if isinstance(checks, dict):
        for name, one in checks.items():
            ok = isinstance(one, dict) and one.get("ok") is True
            detail = one.get("detail") if isinstance(one, dict) else one
            facts.append((str(name), f"{'ok' if ok else 'NOT OK'}: {detail}"))
    listed = found.get("conditions")
    if isinstance(listed, list) and listed:
        return facts + [(one.label, one.words) for one in shown(listed)]
    if isinstance(problems, dict) and not isinstance(checks, dict):
        facts += [(f"problem: {name}", str(text)) for name, text in problems.items()]
    if isinstance(warnings, dict):
        facts += [(f"warning: {name}", str(text)) for name, text in warnings.items()]
    return facts
