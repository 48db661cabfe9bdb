"""Databases in memory, with a clock that stands still."""

from __future__ import annotations

import pytest

from worlds.kv.faulty_databases import FaultyDatabases
from worlds.kv.manual_database import ManualDatabase


@pytest.fixture
def manual() -> ManualDatabase:
    """An empty place for a database."""
    return ManualDatabase.new()


@pytest.fixture
def databases() -> FaultyDatabases:
    """Databases in one memory."""
    return FaultyDatabases()
