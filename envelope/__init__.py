"""Placeholder, replaced by the package."""

PART_OF = "liftlog"
