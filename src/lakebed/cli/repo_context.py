"""The repositories on which a command works, and how commits, objects and differences are printed.

Invariants: commands that read own nothing, so they work while a server or a job owns the repositories. A command that
writes owns the repositories while it runs. If another command owns them it waits for a moment, and if a server owns
them it goes through the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from lakebed import repo
from lakebed.cli import arguments, output
from lakebed.cli.command import Command
from lakebed.cli.grammar import argument, option
from lakebed.errors import Conflict
from lakebed.objects.reserve import freeing_space

if TYPE_CHECKING:
    from lakebed.repo.repositories import Repositories
    from lakebed.repo.repository import Repository

BranchName = Annotated[str, argument("BRANCH", help="A branch of the repository.")]
Reference = Annotated[
    str, argument("REF", help="A branch, tag or commit; also main~2, main^1, main@ (only committed).")
]
ObjectPath = Annotated[str, argument("PATH", help="The object's path.")]

_OWNER_WAIT_MS: Final = 10_000
"""How long a command waits for another process that owns the repositories and is not a server."""

_SHARED_SCHEMES: Final = ("postgresql://", "postgres://")


class RepositoriesCommand(Command):
    """A command on the repositories of a lake or of a server.

    Attributes:
        frees_space: whether the command releases what a collection may then delete, or collects. On a full disk it may
            use the reserve, also to become the owner, which writes a manifest.
    """

    frees_space: ClassVar[bool] = False

    lake: Annotated[
        str,
        argument(
            "LAKE",
            help="A folder, a URL such as s3://bucket/lake, or a server: http://127.0.0.1:8000.",
            is_lake=True,
        ),
    ]
    metadata: Annotated[
        str | None,
        option("--metadata", metavar="URL", help="Where the records are, if not in the lake: postgresql://..."),
    ] = None

    def __init_subclass__(cls, *, name: str = "", frees_space: bool = False) -> None:
        super().__init_subclass__(name=name)
        cls.frees_space = frees_space

    def reading_all(self) -> Repositories:
        """Open the repositories for reading. Write nothing and do not disturb an owner."""
        is_shared = (self.metadata or "").startswith(_SHARED_SCHEMES)
        return repo.open_all(
            self.lake,
            create=False,
            access=repo.Access(read_only=not is_shared),  # a database server has no single owner
            metadata=self.metadata,
            options=repo.RepositoryOptions(background=False),
            storage_options=self.storage_options,
        )

    def refuse_other_folder(self) -> None:
        """Refuse a folder with other contents, before repositories are created in it. Raises `InvalidRequest`."""
        if self.metadata is None and not self.lake.startswith(("http://", "https://")):
            self.refuse_folder_of_others(self.lake)

    @contextmanager
    def writing_all(self, *, create: bool = False) -> Iterator[Repositories]:
        """Open the repositories to change them, through the server that owns them if there is one."""
        with freeing_space() if self.frees_space else nullcontext(), self._open_owned(create=create) as repositories:
            yield repositories

    def _open_owned(self, *, create: bool) -> Repositories:
        try:
            return repo.open_all(
                self.lake,
                create=create,
                metadata=self.metadata,
                options=repo.RepositoryOptions(background=False, webhook_hosts=arguments.webhook_hosts()),
                access=repo.Access(owner_wait_ms=_OWNER_WAIT_MS),
                storage_options=self.storage_options,
            )
        except Conflict as problem:
            endpoint = problem.facts.get("endpoint")
            if problem.kind != "owned":
                raise
            if not endpoint:
                raise Conflict(
                    f"The repositories of {self.lake} are owned by process {problem.facts.get('pid')} on "
                    f"{problem.facts.get('host')}, also after {_OWNER_WAIT_MS // 1000} seconds of waiting: wait for "
                    "its end, or share them through a server (lakebed serve). Commands that read work meanwhile.",
                    **{"kind": problem.kind, **problem.facts},
                ) from None
        return repo.open_all(str(endpoint))


class RepositoryCommand(RepositoriesCommand):
    """A command on one repository."""

    repository: Annotated[str, argument("REPOSITORY", help="A repository of the lake.")]

    @contextmanager
    def reading(self) -> Iterator[Repository]:
        """Open the repository for reading."""
        with self.reading_all() as repositories:
            yield repositories.repository(self.repository)

    @contextmanager
    def writing(self) -> Iterator[Repository]:
        """Open the repository for changes."""
        with self.writing_all() as repositories:
            yield repositories.repository(self.repository)


def of_commit(made: Any) -> dict[str, Any]:
    """Return the facts of a commit with its id."""
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
    """Return the facts of an object, or of a common prefix."""
    if listed.entry is None:
        return {"path": listed.path, "kind": "prefix"}
    return of_entry(listed.path, listed.entry)


def of_entry(path: str, entry: Any) -> dict[str, Any]:
    """Return the facts of an object."""
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
    """Return the facts of a path that differs."""
    entry = difference.left if difference.right is None else difference.right
    return {
        "path": difference.path,
        "change": difference.kind.name.lower(),
        "bytes": None if entry is None else entry.size_bytes,
    }


_SIGNS: Final = {"added": "+", "changed": "~", "removed": "-", "conflict": "!"}


def print_differences(differences: Iterable[Any], *, json: bool, empty: str) -> None:
    """Print paths that differ, as a table or as one JSON document."""
    records = (of_difference(difference) for difference in differences)
    if json:
        output.document(list(records))
        return
    rows = ((_SIGNS[record["change"]], record["path"], output.size(record["bytes"])) for record in records)
    output.grid(("", "path", "size"), rows, right=("size",), less=("size",), empty=empty)
