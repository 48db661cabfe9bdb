"""A lake: one URL with stores in it. Open it, list its stores and their pins, clean it. Start reading at `lake.py`.

The modules of databases, repositories and tenants are loaded on first use: a program that uses tables alone does not
pay for their packages (0.3 s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.first_use import on_first_use

if TYPE_CHECKING:
    from lakebed.lake import databases, repositories, tenants

__all__ = ["databases", "repositories", "tenants"]

if not TYPE_CHECKING:  # with it, a type checker would accept every name
    __getattr__, __dir__ = on_first_use(__name__, modules=["databases", "repositories", "tenants"])
