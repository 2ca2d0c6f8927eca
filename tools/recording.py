"""The recording in README: `make recording`, a quarter of a minute.

Runs the commands of README in two terminals, in an empty directory. Draws their output as an
animated SVG, with the real times except for long waits, which are shortened. Typing is simulated.
Needs the ports 4222, 8292 and 9292 of this machine.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "docs/images/first-minute.svg"

_COLUMNS, _ROWS = 104, 24
_CHARACTER, _LINE, _MARGIN = 7.82, 19, 16
_TYPED_SECONDS = 0.15  # a word
_LONGEST_WAIT_SECONDS = 0.8
_STAYS_SECONDS = 6.0
_START_SECONDS, _QUIET_SECONDS = 60.0, 3.0
"""Seconds to wait for the first output; seconds without output after which a command counts as
waiting."""
_FENCE = re.compile(r"^```(?:sh)?\n(?:(?:python3|pip) .+\n)*((?:liftlog .+\n)+)```$", re.MULTILINE)
"""Matches a block of commands of liftlog. The lines before them install liftlog and are not
recorded."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre;
  fill: #d5dbe3 }
.typed { fill: #fff; font-weight: 600 }
.name { fill: #8d99a8 }
@media (prefers-reduced-motion: reduce) { text { animation: none !important } }
"""


class Piece(NamedTuple):
    """A text that appears at `seconds`, in one line of a terminal. `column` is its first column."""

    seconds: float
    column: int
    text: str
    is_typed: bool


Lines = list[list[Piece]]
"""The lines of one terminal, from the top."""


def commands(readme: str) -> list[list[str]]:
    """Return the commands in the first part of README, by terminal, without comments."""
    blocks = _FENCE.findall(readme)[:2]
    return [[re.split(r"\s+# ", line)[0] for line in block.splitlines()] for block in blocks]


# --- running ---


class _Running:
    """A command in a terminal of its own."""

    def __init__(self, command: str, directory: Path) -> None:
        self._terminal, inner = pty.openpty()
        termios.tcsetwinsize(self._terminal, (_ROWS, _COLUMNS))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            command, shell=True, cwd=directory, stdin=inner, stdout=inner, stderr=inner,
            start_new_session=True, env={"PATH": path, "HOME": str(directory), "TERM": "xterm"},
        )  # fmt: skip
        os.close(inner)

    def lines(self) -> Iterator[tuple[float, str]]:
        """Yield seconds since the call, and a line, until the command ends or prints no more."""
        began, unfinished, wait = time.monotonic(), "", _START_SECONDS
        while select.select([self._terminal], [], [], wait)[0]:
            wait = _QUIET_SECONDS
            try:
                unfinished += os.read(self._terminal, 65536).decode()
            except OSError:  # the command has ended
                break
            *whole, unfinished = _CONTROL.sub("", unfinished).split("\n")
            for line in whole:
                yield time.monotonic() - began, line.rstrip()[:_COLUMNS]

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        self._process.wait(timeout=30)
        os.close(self._terminal)


def record(terminals: Sequence[Sequence[str]]) -> list[Lines]:
    """Run one command after the other. Commands that do not end run until all are recorded."""
    now, found = 0.5, []
    running: list[_Running] = []
    with tempfile.TemporaryDirectory() as directory:
        try:
            for typed in terminals:
                lines: Lines = []
                for command in typed:
                    now = _type(command, lines, now)
                    running.append(_Running(command, Path(directory)))
                    before = 0.0
                    for at, text in running[-1].lines():
                        now += min(at - before, _LONGEST_WAIT_SECONDS)
                        before = at
                        lines.append([Piece(now, 0, text, is_typed=False)])
                    now += _LONGEST_WAIT_SECONDS
                found.append(lines)
        finally:
            for one in reversed(running):
                one.stop()
        _check(found, directory)
    return found


def _type(command: str, lines: Lines, now: float) -> float:
    pieces = [Piece(now, 0, "$", is_typed=False)]
    for word in re.finditer(r"\S+\s*", command):
        now += _TYPED_SECONDS
        pieces.append(Piece(now, 2 + word.start(), word[0].rstrip(), is_typed=True))
    lines.append(pieces)
    return now + _TYPED_SECONDS


def _check(found: Sequence[Lines], directory: str) -> None:
    text = "\n".join(piece.text for lines in found for line in lines for piece in line)
    for port in ("4222", "8292", "9292"):
        if f"127.0.0.1:{port}" not in text:
            raise SystemExit(f"the daemon did not get port {port}; is it in use?\n{text}")
    if directory in text or str(ROOT) in text or "error" in text:
        raise SystemExit(f"this is not what a reader sees:\n{text}")


# --- drawing ---


def render(terminals: Sequence[Lines]) -> str:
    """Return the SVG. Without animation, or if the reader has switched animations off, the picture
    shows all lines from the start."""
    last = max(piece.seconds for lines in terminals for line in lines for piece in line)
    whole = last + _STAYS_SECONDS
    times = sorted({piece.seconds for lines in terminals for line in lines for piece in line})
    names = {at: f"a{number}" for number, at in enumerate(times)}
    frames = [
        f"@keyframes {name} {{ 0% {{ opacity: 0 }} {at / whole:.2%} {{ opacity: 1 }} }}"
        f" .{name} {{ animation: {name} {whole:.1f}s step-end infinite }}"
        for at, name in names.items()
    ]
    width, y, drawn = round(_COLUMNS * _CHARACTER) + 2 * _MARGIN, 0, []
    for number, lines in enumerate(terminals, 1):
        height = (len(lines) + 1) * _LINE + _MARGIN
        drawn.append(
            f'<rect y="{y}" width="{width}" height="{height}" rx="8" fill="#161b22"/>'
            f'<text class="name" x="{_MARGIN}" y="{y + _LINE}">terminal {number}</text>'
        )
        for row, line in enumerate(lines, 2):
            for piece in line:
                x = _MARGIN + piece.column * _CHARACTER
                kind = names[piece.seconds] + (" typed" if piece.is_typed else "")
                drawn.append(
                    f'<text class="{kind}" x="{x:.1f}" y="{y + row * _LINE}">'
                    f"{escape(piece.text)}</text>"
                )
        y += height + 8
    said = "Two terminals: the daemon starts, a message is published, acked and read."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y - 8}" role="img"'
            f' aria-label="{said}">',
            f"<title>{said}</title>",
            f"<style>{_STYLE}{chr(10).join(frames)}</style>",
            *drawn,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    RECORDING.write_text(render(record(commands((ROOT / "README.md").read_text()))))
