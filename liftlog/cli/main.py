"""The entry point. It loads the command only when it is called, so that Ctrl-C in that moment ends
it quietly, as at any other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERRUPTED = 130  # ExitCode.INTERRUPTED, which may not be loaded yet


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit; `arguments` are those of this process unless they are given."""
    try:
        from liftlog.cli.client_events import tell_client_events
        from liftlog.cli.root import cli
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    tell_client_events()
    cli.main(arguments, prog_name="liftlog")
