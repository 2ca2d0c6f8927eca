"""The benchmark of streams with erased records: `make bench-erased`, or this file with `--help`."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# Run as a script: make `support`, `bench` and (uninstalled) liftlog importable.
sys.path[:1] = [str(TESTS), str(TESTS.parent)]

from bench.liftbench.erased import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
