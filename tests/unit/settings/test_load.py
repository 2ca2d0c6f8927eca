import importlib.util
from pathlib import Path

import pytest

from liftlog.errors import ConfigError, InvalidArgument
from liftlog.settings import Settings, load_settings, parse_listen, parse_stream_settings


def problems(error: ConfigError) -> dict[str, str]:
    return {item["path"]: item["problem"] for item in error.details["findings"]}


def load(text: str, tmp_path: Path, *overrides: str, **environ: str) -> Settings:
    file = tmp_path / "liftlog.yaml"
    file.write_text(text, encoding="utf-8")
    return load_settings(file, environ, overrides)


def refused(text: str, tmp_path: Path, *overrides: str, **environ: str) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path, *overrides, **environ)
    return problems(caught.value)


def test_everything_has_a_default() -> None:
    settings = load_settings(None, {})
    assert settings == Settings()
    assert settings.pull.listen == ["tcp://127.0.0.1:9292"]
    assert settings.nats.servers == ["nats://127.0.0.1:4222"]
    assert settings.streams == {}


def test_the_contract_of_the_readme(tmp_path: Path) -> None:
    settings = load(
        """
        data_dir: ./data
        nats: {servers: ["nats://127.0.0.1:4222"], embedded: false}
        pull: {listen: ["tcp://127.0.0.1:9292"]}
        http: {listen: "127.0.0.1:8292"}
        streams:
          orders: {subject: "orders.>", queue_group: null, acks: on, durability: fsync,
                   flush: {messages: 1000, interval: 1s}, dedupe_window: 2m,
                   max_message_bytes: 8MiB,
                   retention: {max_age: 7d, max_bytes: 10GiB, max_messages: 1000000},
                   segment: {max_bytes: 256MiB, max_age: 1d}}
        """,
        tmp_path,
    )
    orders = settings.streams["orders"]
    assert (orders.subjects, orders.queue_group, orders.acks) == (("orders.>",), None, "on")
    assert (orders.flush.messages, orders.flush.interval_seconds) == (1000, 1.0)
    assert (orders.dedupe_window_seconds, orders.max_message_bytes) == (120.0, 8 * 2**20)
    assert orders.retention.max_age_seconds == 7 * 86_400
    assert orders.retention.max_bytes == 10 * 2**30
    assert orders.retention.max_messages == 1_000_000
    assert (orders.segment.max_bytes, orders.segment.max_age_seconds) == (256 * 2**20, 86_400)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("on", "on"), ("off", "off"), ("true", "on"), ("'off'", "off"), ("envelope", "envelope")],
)
def test_yaml_1_1_reads_on_and_off_as_booleans(tmp_path: Path, written: str, meant: str) -> None:
    settings = load(f"streams: {{a: {{subject: a, acks: {written}}}}}", tmp_path)
    assert settings.streams["a"].acks == meant


def test_environment_wins_over_file_and_set_over_both(tmp_path: Path) -> None:
    text = "name: file\nnats: {name: file, user: file}\nlogging: {level: error}"
    settings = load(
        text,
        tmp_path,
        "nats.name=set",
        LIFTLOG_NATS__NAME="env",
        LIFTLOG_NATS__USER="env",
        UNRELATED="x",
    )
    assert (settings.name, settings.nats.user, settings.nats.name) == ("file", "env", "set")
    assert settings.logging.level == "error"


@pytest.mark.parametrize(
    ("text", "rate_bytes", "shown"),
    [
        ("", None, "auto"),
        ("cleaner: {max_rate: auto}", None, "auto"),
        ("cleaner: {max_rate: null}", None, "auto"),
        ("cleaner: {max_rate: 64MiB}", 64 * 2**20, "64MiB"),
        ("cleaner: {max_rate: 1000}", 1000, 1000),
    ],
)
def test_a_rate_is_a_size_or_auto(
    tmp_path: Path, text: str, rate_bytes: int | None, shown: str | int
) -> None:
    settings = load(text, tmp_path)
    assert settings.cleaner.max_rate_bytes == rate_bytes
    assert settings.to_yaml_dict()["cleaner"]["max_rate"] == shown
    again = load("", tmp_path, LIFTLOG_CLEANER__MAX_RATE=str(shown))
    assert again.cleaner == settings.cleaner


@pytest.mark.parametrize("rate", ["0", "fast", "true"])
def test_what_is_neither_is_refused_with_both(tmp_path: Path, rate: str) -> None:
    found = refused(f"cleaner: {{max_rate: {rate}}}", tmp_path)
    assert list(found) == ["cleaner.max_rate"]
    assert "size" in found["cleaner.max_rate"]
    assert found["cleaner.max_rate"].endswith(", or auto")


def test_values_of_the_environment_are_yaml_except_text() -> None:
    settings = load_settings(
        None,
        {
            "LIFTLOG_NATS__SERVERS": "nats://a:4222, b:4222",
            "LIFTLOG_ALLOW_ANONYMOUS": "true",
            "LIFTLOG_NATS__PASSWORD": "0123",
            "LIFTLOG_NATS__USER": "a: b: c # d",
            "LIFTLOG_PULL__LISTEN": '["tcp://127.0.0.1:0", "unix:///tmp/x.sock"]',
            "LIFTLOG_HTTP__LISTEN": "null",
            "LIFTLOG_DATA_DIR": "7",
            "LIFTLOG_STREAMS__ORDERS__SUBJECT": ">",
            "LIFTLOG_STREAMS__ORDERS__ACKS": "off",
            "LIFTLOG_STREAMS__ORDERS__RETENTION": "{max_messages: 5}",
        },
    )
    assert settings.nats.servers == ["nats://a:4222", "nats://b:4222"]
    assert settings.allow_anonymous is True
    assert settings.nats.password is not None
    assert settings.nats.password.get_secret_value() == "0123"
    assert settings.nats.user == "a: b: c # d"
    assert len(settings.pull.listen) == 2
    assert settings.http.listen is None
    assert settings.data_dir == Path("7")
    assert settings.streams["orders"].subjects == (">",)
    assert settings.streams["orders"].retention.max_messages == 5


def test_an_environment_variable_finds_a_stream_in_mixed_case(tmp_path: Path) -> None:
    settings = load(
        "streams: {Orders: {subject: a}}", tmp_path, LIFTLOG_STREAMS__ORDERS__PAUSED="true"
    )
    assert list(settings.streams) == ["Orders"]
    assert settings.streams["Orders"].paused is True


def test_variables_of_others_are_left_alone() -> None:
    # Kubernetes sets these for a service called liftlog.
    environ = {
        "LIFTLOG_SERVICE_HOST": "10.0.0.1",
        "LIFTLOG_SERVICE_PORT": "9292",
        "LIFTLOG_PORT": "tcp://10.0.0.1:9292",
        "LIFTLOG_PORT_9292_TCP_ADDR": "10.0.0.1",
        "LIFTLOG_SERVER": "tcp://127.0.0.1:9292",
        "LIFTLOG_TOKEN": "a.b",
    }
    assert load_settings(None, environ) == Settings()


def test_all_findings_come_at_once_with_path_and_origin(tmp_path: Path) -> None:
    file = tmp_path / "l.yaml"
    file.write_text(
        "nats:\n"
        "  embedded: perhaps\n"
        "  serverz: [a]\n"
        "streams:\n"
        "  a: {subject: 'a..b', durability: fsink}\n"
        "  b: {subject: '>'}\n"
        "  ../c: {subject: c}\n"
        "  d: {}\n"
        "  e: {subject: e, segment: {max_bytes: 4GiB}, replicas: 3, batch: {max_records: 65536}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_settings(file, {"LIFTLOG_LOGGING__LEVEL": "loud"}, ["commit.writer_threads=0", "oops"])
    text = str(caught.value)
    for expected in (
        f"nats.embedded: 'perhaps': expected true or false [{file}:2]",
        f"nats.serverz: unknown key; did you mean 'servers'? [{file}:3]",
        f"streams.a.durability: 'fsink': expected fsync, interval or os [{file}:5]",
        "streams.a.subject: 'a..b': not a NATS subject",
        "streams.b.acks: 'on': expected off, because the subject '>' can match _INBOX.>",
        "streams.'../c': '../c': expected 1 to 128 letters (A-Z, a-z)",
        f"streams.d.subject: required, but missing [{file}:8]",
        "streams.e.segment.max_bytes: '4GiB': expected at most",
        "streams.e.replicas: 3: expected 1",
        "streams.e.batch.max_records: 65536: expected at most 65535",
        "logging.level: 'loud': expected debug, info, warning or error [LIFTLOG_LOGGING__LEVEL]",
        "commit.writer_threads: 0: expected at least 1 [--set commit.writer_threads]",
        "expected KEY=VALUE [--set oops]",
    ):
        assert expected in text
    assert len(caught.value.details["findings"]) == 13


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("streams:\n  a: {subject: a}\n  a: {subject: b}", "streams.a"),
        ("name: a\nname: a", "name"),
        ("- a", ""),
        ("a: [", ""),
        ("just text", ""),
        ("data_dir: !!python/object/apply:os.getcwd []", "data_dir"),
        ("data_dir: ''", "data_dir"),
        ('data_dir: "a\\0b"', "data_dir"),
        ('acl: {file: "a\\0b"}', "acl.file"),
        ("name: [a]", "name"),
        ("name: _system", "name"),
        ("name: a.b", "name"),
        ("nats: 5", "nats"),
        ("nats: {servers: []}", "nats.servers"),
        ("nats: {servers: ['http://a']}", "nats.servers[0]"),
        ("nats: {servers: ['nats://a:99999']}", "nats.servers[0]"),
        ("nats: {servers: ['nats://a b']}", "nats.servers[0]"),
        ("nats: {seam: callbacks}", "nats.seam"),
        ("nats: {password: x}", "nats.password"),
        ("nats: {user: a, token: b}", "nats.token"),
        ("nats: {tls: {cert: a.pem}}", "nats.tls.cert"),
        ("nats: {connect_timeout: 0s}", "nats.connect_timeout"),
        ("pull: {listen: ['udp://127.0.0.1:1']}", "pull.listen[0]"),
        ("pull: {listen: ['tcp://127.0.0.1']}", "pull.listen[0]"),
        ("pull: {listen: ['tcp://127.0.0.1:70000']}", "pull.listen[0]"),
        ("pull: {listen: ['unix://relative']}", "pull.listen[0]"),
        (f"pull: {{listen: ['unix:///{'x' * 120}']}}", "pull.listen[0]"),
        ("pull: {listen: ['unix:///a', 'unix:///a']}", "pull.listen[1]"),
        ("pull: {tls: {cert: a}}", "pull.tls.cert"),
        ("pull: {tls: {client_ca: a}}", "pull.tls.client_ca"),
        ("pull: {listen: ['tls://127.0.0.1:0'], tls: {cert: a}}", "pull.tls.key"),
        ("pull: {listen: ['tls://127.0.0.1:0'], tls: {key: a}}", "pull.tls.cert"),
        ("pull: {tls: {min_version: 1.1}}", "pull.tls.min_version"),
        ("pull: {max_fetch_bytes: 1KiB}", "pull.default_fetch_bytes"),
        ("pull: {max_frame_bytes: 1KiB}", "pull.max_hello_frame_bytes"),
        ("pull: {max_in_flight: true}", "pull.max_in_flight"),
        ("pull: {max_in_flight: '5'}", "pull.max_in_flight"),
        ("ingest: {max_pending_bytes: 0}", "ingest.max_pending_bytes"),
        ("streams: {a: {subject: a, acks: maybe}}", "streams.a.acks"),
        ("streams: {a: {subject: a, queue_group: 'a b'}}", "streams.a.queue_group"),
        ("streams: {a: {subject: a, initial_offset: 0}}", "streams.a.initial_offset"),
        ("streams: {a: {subject: a, min_isr: 2}}", "streams.a.min_isr"),
        ("streams: {a: {subject: a, flush: {messages: 0}}}", "streams.a.flush.messages"),
        ("streams: {a: {subject: a, max_message_bytes: 65MiB}}", "streams.a.max_message_bytes"),
        ("streams: {a: {subject: a, max_pending_bytes: 1MiB}}", "streams.a.max_message_bytes"),
        (
            "streams: {a: {subject: a}}\ningest: {max_pending_bytes: 1MiB}",
            "streams.a.max_message_bytes",
        ),
        ("streams: {a: {subject: a, compression: gzip}}", "streams.a.compression"),
        ("streams: {_a: {subject: a}}", "streams._a"),
        ("streams: {a: {subject: 'orders*'}}", "streams.a.subject"),
        ("streams: {a: {subject: 'a b'}}", "streams.a.subject"),
        ("streams: {a: {subject: '>.a'}}", "streams.a.subject"),
        ('streams: {a: {subject: "a\\r\\nPUB x 0"}}', "streams.a.subject"),
    ],
)
def test_refused(tmp_path: Path, text: str, path: str) -> None:
    assert list(refused(text, tmp_path)) == [path]


@pytest.mark.parametrize(
    "subject", [">", "*.>", "*.a", "_INBOX.x", "_INBOX.>", "$JS.API.>", "$a.b", "liftlog.>"]
)
def test_reserved_subjects_need_acks_off(tmp_path: Path, subject: str) -> None:
    for acks in ("on", "envelope"):
        text = f"streams: {{a: {{subject: '{subject}', acks: {acks}}}}}"
        assert list(refused(text, tmp_path)) == ["streams.a.acks"]
    load(f"streams: {{a: {{subject: '{subject}', acks: off}}}}", tmp_path)


@pytest.mark.parametrize("subject", ["orders.>", "a.*", "inbox.>", "a.$b", "liftlogs.>", "liftlog"])
def test_other_subjects_do_not(tmp_path: Path, subject: str) -> None:
    load(f"streams: {{a: {{subject: '{subject}'}}}}", tmp_path)


def test_a_silent_witness_opens_no_envelopes(tmp_path: Path) -> None:
    text = "streams: {a: {subject: a, liftbridge: true, acks: %s}}"
    assert list(refused(text % "off", tmp_path)) == ["streams.a.liftbridge"]
    for acks in ("on", "envelope"):
        assert load(text % acks, tmp_path).streams["a"].liftbridge


def test_an_embedded_server_and_others_exclude_each_other(tmp_path: Path) -> None:
    text = "nats: {embedded: true, servers: ['nats://127.0.0.1:4333']}"
    found = refused(text, tmp_path)
    assert list(found) == ["nats.servers"]
    assert "has no effect with nats.embedded: true" in found["nats.servers"]
    assert "leave it out, or set nats.embedded: false" in found["nats.servers"]
    environ = {"LIFTLOG_NATS__SERVERS": "nats://a:4222"}
    assert list(refused("nats: {embedded: true}", tmp_path, **environ)) == ["nats.servers"]
    assert load("nats: {servers: [a]}", tmp_path).nats.servers == ["nats://a"]
    # As in config/liftlog.yaml.
    assert load("nats: {embedded: true, servers: ['127.0.0.1:4222']}", tmp_path).nats.embedded


@pytest.mark.parametrize("address", ["0.0.0.0", "", "[::]", "192.168.1.1", "liftlog.example"])
def test_listening_beyond_loopback_needs_a_decision(tmp_path: Path, address: str) -> None:
    text = f"pull: {{listen: ['tcp://{address}:0']}}\nhttp: {{listen: '{address}:0'}}"
    assert list(refused(text, tmp_path)) == ["pull.listen[0]", "http.listen"]
    load(text, tmp_path, "allow_anonymous=true")
    load(text, tmp_path, "acl.file=acl.yaml")


def test_tls_addresses(tmp_path: Path) -> None:
    tls = "tls: {cert: a.pem, key: a.key, min_version: %s}"
    for version in ("1.3", "'1.3'"):
        pull = load(f"pull: {{listen: ['tls://127.0.0.1:0'], {tls % version}}}", tmp_path).pull
        assert pull.tls.min_version == "1.3"
    assert parse_listen("tls://[::1]:7") == ("::1", 7, None, True)
    assert not parse_listen("tcp://[::1]:7").tls
    # TLS alone says who the daemon is, not who may read.
    text = f"pull: {{listen: ['tls://0.0.0.0:0'], {tls % '1.2'}}}"
    assert list(refused(text, tmp_path)) == ["pull.listen[0]"]


@pytest.mark.parametrize(("name", "package"), [("lz4", "lz4"), ("zstd", "zstandard")])
def test_a_compression_without_its_package(
    tmp_path: Path, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"streams: {{a: {{subject: a, compression: {name}}}}}"
    assert load(text, tmp_path).streams["a"].compression == name
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted: None if wanted == package else find(wanted)
    )
    values = {"subject": "a", "compression": name}
    with pytest.raises(InvalidArgument, match=f"needs the package {package}"):
        parse_stream_settings(values)
    # A file is not wrong for what this machine lacks, nor is a stream that exists: it is the
    # stream that is not served then, see the broker's tests.
    assert load(text, tmp_path).streams["a"].compression == name
    assert parse_stream_settings(values, exists=True).compression == name


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.2:0", "tcp://[::1]:0", "tcp://localhost:0", "unix:///x"]
)
def test_listening_on_loopback_is_fine(tmp_path: Path, address: str) -> None:
    load(f"pull: {{listen: ['{address}']}}", tmp_path)


def test_a_file_with_compaction_of_a_longer_history_is_refused(tmp_path: Path) -> None:
    text = "streams: {a: {subject: a, compaction: {}, jetstream: {max_msgs_per_subject: 5}}}"
    assert list(refused(text, tmp_path)) == ["streams.a.jetstream.max_msgs_per_subject"]


def test_a_bad_value_raises_no_echo(tmp_path: Path) -> None:
    text = "pull: {listen: ['tcp://0.0.0.0:0']}\nacl: {file: [1]}"
    assert list(refused(text, tmp_path)) == ["acl.file"]


@pytest.mark.parametrize(
    "text",
    [
        "nats: {password: [hunter2]}",
        "nats: {token: {a: hunter2}}",
        "nats: {pasword: hunter2}",
        "nats: {servers: ['nats://u:hunter2@h:99999']}",
        "nats: {servers: 'nats://u:hunter2@h:99999'}",
        "nats: 'nats://u:hunter2@h'",
        "nats: {servers: {a: 'nats://u:hunter2@h'}}",
        "nats: {password: hunter2",
    ],
)
def test_secrets_are_not_in_errors(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text, tmp_path, "nats.password")
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.details)
    assert "hunter2" not in repr(caught.value.__cause__)
    assert "hunter2" not in repr(caught.value.__context__)


def test_secrets_are_not_in_repr_or_dumps() -> None:
    settings = load_settings(
        None,
        {},
        [
            "nats.user=me",
            "nats.password=hunter2",
            "nats.servers=nats://u:hunter3@a:1,nats://hunter4@b",
        ],
    )
    for shown in (repr(settings), str(settings), repr(settings.to_yaml_dict())):
        assert not [secret for secret in ("hunter2", "hunter3", "hunter4") if secret in shown]
    assert settings.nats.servers == ["nats://u:hunter3@a:1", "nats://hunter4@b"]


def test_an_empty_file_and_empty_sections_are_defaults(tmp_path: Path) -> None:
    assert load("", tmp_path) == Settings()
    assert load("nats:\nstreams: {}\npull:\n", tmp_path) == Settings()


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"name: \xff"])
def test_an_unreadable_file(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "l.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="cannot read"):
        load_settings(file, {})
    with pytest.raises(ConfigError, match="No such file"):
        load_settings(tmp_path / "absent.yaml", {})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().name = "other"  # type: ignore[misc]


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than"):
        load_settings(Path("/dev/zero"), {})


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("max_records", "max_messages"),
        ("max_msgs", "max_messages"),
        ("max_size", "max_bytes"),
        ("max_agee", "max_age"),
    ],
)
def test_names_of_other_systems_lead_to_ours(word: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        load_settings(None, {}, ["streams.a.subject=a", f"streams.a.retention.{word}=5"])
