"""The application of a repository server with all routes, and its OpenAPI description."""

from __future__ import annotations

from typing import Any, Final

import lakebed
from lakebed.http import application
from lakebed.http.gate import Gate
from lakebed.http.openapi import PathParameter, Service, describe
from lakebed.server.iceberg.routes import PREFIX as ICEBERG_PREFIX
from lakebed.server.iceberg.routes import ROUTES as ICEBERG_ROUTES
from lakebed.server.identity import NAME_PATTERN
from lakebed.server.keys import Principal
from lakebed.server.paimon.routes import PREFIX as PAIMON_PREFIX
from lakebed.server.paimon.routes import ROUTES as PAIMON_ROUTES
from lakebed.server.routes import ROUTES
from lakebed.server.s3.application import S3Application
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
        "meta_range": PathParameter("The id of a metarange: the hash of its contents."),
        "range": PathParameter("The id of a range: the hash of its contents."),
        "type": PathParameter("`range` or `meta_range`.", "^(range|meta_range)$"),
        "object_id": PathParameter("The id of a range or metarange."),
        "pull_request": PathParameter("A pull request's id."),
        "upload_id": PathParameter("The id of an upload in parts."),
        "part_number": PathParameter("The number of a part, from 1 to 10,000."),
        "run": PathParameter("The id of a run of actions."),
        "hook_run": PathParameter("The number of a hook in a run."),
        "access_key": PathParameter("An access key's id."),
        "user": PathParameter("A user's name.", NAME_PATTERN),
        "group": PathParameter("A group's name.", NAME_PATTERN),
        "policy": PathParameter("A policy's name.", NAME_PATTERN),
    },
)


def description() -> dict[str, Any]:
    """Return the OpenAPI description."""
    return describe(_SERVICE, ROUTES)


def build(site: RepositorySite) -> Gate[Principal, RepositoryCall]:
    """Return the ASGI application of a site, with the S3 gateway if the site has a key for it."""
    routes = {**ROUTES, PAIMON_PREFIX: PAIMON_ROUTES, ICEBERG_PREFIX: ICEBERG_ROUTES}
    return application.build(site, routes, claiming=S3Application(site) if site.keys.has_signers else None)
