"""The settings of the daemon. Every field has a default, so `Settings()` is a working daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from acl.subjects import why_invalid
from liftlog.names import NAME_HELP, is_stream_name

from .addresses import HostName, HostPort, ListenUrl, NatsUrl
from .base import SettingsModel
from .stream import StreamSettings
from .units import Count, Duration, Flag, PositiveDuration, Size

MIN_CLEANER_MEMORY_BYTES = 2**20


def _split_commas(value: Any) -> Any:
    if isinstance(value, str):
        return [part for part in (part.strip() for part in value.split(",")) if part]
    return value


def _not_empty(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("expected at least one address")
    return value


def _subject(text: str) -> str:
    problem = why_invalid(text)
    if problem is not None:
        raise ValueError(f"not a NATS subject: {problem}")
    return text


def _some_subject(value: list[str]) -> list[str]:
    if not value:
        raise ValueError("expected at least one subject; `acks: off` of a stream ends its acks")
    return value


def _name(value: str) -> str:
    if not is_stream_name(value):
        raise ValueError(f"expected {NAME_HELP}")
    return value


def _path_text(value: Any) -> Any:
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError("expected the path of a file or directory")
    return value


def _version_text(value: Any) -> Any:
    # YAML reads 1.2 as a number.
    return str(value) if isinstance(value, float) else value


def _mode_text(value: Any) -> Any:
    # YAML reads 0600 as the number 384.
    return f"{value:04o}" if type(value) is int else value


def _enough_memory(value: int) -> int:
    if value < MIN_CLEANER_MEMORY_BYTES:
        raise ValueError("expected at least 1MiB")
    return value


FilePath = Annotated[Path, BeforeValidator(_path_text)]
Name = Annotated[str, AfterValidator(_name)]
ListenUrls = Annotated[list[ListenUrl], BeforeValidator(_split_commas), AfterValidator(_not_empty)]
UnixMode = Annotated[Literal["0600", "0660", "0666"], BeforeValidator(_mode_text)]
HostNames = Annotated[list[HostName], BeforeValidator(_split_commas)]
Subjects = Annotated[
    list[Annotated[str, AfterValidator(_subject)]],
    BeforeValidator(_split_commas),
    AfterValidator(_some_subject),
]
NatsUrls = Annotated[list[NatsUrl], BeforeValidator(_split_commas), AfterValidator(_not_empty)]


class NatsTlsSettings(SettingsModel):
    """TLS is used when any of these is set, or a server's URL begins with tls://."""

    ca: FilePath | None = Field(
        default=None, description="File of CA certificates; default: those of the system."
    )
    cert: FilePath | None = Field(default=None, description="Client certificate file.")
    key: FilePath | None = Field(
        default=None, description="Private key file of the client certificate."
    )
    hostname: str | None = Field(
        default=None,
        description="Name to expect in the server's certificate instead of the URL's host.",
    )
    handshake_first: Flag = Field(
        default=False,
        description="TLS before the server's INFO line, as `handshake_first` in nats-server.",
    )


class NatsSettings(SettingsModel):
    servers: NatsUrls = Field(
        default=["nats://127.0.0.1:4222"],
        description="NATS servers, as a list or as text with commas.",
        validate_default=True,
    )
    embedded: Flag = Field(
        default=False, description="Start a nats-server of our own (extra `embedded`) and use that."
    )
    name: str = Field(default="liftlog", description="Connection name that NATS shows.")
    user: str | None = Field(default=None, description="User name.")
    password: SecretStr | None = Field(default=None, description="Password of `user`.")
    token: SecretStr | None = Field(default=None, description="Authentication token.")
    credentials: FilePath | None = Field(default=None, description="`.creds` file (JWT and seed).")
    nkey: FilePath | None = Field(default=None, description="File with an nkey seed.")
    tls: NatsTlsSettings = NatsTlsSettings()
    ack_subjects: Subjects = Field(
        default=[">"],
        description="Where acks may go: a publisher chooses the reply subject, and with "
        "`_INBOX.>` it cannot have the daemon send to other services. Other acks are left out "
        "and counted.",
    )
    seam: Literal["auto", "parser", "client"] = Field(
        default="auto",
        description="How messages leave nats-py: `parser` in batches, `client` one by one "
        "(slower); `auto` takes the first that fits the installed nats-py.",
    )
    connect_timeout_seconds: PositiveDuration = Field(
        default=2.0, alias="connect_timeout", description="Time for one connection attempt."
    )
    reconnect_wait_seconds: PositiveDuration = Field(
        default=0.5, alias="reconnect_wait", description="Pause between attempts; they never end."
    )
    ping_interval_seconds: PositiveDuration = Field(
        default=10.0, alias="ping_interval", description="How often to ping the server."
    )
    max_outstanding_pings: Count = Field(
        default=2, description="Unanswered pings after which the connection counts as dead."
    )


class PullTlsSettings(SettingsModel):
    """For addresses `tls://HOST:PORT` in `pull.listen`."""

    cert: FilePath | None = Field(
        default=None,
        description="Certificate file (PEM): the daemon's, then those that signed it.",
    )
    key: FilePath | None = Field(
        default=None, description="Private key file of the certificate, without a password."
    )
    client_ca: FilePath | None = Field(
        default=None,
        description="File of CA certificates; with it clients need a certificate that one of "
        "them has signed.",
    )
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_version_text)] = Field(
        default="1.2", description="Oldest TLS version that is accepted: `1.2` or `1.3`."
    )


class PullSettings(SettingsModel):
    """The socket that consumers read from."""

    listen: ListenUrls = Field(
        default=["tcp://127.0.0.1:9292"],
        description="Addresses: `tcp://HOST:PORT` (port 0: any free one), `tls://HOST:PORT` (see "
        "`pull.tls`), `unix:///PATH`.",
    )
    tls: PullTlsSettings = PullTlsSettings()
    max_connections: Count = Field(default=1024, description="Connections at the same time.")
    max_connections_per_principal: Count = Field(
        default=512, description="Of them, those of one principal of the ACL."
    )
    max_in_flight_per_principal: Count = Field(
        default=4096,
        description="Unanswered requests of one principal, all its connections together; beyond it "
        "they are refused.",
    )
    max_request_memory_bytes: Size = Field(
        default=16 * 2**20,
        description="Memory of the unanswered requests of one connection, which is that of their "
        "filters; beyond it they are refused.",
    )
    max_request_memory_per_principal_bytes: Size = Field(
        default=64 * 2**20,
        description="The same for all connections of one principal together.",
    )
    unix_mode: UnixMode = Field(
        default="0600",
        description="Who may connect to a Unix socket, as the mode of its file: `0600` the "
        "daemon's own user (and root), `0660` also its group, `0666` everyone on this machine.",
    )
    hello_timeout_seconds: PositiveDuration = Field(
        default=5.0, alias="hello_timeout", description="Time to say hello and authenticate."
    )
    max_hello_frame_bytes: Size = Field(
        default=4 * 2**10, description="Largest frame before authentication."
    )
    max_frame_bytes: Size = Field(default=2**20, description="Largest frame after authentication.")
    max_in_flight: Count = Field(
        default=64,
        description="Unanswered requests of one connection; beyond it we stop reading it.",
    )
    max_unsent_bytes: Size = Field(
        default=16 * 2**20,
        description="Unsent answers of one connection; beyond it we stop reading it.",
    )
    max_unsent_memory_bytes: Size = Field(
        default=256 * 2**20,
        description="Unsent answers that lie in memory, and unanswered requests, all connections "
        "together; beyond it the connection with most of both is cut off.",
    )
    default_fetch_bytes: Size = Field(
        default=2**20, description="Answer size when a fetch names none."
    )
    max_fetch_bytes: Size = Field(
        default=8 * 2**20, description="Largest answer size a fetch can ask for."
    )
    max_wait_seconds: PositiveDuration = Field(
        default=60.0, alias="max_wait", description="Longest time a fetch can wait for new records."
    )
    linger_seconds: Duration = Field(
        default=0.005,
        alias="linger",
        description="A consumer that waits at the end of a stream is answered at most once in this "
        "time; the first commit after a pause reaches it at once.",
    )


class HttpSettings(SettingsModel):
    listen: HostPort | None = Field(
        default="127.0.0.1:8292",
        description="`HOST:PORT` for health, metrics and the web page; `null` switches it off.",
    )
    log_api: Flag = Field(
        default=False,
        description="Serve `/api/v1/streams/...` on it: bounds, one record, append, "
        "truncate-prefix.",
    )
    web: Flag = Field(
        default=True,
        description="Serve the web page on it, `/ui/`, to whom the ACL allows it.",
    )
    allowed_hosts: HostNames = Field(
        default_factory=list,
        description="Host names under which requests without credentials are answered, beside IP "
        "addresses, `localhost`, this machine's name and names without a dot.",
    )
    max_connections: Count = Field(
        default=128,
        description="Connections served at the same time; 16 more are kept for health checks. "
        "Beyond that those that are idle or unknown make room.",
    )
    timeout_seconds: PositiveDuration = Field(
        default=30.0,
        alias="timeout",
        description="Time for a request to arrive, for its answer to be taken, and between two.",
    )
    max_body_bytes: Size = Field(
        default=2 * 2**20, alias="max_body", description="Largest body of a request."
    )
    append_timeout_seconds: PositiveDuration = Field(
        default=5.0, alias="append_timeout", description="Time for the ack of an appended message."
    )


class AclSettings(SettingsModel):
    file: FilePath | None = Field(
        default=None, description="ACL file. With one, whatever it does not allow is denied."
    )


class LoggingSettings(SettingsModel):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level that is logged."
    )
    format: Literal["auto", "pretty", "json"] = Field(
        default="auto", description="`auto`: pretty on a terminal, else JSON lines."
    )
    file: FilePath | None = Field(
        default=None,
        description="Log file, opened anew on SIGUSR1 (after it was rotated). `null`: stderr.",
    )


class CommitSettings(SettingsModel):
    """When a commit runs inside the event loop and when in a writer thread."""

    inline_max_messages: Annotated[int, Field(strict=True, ge=0, le=65_535)] = Field(
        default=64, description="Groups up to this size may be committed inline; 0: never."
    )
    inline_budget_seconds: Duration = Field(
        default=0.001,
        alias="inline_budget",
        description="Time for inline commits in one loop turn.",
    )
    writer_threads: Annotated[int, Field(strict=True, ge=1, le=256)] = Field(
        default=4, description="Threads that write and sync larger groups."
    )


class IngestSettings(SettingsModel):
    max_pending_bytes: Size = Field(
        default=256 * 2**20,
        description="Received but not yet committed, all streams together; "
        "beyond it we stop reading from NATS.",
    )


class LogSettings(SettingsModel):
    """The storage under all streams."""

    index_cache_segments: Count = Field(
        default=64, description="Indexes of sealed segments kept in memory."
    )
    max_open_files: Count = Field(default=256, description="Segment files kept open.")
    recovery_checkpoint_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="recovery_checkpoint_interval",
        description="How often recovery points are saved; recovery scans what came after.",
    )
    retention_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="retention_interval",
        description="How often retention is applied and old segments are rolled, also idle ones.",
    )


class CleanerSettings(SettingsModel):
    """Key compaction, re-batching and scrubbing, which run in a process of their own."""

    interval_seconds: PositiveDuration = Field(
        default=15.0, alias="interval", description="How often to look for something to do."
    )
    max_rate_bytes: Size = Field(
        default=32 * 2**20,
        alias="max_rate",
        description="Bytes a second that compaction and re-batching may read and write, "
        "all streams together.",
    )
    memory_bytes: Annotated[Size, AfterValidator(_enough_memory)] = Field(
        default=64 * 2**20,
        alias="memory",
        description="Memory for the map of keys, at least 1MiB; "
        "more keys than fit take several passes.",
    )
    scrub_interval_seconds: PositiveDuration | None = Field(
        default=7 * 86_400.0,
        alias="scrub_interval",
        description="Every sealed segment is verified again after this long. `null`: never.",
    )
    scrub_max_rate_bytes: Size = Field(
        default=8 * 2**20,
        alias="scrub_max_rate",
        description="Bytes a second that verifying may read.",
    )


class CheckpointSettings(SettingsModel):
    """Where consumers go on, which the daemon stores for them."""

    over_nats: Flag | None = Field(
        default=None,
        description="Take checkpoints from `liftlog.<name>.offsets.<stream>.<consumer>` on NATS. "
        "`null`: only without `acl.file`, since NATS does not tell who publishes.",
    )
    expire_after_seconds: PositiveDuration | None = Field(
        default=None,
        alias="expire_after",
        description="A checkpoint goes when nothing was committed for this long although records "
        "waited. `null`: never.",
    )
    max_count: Count = Field(
        default=100_000, description="Checkpoints at most, of all consumers and streams."
    )
    max_count_per_principal: Count = Field(
        default=10_000,
        description="Of them, those that one principal of the ACL committed last. With an ACL, all "
        "that come over NATS are those of one.",
    )


class Settings(SettingsModel):
    """The whole configuration. Build it with `load_settings`, which also checks across fields."""

    data_dir: FilePath = Field(default=Path("./data"), description="Directory of all data.")
    name: Name = Field(
        default="liftlog", description="Name of this daemon in NATS subjects, metrics and logs."
    )
    drain_timeout_seconds: PositiveDuration = Field(
        default=5.0,
        alias="drain_timeout",
        description="Time to commit and ack on SIGTERM or SIGINT.",
    )
    allow_anonymous: Flag = Field(
        default=False, description="Allow listening beyond loopback without an ACL file."
    )
    nats: NatsSettings = NatsSettings()
    pull: PullSettings = PullSettings()
    http: HttpSettings = HttpSettings()
    acl: AclSettings = AclSettings()
    commit: CommitSettings = CommitSettings()
    ingest: IngestSettings = IngestSettings()
    log: LogSettings = LogSettings()
    cleaner: CleanerSettings = CleanerSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    logging: LoggingSettings = LoggingSettings()
    streams: dict[Name, StreamSettings] = Field(default={}, description="Streams by name.")
