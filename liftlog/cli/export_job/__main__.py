"""Runs `liftlog export`; with --path, it only prints the path of this file."""

from __future__ import annotations

import sys

from liftlog.cli import main as command


def main() -> None:
    if sys.argv[1:] == ["--path"]:
        print(__file__)
        return
    command.main(["export", *sys.argv[1:]])


if __name__ == "__main__":
    main()
