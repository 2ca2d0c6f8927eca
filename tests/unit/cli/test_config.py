"""liftlog config, and what it is made of: template, schema, origins."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.settings import Settings, StreamSettings, load_settings
from liftlog.settings.generated import json_schema, render_template

ROOT = Path(__file__).parents[3]


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(cli, ["config", *arguments])


def uncommented(text: str) -> str:
    return "\n".join(
        line.replace("#", "", 1) if line.strip().startswith("#") and "# " not in line else line
        for line in text.splitlines()
    )


def test_the_template_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "liftlog.yaml"
    done = run("init", str(file))
    assert (done.exit_code, done.stdout) == (0, "")
    assert load_settings(file, {}) == Settings()


def test_the_template_names_every_setting_with_its_default(tmp_path: Path) -> None:
    file = tmp_path / "liftlog.yaml"
    text = uncommented(render_template())
    assert text != render_template()
    file.write_text(text)
    expected = Settings().to_yaml_dict()
    expected["streams"] = {"orders": StreamSettings(subject="orders.>").to_yaml_dict()}
    assert load_settings(file, {}).to_yaml_dict() == expected
    assert yaml.safe_load(text) == expected


def test_init_never_overwrites(tmp_path: Path) -> None:
    file = tmp_path / "liftlog.yaml"
    file.write_text("name: mine\n")
    done = run("init", str(file))
    assert done.exit_code == ExitCode.CONFLICT
    assert file.read_text() == "name: mine\n"
    assert run("init").stdout == render_template()


def test_check_tells_everything_at_once(tmp_path: Path) -> None:
    file = tmp_path / "liftlog.yaml"
    file.write_text("nmae: x\nstreams:\n  orders:\n    acks: maybe\n")
    done = run("check", "-c", str(file), "--set", "logging.level=loud")
    assert done.exit_code == ExitCode.CONFIG
    assert done.stdout == ""
    for words in ("did you mean 'name'?", f"{file}:4", "logging.level"):
        assert words in done.stderr
    done = run("check", "-c", str(file), "-o", "json")
    assert done.exit_code == ExitCode.CONFIG
    found = json.loads(done.stdout)
    assert not found["ok"]
    paths = {one["path"] for one in found["findings"]}
    assert {"nmae", "streams.orders.acks", "streams.orders.subject"} <= paths
    assert run("check", "-c", str(tmp_path / "none.yaml")).exit_code == ExitCode.CONFIG


def test_check_looks_into_the_acl_file(tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text("principals: {a: {token_hash: plain}}\n")
    done = run("check", "--set", f"acl.file={acl}")
    assert done.exit_code == ExitCode.CONFIG
    assert "acl.file" in done.stderr
    assert "plain" not in done.stderr
    done = run("check", "--set", f"acl.file={acl}", "-o", "json")
    assert json.loads(done.stdout)["findings"]


def test_check_warns_of_tokens_on_a_network_without_tls(tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text(f"principals: {{a: {{token_hash: 'sha256:{'0' * 64}'}}}}\n")
    arguments = ["check", "--set", f"acl.file={acl}", "--set", "pull.listen=tcp://0.0.0.0:9292"]
    done = run(*arguments)
    assert done.exit_code == 0
    assert (
        "pull.listen[0]: tokens and records are sent unencrypted over tcp://0.0.0.0:9292"
        in done.stderr
    )
    (warning,) = json.loads(run(*arguments, "-o", "json").stdout)["warnings"]
    assert warning.endswith("listen on tls://HOST:PORT and set pull.tls")
    assert "warning" not in run(*arguments[:3]).stderr


def test_check_is_content() -> None:
    done = run("check", "-c", str(ROOT / "config" / "liftlog.yaml"))
    assert (done.exit_code, done.stdout) == (0, "ok: 1 stream configured (orders)\n")


def test_show_masks_secrets(tmp_path: Path) -> None:
    arguments = ["--set", "nats.servers=nats://me:hush1@a:4222"]
    secrets = {"LIFTLOG_NATS__PASSWORD": "hush2", "LIFTLOG_NATS__USER": "me"}
    secrets["LIFTLOG_NATS__TOKEN"] = "hush3"
    for more in (
        [],
        ["--origin"],
        ["--origin", "--all"],
        ["-o", "json"],
        ["--origin", "-o", "yaml"],
    ):
        done = run("show", *arguments, *more, env=secrets)
        shown = done.stdout
        if done.exit_code:  # user and token together are refused: without saying them
            shown = done.stderr
        assert "hush" not in done.output, more
        assert shown
    del secrets["LIFTLOG_NATS__TOKEN"]
    done = run("show", *arguments, env=secrets)
    assert "hush" not in done.output
    shown = yaml.safe_load(done.stdout)
    assert shown["nats"]["password"] == "**********"
    assert shown["nats"]["servers"] == ["nats://me:********@a:4222"]


def test_show_says_where_each_value_is_from(tmp_path: Path) -> None:
    file = tmp_path / "liftlog.yaml"
    file.write_text(
        "name: mine\nlog:\npull:\n  max_connections: 7\n"
        "streams:\n  orders:\n    subject: orders.>\n    retention:\n      max_age: 7d\n"
    )
    environ = {"LIFTLOG_PULL__MAX_IN_FLIGHT": "9", "LIFTLOG_NAME": "other"}
    arguments = ["show", "--origin", "-c", str(file), "--set", "commit.writer_threads=2", "-o"]
    found = json.loads(run(*arguments, "json", env=environ).stdout)
    assert {(one["key"], one["value"], one["origin"]) for one in found} == {
        ("name", "other", "LIFTLOG_NAME"),
        ("pull.max_connections", 7, f"{file}:4"),
        ("pull.max_in_flight", 9, "LIFTLOG_PULL__MAX_IN_FLIGHT"),
        ("commit.writer_threads", 2, "--set commit.writer_threads"),
        ("streams.orders.subject", "orders.>", f"{file}:7"),
        ("streams.orders.retention.max_age", "7d", f"{file}:9"),
    }
    everything = json.loads(run(*arguments, "json", "--all", env=environ).stdout)
    assert len(everything) > 90
    defaults = [one for one in everything if one["origin"] == "default"]
    assert len(defaults) == len(everything) - len(found)
    assert "LIFTLOG_NAME" in run(*arguments, "table", env=environ).stdout


# --- the schema ---


def valid(settings: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(json_schema()).is_valid(settings))


def test_the_schema_takes_what_the_daemon_takes() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json.loads(run("schema").stdout) == json_schema()
    assert valid(yaml.safe_load((ROOT / "config" / "liftlog.yaml").read_text()))
    assert valid(yaml.safe_load(render_template()))
    for text in (
        "nats: {servers: 'nats://a:4222,nats://b:4222'}",
        "pull: {unix_mode: 0600, tls: {min_version: 1.2}, linger: 1h30m}",
        "streams: {a: {subject: x, acks: on, compaction: {}, retention: {max_bytes: 1.5 GB}}}",
        "drain_timeout: 5",
        "cleaner: {max_rate: 64MiB}",
        "cleaner: {max_rate: auto}",
        "cleaner: {max_rate: null}",
    ):
        given = yaml.safe_load(text)
        assert valid(given), text
        Settings.model_validate(given)


@pytest.mark.parametrize(
    "text",
    [
        "nmae: x",
        "drain_timeout: soon",
        "drain_timeout: [1]",
        "cleaner: {max_rate: fast}",
        "pull: {max_connections: many}",
        "pull: {max_frame_bytes: 1 potato}",
        "streams: {a: {}}",
        "streams: {a: {subject: x, acks: maybe}}",
        "streams: {a: {subject: x, retention: {max_age: 7 apples}}}",
    ],
)
def test_what_the_schema_refuses_the_daemon_refuses(text: str) -> None:
    given = yaml.safe_load(text)
    assert not valid(given)
    with pytest.raises(ValueError):
        Settings.model_validate(given)


def test_defaults_in_the_schema_are_as_one_writes_them() -> None:
    schema = json_schema()
    assert schema["properties"]["drain_timeout"]["default"] == "30s"
    segment = schema["$defs"]["SegmentSettings"]["properties"]
    assert segment["max_bytes"]["default"] == "256MiB"
