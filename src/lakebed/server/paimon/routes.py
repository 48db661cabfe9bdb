"""All routes of the Paimon interface, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from lakebed.http.declaration import Route
from lakebed.server.paimon import absent, commits, databases, partitions, references, tables
from lakebed.server.site import RepositoryCall

__all__ = ["PREFIX", "ROUTES"]

PREFIX: Final = "/paimon"

ROUTES: Final[tuple[Route[RepositoryCall], ...]] = (
    *commits.ROUTES,
    *tables.ROUTES,
    *databases.ROUTES,
    *references.ROUTES,
    *partitions.ROUTES,
    *absent.ROUTES,
)
