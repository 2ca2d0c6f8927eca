"""The only error of this package; `liftlog` maps it where it calls the package."""

from __future__ import annotations

from collections.abc import Sequence

_MAX_SHOWN = 100


class AclError(Exception):
    """The ACL text is wrong. `findings` lists every problem, one line each."""

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        count = len(self.findings)
        head = "1 problem in the ACL" if count == 1 else f"{count} problems in the ACL"
        shown = list(self.findings[:_MAX_SHOWN])
        if count > _MAX_SHOWN:
            shown.append(f"... and {count - _MAX_SHOWN} more")
        super().__init__("\n  ".join([f"{head}:", *shown]))
