"""Asking before something is lost for ever."""

from __future__ import annotations

import sys

import click


def confirmed(question: str) -> bool:
    """Raises UsageError when there is nobody to ask."""
    if not sys.stdin.isatty():
        raise click.UsageError(
            "There is no terminal to ask on; say --yes to do it, or --dry-run to see what it does.",
            click.get_current_context(),
        )
    return click.confirm(question, err=True)
