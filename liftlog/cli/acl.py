"""`liftlog acl`: check and explain an ACL file, and make hashes of tokens for it. Works without a
daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import debug_option, output_format, output_option, quiet
from liftlog.cli.lib.output import (
    print_pairs,
    print_table,
    write_lines,
    write_object,
    write_objects,
)
from liftlog.cli.lib.problems import Problem, check_standard_input, note, warn
from liftlog.cli.lib.text import plural, printable
from liftlog.errors import ConfigError

if TYPE_CHECKING:
    from acl.policy import Policy
    from acl.rules import Principal

_OPERATIONS = ("create", "delete", "read", "commit", "work", "admin", "erase", "replicate")
_ALGORITHMS = ("argon2id", "sha256")
_MAX_SECRET_CHARACTERS = 400

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@click.group(cls=Commands, name="acl", short_help="Check an ACL file, explain it, hash tokens.")
def acl_commands() -> None:
    """Check an ACL file, explain its decisions, and create token hashes for it.

    `liftlog docs reference/acl` describes the file. A running daemon reloads it on SIGHUP.
    """


def _which_file(command: Decorated) -> Decorated:
    command = click.option(
        "--config",
        "-c",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="LIFTLOG_CONFIG",
        help="The daemon's configuration, which names its ACL file. [env: LIFTLOG_CONFIG]",
    )(command)
    return click.option(
        "--acl",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        envvar="LIFTLOG_ACL__FILE",
        help="The ACL file. [env: LIFTLOG_ACL__FILE]",
    )(command)


def _policy(file: Path | None, config: Path | None) -> Policy:
    """Return the policy of the ACL file that the options name. Raises UsageError if neither option
    names a file; raises ConfigError."""
    from liftlog.settings import load_settings
    from liftlog.settings.load import load_policy

    if file is None and config is not None:
        file = load_settings(config, dict(os.environ), ()).acl.file
        if file is None:
            raise Problem(
                f"{printable(str(config))} names no ACL file: every client may do everything",
                ExitCode.NOT_FOUND,
            )
    if file is None:
        raise click.UsageError(
            "Name the ACL file with --acl, or the daemon's configuration with -c. The page "
            "/ui/access of the daemon shows the same.",
            click.get_current_context(),
        )
    return load_policy(file)


@acl_commands.command(short_help="Check whether the daemon would accept an ACL file.")
@click.argument("file", type=click.Path(path_type=Path))
@output_option
@debug_option
def check(file: Path) -> ExitCode:
    """Check whether the daemon would accept this ACL file, and warn of likely mistakes.

    The exit code is 3 if the daemon would refuse the file. The command lists all findings with
    their lines.

    \b
    Example:
      liftlog acl check acl.yaml && systemctl reload liftlog
    """
    from liftlog.settings.load import load_policy

    style = output_format()
    try:
        policy = load_policy(file)
    except ConfigError as error:
        findings = error.details.get("findings")
        if style == "table" or not isinstance(findings, list):
            raise
        write_object({"ok": False, "findings": findings, "warnings": [], "principals": []}, style)
        return ExitCode.CONFIG
    oddities = policy.oddities()
    if style != "table":
        shown = [_described(policy, one) for one in policy.principals]
        write_object({"ok": True, "findings": [], "warnings": oddities, "principals": shown}, style)
        return ExitCode.OK
    rows = []
    for one in policy.principals:
        described = _described(policy, one)
        known_by = ", ".join(described["known_by"])
        rows.append((one.name, known_by, ", ".join(described["roles"]) or "-"))
    print_table(("PRINCIPAL", "KNOWN BY", "ROLES"), rows)
    for text in oddities:
        warn(text)
    click.echo(f"{printable(str(file))}: good, {plural(len(rows), 'principal')}", err=True)
    return ExitCode.OK


def _described(policy: Policy, principal: Principal) -> dict[str, Any]:
    """Describe a principal. Its credentials are described by their kinds, without the values
    (hashes)."""
    ways = {
        "token": principal.token_hash,
        "nkey": principal.nkey,
        "certificate": principal.certificate_cn,
        "unix user": principal.unix_uid,
    }
    known_by = [way for way, credential in ways.items() if credential is not None]
    return {
        "name": principal.name,
        "known_by": known_by or ["no credential (anonymous)"],
        "roles": list(policy.roles_of(principal.name)),
    }


@acl_commands.command(short_help="Explain whether an operation is allowed, and why.")
@click.argument("principal")
@click.argument("operation", type=click.Choice(_OPERATIONS))
@click.argument("stream")
@click.argument("subject", required=False)
@_which_file
@output_option
@debug_option
def explain(
    principal: str,
    operation: Any,
    stream: str,
    subject: str | None,
    file: Path | None,
    config: Path | None,
) -> ExitCode:
    """Explain whether PRINCIPAL is allowed OPERATION on STREAM, and by which rule.

    SUBJECT is a NATS subject or pattern. For create it is the subject of the new stream. For read
    and erase it is the subject of the records. Without SUBJECT, the command shows all subjects of
    the stream that PRINCIPAL may read or erase. For work, SUBJECT is the name of a consumer. The
    exit code is 9 if the operation is denied.

    \b
    Examples:
      liftlog acl explain billing read orders --acl acl.yaml
      liftlog acl explain ops create returns 'orders.returned.>' --acl acl.yaml
    """
    policy = _policy(file, config)
    style = output_format()
    subjects: tuple[str, ...] | None = None
    by_subject = operation in ("read", "erase") and subject is None
    if by_subject:
        allowed, explanation, subjects = policy.decide_subjects(principal, operation, stream)
    else:
        allowed, explanation = policy.decide(principal, operation, stream, subject)
    if style == "table":
        click.echo(printable(explanation))
    else:
        found: dict[str, Any] = {"allowed": allowed, "explanation": explanation}
        if allowed and by_subject:
            found["subjects"] = None if subjects is None else list(subjects)
        write_object(found, style)
    return ExitCode.OK if allowed else ExitCode.DENIED


@acl_commands.command()
@click.argument("operation", type=click.Choice(_OPERATIONS))
@click.argument("stream")
@_which_file
@output_option
@debug_option
def who(operation: Any, stream: str, file: Path | None, config: Path | None) -> ExitCode:
    """List the principals that are allowed OPERATION on STREAM.

    For read and erase, the list includes principals that may read or erase only some subjects of
    the stream. The exit code is 9 if the list is empty.

    \b
    Examples:
      liftlog acl who read payments --acl acl.yaml
      liftlog acl who read payments -c liftlog.yaml
      liftlog acl who admin orders --acl acl.yaml -q
    """
    policy = _policy(file, config)
    found: list[dict[str, Any]] = []
    for principal in policy.principals:
        subjects: tuple[str, ...] | None = None
        if operation in ("read", "erase"):
            allowed, explanation, subjects = policy.decide_subjects(
                principal.name, operation, stream
            )
        else:
            allowed, explanation = policy.decide(principal.name, operation, stream)
        if allowed:
            found.append(
                {
                    "principal": principal.name,
                    "subjects": None if subjects is None else list(subjects),
                    "explanation": explanation,
                }
            )
    style = output_format()
    if quiet():
        write_lines([one["principal"] for one in found])
    elif style != "table":
        write_objects(found, style)
    elif found:
        rows = [
            (
                one["principal"],
                "all" if one["subjects"] is None else printable(" ".join(one["subjects"])),
                printable(one["explanation"]),
            )
            for one in found
        ]
        print_table(("PRINCIPAL", "SUBJECTS", "WHY"), rows)
    else:
        note(f"No principal is allowed {operation} on {printable(stream)}.")
    return ExitCode.OK if found else ExitCode.DENIED


@acl_commands.command("hash-token")
@click.argument("principal", required=False)
@click.option(
    "--algorithm",
    type=click.Choice(_ALGORITHMS),
    default="argon2id",
    show_default=True,
    help="sha256 takes microseconds to check, and is as safe for a random secret.",
)
@click.option(
    "--stdin",
    "from_stdin",
    is_flag=True,
    help="Hash the first line of standard input instead of a new secret.",
)
@output_option
@debug_option
def hash_token_command(principal: str | None, algorithm: Any, from_stdin: bool) -> None:
    """Create a new secret and its hash for the ACL file.

    The token for the clients of PRINCIPAL is PRINCIPAL.SECRET. The command shows the token only
    once, and does not store it. It does not accept secrets on the command line, because other users
    could see them there.

    \b
    Examples:
      liftlog acl hash-token billing
      pass show liftlog/billing | liftlog acl hash-token --stdin
    """
    from acl.rules import is_name
    from acl.tokens import hash_token, new_secret

    if principal is not None and not is_name(principal):
        raise click.UsageError("A principal has 1 to 64 letters, digits, '_' or '-'.")
    if from_stdin:
        check_standard_input()
        secret = sys.stdin.readline(_MAX_SECRET_CHARACTERS + 2).rstrip("\r\n")
        if len(secret) > _MAX_SECRET_CHARACTERS:
            raise click.UsageError(f"A secret has at most {_MAX_SECRET_CHARACTERS} characters.")
    else:
        secret = new_secret()
    try:
        hashed = hash_token(secret, algorithm)
    except ValueError as error:
        raise Problem(f"this secret is not accepted: {error}", ExitCode.USAGE) from None
    made: dict[str, str] = {}
    if not from_stdin:
        made["token"] = f"{principal or 'PRINCIPAL'}.{secret}"
    made["token_hash"] = hashed
    style = output_format()
    if style == "table":
        print_pairs(list(made.items()))
    else:
        write_object(made, style)


@acl_commands.command("new-nkey", short_help="Create an nkey: a seed file and its public key.")
@click.argument("file", type=click.Path(path_type=Path))
@output_option
@debug_option
def new_nkey(file: Path) -> None:
    """Create an nkey. Write its seed to FILE, which only you can read, and print its public key.

    Add the public key to the ACL file. FILE must not exist before. You can also use user nkeys
    that `nk` or `nsc` has created.

    \b
    Example:
      liftlog acl new-nkey ops.nk
    """
    from acl.nkeys import SigningKey, new_seed

    seed = new_seed()
    try:
        # The file is created with permissions for its owner only, and never replaces another file.
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise Problem(f"cannot create {file}: {error.strerror}", ExitCode.FAILED) from error
    with os.fdopen(opened, "w") as seed_file:
        seed_file.write(f"{seed}\n")
    public_key, style = SigningKey(seed).public_key, output_format()
    if style == "table":
        click.echo(public_key)
    else:
        write_object({"nkey": public_key, "file": str(file)}, style)
