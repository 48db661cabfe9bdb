"""Repositories: list, create, get, delete, and their metadata."""

from __future__ import annotations

import io
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from starlette.responses import Response

from lakebed.errors import InvalidRequest
from lakebed.http.declaration import Parameter, Routes
from lakebed.http.pages import Page
from lakebed.repo.branch import Branch
from lakebed.repo.transport.transport import context_of
from lakebed.server.auth import check_bare, check_role
from lakebed.server.bodies import RepositoryCreation, RepositoryMetadataKeys, RepositoryMetadataSet, RepositoryRow
from lakebed.server.routes.parameters import FORCE, PAGE
from lakebed.server.routes.shapes import repository_row
from lakebed.server.site import RepositoryCall

HOT: Final = Routes[RepositoryCall]("repositories")
REPOSITORIES: Final = Routes[RepositoryCall]("repositories")
_ALL = "/repositories"
_ONE = "/repositories/{repository}"


@HOT.add("GET", _ONE, "getRepository", needs="read")
async def get_repository(call: RepositoryCall) -> RepositoryRow:
    """Get a repository."""
    context = await call.context()
    return repository_row(context.name, context.record, root_url=call.site.repositories.url)


@REPOSITORIES.add(
    "GET",
    _ALL,
    "listRepositories",
    needs="read",
    gives={200: Page[RepositoryRow]},
    parameters=(*PAGE, Parameter("search", "Only names that contain this.")),
)
async def list_repositories(call: RepositoryCall) -> Response:
    """List the repositories that the access key may see."""
    search, principal, repositories = call.query.get("search", ""), call.caller, call.site.repositories
    return await call.list_page(
        lambda page: (
            context_of(repository)
            for repository in repositories.list(prefix=page.prefix, after=page.after or None)
            if principal.sees(repository.name) and search in repository.name
        ),
        key=lambda context: context.name,
        row=lambda context: repository_row(context.name, context.record, root_url=repositories.url),
    )


@REPOSITORIES.add(
    "POST",
    _ALL,
    "createRepository",
    needs="write",
    gives={201: RepositoryRow},
    audited=True,
    parameters=(Parameter("bare", "Without a first commit and branches, to restore a dump into it.", kind="boolean"),),
)
async def create_repository(call: RepositoryCall, body: RepositoryCreation) -> RepositoryRow:
    """Create a repository; its namespace is a folder of the server's storage, `local://folder`, or a URL inside it."""
    if body.sample_data and (call.flag("bare") or body.read_only):
        raise InvalidRequest(
            "Sample data is a commit, which a bare or read-only repository does not take: leave sample_data out.",
            kind="unsupported",
        )
    if body.storage_id:
        raise InvalidRequest("The server has one storage, without an id: leave storage_id out.", kind="unsupported")
    _check_namespace(body.storage_namespace)
    if call.caller.grants is None:  # for a user, check the permissions that the body needs
        check_role(call.caller, needed="write", repository=body.name)
    if call.flag("bare"):
        check_bare(call.caller)
    call.subject = body.name
    context = await call.quick(
        call.site.repositories.create,
        body.name,
        namespace=body.storage_namespace,
        default_branch=body.default_branch or "main",
        committer=call.committer,
        read_only=bool(body.read_only),
        bare=call.flag("bare"),
    )
    if body.sample_data:
        await call.heavy(add_sample_data, context.branch(), committer=call.committer)
    return repository_row(context.name, context_of(context).record, root_url=call.site.repositories.url)


def _check_namespace(namespace: str) -> None:
    """Refuse a namespace that is not a URL, as the regular expression in `getConfig` demands."""
    if "://" not in namespace:
        raise InvalidRequest(
            f"The storage namespace {namespace!r} is not a URL: use local:// and a folder of the server's storage, "
            "such as local://my-repository, or the URL of a folder inside it.",
            kind="invalid_namespace",
            namespace=namespace,
        )


@REPOSITORIES.add(
    "DELETE", _ONE, "deleteRepository", needs="admin", parameters=(FORCE,), audited=True, frees_space=True
)
async def delete_repository(call: RepositoryCall) -> None:
    """Delete a repository with its contents."""
    force = call.flag("force")
    await call.quick(call.site.repositories.delete, call.path["repository"], force=force)


@REPOSITORIES.add("GET", _ONE + "/metadata", "getRepositoryMetadata", needs="read")
async def get_metadata(call: RepositoryCall) -> dict[str, str]:
    """Get the metadata of a repository."""
    context = await call.context()
    return context.record.metadata


@REPOSITORIES.add("POST", _ONE + "/metadata", "setRepositoryMetadata", needs="admin", audited=True)
async def set_metadata(call: RepositoryCall, body: RepositoryMetadataSet) -> None:
    """Add or change keys of the metadata of a repository."""
    context = await call.context()
    await call.quick(call.site.repositories.update_metadata, context.name, body.metadata)


@REPOSITORIES.add("DELETE", _ONE + "/metadata", "deleteRepositoryMetadata", needs="admin", audited=True)
async def delete_metadata(call: RepositoryCall, body: RepositoryMetadataKeys) -> None:
    """Delete keys of the metadata of a repository. Missing ones are ignored."""
    context = await call.context()
    await call.quick(call.site.repositories.update_metadata, context.name, {}, removed=body.keys)


_README: Final = """# A repository

The branch has a table of lakes in two formats. Change it on a branch of your own, commit, and merge.
"""


def add_sample_data(branch: Branch, *, committer: str) -> None:
    """Commit the sample files. Errors as `lakebed.repo.branch.Branch.commit`. Cost: a few PUTs."""
    lakes = pa.table(
        {
            "name": ["Caspian Sea", "Superior", "Victoria", "Huron", "Michigan", "Tanganyika", "Baikal", "Malawi"],
            "continent": ["Asia", "America", "Africa", "America", "America", "Africa", "Asia", "Africa"],
            "area_km2": [371_000, 82_100, 68_800, 59_600, 58_000, 32_900, 31_700, 29_600],
            "depth_m": [1_025, 406, 84, 229, 281, 1_470, 1_642, 706],
        }
    )
    csv, parquet = io.BytesIO(), io.BytesIO()
    pyarrow.csv.write_csv(lakes, csv)
    pyarrow.parquet.write_table(lakes, parquet)
    branch.put("README.md", _README.encode(), content_type="text/markdown")
    branch.put("lakes.csv", csv.getvalue(), content_type="text/csv")
    branch.put("tables/lakes.parquet", parquet.getvalue(), content_type="application/vnd.apache.parquet")
    branch.commit("Add sample data", committer=committer)
