"""Buckets: repositories, and branches as separate buckets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from starlette.responses import Response

from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo.heads import actions
from lakebed.repo.model.names import check_branch_name, check_repository_name
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references import branches
from lakebed.repo.references.refs import resolve
from lakebed.repo.staging.view import View, read_reference
from lakebed.repo.transport.transport import context_of
from lakebed.server.permissions import REPOSITORIES, Permission
from lakebed.server.s3.call import S3Call
from lakebed.server.s3.errors import XML_TYPE, s3_error
from lakebed.server.s3.listing import list_objects, owner_fields
from lakebed.server.s3.objects import iso_time
from lakebed.server.s3.operations import Operations
from lakebed.server.s3.xml import Value, render

BUCKETS: Final = Operations()
REGION: Final = "us-east-1"
"""Clients may sign for any region. Replies name this one."""
_BUCKETS_MAX: Final = 10_000


@BUCKETS.add("GET", "service", "ListBuckets", needs="read")
async def list_buckets(call: S3Call) -> Response:
    """List the repositories that the key may see; with a prefix ``repository.`` that repository's branches."""
    prefix, after = call.pairs.get("prefix", ""), call.pairs.get("continuation-token", "")
    amount = call.number("max-buckets", default=_BUCKETS_MAX, high=_BUCKETS_MAX)
    buckets = await call.heavy(lambda: list(islice(_buckets(call, prefix, after), amount + 1)))
    page = buckets[:amount]
    rows: list[tuple[str, Value]] = [
        ("Bucket", [("Name", name), ("CreationDate", iso_time(made_ms)), ("BucketRegion", REGION)])
        for name, made_ms in page
    ]
    fields: list[tuple[str, Value]] = [("Owner", owner_fields(call.caller.id)), ("Buckets", rows)]
    if len(buckets) > amount and page:
        fields.append(("ContinuationToken", page[-1][0]))
    if prefix:
        fields.append(("Prefix", prefix))
    return Response(render("ListAllMyBucketsResult", fields), media_type=XML_TYPE)


def _buckets(call: S3Call, prefix: str, after: str) -> Iterator[tuple[str, int]]:
    """Yield names and times, in the order of names."""
    repositories = call.site.repositories
    name, mark, branch_prefix = prefix.partition(".")
    if not mark:
        for repository in repositories.list(prefix=prefix, after=after or None):
            if call.caller.sees(repository.name):
                yield repository.name, repository.created_at_ms
    elif call.caller.sees(name) and _may_list(call, name) and repositories.exists(name):
        context = context_of(repositories.repository(name))
        branch_after = after.removeprefix(name + ".") if after else None
        for branch, record in branches.list_branches(context, prefix=branch_prefix, after=branch_after):
            yield f"{name}.{branch}", record.created_at_ms or context.record.created_at_ms


def _may_list(call: S3Call, repository: str) -> bool:
    """Whether the caller, who may see a repository, may list its branches."""
    grants = call.caller.grants
    return grants is None or grants.permits(Permission("fs:ListBranches", REPOSITORIES + repository))


async def _check_bucket(call: S3Call) -> None:
    """Refuse a bucket that does not exist. Raises `NotFound`; ``NoSuchBucket``."""
    context = await call.context()
    if call.place.is_branch_bucket:
        try:
            await call.look(resolve, context, call.place.ref)
        except NotFound as error:
            raise s3_error("NoSuchBucket", error.message) from error


@BUCKETS.add("HEAD", "bucket", "HeadBucket", needs="read")
async def head_bucket(call: S3Call) -> Response:
    """Check whether a bucket exists."""
    await _check_bucket(call)
    return Response(status_code=200, headers={"x-amz-bucket-region": REGION})


@BUCKETS.add("GET", "bucket", "GetBucketLocation", needs="read", query=("location",))
async def get_location(call: S3Call) -> Response:
    """Get the region of a bucket: that without a name."""
    await _check_bucket(call)
    return Response(render("LocationConstraint", []), media_type=XML_TYPE)


@BUCKETS.add("GET", "bucket", "GetBucketVersioning", needs="read", query=("versioning",))
async def get_versioning(call: S3Call) -> Response:
    """Say that a bucket has no versions as S3 has them; commits are the versions."""
    await _check_bucket(call)
    return Response(render("VersioningConfiguration", []), media_type=XML_TYPE)


@BUCKETS.add("GET", "bucket", "ListObjects", needs="read")
async def list_bucket(call: S3Call) -> Response:
    """List keys, with markers."""
    return await list_objects(call)


@BUCKETS.add("PUT", "bucket", "CreateBucket", needs="write", audited=True)
async def create_bucket(call: S3Call) -> Response:
    """Make the bucket of a branch: a branch from the default branch. Repositories are made over REST."""
    place = call.place
    try:
        check_repository_name(place.repository)
        if place.is_branch_bucket:
            check_branch_name(place.ref)
    except InvalidRequest as error:
        raise s3_error("InvalidBucketName", error.message) from error
    try:
        context = await call.context()
    except NotFound as error:
        raise s3_error(
            "NotImplemented",
            "The bucket is of a repository that is not there: make it with lakebed repo create, or over REST.",
        ) from error
    if not place.is_branch_bucket:
        raise s3_error("BucketAlreadyExists", "The bucket is a repository, which is there.")
    await call.heavy(
        actions.create_branch, context, place.ref, source=context.record.default_branch, committer=call.committer
    )
    return Response(status_code=200, headers={"location": f"/{call.target.bucket}"})


@BUCKETS.add("DELETE", "bucket", "DeleteBucket", needs="write", audited=True)
async def delete_bucket(call: S3Call) -> Response:
    """Delete the bucket of a branch that has no objects: the branch."""
    place = call.place
    if not place.is_branch_bucket:
        raise s3_error("AccessDenied", "A repository is deleted over REST, by a key with the role admin.")
    await call.heavy(_delete_branch, await call.context(), place.ref, call.committer)
    return Response(status_code=204)


def _delete_branch(context: RepositoryContext, name: str, committer: str) -> None:
    def is_empty(view: View) -> bool:
        return next(view.list(amount=1), None) is None

    check_branch_name(name)

    def delete(head: str | None) -> None:
        if not branches.delete_empty_branch(
            context, name, lambda: read_reference(context, name, is_empty), committer=committer, head=head
        ):
            raise s3_error("BucketNotEmpty", "The bucket you tried to delete is not empty: its branch has objects.")

    actions.around_branch_deletion(context, name, delete, committer=committer)
