"""All routes of the Iceberg interface, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from lakebed.http.declaration import Route
from lakebed.server.iceberg import reading, refused
from lakebed.server.site import RepositoryCall

__all__ = ["PREFIX", "ROUTES"]

PREFIX: Final = "/iceberg"

ROUTES: Final[tuple[Route[RepositoryCall], ...]] = (*reading.ROUTES, *refused.ROUTES)
