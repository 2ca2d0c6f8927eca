"""`liftlog doctor`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from liftlog.cli.config import settings_options
from liftlog.cli.doctor import FAILED, OK, SKIPPED, WARNING, Checkup
from liftlog.cli.lib.command_groups import Command
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_format, server_options
from liftlog.cli.lib.output import write_objects
from liftlog.cli.lib.text import plural, printable
from liftlog.errors import ConfigError

if TYPE_CHECKING:
    from liftlog.settings import Settings

_COLOURS = {OK: "green", WARNING: "yellow", FAILED: "red", SKIPPED: "white"}


@click.command(cls=Command)
@settings_options
@server_options
@debug_option
def doctor(config: Path | None, overrides: tuple[str, ...]) -> ExitCode:
    """Check this machine and the configuration for problems.

    The command checks the configuration, the ACL file, the certificate, the data directory, and the
    time of an fdatasync on its disk. It also checks file descriptors, boot id, clock, ports, NATS
    and its JetStream, packages, and the daemon if it is running. Every finding names the next step.
    The exit code is 1 if a problem would prevent the daemon from working. If the command finds only
    warnings, the exit code is 0. The command writes only a small file in the data directory, and
    removes it.

    \b
    Example:
      sudo -u liftlog liftlog doctor -c /etc/liftlog/liftlog.yaml
    """
    style, failed, warned = output_format(), 0, 0
    objects = []
    for found in _checkups(config, overrides):
        failed += found.status == FAILED
        warned += found.status == WARNING
        objects.append(asdict(found))
        if style == "table":
            _show(found)
    if style != "table":
        write_objects(objects, style)
    elif failed or warned:
        click.echo(f"{plural(failed, 'failure')}, {plural(warned, 'warning')}")
    else:
        click.echo("No problems found.")
    return ExitCode.FAILED if failed else ExitCode.OK


def _checkups(config: Path | None, overrides: tuple[str, ...]) -> Iterator[Checkup]:
    """Yield the results one by one, so that a slow check does not delay earlier results."""
    from liftlog.settings import load_settings

    try:
        settings = load_settings(config, os.environ, overrides)
    except ConfigError as error:
        yield Checkup(
            "configuration",
            FAILED,
            error.message,
            "correct it; `liftlog docs reference/settings` lists every setting",
        )
        return
    where = str(config) if config else "no file: defaults and the environment"
    yield Checkup("configuration", OK, where)
    yield from _checks(settings)


def _checks(settings: Settings) -> Iterator[Checkup]:
    from liftlog.cli.doctor import machine, setup

    yield from setup.check_streams(settings)
    yield from setup.check_access(settings)
    yield from setup.check_certificate(settings)
    yield from setup.check_packages(settings)
    yield from machine.check_data_dir(settings)
    yield from machine.check_sync(settings)
    yield from machine.check_file_descriptors(settings)
    yield from machine.check_boot_id()
    yield from machine.check_clock()
    from liftlog.cli.doctor import network  # imported late: it needs packages that may be missing

    yield from network.check_ports(settings)
    yield from network.check_nats(settings)
    yield from network.check_daemon(settings)


def _show(found: Checkup) -> None:
    status = click.style(f"{found.status:<8}", fg=_COLOURS[found.status])
    first, *rest = printable(found.detail, keep_newlines=True).splitlines() or [""]
    click.echo(f"{status} {found.check:<18} {first}")
    for line in rest:
        click.echo(f"{'':<28}{line}")
    if found.advice:
        click.echo(f"{'':<28}-> {printable(found.advice)}")
