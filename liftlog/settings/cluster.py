"""The settings of a node of a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from liftlog.names import NAME_HELP, is_stream_name

from .addresses import parse_listen
from .keys import SettingsModel
from .units import Duration, PositiveDuration, Size, path_text

FILE_STORE = "file:///"
NATS_STORE = "nats"


def _name(value: str) -> str:
    if not is_stream_name(value):
        raise ValueError(f"expected {NAME_HELP}")
    return value


def _zone(value: str) -> str:
    return _name(value) if value else value


def _advertised(value: str) -> str:
    address = parse_listen(value)
    if address.path is not None or not address.host or not address.port:
        raise ValueError("expected tcp://HOST:PORT or tls://HOST:PORT, as other nodes reach it")
    return value


def _store(value: str) -> str:
    path = value.removeprefix(FILE_STORE)
    if value != NATS_STORE and (path == value or not path):
        raise ValueError("expected nats, or file:///DIR, a directory that all nodes share")
    return value


def _whole_seconds(value: float) -> float:
    if value < 1 or value != int(value):
        raise ValueError("expected whole seconds, at least 1s")
    return value


def _url(value: str) -> str:
    if value and not value.startswith(("http://", "https://")):
        raise ValueError("expected http://HOST[:PORT] or https://HOST[:PORT]")
    return value


class ClusterSettings(SettingsModel):
    """A daemon with this section is a node of a cluster. Its streams may have replicas on other
    nodes."""

    name: Annotated[str, AfterValidator(_name)] = Field(
        default="liftlog", description="Name of the cluster."
    )
    node: Annotated[str, AfterValidator(_name)] = Field(
        description="Name of this node, unique in the cluster."
    )
    advertise: Annotated[str, AfterValidator(_advertised)] = Field(
        description="Address at which other nodes and clients reach this node's pull socket: "
        "tcp://HOST:PORT or tls://HOST:PORT."
    )
    store: Annotated[str, AfterValidator(_store)] = Field(
        description="Store of the cluster's metadata. `nats`: a bucket of JetStream on the "
        "servers of `nats.servers`, which `liftlog cluster init` creates. file:///DIR: a "
        "directory that all nodes on one machine share."
    )
    zone: Annotated[str, AfterValidator(_zone)] = Field(
        default="",
        description="Name of the rack or building of this node. All nodes of a zone may fail at "
        "the same time, so the replicas of a stream are placed in as many zones as possible. "
        "Empty: this node is alone in its zone.",
    )
    token_file: Annotated[Path, BeforeValidator(path_text)] | None = Field(
        default=None,
        description="File with the token with which this node logs in to other nodes. Needed if "
        "the other nodes have an ACL. The principal of the token needs the operation `replicate`.",
    )
    nkey: Annotated[Path, BeforeValidator(path_text)] | None = Field(
        default=None, description="File with the seed of an nkey, instead of a token."
    )
    tls_ca: Annotated[Path, BeforeValidator(path_text)] | None = Field(
        default=None,
        description="File of CA certificates for nodes that advertise tls://. `null`: the CAs of "
        "the system.",
    )
    session_seconds: Annotated[PositiveDuration, AfterValidator(_whole_seconds)] = Field(
        default=15.0,
        alias="session",
        description="If a node has not renewed its session for this time, it counts as down. If a "
        "write to the disk of a leader blocks for this time, the leader hands its streams over to "
        "other nodes. Whole seconds; with `store: nats` at least 12s, because NATS needs up to 9 s "
        "to elect a leader.",
    )
    lag_max_seconds: Duration = Field(
        default=10.0,
        alias="lag_max",
        description="If a follower has not reached the end of the log for this time, it leaves "
        "the in-sync set.",
    )
    suspect_after_seconds: PositiveDuration = Field(
        default=2.0,
        alias="suspect_after",
        description="If most replicas have received no data from a connected leader for this time, "
        "they elect another leader. If the process of the leader has ended, they elect another "
        "leader sooner.",
    )
    balance_interval_seconds: PositiveDuration = Field(
        default=30.0,
        alias="balance_interval",
        description="Interval at which a leader checks whether the first replica of a stream is "
        "another node. If this node has been in sync for two intervals, it becomes the leader.",
    )
    catch_up_rate_bytes: Size = Field(
        default=64 * 2**20,
        alias="catch_up_rate",
        description="Maximum number of bytes per second that replicas may fetch from this node "
        "while they are not in sync, in total.",
    )
    forget_after_seconds: PositiveDuration = Field(
        default=7 * 86400.0,
        alias="forget_after",
        description="Time for which compacted streams keep tombstones for a replica that is down. "
        "If the replica is down for longer, it then copies the stream from its start.",
    )
    ready_after_seconds: Duration = Field(
        default=600.0,
        alias="ready_after",
        description="After a start, `/readyz` answers 503 until the replicas of this node are in "
        "sync, but at most for this time. So a rolling restart waits for each node.",
    )
    unclean: Literal["manual", "balanced"] = Field(
        default="manual",
        description="Method of choosing a leader after the disks of all replicas in sync are lost. "
        "`manual`: the stream has no leader until an operator names one with `liftlog cluster "
        "elect --lost`. `balanced`: when all remaining replicas run, the replica with the longest "
        "log becomes leader. Acked messages that this replica lacks are lost, even if a node with "
        "these messages was only started without its disk. All nodes must have the same value.",
    )
    web: Annotated[str, AfterValidator(_url)] = Field(
        default="",
        description="Address at which browsers reach this node's web page, such as "
        "https://a.example. The pages of other nodes link to it.",
    )
