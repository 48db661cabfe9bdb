"""All endpoints, in the order in which their routes are tried: what is called most, first."""

from __future__ import annotations

from typing import Final

from lakebed.server.endpoint import Endpoint
from lakebed.server.routes import (
    access,
    branches,
    commits,
    diffs,
    imports,
    objects,
    repositories,
    service,
    settings,
    staging,
    tags,
    verbs,
)

__all__ = ["ENDPOINTS", "PREFIX", "ROOT_ENDPOINTS"]

PREFIX: Final = "/api/v1"

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    *objects.HOT,
    *repositories.HOT,
    *branches.HOT,
    *objects.OBJECTS,
    *staging.STAGING,
    *branches.BRANCHES,
    *commits.COMMITS,
    *diffs.DIFFS,
    *tags.TAGS,
    *imports.IMPORTS,
    *repositories.REPOSITORIES,
    *settings.SETTINGS,
    *access.ACCESS,
    *service.SERVICE,
    *verbs.VERB_ENDPOINTS,
)
"""Below `PREFIX`."""

ROOT_ENDPOINTS: Final[tuple[Endpoint, ...]] = (*staging.ROOT_STAGING, *service.ROOT_SERVICE)
"""Not below it."""
