"""The command that checks a lake: fsck."""

from __future__ import annotations

from typing import Annotated

from lakebed.cli.fsck import Check
from lakebed.cli.grammar import argument
from lakebed.cli.lakes import SomeStore


class Fsck(Check, name="fsck"):
    """Check that everything a lake refers to exists and is readable; change nothing unless asked to repair."""

    lake: Annotated[str, argument("LAKE", help="A lake, or the folder of one store.", is_lake=True)]
    store: SomeStore = None

    def run(self) -> None:
        self.check(self.lake, self.store)
