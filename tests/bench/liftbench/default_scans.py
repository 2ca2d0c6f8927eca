"""Scans by a Spark with its own settings: `python -m bench.liftbench.default_scans SPEC` (JSON)."""

from __future__ import annotations

import json
import sys

from .sparking import scan_with_own_settings

if __name__ == "__main__":
    told = scan_with_own_settings(json.loads(sys.argv[1]))
    print(json.dumps(told))
