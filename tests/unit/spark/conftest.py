"""A lake, and requests to the process that answers Spark's SQL catalog, without the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakebed.lake.lake import Lake, open_lake
from lakebed.spark.catalog import handle
from lakebed.spark.catalog.verb import Session
from worlds.replies import Ask


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(str(tmp_path / "lake"))


@pytest.fixture
def ask(lake: Lake, tmp_path: Path) -> Ask:
    """Send a request and return the whole reply, without the id."""
    folder = tmp_path / "replies"
    folder.mkdir()
    session = Session(folder)

    def asked(verb: str, **body: Any) -> dict[str, Any]:
        request = {"id": 7, "verb": verb, "lake": lake.url, "body": body}
        reply: dict[str, Any] = json.loads(handle(json.dumps(request).encode(), session))
        assert reply.pop("id") == 7
        return reply

    return asked
