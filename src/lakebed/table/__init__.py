"""Tables in Paimon's format: rooms, one above the other. Start reading at `table.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.first_use import on_first_use

if not TYPE_CHECKING:  # with it, a type checker would accept every name
    __getattr__, _ = on_first_use(__name__)
