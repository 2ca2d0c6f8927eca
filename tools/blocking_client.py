"""The blocking client and its tests, made from those for asyncio: `make blocking` writes them.

    python -m tools.blocking_client write the modules python -m tools.blocking_client --check fail
    if one of them is out of date

The script removes `await` and `async`, and replaces names and phrases by the tables below. Then
ruff sorts the imports and formats the code. Two cases are errors: a name of asyncio that is not in
the tables, and a phrase of the tables that no source contains any more.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = {
    ROOT / "liftlog/client/aio": ROOT / "liftlog/client/blocking",
    ROOT / "tests/support/clients/aio": ROOT / "tests/support/clients/blocking",
    ROOT / "tests/unit/client/aio": ROOT / "tests/unit/client/blocking",
}
BY_HAND = frozenset({"__init__.py", "background.py", "link.py", "sockets.py", "turns.py"})
"""Modules that exist in both folders but are not made, because they wait in different ways."""

NAMES = {
    "aio": "blocking",
    "Calls": "SyncCalls",
    "Client": "SyncClient",
    "Consumer": "SyncConsumer",
    "DeadLetters": "SyncDeadLetters",
    "Work": "SyncWork",
    "Worker": "SyncWorker",
    "ConsumerCalls": "SyncConsumerCalls",
    "ErasureCalls": "SyncErasureCalls",
    "Publisher": "SyncPublisher",
    "GroupConsumer": "SyncGroupConsumer",
    "Heartbeats": "SyncHeartbeats",
    "BackgroundRequests": "SyncBackgroundRequests",
    "ConnectionOpener": "SyncConnectionOpener",
    "Session": "SyncSession",
    "Link": "SyncLink",
    "Router": "SyncRouter",
    "ReadRoute": "SyncReadRoute",
    "BatchReader": "SyncBatchReader",
    "RecordReader": "SyncRecordReader",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "anext": "next",
    "aclose": "close",
}
ASYNCIO = {"sleep": "time.sleep", "CancelledError": "BaseException"}
"""Replacements for the names of asyncio. Cancellation interrupts a wait of asyncio. A signal
handler interrupts a blocking wait, and may raise any exception."""

PHRASES = {
    """\
    Belongs to one event loop.

    No task runs in the background: a call that needs a connection opens it, and all other calls
    wait. If that call is cancelled, the next call takes over.
""": """\
    Belongs to one thread at a time. A call that needs a connection opens it.
""",
    "asyncio client": "blocking client",
    "Async iterator": "Iterator",
    "async with": "with",
    "Created by `connect`": "Created by `connect_sync`",
    "client.publisher import": "client.sync_publisher import",
    """\
    A client belongs to one event loop, and is not thread-safe. Any number of tasks of this loop
    may use it at the same time. If a call is cancelled, the client cancels the request, and stays
    usable.
""": """\
    A client is not thread-safe: only one thread at a time may use it. An exception that a signal
    handler raises ends the call in progress. The client stays usable.
""",
    """\
    `anext` can be called again after a cancellation or a ConnectionLost.
""": """\
    `next` can be called again after a ConnectionLost, and after an exception that a signal handler
    raised in it. If such an exception arrives while a record is being returned, the record is lost,
    as with any iterator. Then start another read at your own position, or let the handler only set
    a flag.
""",
    """\
    A worker belongs to one task, but any number of tasks may ack. An iteration that was cancelled
    can be continued.
""": """\
    A worker belongs to one thread. An iteration can be continued after an exception that a signal
    handler raised in it.
""",
    """\
belongs to one task. An iteration that was cancelled can be continued.
""": """\
belongs to one thread. An iteration can be continued after an exception that a
    signal handler raised in it. If such an exception arrives while records are being returned, the
    records are lost, as with any iterator. Then open another consumer, or let the handler only set
    a flag.
""",
}
"""Replacements for phrases in docstrings, comments and imports. A phrase may continue over several
lines."""

_NAMES_IN_TEXT = re.compile(rf"`({'|'.join(NAMES)})\b")


class NotCovered(Exception):
    """The tables of this script do not cover a name or a phrase in a source."""


def render(source: Path, target: Path, used: set[str]) -> str:
    """Return the text of the blocking counterpart of a module. Adds to `used` the phrases in it."""
    text = blocking(source.read_text(), used)
    head = f"# Made from {source.relative_to(ROOT)} by `make blocking`: edit that one.\n"
    return _formatted(head + text, target)


def render_all() -> dict[Path, str]:
    """Return the text of each generated module. Raises NotCovered."""
    used: set[str] = set()
    rendered = {
        target / source.name: render(source, target / source.name, used)
        for folder, target in FOLDERS.items()
        for source in sorted(folder.glob("*.py"))
        if source.name not in BY_HAND
    }
    unused = PHRASES.keys() - used
    if unused:
        raise NotCovered(f"no source contains: {sorted(unused)}")
    return rendered


def blocking(source: str, used: set[str]) -> str:
    """Return the blocking counterpart of a source text. Adds to `used` the phrases in it. Raises
    NotCovered."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    pieces, position = [], 0
    for first, last, text in _replacements(source):
        begin = starts[first[0] - 1] + first[1]
        pieces += [source[position:begin], text]
        position = starts[last[0] - 1] + last[1]
    text = "".join(pieces) + source[position:]
    for phrase, other in PHRASES.items():
        if phrase in text:
            used.add(phrase)
            text = text.replace(phrase, other)
    return _NAMES_IN_TEXT.sub(lambda found: f"`{NAMES[found[1]]}", text)


Place = tuple[int, int]
"""Line, from 1, and column."""


def _replacements(source: str) -> Iterator[tuple[Place, Place, str]]:
    """Return the replacements in the code, each with its start and end."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    knows_time = any(one.line.strip() == "import time" for one in tokens)
    for i, token in enumerate(tokens):
        if token.type != tokenize.NAME:
            continue
        if token.string in ("async", "await"):
            yield token.start, tokens[i + 1].start, ""
        elif token.string in NAMES:
            yield token.start, token.end, NAMES[token.string]
        elif token.string == "asyncio" and tokens[i - 1].string == "import":
            yield tokens[i - 1].start, token.end, "" if knows_time else "import time"
        elif token.string == "asyncio":
            name = tokens[i + 2]
            if name.string not in ASYNCIO:
                where = f"line {token.start[0]}"
                raise NotCovered(f"asyncio.{name.string} has no blocking counterpart ({where})")
            yield token.start, name.end, ASYNCIO[name.string]


def _formatted(text: str, path: Path) -> str:
    for command in (
        ("check", "--quiet", "--fix", "--select", "I"),
        ("format", "--quiet"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path), "-"],
            input=text,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        if done.returncode:
            raise NotCovered(f"ruff {command[0]} refuses {path.name}: {done.stdout}{done.stderr}")
        text = done.stdout
    return text


def main(arguments: list[str]) -> int:
    rendered = render_all()
    wrong = [
        path for path, text in rendered.items() if not (path.exists() and path.read_text() == text)
    ]
    if arguments == ["--check"]:
        for path in wrong:
            print(f"{path.relative_to(ROOT)} is not what its source makes: run `make blocking`")
        return 1 if wrong else 0
    for path in wrong:
        path.write_text(rendered[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
