"""The command that checks a table: fsck."""

from __future__ import annotations

from lakebed.cli.context import TableCommand
from lakebed.cli.fsck import Check


class Fsck(Check, TableCommand, name="fsck"):
    """Check that everything the table refers to exists and is readable; change nothing unless asked to repair."""

    def run(self) -> None:
        self.check(self.lake, self.table)
