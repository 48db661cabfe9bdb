"""All routes, in the order in which they are tried: the most frequent ones first."""

from __future__ import annotations

from typing import Final

from lakebed.http.declaration import Route
from lakebed.server.routes import (
    access,
    actions,
    branches,
    commits,
    diffs,
    dumps,
    imports,
    metadata,
    objects,
    presigned_parts,
    pulls,
    repositories,
    service,
    settings,
    staging,
    tags,
    users,
    verbs,
)
from lakebed.server.site import RepositoryCall

__all__ = ["ROUTES"]

ROUTES: Final[dict[str, tuple[Route[RepositoryCall], ...]]] = {
    "/api/v1": (
        *objects.HOT,
        *repositories.HOT,
        *branches.HOT,
        *objects.OBJECTS,
        *staging.STAGING,
        *presigned_parts.PARTS,
        *branches.BRANCHES,
        *commits.COMMITS,
        *diffs.DIFFS,
        *tags.TAGS,
        *imports.IMPORTS,
        *repositories.REPOSITORIES,
        *dumps.DUMPS,
        *settings.SETTINGS,
        *metadata.METADATA,
        *pulls.PULLS,
        *actions.ACTIONS,
        *access.ACCESS,
        *users.USERS,
        *service.SERVICE,
        *verbs.VERB_ROUTES,
    ),
    "": (*staging.ROOT_STAGING, *presigned_parts.ROOT_PARTS, *service.ROOT_SERVICE),
}
"""The routes, by the prefix of their paths."""
