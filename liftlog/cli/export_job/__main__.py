"""Runs `liftlog export`; with --path it only says where this file is."""

from __future__ import annotations

import sys

from liftlog.cli.main import cli


def main() -> None:
    if sys.argv[1:] == ["--path"]:
        print(__file__)
        return
    cli.main(["export", *sys.argv[1:]], prog_name="liftlog")


if __name__ == "__main__":
    main()
