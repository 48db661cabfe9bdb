"""A lake: one URL that contains stores. Start reading at `lake.py`.

This package opens a lake, lists its stores and their pins, and collects what no version needs. The modules of
databases, repositories and tenants are loaded on first use, because importing their packages takes 0.3 s, which a
program that uses only tables does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.first_use import on_first_use

if TYPE_CHECKING:
    from lakebed.lake import databases, repositories, tenants

__all__ = ["databases", "repositories", "tenants"]

if not TYPE_CHECKING:  # with it, a type checker would accept every name
    __getattr__, __dir__ = on_first_use(__name__, modules=["databases", "repositories", "tenants"])
