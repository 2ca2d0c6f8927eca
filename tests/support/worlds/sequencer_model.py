"""A model of one stream's sequencer in plain Python: one message after the other, no batches.

`Model` is compared with `liftlog.sequencing.Sequencer`. It works on the meaning of a message, not
on its bytes; `Message` makes the bytes.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import envelope
from envelope import liftbridge

STREAM = "s"
SIBLING, SIBLING_SUBJECT = "other", "in.*"
WINDOW_NS = 1_000_000
MAX_MESSAGE_BYTES = 70_000
MAX_HEADER_BYTES = 65_535
MAX_MERGED_LINES = 1000
MAX_ID_BYTES = 255
PADDING = "Padding: x\r\n"


@dataclass
class Message:
    value: bytes
    subject: bytes = b"in.a"
    reply: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    padding: int = 0
    """Number of additional lines at the start of the header block."""
    wrapped: dict[str, Any] | None = None
    """Arguments of `envelope.encode` except the value; None for a plain message."""
    is_liftbridge: bool = False
    """True for Liftbridge's envelope, which has no message id and no tombstones."""

    @property
    def block(self) -> bytes:
        if not self.headers and not self.padding:
            return b""
        lines = PADDING * self.padding
        lines += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return f"NATS/1.0\r\n{lines}\r\n".encode()

    @property
    def payload(self) -> bytes:
        if self.wrapped is None:
            return self.value
        if self.is_liftbridge:
            return self._liftbridge_payload(self.wrapped)
        arguments = dict(self.wrapped)
        value = None if arguments.pop("tombstone", False) else self.value
        return envelope.encode(value, **arguments)

    def _liftbridge_payload(self, wrapped: dict[str, Any]) -> bytes:
        policies = {"leader": liftbridge.LEADER, "all": liftbridge.ALL, "none": liftbridge.NONE}
        publish = liftbridge.Publish(
            offset=wrapped.get("expected_last_offset", -2) + 1,
            key=wrapped.get("key", b""),
            value=self.value,
            headers={name: text.encode() for name, text in wrapped.get("headers", {}).items()},
            ack_inbox=wrapped.get("ack_subject", ""),
            correlation_id=wrapped.get("correlation_id", ""),
            ack_policy=policies[wrapped.get("ack_policy", "leader")],
        )
        return liftbridge.encode_publish(publish)


@dataclass
class Record:
    offset: int
    subject: bytes
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    timestamp_ns: int


@dataclass
class State:
    next_offset: int = 1
    last_id: str = ""
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)
    stored: list[tuple[int, bytes]] = field(default_factory=list)
    """Offset and subject of every record that was ever stored."""


class Model:
    """The model. Answers are (reply, outcome); an outcome is an offset, ("duplicate", offset) or
    ("error", err_code). A correlation id follows if there is one. Liftbridge's Ack has no
    duplicates and its own error codes: ("ackError", number)."""

    def __init__(
        self, acks: str, *, keeps_subjects: bool = True, max_messages: int | None = None
    ) -> None:
        """With `max_messages` messages, the stream is full."""
        self.max_messages = max_messages
        self.acks = acks
        self.keeps_subjects = keeps_subjects
        self.log_start = 1
        self.removed: set[int] = set()
        """Offsets of records that compaction has removed."""
        self._counts_on_others = False
        self.state = State()
        self.committed = State()
        self.records: list[Record] = []
        self._judged: list[tuple[Message, list[Any], Record | None, State]] = []
        """The judged messages, with their answers as (reply, outcome, correlation id)."""
        self._early_refusals: list[int] = []
        """Identities of messages that are refused independently of earlier messages."""

    # --- judging, one message at a time ---

    def judge(self, message: Message, now_ns: int) -> None:
        state = self.state
        state.ids = {k: v for k, v in state.ids.items() if v[1] >= now_ns - WINDOW_NS}
        reply, correlation = self._reply_of(message)
        self._counts_on_others = False
        outcome, record = self._outcome(message, now_ns)
        if not self._counts_on_others:
            self._early_refusals.append(id(message))
        answers = []
        if reply and outcome != "silent":
            answers.append((reply, outcome, correlation))
        self._judged.append((message, answers, record, deepcopy(state)))

    def _told(self, message: Message, outcome: Any) -> Any:
        """Return the outcome that the publisher gets; None for no answer. Liftbridge reports two
        errors, and sends no answer in all other cases."""
        opened = self._opened(message)
        if not message.is_liftbridge or opened is None or "ack_subject" not in opened:
            return outcome
        match outcome:
            case ("duplicate", offset):
                return offset
            case ("error", err_code):
                code = {10071: 2, 10054: 3}.get(err_code)
                return None if code is None else ("ackError", code)
        return outcome

    def _told_all(self, message: Message, answers: list[Any]) -> list[Any]:
        told = [(reply, self._told(message, outcome), corr) for reply, outcome, corr in answers]
        return [answer for answer in told if answer[1] is not None]

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {"Padding": "x"} if message.padding else {}
        headers |= message.headers
        if message.wrapped is not None and self.acks != "off":
            fields = {}
            if "message_id" in message.wrapped:
                fields["Nats-Msg-Id"] = message.wrapped["message_id"]
            if "correlation_id" in message.wrapped:
                fields["Liftlog-Correlation-Id"] = message.wrapped["correlation_id"]
            # Names that differ in case are different names, as in nats-server.
            headers = headers | message.wrapped.get("headers", {}) | fields
        return headers

    def _is_too_large(self, message: Message) -> bool:
        return len(message.payload) + len(message.block) > MAX_MESSAGE_BYTES

    def _opened(self, message: Message) -> dict[str, Any] | None:
        readable = message.is_liftbridge or not self._is_too_large(message)
        return message.wrapped if self.acks != "off" and readable else None

    def _reply_of(self, message: Message) -> tuple[bytes, str | None]:
        opened = self._opened(message)
        reply = message.reply if self.acks == "on" else b""
        correlation = None
        if opened is not None:
            correlation = opened.get("correlation_id")
            if opened.get("ack_policy") == "none":
                reply = b""
            elif "ack_subject" in opened:
                reply = opened["ack_subject"].encode()
        if reply.startswith((b"$", b"in.", b"liftlog.")) or b" " in reply or b"*" in reply:
            reply = b""
        return reply, correlation

    def _outcome(self, message: Message, now_ns: int) -> tuple[Any, Record | None]:
        state, opened = self.state, self._opened(message)
        headers = self._headers(message)
        if opened is None and message.wrapped is not None:
            headers = self._headers(replace(message, wrapped=None))
        fast_batch = self.acks == "on" and message.reply.endswith(b".$FI")
        lines = message.block.count(b"\r\n")
        if self.acks != "off" and (
            len(message.block) > MAX_HEADER_BYTES
            or (opened is not None and lines > MAX_MERGED_LINES)
        ):
            return ("error", self._unread(message, fast_batch=fast_batch)), None
        judged = headers if self.acks == "on" else {}
        own = headers if self.acks != "off" else {}
        field_id = (opened or {}).get("message_id", "")

        stream = judged.get("Nats-Expected-Stream")
        if stream not in (None, STREAM):
            silent = stream == SIBLING and message.subject.count(b".") == 1
            return ("silent" if silent else ("error", 10060)), None
        if self._is_too_large(message):
            return ("error", 10054), None
        if "Nats-TTL" in judged:
            return ("error", 10166), None
        if self.acks == "on" and len(headers.get("Nats-Msg-Id", "").encode()) > MAX_ID_BYTES:
            return ("error", 10003), None
        key = own.get("Liftlog-Key")
        key = (opened or {}).get("key", None if key is None else key.encode())
        tombstone = own.get("Liftlog-Tombstone") == "true" or bool((opened or {}).get("tombstone"))
        if own.get("Liftlog-Tombstone") not in (None, "true", "false") or (
            tombstone and key is None
        ):
            return ("error", 10003), None
        if fast_batch:
            return ("error", 10205), None

        self._counts_on_others = True
        judged_id = judged.get("Nats-Msg-Id", "") or field_id
        if judged_id in state.ids:
            return ("duplicate", state.ids[judged_id][0]), None
        error = self._subject_error(judged, message.subject)
        if error is not None:
            return ("error", error), None
        expected = (opened or {}).get(
            "expected_last_offset", judged.get("Nats-Expected-Last-Sequence")
        )
        if expected is not None and str(expected) != str(state.next_offset - 1):
            return ("error", 10071), None
        wanted = judged.get("Nats-Expected-Last-Msg-Id")
        if wanted and wanted != state.last_id:
            return ("error", 10070), None

        offset = state.next_offset
        if self.max_messages is not None and offset - self.log_start >= self.max_messages:
            return ("error", 10077), None
        state.next_offset += 1
        state.stored.append((offset, message.subject))
        state.last_id = own.get("Nats-Msg-Id", "")
        if state.last_id:
            state.ids.setdefault(state.last_id, (offset, now_ns))
        if self.acks == "off":
            value: bytes | None = message.payload
        else:
            value = None if tombstone else message.value
        return offset, Record(offset, message.subject, key, value, headers, now_ns)

    def _subject_error(self, headers: dict[str, str], subject: bytes) -> int | None:
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        named = headers.get("Nats-Expected-Last-Subject-Sequence-Subject")
        if expected is None and named is None:
            return None
        if not self.keeps_subjects:
            return 10003
        if not expected:
            return 10193 if named else None
        if named and "*" in named:
            return 10003
        about = named.encode() if named else subject
        last = [offset for offset, name in self.state.stored if name == about and self.has(offset)]
        return None if expected == str(max(last, default=0)) else 10071

    def has(self, offset: int) -> bool:
        """Return True if a stored record still exists."""
        return offset >= self.log_start and offset not in self.removed

    def _unread(self, message: Message, *, fast_batch: bool) -> int:
        """Return the reason to refuse a message whose headers are too many to be parsed."""
        if self._is_too_large(message):
            return 10054
        return 10205 if fast_batch else 10097

    # --- what becomes of it ---

    def next_offset_after(self, count: int) -> int:
        """Return the offset at which numbering continued after the first `count` judged
        messages."""
        return self._judged[count - 1][3].next_offset if count else self.committed.next_offset

    def commit(self, count: int) -> list[Any]:
        """Commit the first `count` judged messages, and return the answers."""
        done, self._judged = self._judged[:count], self._judged[count:]
        if done:
            self.committed = deepcopy(done[-1][3])
        self.records += [record for _, _, record, _ in done if record is not None]
        return [one for message, sent, _, _ in done for one in self._told_all(message, sent)]

    def early(self, start: int, count: int, ack_policy: str, *, is_replicated: bool) -> list[Any]:
        """Return the answers to these judged messages that are sent before the commit: refusals
        that do not depend on other messages and, if other nodes hold copies, all answers under the
        policy `leader`. `ack_policy` is the policy of messages that name none."""
        found = []
        for message, answers, _, _ in self._judged[start : start + count]:
            opened = self._opened(message)
            policy = "leader" if message.is_liftbridge else ack_policy
            policy = (opened or {}).get("ack_policy", policy)
            if opened is not None and message.is_liftbridge and "ack_subject" not in opened:
                policy = ack_policy  # it gets an ack in the common form
            if id(message) in self._early_refusals or (is_replicated and policy == "leader"):
                found += self._told_all(message, answers)
        return found

    def fail(self, err_code: int, keep: int = 0) -> list[Any]:
        """Undo everything that is not committed, except the first `keep` messages."""
        undone, self._judged = self._judged[keep:], self._judged[:keep]
        self.state = deepcopy(self._judged[-1][3] if self._judged else self.committed)
        return [
            answer
            for message, sent, _, _ in undone
            for answer in self._told_all(
                message, [(reply, ("error", err_code), corr) for reply, _, corr in sent]
            )
        ]
