"""Fills compacted streams, and checks the records that must be left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from support.clients.ingesting import ack_of, publish, publish_until_acked, records_of
from support.clients.raw_nats import RawNats, header_block, hpub_frame
from support.daemons.daemon import Daemon

_AT_ONCE = 500


def batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


class Compacted:
    """Publishes to one stream, and stores the newest value of each key.

    The values of all records differ; None is a tombstone.
    """

    def __init__(self, raw: RawNats, stream: str, subject: str | None = None) -> None:
        self.stream = stream
        self.subject = subject or stream
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        self.next_offset = 1
        self._raw = raw

    def put(self, key: str, value: bytes) -> int:
        answer = publish(self._raw, self.subject, value, Liftlog_Key=key)
        return self._note(key, value, answer["seq"])

    def put_until_acked(self, key: str, value: bytes) -> int:
        """Publish until the message is acked, even during a change of the leader. A message without
        an answer may be stored, too."""
        answer = publish_until_acked(
            self._raw, self.subject, value, f"{key} {self.next_offset}", Liftlog_Key=key
        )
        self.next_offset = max(self.next_offset, answer["seq"])
        return self._note(key, value, answer["seq"])

    def delete(self, key: str) -> int:
        answer = publish(self._raw, self.subject, b"", Liftlog_Key=key, Liftlog_Tombstone="true")
        return self._note(key, None, answer["seq"])

    def put_envelope(self, key: str, value: bytes | None, envelope: bytes) -> int:
        return self._note(key, value, publish(self._raw, self.subject, envelope)["seq"])

    def _note(self, key: str, value: bytes | None, offset: int) -> int:
        assert offset == self.next_offset
        self.newest[key.encode()] = (offset, value)
        self.next_offset += 1
        return offset

    def put_many(self, keys: Iterable[str], *, pad: int = 0) -> None:
        """Publish many messages, which are all committed on return. Only one of them requests an
        ack, which saves time."""
        for chunk in batched(keys, _AT_ONCE):
            frames = []
            for key in chunk:
                headers = header_block({"Liftlog-Key": key})
                value = (b"%d " % self.next_offset).ljust(pad, b".")
                frames.append(hpub_frame(self.subject, headers, value))
                self._note(key, value, self.next_offset)
            self._raw.send(b"".join(frames[:-1]))
            answer = ack_of(self._raw.request(self.subject, value, headers=headers))
            assert answer["seq"] == self.next_offset - 1, answer

    # --- what must be there ---

    def check(self, daemon: Daemon, *, compacted: bool = True, tombstones: bool = True) -> None:
        """Check that the newest record of each key can be read at its offset, and that no other
        record is left after compaction. If the newest record of a key is a tombstone, the tombstone
        is left or, without `tombstones`, nothing."""
        records = records_of(daemon, self.stream)
        offsets = [record.offset for record in records]
        assert offsets == sorted(set(offsets))
        found = {record.key or b"": (record.offset, record.value) for record in records}
        expected = {
            key: entry for key, entry in self.newest.items() if tombstones or entry[1] is not None
        }
        if compacted:
            assert len(records) == len(found), f"{len(records)} records of {len(found)} keys"
        missing = {key: entry for key, entry in expected.items() if found.get(key) != entry}
        assert not missing, f"{len(missing)} of {len(expected)} keys: {list(missing.items())[:3]}"
        assert found.keys() == expected.keys()


def stream_files(daemon: Daemon, stream: str) -> list[Path]:
    return sorted((daemon.data_dir / "streams" / stream).iterdir())


def segment_files(daemon: Daemon, stream: str) -> list[Path]:
    return [path for path in stream_files(daemon, stream) if path.suffix == ".log"]
