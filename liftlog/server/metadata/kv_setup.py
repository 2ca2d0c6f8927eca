"""Creates the bucket as a cluster needs it, and checks it at each start of a node."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable

from liftlog.cluster.store import StoreUnavailable
from liftlog.errors import ConfigError
from liftlog.server.metadata.kv_bucket import (
    NO_CLUSTER,
    NO_PEERS,
    Bucket,
    Refused,
    check_created,
)
from liftlog.server.metadata.kv_link import KvLink, NotAllowed, Unanswered
from liftlog.server.metadata.kv_reads import BucketMissing, BucketReads

logger = logging.getLogger("liftlog.server.replication")

CREATE_SECONDS = 20.0
_SAFE_REPLICAS = 3


class NoBucket(ConfigError):
    """There is no bucket: it was lost, or never created."""


class NotEnoughServers(ConfigError):
    """JetStream has too few servers for the wanted number of copies of the bucket."""


class BucketSetup:
    """Creates and checks one bucket. Its errors name the change in NATS that an operator has to
    make."""

    def __init__(self, link: KvLink, bucket: Bucket, reads: BucketReads) -> None:
        self._link = link
        self._bucket = bucket
        self._reads = reads

    async def check(self, write: Callable[[], Awaitable[int]]) -> None:
        """Check once that the bucket exists and can be written. `write` writes an entry that is
        never read. Raises ConfigError, StoreUnavailable, CasUnknown."""
        bucket = self._bucket
        try:
            state = await self._reads.state()
            await write()
        except BucketMissing as error:
            raise NoBucket(
                f"there is no bucket {bucket.name} in JetStream",
                hint="for a new cluster, run `liftlog cluster init -c FILE` once. If the cluster "
                "exists, its metadata is lost: restore the JetStream stream "
                f"{bucket.stream} from a backup, or see `liftlog cluster init --again`",
            ) from error
        except NotAllowed as error:
            raise ConfigError(str(error), hint=permissions(bucket)) from error
        if self._link.notices_refused:
            raise ConfigError(
                f"the NATS user may not subscribe to {bucket.notices}", hint=permissions(bucket)
            )
        if state.problem:
            raise ConfigError(
                f"the bucket {bucket.name} cannot be used: {state.problem}",
                hint=f"`nats stream edit {bucket.stream}` changes it",
            )
        if state.replicas < _SAFE_REPLICAS:
            logger.warning(
                "caution setting=cluster.store problem=%s advice=%s",
                f"the bucket {bucket.name} is on {state.replicas} NATS server(s) only",
                "keep it on three, otherwise the loss of one server loses the metadata",
            )

    async def create(self, replicas: int) -> bool:
        """Create the bucket. Returns False if the bucket already exists with the correct
        configuration. Raises ConfigError, StoreUnavailable."""
        bucket = self._bucket
        try:
            state = await self._reads.state()
        except BucketMissing:
            pass
        else:
            if state.problem:
                raise ConfigError(
                    f"the bucket {bucket.name} exists and cannot be used: {state.problem}",
                    hint=f"`nats stream edit {bucket.stream}` changes it",
                )
            return False
        question = json.dumps(bucket.configuration(replicas)).encode()
        subject = f"$JS.API.STREAM.CREATE.{bucket.stream}"
        try:
            await self._link.ask(subject, question, check_created, seconds=CREATE_SECONDS)
        except Unanswered as error:
            raise StoreUnavailable(str(error)) from error
        except Refused as error:
            if error.code in (NO_PEERS, NO_CLUSTER):
                raise NotEnoughServers(
                    f"JetStream cannot keep the bucket on {replicas} servers: {error}",
                    hint="start three nats-servers with JetStream that form a cluster; for a test "
                    "on one, `--replicas 1`",
                    code=error.code,
                ) from error
            raise ConfigError(f"JetStream refuses to make the bucket: {error}") from error
        return True


def no_jetstream() -> ConfigError:
    """Return the error for NATS servers that do not answer requests to JetStream."""
    return ConfigError(
        "the NATS servers do not run JetStream, which cluster.store: nats needs",
        hint="enable `jetstream {}` on three of them, with `sync_interval: always`",
    )


def permissions(bucket: Bucket) -> str:
    """Return a hint: the permissions that the NATS user needs."""
    return (
        f"allow it to publish to $KV.{bucket.name}.>, $JS.API.STREAM.INFO.{bucket.stream} and "
        f"$JS.API.STREAM.MSG.GET.{bucket.stream}, and to subscribe to {bucket.notices} and _INBOX.>"
    )
