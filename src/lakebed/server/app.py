"""The routes of a repository server as one application, and its OpenAPI description."""

from __future__ import annotations

from typing import Any, Final

import lakebed
from lakebed.http import application
from lakebed.http.gate import Gate
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.server.keys import Principal
from lakebed.server.paimon.routes import PREFIX
from lakebed.server.paimon.routes import ROUTES as PAIMON_ROUTES
from lakebed.server.routes import ROUTES
from lakebed.server.site import RepositoryCall, RepositorySite

_SERVICE: Final = Service(
    title="lakebed",
    version=lakebed.__version__,
    description="Branches, commits and merges over the objects of a data lake.",
    path_parameters={
        "repository": PathParameter("A repository's name.", "^[a-z0-9][a-z0-9-]{2,62}$"),
        "branch": PathParameter("A branch's name.", "^[A-Za-z0-9_][-A-Za-z0-9_]{0,255}$"),
        "tag": PathParameter("A tag's name."),
        "ref": PathParameter(
            "A branch, a tag, a commit (perhaps abbreviated), with steps such as ~1 or ^2, and @ for what is committed."
        ),
        "commit": PathParameter("A commit, or any other reference."),
        "left": PathParameter("The reference on the left."),
        "right": PathParameter("The reference on the right."),
        "source": PathParameter("The reference that is merged."),
        "access_key": PathParameter("An access key's id."),
    },
)


def description() -> dict[str, Any]:
    """The OpenAPI description."""
    return describe(_SERVICE, ROUTES)


def build(site: RepositorySite) -> Gate[Principal, RepositoryCall]:
    """The ASGI application that serves a site."""
    return application.build(site, {**ROUTES, PREFIX: PAIMON_ROUTES})
