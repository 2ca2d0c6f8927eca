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
    """TLS is used if one of these settings is set, or if a server's URL begins with `tls://`."""

    ca: FilePath | None = Field(
        default=None, description="File of CA certificates. `null`: the CAs of the system."
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
        description="NATS servers: a list, or text separated by commas. Not together with "
        "`embedded`.",
        validate_default=True,
    )
    embedded: Flag = Field(
        default=False,
        description="Start a private nats-server (extra `embedded`), without JetStream, and use "
        "it. The server listens on 127.0.0.1:4222, or on a free port if this port is in use.",
    )
    name: str = Field(default="liftlog", description="Name of the connection in NATS.")
    user: str | None = Field(default=None, description="User name.")
    password: SecretStr | None = Field(default=None, description="Password of `user`.")
    token: SecretStr | None = Field(default=None, description="Authentication token.")
    credentials: FilePath | None = Field(default=None, description="`.creds` file (JWT and seed).")
    nkey: FilePath | None = Field(default=None, description="File with an nkey seed.")
    tls: NatsTlsSettings = NatsTlsSettings()
    ack_subjects: Subjects = Field(
        default=[">"],
        description="Subjects to which the daemon may send acks, and answers and records of "
        "`jetstream_api`. Clients choose the subject of each answer. With `_INBOX.>`, a client "
        "cannot make the daemon send messages to other services. The daemon does not send acks to "
        "subjects that this setting does not allow, but counts them.",
    )
    jetstream_api: Flag = Field(
        default=False,
        description="Answer JetStream's clients on `$JS.API.>`. The clients can create, describe "
        "and delete streams, get single messages, and use consumers. The daemon answers only while "
        "JetStream is off on the NATS servers.",
    )
    leafnode: HostPorts | None = Field(
        default=None,
        description="HOST:PORT of a NATS server's `leafnodes` listener. The daemon connects to "
        "this address, with the login and TLS settings of this section. Consumers of "
        "`jetstream_api` deliver messages over this connection. For several servers, use a list, "
        "or text separated by commas. `null`: no consumers over NATS.",
    )
    seam: Literal["auto", "parser", "client"] = Field(
        default="auto",
        description="Interface to nats-py. `parser` receives messages in batches, `client` singly "
        "(slower). `auto`: `parser` if the installed nats-py supports it, otherwise `client`.",
    )
    connect_timeout_seconds: PositiveDuration = Field(
        default=2.0, alias="connect_timeout", description="Time limit of one connection attempt."
    )
    reconnect_wait_seconds: PositiveDuration = Field(
        default=0.5,
        alias="reconnect_wait",
        description="Pause between connection attempts. Their number is not limited.",
    )
    ping_interval_seconds: PositiveDuration = Field(
        default=10.0, alias="ping_interval", description="Interval between pings to the server."
    )
    max_outstanding_pings: Count = Field(
        default=2,
        description="Number of unanswered pings after which the daemon closes the connection.",
    )


class PullTlsSettings(SettingsModel):
    """TLS for the addresses `tls://HOST:PORT` in `pull.listen`."""

    cert: FilePath | None = Field(
        default=None,
        description="Certificate file (PEM): first the daemon's certificate, then its issuers.",
    )
    key: FilePath | None = Field(
        default=None,
        description="Private key file of the certificate. The key must not have a password.",
    )
    client_ca: FilePath | None = Field(
        default=None,
        description="File of CA certificates. If set, clients must present a certificate that one "
        "of these CAs has signed.",
    )
    min_version: Annotated[Literal["1.2", "1.3"], BeforeValidator(_version_text)] = Field(
        default="1.2", description="Oldest TLS version that the daemon accepts."
    )


class PullSettings(SettingsModel):
    """The socket from which consumers read."""

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
        description="Maximum number of unanswered requests of one principal on all its "
        "connections together. The daemon refuses further requests.",
    )
    max_request_memory_bytes: Size = Field(
        default=16 * 2**20,
        description="Maximum memory for the unanswered requests of one connection; filters use "
        "most of it. The daemon refuses further requests.",
    )
    max_request_memory_per_principal_bytes: Size = Field(
        default=64 * 2**20,
        description="Maximum memory of the unanswered requests of one principal.",
    )
    unix_mode: UnixMode = Field(
        default="0600",
        description="File mode of a Unix socket, which determines which users may connect. "
        "`0600`: only the daemon's user (and root). `0660`: also the group of this user. `0666`: "
        "every user of this machine.",
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
        "daemon stops reading from the connection.",
    )
    max_unsent_bytes: Size = Field(
        default=16 * 2**20,
        description="Maximum size of the unsent answers of one connection. At the limit the "
        "daemon stops reading from the connection.",
    )
    max_unsent_memory_bytes: Size = Field(
        default=256 * 2**20,
        description="Maximum memory of unsent answers and unanswered requests on all connections "
        "together. Beyond the limit the daemon closes the connection that uses the most memory.",
    )
    default_fetch_bytes: Size = Field(
        default=2**20, description="Maximum size of the answer to a fetch without a size."
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
        default=0.0005,
        alias="linger",
        description="Minimum time between two answers to a consumer that waits at the end of a "
        "stream; longer with many consumers or messages.",
    )


class HttpSettings(SettingsModel):
    listen: HostPort | None = Field(
        default="127.0.0.1:8292",
        description="`HOST:PORT` for health checks, metrics and the web page. `null`: no HTTP "
        "port.",
    )
    log_api: Flag = Field(
        default=False,
        description="Serve the log API, `/api/v1/streams/...`, which reads, appends and deletes "
        "records.",
    )
    web: Flag = Field(
        default=True,
        description="Serve the web page, `/ui/`, to clients that the ACL allows.",
    )
    allowed_hosts: HostNames = Field(
        default_factory=list,
        description="Additional host names for requests without credentials. The daemon always "
        "accepts IP addresses, `localhost`, this machine's name and names without a dot.",
    )
    max_connections: Count = Field(
        default=128,
        description="Maximum number of connections; 16 more are reserved for health checks. At the "
        "limit, new connections replace idle and unauthenticated connections.",
    )
    timeout_seconds: PositiveDuration = Field(
        default=30.0,
        alias="timeout",
        description="Time limit for each of these: a request arrives, the client reads the answer, "
        "a connection is idle between two requests.",
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
        default=None,
        description="ACL file. If set, the daemon denies requests that the file does not allow.",
    )


class LoggingSettings(SettingsModel):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level of events in the log."
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
    """Small commits run inside the event loop, and threads run all other commits."""

    inline_max_messages: Annotated[int, Field(strict=True, ge=0, le=65_535)] = Field(
        default=64,
        description="Maximum number of messages in a group that the event loop commits. For a "
        "stream with followers, the limit is 512 KiB instead. 0: threads commit all groups.",
    )
    inline_budget_seconds: Duration = Field(
        default=0.001,
        alias="inline_budget",
        description="Time limit of commits in one turn of the event loop.",
    )
    writer_threads: Annotated[int, Field(strict=True, ge=1, le=256)] = Field(
        default=4, description="Number of threads that write and sync all other groups."
    )


class IngestSettings(SettingsModel):
    max_pending_bytes: Size = Field(
        default=256 * 2**20,
        description="Maximum size of messages that are received but not committed, in all streams "
        "together. At the limit the daemon stops reading from NATS.",
    )


class LogSettings(SettingsModel):
    """The storage of all streams."""

    index_cache_segments: Count = Field(
        default=64,
        description="Number of indexes of sealed segments in memory.",
    )
    max_open_files: Count = Field(default=256, description=("Number of open segment files."))
    recovery_checkpoint_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="recovery_checkpoint_interval",
        description="Interval at which the daemon saves recovery points. Recovery scans the "
        "records after the last recovery point.",
    )
    retention_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="retention_interval",
        description="Interval at which the daemon applies retention. It also seals active segments "
        "that have reached `segment.max_age`, even if the stream is idle.",
    )


class CleanerSettings(SettingsModel):
    """Key compaction, re-batching, sketches and scrubbing. They run in a separate process."""

    interval_seconds: PositiveDuration = Field(
        default=15.0,
        alias="interval",
        description="Interval at which the daemon searches for segments to clean.",
    )
    max_rate_bytes: SizeOrAuto = Field(
        default=None,
        alias="max_rate",
        description="Maximum number of bytes per second that compaction and re-batching may read "
        "and write, for all streams together. `auto`: no limit while the daemon is idle, otherwise "
        "32MiB. The daemon is not idle while messages arrive, while a commit waits for the disk, "
        "or while it uses a quarter of a core.",
    )
    memory_bytes: Annotated[Size, AfterValidator(_enough_memory)] = Field(
        default=64 * 2**20,
        alias="memory",
        description="Memory for the map of keys, at least 1MiB. If the keys do not fit, compaction "
        "takes several passes.",
    )
    sketches: bool = Field(
        default=True,
        description="Write a sketch (a summary) of each sealed segment of 1 MiB or more. Reads of "
        "few records or columns can then skip most of a segment. The size of a sketch is 1 to 3 % "
        "of the size of its segment.",
    )
    subject_indexes: bool = Field(
        default=True,
        description="Write a subject index with each sketch, for faster reads of one subject. An "
        "index has about 18 bytes per record, at most a fifth of its segment's size. While less "
        "than a tenth of the disk is free, the daemon writes no indexes. Needs `sketches`.",
    )
    scrub_interval_seconds: PositiveDuration | None = Field(
        default=7 * 86_400.0,
        alias="scrub_interval",
        description="Interval between two checks of a sealed segment. `null`: no checks.",
    )
    scrub_max_rate_bytes: Size = Field(
        default=8 * 2**20,
        alias="scrub_max_rate",
        description="Bytes per second that scrubbing may read.",
    )


class CheckpointSettings(SettingsModel):
    """The positions of consumers, which the daemon stores."""

    over_nats: Flag | None = Field(
        default=None,
        description="Accept checkpoints on the NATS subjects "
        "`liftlog.<name>.offsets.<stream>.<consumer>`. `null`: accept them only if `acl.file` is "
        "not set, because NATS does not identify the publisher of a message.",
    )
    expire_after_seconds: PositiveDuration | None = Field(
        default=None,
        alias="expire_after",
        description="Delete a checkpoint if its consumer has not committed for this time, and has "
        "unread records that are older. Delete a consumer group under the same conditions if it "
        "had no members for this time. `null`: never.",
    )
    max_count: Count = Field(
        default=100_000,
        description="Maximum number of checkpoints of all consumers and streams together.",
    )
    max_count_per_principal: Count = Field(
        default=10_000,
        description="Maximum number of checkpoints whose last commit came from the same principal. "
        "With an ACL, all checkpoints over NATS count for one principal.",
    )
    max_groups: Count = Field(
        default=10_000,
        description="Maximum number of consumer groups. A group with more than 64 slots counts as "
        "several groups; for example, 1,024 slots count as 16 groups.",
    )
    max_groups_per_principal: Count = Field(
        default=1_000,
        description="Maximum number of consumer groups that one ACL principal has created.",
    )
    max_members: Count = Field(
        default=10_000,
        description="Maximum number of members of all consumer groups together.",
    )
    max_members_per_principal: Count = Field(
        default=2_000,
        description="Maximum number of members of one principal in all consumer groups.",
    )


class Settings(SettingsModel):
    """The whole configuration. Created by `load_settings`, which also makes the checks across
    fields."""

    data_dir: FilePath = Field(default=Path("./data"), description="Directory of all data.")
    name: Name = Field(
        default="liftlog", description="Name of this daemon in NATS subjects, metrics and logs."
    )
    drain_timeout_seconds: PositiveDuration = Field(
        default=30.0,
        alias="drain_timeout",
        description="Time limit of a stop after SIGTERM or SIGINT. A node of a cluster first "
        "hands over the streams that it leads. Then the daemon commits and acks the received "
        "messages.",
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
        description="Membership of a cluster. `null`: this daemon is not a node of a cluster.",
    )
    logging: LoggingSettings = LoggingSettings()
    streams: dict[Name, StreamSettings] = Field(default={}, description="Streams by name.")
