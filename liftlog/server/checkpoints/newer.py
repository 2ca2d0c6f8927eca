"""Records of `_offsets` that a newer version has stored. Pure.

The key of a record names its kind. `<consumer>/<stream>` is a checkpoint. `<kind>:...` is another
kind; this version supports only the kind `group`. The value is a JSON object, in which `v` is the
version of the form. If a record has an unknown kind or a higher `v`, this version neither reads nor
replaces it. Compaction keeps such records, because it keeps the newest record of each key. A new
form of the value must get a higher `v` if older versions would lose information when they replace
the record.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from liftlog.errors import StreamUnavailable
from liftlog.groups.state import VERSION as GROUP_VERSION
from liftlog.server.checkpoints.checkpoint import VERSION as CHECKPOINT_VERSION

_SEPARATOR = b":"
GROUP = "group"
CHECKPOINT = "checkpoint"
_KNOWN = {GROUP: GROUP_VERSION, CHECKPOINT: CHECKPOINT_VERSION}


def kind_of(key: bytes) -> str:
    """Return the kind of the record that has this key."""
    kind, separator, _ = key.partition(_SEPARATOR)
    return kind.decode("ascii", "replace") if separator else CHECKPOINT


def is_newer(key: bytes, value: bytes) -> bool:
    """Return True if only a newer version can read the record."""
    known = _KNOWN.get(kind_of(key))
    if known is None:
        return True
    if value.startswith(f'{{"v":{known},'.encode()):
        return False  # true for nearly all records, which need no further check
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return False
    version = content.get("v") if isinstance(content, dict) else None
    return type(version) is int and version > known


def in_words(keys: Iterable[bytes]) -> str:
    """Return the number of records of each kind, as text."""
    counts = Counter(map(kind_of, keys))
    return ", ".join(f"{count} of the kind {kind!r}" for kind, count in sorted(counts.items()))


def refusal(what: str) -> StreamUnavailable:
    """Return the error for a request that would read or replace a record that only a newer version
    can decode."""
    return StreamUnavailable(
        f"a newer liftlog has stored the {what}, in a form that this version cannot read",
        hint="upgrade this daemon: `liftlog docs how-to/upgrade`; or delete it if it is not needed",
    )
