"""What the commands of ``lakebed repo`` share: arguments, opening a lake's repositories, what is printed of them.

Invariants: reading commands own nothing, so they work beside a server or a job; a writing command takes ownership for
as long as it runs, waits a moment for another command, and goes through the server when a server is the owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from lakebed.cli import args, say
from lakebed.cli.grammar import argument, option
from lakebed.errors import Conflict, InvalidRequest
from lakebed.texts import shown, whole_number

if TYPE_CHECKING:
    from lakebed.repo.repositories import Repositories

__all__ = [
    "BranchName",
    "HomeUrl",
    "Metadata",
    "ObjectPath",
    "Reference",
    "RepositoryName",
    "days_of",
    "is_remote",
    "of_commit",
    "of_difference",
    "of_entry",
    "of_listed",
    "of_repository",
    "print_differences",
    "reading",
    "writing",
]

HomeUrl = Annotated[
    str,
    argument(
        "LAKE",
        help="A folder, a URL such as s3://bucket/lake, or a server: http://127.0.0.1:8000.",
        is_lake=True,
    ),
]
RepositoryName = Annotated[str, argument("REPOSITORY", help="A repository of the lake.")]
BranchName = Annotated[str, argument("BRANCH", help="A branch of it.")]
Reference = Annotated[
    str, argument("REF", help="A branch, tag or commit; also main~2, main^1, main@ (only committed).")
]
ObjectPath = Annotated[str, argument("PATH", help="The object's path.")]
Metadata = Annotated[
    str | None,
    option("--metadata", metavar="URL", help="Where the records are, if not in the lake: postgresql://..."),
]

_OWNER_WAIT_MS: Final = 10_000
"""How long a command waits for another process that owns the repositories and is no server."""

_REMOTE_SCHEMES: Final = ("http://", "https://")
_SHARED_SCHEMES: Final = ("postgresql://", "postgres://")


@contextmanager
def reading(url: str, *, metadata: str | None) -> Iterator[Repositories]:
    """The repositories of a lake, to read: nothing is written and nobody else is disturbed."""
    from lakebed import repo

    if url.startswith(_REMOTE_SCHEMES):
        home = _remote(url)
    else:
        shared = metadata is not None and metadata.startswith(_SHARED_SCHEMES)
        home = repo.open_all(
            url,
            create=False,
            read_only=not shared,  # a database server has no owner whom a reader could disturb
            metadata=metadata,
            options=repo.RepositoryOptions(background=False),
            storage_options=args.storage_options(),
        )
    with home:
        yield home


@contextmanager
def writing(url: str, *, metadata: str | None, create: bool = False) -> Iterator[Repositories]:
    """The repositories of a lake, to change; by way of the server that owns them, if one does."""
    with _remote(url) if url.startswith(_REMOTE_SCHEMES) else _owned(url, metadata=metadata, create=create) as home:
        yield home


def _owned(url: str, *, metadata: str | None, create: bool) -> Any:
    from lakebed import repo

    try:
        return repo.open_all(
            url,
            create=create,
            metadata=metadata,
            options=repo.RepositoryOptions(background=False, webhook_hosts=args.webhook_hosts()),
            owner_wait_ms=_OWNER_WAIT_MS,
            storage_options=args.storage_options(),
        )
    except Conflict as problem:
        endpoint = problem.facts.get("endpoint")
        if problem.kind != "owned":
            raise
        if not endpoint:
            raise Conflict(
                f"The repositories of {url} are owned by process {problem.facts.get('pid')} on "
                f"{problem.facts.get('host')}, and {_OWNER_WAIT_MS // 1000} seconds of waiting did not help: let "
                "it end, or share them through a server (lakebed serve). Commands that read work meanwhile.",
                **{"kind": problem.kind, **problem.facts},
            ) from None
    return _remote(str(endpoint))


def _remote(url: str) -> Any:
    """The repositories of a server, with the credentials that the environment has."""
    from lakebed.repo.remote.opening import open_remote_repositories

    return open_remote_repositories(url)


def is_remote(home: Any) -> bool:
    """Whether a home is a server's."""
    from lakebed.repo.remote.repositories import RemoteRepositories

    return isinstance(home, RemoteRepositories)


def days_of(texts: list[str] | None) -> dict[str, int]:
    """``["main=30"]`` as a dictionary. Raises `InvalidRequest`."""
    found: dict[str, int] = {}
    for name, days in args.pairs(texts, like="main=30").items():
        number = whole_number(days, minimum=1)
        if number is None:
            raise InvalidRequest(
                f"{shown(days)} is no number of days: write --branch-days {name}=30.", kind="invalid_days"
            )
        found[name] = number
    return found


# ---- facts


def of_repository(repository: Any) -> dict[str, Any]:
    """For `--json` and tables."""
    return {
        "name": repository.name,
        "default_branch": repository.default_branch,
        "created_ms": repository.created_at_ms,
        "url": repository.url,
    }


def of_commit(made: Any) -> dict[str, Any]:
    """A commit with its id."""
    commit = made.commit
    return {
        "id": made.id,
        "parents": list(commit.parents),
        "message": commit.message,
        "committer": commit.committer,
        "created_ms": commit.created_at_ms,
        "objects": commit.metarange.entry_count,
        "bytes": commit.metarange.size_bytes,
        "metadata": dict(commit.metadata),
    }


def of_listed(listed: Any) -> dict[str, Any]:
    """An object, or a common prefix."""
    if listed.entry is None:
        return {"path": listed.path, "kind": "prefix"}
    return of_entry(listed.path, listed.entry)


def of_entry(path: str, entry: Any) -> dict[str, Any]:
    """An object."""
    return {
        "path": path,
        "kind": "object",
        "bytes": entry.size_bytes,
        "changed_ms": entry.modified_ms,
        "checksum": entry.checksum,
        "content_type": entry.content_type,
        "address": entry.address,
        "metadata": dict(entry.metadata),
    }


def of_difference(difference: Any) -> dict[str, Any]:
    """A path that differs."""
    there = difference.left if difference.right is None else difference.right
    return {
        "path": difference.path,
        "change": difference.kind.name.lower(),
        "bytes": None if there is None else there.size_bytes,
    }


_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-", "conflict": "!"}


def print_differences(differences: Iterable[Any], *, json: bool, empty: str) -> None:
    """Paths that differ: a table, or one JSON document."""
    found = (of_difference(one) for one in differences)
    if json:
        say.document(list(found))
        return
    rows = ((_SIGNS[one["change"]], one["path"], say.size(one["bytes"])) for one in found)
    say.grid(("", "path", "size"), rows, right=("size",), less=("size",), empty=empty)


def utc(time_ms: int) -> str:
    """``2026-01-31 12:00:00`` in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
