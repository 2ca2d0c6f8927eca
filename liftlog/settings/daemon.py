"""The settings of the daemon. Every field has a default, so `Settings()` is a working daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from acl.subjects import why_invalid
from liftlog.names import NAME_HELP, is_stream_name

from .addresses import HostName, HostPort, ListenUrl, NatsUrl
from .cluster import ClusterSettings
from .consumers import ConsumerSettings
from .keys import SettingsModel
from .stream import StreamSettings
from .units import Count, Duration, Flag, PositiveDuration, Size, SizeOrAuto, path_text

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
        raise ValueError(
            "expected at least one subject; to stop the acks of a stream, set its `acks: off`"
        )
    return value


def _name(value: str) -> str:
    if not is_stream_name(value):
        raise ValueError(f"expected {NAME_HELP}")
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


FilePath = Annotated[Path, BeforeValidator(path_text)]
Name = Annotated[str, AfterValidator(_name)]
ListenUrls = Annotated[list[ListenUrl], BeforeValidator(_split_commas), AfterValidator(_not_empty)]
UnixMode = Annotated[Literal["0600", "0660", "0666"], BeforeValidator(_mode_text)]
HostNames = Annotated[list[HostName], BeforeValidator(_split_commas)]
Subjects = Annotated[
    list[Annotated[str, AfterValidator(_subject)]],
    BeforeValidator(_split_commas),
    AfterValidator(_some_subject),
]
HostPorts = Annotated[list[HostPort], BeforeValidator(_split_commas)]
NatsUrls = Annotated[list[NatsUrl], BeforeValidator(_split_commas), AfterValidator(_not_empty)]


class NatsTlsSettings(SettingsModel):
    """TLS is used when any of these is set or when the URL of a server begins with `tls://`."""

    ca: FilePath | None = Field(
        default=None, description="File of CA certificates. Default: the CAs of the system."
    )
    cert: FilePath | None = Field(default=None, description="Client certificate file.")
    key: FilePath | None = Field(
        default=None, description="Private key file of the client certificate."
    )
    hostname: str | None = Field(
        default=None,
        description="Name expected in the server's certificate, instead of the host in its URL.",
    )
    handshake_first: Flag = Field(
        default=False,
        description="Start TLS before the server sends INFO, as `handshake_first` does in "
        "nats-server.",
    )


class NatsSettings(SettingsModel):
    servers: NatsUrls = Field(
        default=["nats://127.0.0.1:4222"],
        description="NATS servers: a list, or text separated by commas. `embedded` excludes this "
        "setting, unless it has its default.",
        validate_default=True,
    )
    embedded: Flag = Field(
        default=False,
        description="Start a private nats-server (extra `embedded`), without JetStream, and use "
        "it. It listens on 127.0.0.1:4222, or on a free port if that is taken.",
    )
    name: str = Field(default="liftlog", description="Name of the connection, as NATS shows it.")
    user: str | None = Field(default=None, description="User name.")
    password: SecretStr | None = Field(default=None, description="Password of `user`.")
    token: SecretStr | None = Field(default=None, description="Authentication token.")
    credentials: FilePath | None = Field(default=None, description="`.creds` file (JWT and seed).")
    nkey: FilePath | None = Field(default=None, description="File with an nkey seed.")
    tls: NatsTlsSettings = NatsTlsSettings()
    ack_subjects: Subjects = Field(
        default=[">"],
        description="Subjects to which the daemon may send acks, and answers and records of "
        "`jetstream_api`. Clients choose these subjects; `_INBOX.>` keeps the daemon from sending "
        "to other services. Acks to any other subject are counted, but not sent.",
    )
    jetstream_api: Flag = Field(
        default=False,
        description="Answer JetStream's clients on `$JS.API.>`: they create, describe and delete "
        "streams, and get single messages. The daemon answers only while JetStream is off on the "
        "NATS servers.",
    )
    leafnode: HostPorts | None = Field(
        default=None,
        description="HOST:PORT of a NATS server's `leafnodes` listener, over which consumers of "
        "`jetstream_api` deliver; a list, or text separated by commas, names several servers. The "
        "login and TLS of this section apply. `null`: no consumers over NATS.",
    )
    seam: Literal["auto", "parser", "client"] = Field(
        default="auto",
        description="How the daemon receives messages from nats-py: `parser` in batches, `client` "
        "one by one (slower). `auto` uses the first of them that fits the installed nats-py.",
    )
    connect_timeout_seconds: PositiveDuration = Field(
        default=2.0, alias="connect_timeout", description="Time limit of one connection attempt."
    )
    reconnect_wait_seconds: PositiveDuration = Field(
        default=0.5,
        alias="reconnect_wait",
        description="Pause between connection attempts, which never stop.",
    )
    ping_interval_seconds: PositiveDuration = Field(
        default=10.0, alias="ping_interval", description="Interval between pings to the server."
    )
    max_outstanding_pings: Count = Field(
        default=2,
        description="Number of unanswered pings after which the connection is considered dead.",
    )


class PullTlsSettings(SettingsModel):
    """TLS for the addresses `tls://HOST:PORT` in `pull.listen`."""

    cert: FilePath | None = Field(
        default=None,
        description="Certificate file (PEM): the daemon's certificate, then its issuers.",
    )
    key: FilePath | None = Field(
        default=None,
        description="Private key file of the certificate; it must not have a password.",
    )
    client_ca: FilePath | None = Field(
        default=None,
        description="File of CA certificates. If set, clients must present a certificate signed "
        "by one of them.",
    )
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_version_text)] = Field(
        default="1.2", description="Oldest TLS version accepted: `1.2` or `1.3`."
    )


class PullSettings(SettingsModel):
    """The socket that consumers read from."""

    listen: ListenUrls = Field(
        default=["tcp://127.0.0.1:9292"],
        description="Addresses: `tcp://HOST:PORT` (port 0: any free port), `tls://HOST:PORT` (see "
        "`pull.tls`), `unix:///PATH`.",
    )
    tls: PullTlsSettings = PullTlsSettings()
    max_connections: Count = Field(default=1024, description="Maximum number of connections.")
    max_connections_per_principal: Count = Field(
        default=512, description="Maximum number of connections of one ACL principal."
    )
    max_in_flight_per_principal: Count = Field(
        default=4096,
        description="Maximum number of unanswered requests of one principal over all its "
        "connections. Further requests are refused.",
    )
    max_request_memory_bytes: Size = Field(
        default=16 * 2**20,
        description="Maximum memory of the unanswered requests of one connection (mostly "
        "filters). Further requests are refused.",
    )
    max_request_memory_per_principal_bytes: Size = Field(
        default=64 * 2**20,
        description="The same limit for all connections of one principal together.",
    )
    unix_mode: UnixMode = Field(
        default="0600",
        description="File mode of a Unix socket, which determines who may connect. `0600`: only "
        "the daemon's user (and root). `0660`: also its group. `0666`: every user of this "
        "machine.",
    )
    hello_timeout_seconds: PositiveDuration = Field(
        default=5.0,
        alias="hello_timeout",
        description="Time in which the hello and the login of a client must arrive.",
    )
    max_hello_frame_bytes: Size = Field(
        default=4 * 2**10, description="Maximum frame size before authentication."
    )
    max_frame_bytes: Size = Field(
        default=2**20, description="Maximum frame size after authentication."
    )
    max_in_flight: Count = Field(
        default=64,
        description="Maximum number of unanswered requests of one connection. At the limit the "
        "daemon stops reading from it.",
    )
    max_unsent_bytes: Size = Field(
        default=16 * 2**20,
        description="Maximum size of the unsent answers of one connection. At the limit the "
        "daemon stops reading from it.",
    )
    max_unsent_memory_bytes: Size = Field(
        default=256 * 2**20,
        description="Maximum memory of unsent answers and unanswered requests on all connections "
        "together. Above it the daemon closes the connection that uses most.",
    )
    default_fetch_bytes: Size = Field(
        default=2**20, description="Maximum size of the answer to a fetch that requests no size."
    )
    max_fetch_bytes: Size = Field(
        default=8 * 2**20, description="Largest answer size that a fetch may request."
    )
    max_wait_seconds: PositiveDuration = Field(
        default=60.0,
        alias="max_wait",
        description="Longest time that a fetch may wait for new records.",
    )
    linger_seconds: Duration = Field(
        default=0.005,
        alias="linger",
        description="Minimum time between two answers to a consumer that waits at the end of a "
        "stream. The first commit after a pause is delivered at once.",
    )


class HttpSettings(SettingsModel):
    listen: HostPort | None = Field(
        default="127.0.0.1:8292",
        description="`HOST:PORT` for health checks, metrics and the web page. `null`: no HTTP "
        "port.",
    )
    log_api: Flag = Field(
        default=False,
        description="Serve the log API, `/api/v1/streams/...`: bounds, one record, append, "
        "truncate-prefix.",
    )
    web: Flag = Field(
        default=True,
        description="Serve the web page, `/ui/`, to everyone whom the ACL allows.",
    )
    allowed_hosts: HostNames = Field(
        default_factory=list,
        description="Host names under which the daemon answers requests without credentials, in "
        "addition to IP addresses, `localhost`, this machine's name and names without a dot.",
    )
    max_connections: Count = Field(
        default=128,
        description="Maximum number of connections; 16 more are reserved for health checks. At "
        "the limit, idle and unauthenticated connections are closed to make room.",
    )
    timeout_seconds: PositiveDuration = Field(
        default=30.0,
        alias="timeout",
        description="Time limit for a request to arrive, for the client to read its answer, and "
        "for an idle connection between two requests.",
    )
    max_body_bytes: Size = Field(
        default=2 * 2**20, alias="max_body", description="Maximum size of a request body."
    )
    append_timeout_seconds: PositiveDuration = Field(
        default=5.0,
        alias="append_timeout",
        description="Time to wait for the ack of an appended message.",
    )


class AclSettings(SettingsModel):
    file: FilePath | None = Field(
        default=None, description="ACL file. If set, everything that it does not allow is denied."
    )


class LoggingSettings(SettingsModel):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that is logged."
    )
    format: Literal["auto", "pretty", "json"] = Field(
        default="auto",
        description="Format of the log. `auto`: `pretty` on a terminal, otherwise JSON lines.",
    )
    file: FilePath | None = Field(
        default=None,
        description="Log file. The daemon reopens it on SIGUSR1, for log rotation. `null`: stderr.",
    )


class CommitSettings(SettingsModel):
    """Limits of commits inside the event loop, and the writer threads for all others."""

    inline_max_messages: Annotated[int, Field(strict=True, ge=0, le=65_535)] = Field(
        default=64,
        description="Groups of up to this many messages, or 512 KiB of a stream with followers, "
        "may be committed in the event loop; 0: no group is.",
    )
    inline_budget_seconds: Duration = Field(
        default=0.001,
        alias="inline_budget",
        description="Time limit of commits in one turn of the event loop.",
    )
    writer_threads: Annotated[int, Field(strict=True, ge=1, le=256)] = Field(
        default=4, description="Number of threads that write and sync larger groups."
    )


class IngestSettings(SettingsModel):
    max_pending_bytes: Size = Field(
        default=256 * 2**20,
        description="Maximum size of messages received but not yet committed, in all streams "
        "together. At the limit the daemon stops reading from NATS.",
    )


class LogSettings(SettingsModel):
    """The storage under all streams."""

    index_cache_segments: Count = Field(
        default=64, description="Number of indexes of sealed segments kept in memory."
    )
    max_open_files: Count = Field(default=256, description="Number of segment files kept open.")
    recovery_checkpoint_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="recovery_checkpoint_interval",
        description="How often recovery points are saved. Recovery scans the records after the "
        "last recovery point.",
    )
    retention_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="retention_interval",
        description="How often retention is applied and old active segments are rolled, even idle "
        "ones.",
    )


class CleanerSettings(SettingsModel):
    """Key compaction, re-batching, sketches and scrubbing. They run in a separate process."""

    interval_seconds: PositiveDuration = Field(
        default=15.0,
        alias="interval",
        description="How often the daemon looks for segments to clean.",
    )
    max_rate_bytes: SizeOrAuto = Field(
        default=None,
        alias="max_rate",
        description="Bytes per second that compaction and re-batching may read and write, all "
        "streams together. `auto`: no limit while the daemon is idle; 32MiB while messages "
        "arrive, a commit waits for the disk or the daemon uses a quarter of a core.",
    )
    memory_bytes: Annotated[Size, AfterValidator(_enough_memory)] = Field(
        default=64 * 2**20,
        alias="memory",
        description="Memory for the map of keys, at least 1MiB. More keys than fit take several "
        "passes.",
    )
    sketches: bool = Field(
        default=True,
        description="Make a sketch of each sealed segment of 1 MiB or more. With it, reads of few "
        "records (one key, subject, time) or few columns skip most of the segment. A sketch has "
        "one to three hundredths of the size of its segment.",
    )
    subject_indexes: bool = Field(
        default=True,
        description="Make a subject index with each sketch. With it, the daemon reads one subject "
        "of many in less than half the time. An index takes about 18 bytes for each record (a "
        "tenth of a record of 200 bytes), and at most a fifth of its segment. No index is made "
        "while less than a tenth of the disk is free. Needs `sketches`.",
    )
    scrub_interval_seconds: PositiveDuration | None = Field(
        default=7 * 86_400.0,
        alias="scrub_interval",
        description="Verify every sealed segment again after this long. `null`: never.",
    )
    scrub_max_rate_bytes: Size = Field(
        default=8 * 2**20,
        alias="scrub_max_rate",
        description="Bytes per second that scrubbing may read.",
    )


class CheckpointSettings(SettingsModel):
    """The positions of consumers, which the daemon stores for them."""

    over_nats: Flag | None = Field(
        default=None,
        description="Accept checkpoints on the NATS subjects "
        "`liftlog.<name>.offsets.<stream>.<consumer>`. `null`: only without `acl.file`, because "
        "NATS does not identify the publisher of a message.",
    )
    expire_after_seconds: PositiveDuration | None = Field(
        default=None,
        alias="expire_after",
        description="Delete a checkpoint that was not committed for this long although the "
        "consumer had records to read, and a consumer group that had no members for this long. "
        "`null`: never.",
    )
    max_count: Count = Field(
        default=100_000,
        description="Maximum number of checkpoints, over all consumers and streams.",
    )
    max_count_per_principal: Count = Field(
        default=10_000,
        description="Maximum number of checkpoints last committed by one ACL principal. With an "
        "ACL, all checkpoints that come over NATS count as those of one principal.",
    )
    max_groups: Count = Field(
        default=10_000,
        description="Maximum number of consumer groups. A group with more than 64 slots counts as "
        "several groups; 1,024 slots count as 16.",
    )
    max_groups_per_principal: Count = Field(
        default=1_000,
        description="Maximum number of consumer groups created by one ACL principal.",
    )
    max_members: Count = Field(
        default=10_000,
        description="Maximum number of members, of all consumer groups together.",
    )
    max_members_per_principal: Count = Field(
        default=2_000,
        description="Maximum number of members that one ACL principal has, in all consumer groups.",
    )


class Settings(SettingsModel):
    """The whole configuration. Build it with `load_settings`, which also does the cross checks."""

    data_dir: FilePath = Field(default=Path("./data"), description="Directory that holds all data.")
    name: Name = Field(
        default="liftlog", description="Name of this daemon in NATS subjects, metrics and logs."
    )
    drain_timeout_seconds: PositiveDuration = Field(
        default=30.0,
        alias="drain_timeout",
        description="Time limit of a stop after SIGTERM or SIGINT. A node of a cluster first "
        "hands over the streams that it leads; then the received messages are committed and "
        "acked.",
    )
    allow_anonymous: Flag = Field(
        default=False, description="Allow the daemon to listen beyond loopback without an ACL file."
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
    consumers: ConsumerSettings = ConsumerSettings()
    cluster: ClusterSettings | None = Field(
        default=None,
        description="Membership of a cluster. `null`: this daemon belongs to no cluster.",
    )
    logging: LoggingSettings = LoggingSettings()
    streams: dict[Name, StreamSettings] = Field(default={}, description="Streams by name.")
