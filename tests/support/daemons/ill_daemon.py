"""`liftlog serve` with one condition of every kind, to test where each is shown.

Everything else in this daemon works as usual. `words_of` defines the texts of the conditions.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from liftlog.server.vitals.conditions import KINDS, About, Condition, Conditions, Severity

STREAM = "orders"
NODE = "b"
_SUBJECTS = {About.STREAM: STREAM, About.NODE: NODE, About.DAEMON: ""}


def words_of(name: str) -> str:
    return f"made ill for a test, by {name}"


def conditions(severities: str) -> Iterator[Condition]:
    """Yield conditions of these severities, which are separated by commas."""
    for name, kind in KINDS.items():
        if kind.severity.value in severities.split(","):
            yield Condition.of(name, words_of(name), _SUBJECTS[kind.about])


def main() -> None:
    severities = sys.argv.pop(1)
    assert all(Severity(one) for one in severities.split(","))
    begin = Conditions.__init__

    def begin_ill(self: Conditions) -> None:
        begin(self)
        self.add(lambda: conditions(severities))

    Conditions.__init__ = begin_ill  # type: ignore[method-assign]
    from liftlog.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
