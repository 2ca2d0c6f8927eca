"""The one error of this package; `liftlog` maps it at its border."""

from __future__ import annotations

from collections.abc import Sequence


class AclError(Exception):
    """The ACL text is wrong; `findings` lists everything that is, one line each."""

    def __init__(self, findings: Sequence[str]) -> None:
        self.findings = tuple(findings)
        count = len(self.findings)
        head = "1 problem in the ACL" if count == 1 else f"{count} problems in the ACL"
        super().__init__("\n  ".join([f"{head}:", *self.findings]))
