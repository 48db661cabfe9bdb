"""A repository in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lakebed.repo.records.context import RepositoryContext
from worlds.repo.memory_repository import MemoryRepository, open_context


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository with one empty commit."""
    with open_context(MemoryRepository()) as opened:
        yield opened
