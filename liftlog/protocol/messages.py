"""Requests and answers of the pull protocol, as values. Converts exceptions to error answers and
back.

`docs/reference/protocol.md` describes each request and answer, and a test compares the page with
this module. The tables below the classes map each kind on the wire to its class.
"""

from __future__ import annotations

from typing import Any, ClassVar

from liftlog.errors import WIRE_ERRORS, CorruptRange, InternalError, LiftlogError
from liftlog.protocol import (
    administration,
    checkpoints,
    consumer_states,
    groups,
    replication,
    workers,
)
from liftlog.protocol.described import StreamInfo as StreamInfo
from liftlog.protocol.limits import MAX_ERROR_TEXT_CHARS, WireLimits
from liftlog.protocol.wire import (
    BOOL,
    LABEL,
    MAP,
    MAX_UINT,
    NAME,
    array_of,
    one_of,
    raw,
    text,
    uint,
)
from liftlog.protocol.wire import Message as Message
from liftlog.protocol.wire import wire as key

EARLIEST = "earliest"
LATEST = "latest"

ANY_REPLICA = "*"
"""Value for the `replica` of a fetch: any node in sync answers from its own copy."""

ANONYMOUS = "anonymous"
TOKEN = "token"
NKEY = "nkey"
CERTIFICATE = "certificate"
UNIX = "unix"
METHODS = (NKEY, TOKEN, CERTIFICATE, UNIX, ANONYMOUS)
"""Ways to authenticate, in the order of preference. A client uses the first method for which it has
credentials."""

NONCE_BYTES = 16

_LIMITS = WireLimits()
_NONCE = raw(NONCE_BYTES, 64)


# --- opening a connection -----------------------------------------------------

_MAX_DETAIL_ENTRIES = 256


class Hello(Message):
    """First frame of a client."""

    KIND: ClassVar[str] = "hello"
    versions: list[int] = key("v", array_of(uint(), 16))
    nonce: bytes = key("n", _NONCE)
    client: str = key("c", LABEL, default="")


class Challenge(Message):
    """Answer to hello: the chosen version, and the ways to authenticate."""

    KIND: ClassVar[str] = "challenge"
    version: int = key("v", uint())
    server_id: str = key("s", LABEL)
    nonce: bytes = key("n", _NONCE)
    methods: list[str] = key("m", array_of(LABEL, 16))


class Auth(Message):
    """The client's proof of its identity.

    `method` is one of the methods in the challenge. `token` belongs to the method `token`, the
    other two fields belong to the method `nkey` (`handshake.text_to_sign`).
    """

    KIND: ClassVar[str] = "auth"
    method: str = key("m", LABEL)
    token: str | None = key("t", text(2048), default=None, repr=False)
    public_key: str | None = key("u", text(64), default=None)
    signature: bytes | None = key("g", raw(64, 64), default=None, repr=False)


class Welcome(Message):
    """Answer to auth. From now on the client may send requests, within these limits."""

    KIND: ClassVar[str] = "welcome"
    principal: str | None = key("p", LABEL, default=None)
    server: str = key("d", LABEL, default="")
    max_request_bytes: int = key("r", uint(), default=_LIMITS.max_request_bytes)
    max_in_flight: int = key("f", uint(), default=_LIMITS.max_in_flight)
    max_fetch_bytes: int = key("m", uint(), default=_LIMITS.max_fetch_bytes)
    max_wait_ms: int = key("w", uint(), default=_LIMITS.max_wait_ms)


# --- requests -------------------------------------------------------------------


class Ping(Message):
    KIND: ClassVar[str] = "ping"
    REPEATABLE: ClassVar[bool] = True


class Fetch(Message):
    """Asks for whole record batches from one position on.

    Exactly one of `start` (an offset, "earliest" or "latest") and `timestamp_ns` is set. With a
    filter or columns the server encodes new batches for the answer. For `filter_slots` (the slots
    of a member of a group with `slot_count` slots) and for `optional_subjects`, the server encodes
    new batches only if they make the answer much smaller. A copy whose high watermark is below
    `at_least` does not answer.
    """

    KIND: ClassVar[str] = "fetch"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    start: int | str | None = key("o", one_of(uint(), text(16)), default=None)
    timestamp_ns: int | None = key("t", uint(), default=None)
    max_bytes: int | None = key("m", uint(), default=None)
    max_records: int | None = key("c", uint(), default=None)
    min_bytes: int = key("n", uint(), default=1)
    max_wait_ms: int = key("w", uint(), default=0)
    incarnation: str | None = key("x", LABEL, default=None)
    epoch: int | None = key("e", uint(), default=None)
    filter_subjects: list[str] | None = key("fs", array_of(text(1024), 64), default=None)
    filter_keys: list[bytes] | None = key("fk", array_of(raw(0, 65_536), 1024), default=None)
    filter_headers: list[str] | None = key("fh", array_of(text(4096), 16), default=None)
    columns: list[str] | None = key("p", array_of(text(16), 16), default=None)
    replica: str | None = key("r", NAME, default=None)
    at_least: int | None = key("a", uint(), default=None)
    filter_slots: list[int] | None = key("fg", array_of(uint(1023), 1024), default=None)
    slot_count: int | None = key("fp", uint(1024), default=None)
    optional_subjects: list[str] | None = key("fo", array_of(text(1024), 64), default=None)

    @property
    def filter_values(self) -> int:
        """Number of values in the filters. While the fetch waits, each value takes memory beyond
        its bytes."""
        filters = (
            self.filter_subjects,
            self.filter_keys,
            self.filter_headers,
            self.columns,
            self.filter_slots,
            self.optional_subjects,
        )
        return sum([len(one) for one in filters if one is not None])

    @property
    def selects(self) -> bool:
        """True if the server must examine the records."""
        return not (
            self.filter_subjects is None
            and self.filter_keys is None
            and self.filter_headers is None
            and self.columns is None
        )

    @property
    def divides(self) -> bool:
        """True if the fetch is for a member of a group whose share is so small that the server
        selects its records.

        A member with a larger share gets all records as they are stored, and selects its own
        records.
        """
        if self.filter_slots is None:
            return False
        count = self.slot_count or 0
        # Slots that do not exist are refused later, by the code that selects by slots.
        return not 2 * len(self.filter_slots) > count > max(self.filter_slots)


class CreateStream(Message):
    """Creates a stream. `settings` has the keys of a stream's section in the YAML file."""

    KIND: ClassVar[str] = "create"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    settings: dict[str, Any] = key("c", MAP)


class DescribeStream(Message):
    KIND: ClassVar[str] = "describe"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)


class ListStreams(Message):
    KIND: ClassVar[str] = "list"
    REPEATABLE: ClassVar[bool] = True


class DeleteStream(Message):
    KIND: ClassVar[str] = "delete"
    stream: str = key("s", NAME)


class CompactStream(Message):
    """Requests a compaction pass soon; the answer does not wait for the pass."""

    KIND: ClassVar[str] = "compact"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)


class Cancel(Message):
    """Cancels the request with the id of this frame. A cancel itself gets no answer."""

    KIND: ClassVar[str] = "cancel"


# --- answers --------------------------------------------------------------------


class Pong(Message):
    """Answer to ping. For another node it contains the wall clock in nanoseconds, and whether the
    daemon doubts that clock."""

    KIND: ClassVar[str] = "pong"
    time_ns: int | None = key("t", uint(), default=None)
    is_doubted: bool | None = key("d", BOOL, default=None)


class FetchHeader(Message):
    """Answer to fetch; `body_length` bytes of whole record batches follow the frame.

    `offset` is the requested position as an offset. The first batch begins at `first_offset`, and
    may begin with records below `offset`, which a reader drops. The next fetch asks for
    `next_offset`. `record_count` is an upper bound. A node that answers from its own copy also
    reports the offset below which it has removed tombstones.
    """

    KIND: ClassVar[str] = "data"
    offset: int = key("o", uint())
    first_offset: int = key("f", uint())
    next_offset: int = key("n", uint())
    record_count: int = key("c", uint())
    high_watermark: int = key("h", uint())
    log_start_offset: int = key("l", uint())
    log_end_offset: int = key("g", uint())
    leader_epoch: int = key("e", uint())
    incarnation: str = key("x", LABEL)
    body_length: int = key("b", uint(), default=0)
    selected: bool | None = key("q", BOOL, default=None)
    tombstones_removed_below: int | None = key("td", uint(), default=None)


class StreamAnswer(Message):
    """Answer to create, describe and compact."""

    KIND: ClassVar[str] = "stream"
    stream: dict[str, Any] = key("d", MAP)

    @property
    def info(self) -> StreamInfo:
        return StreamInfo.from_wire(self.stream)


class StreamsAnswer(Message):
    """Answer to list."""

    KIND: ClassVar[str] = "streams"
    streams: list[dict[str, Any]] = key("d", array_of(MAP, 65_536))

    @property
    def infos(self) -> list[StreamInfo]:
        return [StreamInfo.from_wire(one) for one in self.streams]


class Done(Message):
    """Answer to a request that succeeded and returns no value."""

    KIND: ClassVar[str] = "done"


class ErrorAnswer(Message):
    """Answer to a request that failed. With the id 0 the error concerns the connection, and the
    connection ends."""

    KIND: ClassVar[str] = "error"
    code: int = key("c", uint(MAX_UINT))
    name: str = key("n", LABEL)
    message: str = key("m", text(2 * MAX_ERROR_TEXT_CHARS))
    retriable: bool = key("r", BOOL, default=False)
    hint: str = key("h", text(2 * MAX_ERROR_TEXT_CHARS), default="")
    details: dict[str, Any] = key("d", MAP, default_factory=dict)


OPENING: dict[str, type[Message]] = {cls.KIND: cls for cls in (Hello, Auth)}

_REQUESTS: tuple[type[Message], ...] = (
    Ping,
    Fetch,
    CreateStream,
    DescribeStream,
    ListStreams,
    DeleteStream,
    CompactStream,
    Cancel,
    *administration.REQUESTS,
    *checkpoints.REQUESTS,
    *groups.REQUESTS,
    *workers.REQUESTS,
    *replication.REQUESTS,
    *consumer_states.REQUESTS,
)

REQUESTS: dict[str, type[Message]] = {cls.KIND: cls for cls in _REQUESTS}

_ANSWERS: tuple[type[Message], ...] = (
    Challenge,
    Welcome,
    Pong,
    FetchHeader,
    StreamAnswer,
    StreamsAnswer,
    Done,
    ErrorAnswer,
    *administration.ANSWERS,
    *checkpoints.ANSWERS,
    *groups.ANSWERS,
    *workers.ANSWERS,
    *replication.ANSWERS,
    *consumer_states.ANSWERS,
)

ANSWERS: dict[str, type[Message]] = {cls.KIND: cls for cls in _ANSWERS}


def answer_for(error: LiftlogError) -> ErrorAnswer:
    """Return the answer that carries `error`. Errors without a wire code become INTERNAL."""
    if not error.code:
        return answer_for(InternalError("the daemon failed to answer this request"))
    return ErrorAnswer(
        code=error.code,
        name=error.name,
        message=error.message[:MAX_ERROR_TEXT_CHARS],
        retriable=error.retriable,
        hint=error.hint[:MAX_ERROR_TEXT_CHARS],
        details={str(key): _plain(value, 4) for key, value in error.details.items()},
    )


def exception_from(answer: ErrorAnswer) -> LiftlogError:
    """Return the typed exception for an error answer; a plain LiftlogError for an unknown code."""
    cls = WIRE_ERRORS.get(answer.code)
    details = {name: value for name, value in answer.details.items() if name not in _RESERVED}
    error: LiftlogError
    if cls is CorruptRange:
        bounds = (details.pop("first_offset", 0), details.pop("next_offset", 0))
        first, after = (value if type(value) is int else 0 for value in bounds)
        error = CorruptRange(
            answer.message, hint=answer.hint, first_offset=first, next_offset=after, **details
        )
    elif cls is None:
        text = f"{answer.message} (error {answer.code} {answer.name})"
        error = LiftlogError(text, hint=answer.hint, **details)
    else:
        error = cls(answer.message, hint=answer.hint, **details)
    return error


_RESERVED = frozenset({"self", "message", "hint"})


def _plain(value: Any, depth: int) -> Any:
    """Convert `value` to types that msgpack can encode, with limits on size and depth."""
    if value is None or isinstance(value, bool | int | float):
        return value if not isinstance(value, int) or -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        return value[:MAX_ERROR_TEXT_CHARS]
    if depth and isinstance(value, dict):
        pairs = list(value.items())[:_MAX_DETAIL_ENTRIES]
        return {str(key): _plain(one, depth - 1) for key, one in pairs}
    if depth and isinstance(value, list | tuple):
        return [_plain(one, depth - 1) for one in value[:_MAX_DETAIL_ENTRIES]]
    return str(value)[:MAX_ERROR_TEXT_CHARS]
