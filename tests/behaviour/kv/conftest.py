"""A database in memory with a clock that stands still."""

from __future__ import annotations

import pytest

from worlds.kv.manual_database import ManualDatabase


@pytest.fixture
def manual() -> ManualDatabase:
    """An empty place for a database."""
    return ManualDatabase.new()
