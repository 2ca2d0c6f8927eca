"""The command itself: names, endings, what it imports."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from support.repository import REPOSITORY

from liftlog.cli.consuming import consume as consume_module
from liftlog.cli.lib.command_groups import Commands
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.options import error_style_of, full_address, output_format, server_options
from liftlog.cli.root import COMMANDS, Root, cli
from liftlog.errors import StreamNotFound


def root_with(body: Callable[[], object]) -> Root:
    group = Root(name="liftlog")
    group.add_command(click.Command("act", callback=body))
    return group


def raising(error: BaseException) -> Callable[[], object]:
    def body() -> object:
        raise error

    return body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (lambda: None, ExitCode.OK),
        (lambda: ExitCode.OK, ExitCode.OK),
        (lambda: ExitCode.DAMAGED, ExitCode.DAMAGED),
        (raising(StreamNotFound("no")), ExitCode.NOT_FOUND),
        (raising(KeyboardInterrupt()), ExitCode.INTERRUPTED),
        (raising(click.Abort()), ExitCode.INTERRUPTED),
        (raising(BrokenPipeError()), ExitCode.PIPE_CLOSED),
        (raising(ZeroDivisionError()), ExitCode.FAILED),
        (raising(click.UsageError("no")), ExitCode.USAGE),
    ],
)
def test_how_a_command_ends_is_its_exit_code(body: Callable[[], object], code: ExitCode) -> None:
    assert CliRunner().invoke(root_with(body), ["act"]).exit_code == code


def test_an_interrupt_is_quiet() -> None:
    result = CliRunner().invoke(root_with(raising(KeyboardInterrupt())), ["act"])
    assert result.output == ""


def test_a_typo_is_guessed() -> None:
    result = CliRunner().invoke(cli, ["consme", "orders"])
    assert result.exit_code == ExitCode.USAGE
    assert "There is no command 'consme'. Did you mean 'consume'?" in result.stderr
    result = CliRunner().invoke(cli, ["stream", "lst"])
    assert "Did you mean 'list'?" in result.stderr or "Did you mean 'ls'?" in result.stderr


@pytest.mark.parametrize(
    ("alias", "name"), [("list", "ls"), ("delete", "rm"), ("describe", "info")]
)
def test_aliases(alias: str, name: str) -> None:
    stream = cli.get_command(click.Context(cli), "stream")
    assert isinstance(stream, Commands)
    context = click.Context(stream)
    assert stream.get_command(context, alias) is stream.commands[name]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("stream add", "stream create"),
        ("stream edit", "stream update"),
        ("stream report", "stream ls"),
        ("stream view", "consume"),
        ("stream purge", "stream truncate"),
        ("consumer list", "consumer ls"),
        ("consumer create", "consumer add"),
        ("sub", "consume"),
        ("purge", "stream truncate"),
        ("ls", "stream ls"),
    ],
)
def test_words_of_other_tools_lead_to_the_command(typed: str, meant: str) -> None:
    found = CliRunner().invoke(cli, [*typed.split(), "--help"], prog_name="liftlog")
    wanted = CliRunner().invoke(cli, [*meant.split(), "--help"], prog_name="liftlog")
    assert wanted.output.startswith(f"Usage: liftlog {meant} ")
    assert found.output == wanted.output


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("vacuum lake", "export vacuum"),
        ("vacuum lake --keep 1d", "export vacuum"),
        ("vacuum --to lake", "export"),
        ("vacuum --optimize --to=lake", "export"),
    ],
)
def test_a_stream_may_be_called_vacuum(typed: str, meant: str) -> None:
    told = CliRunner().invoke(cli, ["export", *typed.split(), "--help"], prog_name="liftlog")
    assert told.output.startswith(f"Usage: liftlog {meant} [OPTIONS]")


def test_vacuum_is_called_as_it_was_typed() -> None:
    for typed in (["export", "vacuum"], ["export-vacuum"]):
        told = CliRunner().invoke(cli, typed, prog_name="liftlog")
        assert told.exit_code == ExitCode.USAGE
        assert told.stderr.startswith(f"Usage: liftlog {' '.join(typed)} [OPTIONS] PATH\n")


def test_a_typo_in_vacuum_is_guessed() -> None:
    told = CliRunner().invoke(cli, ["export", "vaccum", "/x"])
    assert told.exit_code == ExitCode.USAGE
    assert "Did you mean 'liftlog export vacuum'?" in told.stderr
    for typed in (["vaccum", "--help"], ["orders"], ["orders", "/x"]):
        told = CliRunner().invoke(cli, ["export", *typed], prog_name="liftlog")
        assert "Usage: liftlog export [OPTIONS] STREAM" in told.output
        assert "vacuum'?" not in told.output


def test_a_path_to_vacuum_that_is_empty() -> None:
    told = CliRunner().invoke(cli, ["export", "vacuum", ""])
    assert (told.exit_code, "PATH: it is empty" in told.stderr) == (ExitCode.USAGE, True)


@pytest.mark.parametrize("typed", ["help stream ls", "stream help ls", "help stream list"])
def test_help_is_a_command_as_well(typed: str) -> None:
    found = CliRunner().invoke(cli, typed.split(), prog_name="liftlog")
    assert found.output.startswith("Usage: liftlog stream ls ")
    assert found.exit_code == 0
    wrong = CliRunner().invoke(cli, ["help", "streem"], prog_name="liftlog")
    assert wrong.exit_code == ExitCode.USAGE
    assert "Did you mean 'stream'?" in wrong.stderr


def test_help_has_sections_and_explains_shared_options_once() -> None:
    whole = CliRunner().invoke(cli, ["--help"]).output
    titles = [line for line in whole.splitlines() if line.endswith(":") and line[0] != " "]
    sections = dict.fromkeys(f"{one.section}:" for one in COMMANDS.values())
    assert titles[: len(sections)] == list(sections)
    assert titles[-1] == "Options of every command:"
    of_one = CliRunner().invoke(cli, ["consume", "--help"]).output
    own, _, shared = of_one.partition("Options of every command")
    for option in ("--server URL", "--tls-key FILE", "--debug"):
        assert option in shared
        assert option not in own
    assert "system" not in shared


@pytest.mark.parametrize(
    ("words", "name", "code"),
    [
        (["stream", "ls", "-o", "json"], "CONNECTION_LOST", ExitCode.CANNOT_CONNECT),
        (["-o", "yaml", "stream", "ls"], "CONNECTION_LOST", ExitCode.CANNOT_CONNECT),
        (["--output=jsonl", "stream", "ls", "--bogus"], "PROBLEM", ExitCode.USAGE),
        (["--bogus", "-ojson"], "PROBLEM", ExitCode.USAGE),
        (["strem", "--output", "json"], "PROBLEM", ExitCode.USAGE),
    ],
)
def test_errors_for_programs_are_objects(words: list[str], name: str, code: ExitCode) -> None:
    result = CliRunner(env={"LIFTLOG_SERVER": "127.0.0.1:1"}).invoke(cli, words)
    assert (result.exit_code, result.stdout) == (code, "")
    found = yaml.safe_load(result.stderr)["error"]  # JSON is YAML
    assert (found["name"], found["exit_code"]) == (name, code)
    assert found["message"]


def test_the_last_output_counts_for_errors_too() -> None:
    assert error_style_of(["-o", "json", "x", "-o", "table"]) == "table"
    assert error_style_of(["-o", "json", "--", "-o", "table"]) == "json"
    assert error_style_of(["-o"]) == "table"
    assert error_style_of([]) == "table"


@pytest.mark.parametrize(
    ("typed", "whole"),
    [
        ("logs.example:9293", "tcp://logs.example:9293"),
        ("localhost", "tcp://localhost"),
        ("[::1]:9292", "tcp://[::1]:9292"),
        ("/run/liftlog.sock", "unix:///run/liftlog.sock"),
        ("tls://a", "tls://a"),
        ("", ""),
    ],
)
def test_short_addresses(typed: str, whole: str) -> None:
    assert full_address(typed) == whole


@pytest.mark.parametrize(
    "arguments",
    [
        ["--output", "jsonl", "act"],
        ["act", "--output", "jsonl"],
        ["--output", "json", "act", "-o", "jsonl"],
    ],
)
def test_shared_options_can_stand_anywhere_and_the_last_wins(arguments: list[str]) -> None:
    seen = []

    @server_options
    @click.pass_context
    def body(context: click.Context) -> None:
        seen.append(output_format())

    root = Root(name="liftlog", params=[*cli.params])
    root.add_command(click.command("act")(body))
    result = CliRunner(env={"LIFTLOG_OUTPUT": "table"}).invoke(root, arguments)
    assert result.exit_code == 0, result.output
    assert seen == ["jsonl"]


def test_the_environment_is_used_when_no_option_is_given() -> None:
    group = root_with(lambda: click.echo(output_format()))
    assert CliRunner(env={"LIFTLOG_OUTPUT": "json"}).invoke(group, ["act"]).output == "json\n"
    assert CliRunner().invoke(group, ["act"]).output == "table\n"
    result = CliRunner(env={"LIFTLOG_OUTPUT": "xml"}).invoke(group, ["act"])
    assert result.exit_code == ExitCode.USAGE
    assert "LIFTLOG_OUTPUT='xml'" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "orders", "--from", "never"],
        ["consume", "orders", "-n", "0"],
        ["pub", "orders.new"],
        ["pub", "orders.*", "x"],
        ["pub", "orders.new", "x", "-H", "no colon"],
        ["pub", "orders.new", "x", "-H", "A: b\r\nC: d"],
        ["pub", "orders.new", "x", "--tombstone", "--key", "k"],
        ["pub", "orders.new", "--tombstone"],
        ["pub", "orders.new", "-", "--count", "2"],
        ["stream", "create", "orders"],
        ["stream", "create", "orders", "--subject", "a", "--set", "name"],
        ["demo", "--messages", "1"],
    ],
)
def test_wrong_command_lines_touch_nothing(arguments: list[str]) -> None:
    result = CliRunner(env={"LIFTLOG_SERVER": "tcp://127.0.0.1:1"}).invoke(cli, arguments)
    assert result.exit_code == ExitCode.USAGE, result.output
    assert result.stdout == ""


def test_nobody_there() -> None:
    result = CliRunner().invoke(cli, ["stream", "ls", "--server", "tcp://127.0.0.1:1"])
    assert result.exit_code == ExitCode.CANNOT_CONNECT
    assert "cannot connect to tcp://127.0.0.1:1" in result.stderr
    result = CliRunner().invoke(cli, ["stream", "ls", "--server", "http://x"])
    assert result.exit_code == ExitCode.USAGE
    assert "tcp://host:port" in result.stderr


def test_configuration_errors_are_listed_all_at_once() -> None:
    arguments = ["serve", "--set", "a.b=1", "--set", "name=_", "--set", "logging.level=loud"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == ExitCode.CONFIG
    for key in ("a:", "name:", "logging.level:"):
        assert key in result.stderr


def test_a_daemon_that_fails_leaves_a_traceback_in_its_log() -> None:
    code = (
        "from liftlog.server import daemon\n"
        "def run(*a, **k): raise ExceptionGroup('group', [ZeroDivisionError('boom')])\n"
        "daemon.run = run\n"
        "from liftlog.cli.root import cli; cli.main(['serve'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.FAILED
    line, *words = done.stderr.splitlines()
    assert json.loads(line)["event"] == "daemon-failed"
    assert "ZeroDivisionError: boom" in json.loads(line)["traceback"]
    assert words[0] == "error: unexpected ZeroDivisionError: boom"


def test_the_end_of_a_daemon_does_not_scan_its_objects() -> None:
    """With 10,000 consumers the scans took longer than everything else after SIGTERM."""
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(len(gc.get_objects())))\n"
        "from liftlog.server import daemon\n"
        "daemon.run = lambda *a, **k: 0\n"
        "kept = [[] for _ in range(100_000)]\n"
        "from liftlog.cli.root import cli; cli.main(['serve'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitCode.OK, done.stderr
    assert int(done.stdout) < 50_000


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_ctrl_c_while_the_command_is_loaded_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join((str(tmp_path), str(REPOSITORY)))
    done = subprocess.run(
        [sys.executable, "-m", "liftlog", "--help"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")


HEAVY = {"numpy", "pydantic", "aiohttp", "nats", "uvloop", "prometheus_client", "yaml"}


def test_help_loads_nothing_heavy() -> None:
    loaded = modules_after("import liftlog.cli.root")
    assert not loaded & (HEAVY | {"asyncio", "rich"})


def run_and_list(arguments: list[str], **environ: str) -> tuple[str, set[str]]:
    """What `liftlog ARGUMENTS` prints, and the modules that it has imported."""
    code = (
        "import json, sys\nfrom liftlog.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


def test_version_imports_no_click_and_prints_what_click_prints() -> None:
    printed, loaded = run_and_list(["--version"])
    assert printed == run_and_list(["--debug", "--version"])[0] != ""
    assert not loaded & (HEAVY | {"asyncio", "click", "dataclasses", "logging"})
    assert not {name for name in loaded if name.startswith("liftlog.cli.")} - {"liftlog.cli.main"}


@pytest.mark.parametrize("typed", [None, "liftlog s", "liftlog --"])
def test_help_and_completion_import_no_command(typed: str | None) -> None:
    if typed is None:
        printed, loaded = run_and_list(["--help"])
    else:
        printed, loaded = run_and_list(
            [], _LIFTLOG_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD="1"
        )
    for word in ("--server", "--output") if typed == "liftlog --" else ("serve", "stream"):
        assert word in printed
    assert not {listed.place.partition(":")[0] for listed in COMMANDS.values()} & loaded
    assert not loaded & (HEAVY | {"asyncio", "rich"})


def test_the_table_of_commands_says_what_the_commands_say() -> None:
    context = click.Context(cli)
    for name, listed in COMMANDS.items():
        command = cli.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.get_short_help_str(60) == listed.short_help


@pytest.mark.parametrize(
    "arguments",
    [
        ["stream", "--help"],
        ["stream", "ls", "--help"],
        ["consume", "--help"],
        ["pub", "--help"],
        ["log", "--help"],
        ["log", "verify", "--help"],
        ["backup", "create", "--help"],
        ["config", "check", "--help"],
        ["export", "--help"],
        ["doctor", "--help"],
        ["serve", "--help"],
    ],
)
def test_help_of_a_command_does_not_load_what_does_its_work(arguments: list[str]) -> None:
    printed, loaded = run_and_list(arguments)
    assert "Usage:" in printed
    assert not loaded & (HEAVY | {"asyncio", "rich"})
    for part in ("client", "server", "log", "settings", "spark"):
        assert f"liftlog.{part}" not in loaded


def test_consume_loads_no_server() -> None:
    loaded = modules_after(
        "import liftlog.cli.root, liftlog.cli.lib.output, liftlog.client.blocking.client"
    )
    assert not loaded & HEAVY
    assert not {name for name in loaded if name.startswith("liftlog.server")}


# What the daemon needs to serve NATS, apart from the standard library; each takes its time.
OF_THE_DAEMON = {
    *("acl", "compaction", "envelope", "liftlog"),
    *("annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"),
    *("click", "crc32c", "msgpack", "nats", "numpy", "uvloop", "yaml"),
}
NOT_OF_THE_DAEMON = {"liftlog.spark", "liftlog.demo", "liftlog.log.offline", "liftlog.log.backup"}


def test_what_the_start_of_the_daemon_imports() -> None:
    """Nearly all of its time goes into imports."""
    code = (
        "import json, sys\nfrom liftlog.cli.main import main\n"
        "try:\n    main(['serve', '--set', 'data_dir=/dev/null/none'])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "files = {name: getattr(module, '__file__', '') for name, module in sys.modules.items()}\n"
        "print(json.dumps([code, files]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    exit_code, files = json.loads(done.stdout.splitlines()[-1])
    assert exit_code, "it fails after its imports"
    library = str(Path(os.__file__).parent)
    packages = {
        name.partition(".")[0]
        for name, file in files.items()
        if file and (not file.startswith(library) or "site-packages" in file)
    }
    assert {name for name in packages if not name.startswith("_")} <= OF_THE_DAEMON
    assert not NOT_OF_THE_DAEMON & set(files)
    late = ("liftlog.server.web.", "liftlog.server.metrics.", "liftlog.server.jetstream_api.")
    assert not {name for name in files if name.startswith(late)}
    assert len(files) < 885, "there were 873 with Python 3.13; what came in?"


def test_the_http_port_reads_no_certificates_and_gives_nats_its_aiohttp() -> None:
    code = (
        "import ssl\nfrom liftlog.server import late_parts\nimport nats.aio.transport as theirs\n"
        "assert theirs.aiohttp is None\nlate_parts.import_http()\n"
        "from aiohttp.connector import _SSL_CONTEXT_VERIFIED as context\n"
        "import aiohttp\nassert theirs.aiohttp is aiohttp\n"
        "print(len(context.get_ca_certs()), len(ssl.create_default_context().get_ca_certs()) > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    read, readable = done.stdout.split()
    assert read == "0", "aiohttp's client has read those of the system"
    assert readable == "True", "contexts that are made later read them"


def test_what_the_client_imports() -> None:
    assert len(modules_after("import liftlog.client")) < 120, "there were 101"
    blocking = modules_after("from liftlog.client import connect_sync, SyncClient")
    assert not blocking & {"asyncio", "ssl", "crc32c", "envelope", "acl", "liftlog.client.aio"}
    assert len(blocking) < 205, "there were 200 with Python 3.13; what came in?"
    both = modules_after("from liftlog.client import connect, Client")
    assert "liftlog.client.blocking" not in both
    assert not both & {"crc32c", "envelope", "acl"}


def test_each_public_name_of_the_client_can_be_imported() -> None:
    code = (
        "import liftlog.client as client\n"
        "assert {*client.__all__} <= {*dir(client)}\n"
        "for name in client.__all__:\n    assert getattr(client, name).__name__\n"
        "assert not hasattr(client, 'nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_pub_imports_what_publishing_needs() -> None:
    _, loaded = run_and_list(["pub", "a", "b", "--nats", "nats://127.0.0.1:1"])
    assert "nats" in loaded
    assert not loaded & (HEAVY - {"nats"})


def test_records_are_read_in_small_pieces_when_few_are_wanted() -> None:
    asked = {}

    class Client:
        def read_batches(
            self, stream: str, start: object, until: object, **options: object
        ) -> object:
            asked.update(options)
            return iter(())

    reading = consume_module.Reading(
        Client(),  # type: ignore[arg-type]
        "s",
        1,
        5,
        lambda records: None,
        skip_damaged=False,
    )
    reading.run("end")
    assert asked["fetch_bytes"] == 64 * 1024


@pytest.mark.parametrize(("value", "coloured"), [("1", False), ("", True)])
def test_errors_are_not_coloured_where_nobody_wants_it(value: str, coloured: bool) -> None:
    command = "[sys.executable, '-m', 'liftlog', 'errors', 'lookup', 'NOTHING_LIKE_IT']"
    done = subprocess.run(
        [sys.executable, "-c", f"import pty, sys; pty.spawn({command})"],
        env={**os.environ, "NO_COLOR": value, "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert b"error:" in done.stdout
    assert (b"\x1b[" in done.stdout) is coloured


@pytest.mark.parametrize("arguments", [["errors", "ls"], ["config", "show"], ["--help"]])
def test_output_onto_a_full_disk_is_an_error_and_nothing_else(arguments: list[str]) -> None:
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "liftlog", *arguments],
            env=buffered,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == ExitCode.FAILED
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize(
    "arguments", ["pub orders.new -", "pub orders.new - --no-ack", "acl hash-token --stdin"]
)
def test_closed_standard_input_is_not_an_empty_one(arguments: str) -> None:
    """Without a NATS server: it is found before anything else."""
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m liftlog {arguments} <&-"],
        env={**os.environ, "NATS_URL": "nats://127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert "standard input is closed" in done.stderr


def test_all_of_a_text_is_written_though_python_is_unbuffered() -> None:
    """The pipe takes a part of it at once: unbuffered, Python would drop the rest."""
    code = (
        "import fcntl, os, sys\nfrom liftlog.cli.main import _open_standard_streams\n"
        "_open_standard_streams()\n"
        "assert sys.stdout.fileno() == 1\n"
        "raw = sys.stdout.buffer.raw\n"
        "from liftlog.cli.lib.output import write_text\nwrite_text('x' * 300_000)"
    )
    done = subprocess.run(
        [sys.executable, "-u", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "x" * 300_000
