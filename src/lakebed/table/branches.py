"""Branches of a table: forks with snapshots, schemas and tags of their own, over the same data files.

Owns: creating, listing and deleting ``branch/branch-<name>/{schema,snapshot,tag}``, and the hidden pin that a branch
keeps in main.

Invariants:
- A branch starts as a copy of one snapshot (its *fork snapshot*, with main's id and lists) and every schema up to the
  newest.
- Data files, manifests and index files of all branches lie in main's folders. While a branch exists, the hidden tag
  ``lakebed.pin.branch.<name>`` in main holds its fork snapshot, so main's collectors keep what the branch shares.
- A branch's own expiry never deletes a file of its fork snapshot: those are main's.
- The pin is put, create-only, before the branch appears and removed after it is gone: a crash leaves a pin too many,
  never one too few, and `delete` of the half-made branch removes it.
- A branch is there while it has a schema: schemas are put last and deleted first. A writer looks for its schema after
  its commit (`SnapshotLog.append`), and deletion lists the folder after the schemas went: one of the two sees the
  other, so no commit is acknowledged to a branch that is gone.
- Only the pin that was there when a deletion began is removed: a deleter that stood still meanwhile does not take the
  pin of a branch made anew.

- A branch that was published (`fast_forward`) has a mark in main until it is deleted.

Does not know: which files may go.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakebed.errors import AlreadyExists, InvalidRequest, NotFound, Unavailable
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import Deletable, ReclaimPlan
from lakebed.reclaim.sweep import Sweeper
from lakebed.runtime import Environment
from lakebed.table.layout import MAIN_BRANCH, Layout, parse_branch, parse_schema
from lakebed.table.model import Tag
from lakebed.table.snapshot_json import decode_snapshot
from lakebed.table.tags import HIDDEN_PREFIX, TAG_ID, Source, Tags, check_tag_name

__all__ = ["PUBLISHED_FOLDER", "Branch", "Branches", "fork_pin", "published_mark"]

PUBLISHED_FOLDER = "lakebed/published"
"""Of the marks of branches that were published. DO NOT CHANGE: on disk."""

_CLEAR_TRIES_MAX = 100


@dataclass(frozen=True, slots=True)
class Branch:
    """One branch and where it started."""

    name: str
    fork_snapshot_id: int | None
    """None for a branch of another client that left no pin."""
    created_ms: int
    """Unix ms, UTC, by the store's clock."""


def fork_pin(name: str) -> str:
    """The full name of the hidden tag in main that holds a branch's fork snapshot."""
    return f"{HIDDEN_PREFIX}branch.{name}"


def published_mark(name: str, pin: Tag) -> str:
    """Where main notes that it has files of a branch, so that its collectors ask the branch's versions.

    Each branch of a name has a mark of its own, by its pin: a late deleter takes none of the next one.
    """
    return f"{PUBLISHED_FOLDER}/{name}/{pin.snapshot.properties.get(TAG_ID, '0')}"


class Branches:
    """The branches of one table. `tags` are main's."""

    def __init__(self, store: ObjectStore, *, tags: Tags, environment: Environment) -> None:
        self._store = store
        self._tags = tags
        self._environment = environment

    def names(self) -> list[str]:
        """Names, sorted. Cost: 1 LIST, and 1 LIST a branch."""
        folders = self._store.list_with_delimiter(Layout().branch_folder).folders
        names = (name for folder in folders if (name := parse_branch(folder)) is not None)
        return sorted(name for name in names if self.exists(name))

    def exists(self, name: str) -> bool:
        """Whether the branch is there. Cost: 1 LIST."""
        listed = self._store.list_with_delimiter(Layout(branch=name).schema_folder).objects
        return any(parse_schema(meta.path) is not None for meta in listed)

    def list(self) -> list[Branch]:
        """All branches, sorted by name. Cost: 2 LISTs + 1 LIST and 1 GET a branch."""
        found = []
        for name in self.names():
            pin = self._tags.find(fork_pin(name))
            times = [meta.modified_ms for meta in self._store.list(Layout(branch=name).schema_folder)]
            found.append(
                Branch(name=name, fork_snapshot_id=pin.snapshot.id if pin else None, created_ms=min(times, default=0))
            )
        return found

    def create(self, name: str, *, source: Source) -> Branch:
        """A new branch that starts from `source` (a snapshot's or a tag's file).

        Raises:
            InvalidRequest: the name breaks the rules of tag names, or is ``main``.
            AlreadyExists: the branch is there.
            Conflict: the source expired meanwhile.
        Cost: 1 pin + 1 COPY a schema + 1 PUT.
        """
        check_branch_name(name)
        if self.exists(name):
            raise _taken(name)
        snapshot = decode_snapshot(source.body, path=source.path)
        try:
            self._tags.pin_hidden(f"branch.{name}", source=source)  # create-only: of two creators one gets past here
        except AlreadyExists as taken:
            raise AlreadyExists(
                f"The branch {name!r} is being created by another, or its creation was cut short: in the latter case "
                "delete it, then create it again.",
                kind="branch_exists",
                branch=name,
            ) from taken
        main, branch = Layout(), Layout(branch=name)
        self._clear(
            name, pin=self._tags.find(fork_pin(name))
        )  # what late writers left of an earlier branch of this name
        self._store.put(branch.snapshot(snapshot.id), source.body)
        for meta in self._store.list(main.schema_folder):
            schema_id = parse_schema(meta.path)
            if schema_id is not None:
                self._store.put(branch.schema(schema_id), self._store.get(meta.path))
        return Branch(name=name, fork_snapshot_id=snapshot.id, created_ms=self._environment.clock.now_ms())

    def delete(self, name: str) -> None:
        """Remove a branch: its schemas, so that nobody opens it, then its snapshots, the rest, and its pin in main.

        Data files that only the branch used become orphans of the table, for `remove_orphan_files`.
        Raises `NotFound`.
        """
        check_branch_name(name)
        pin = self._tags.find(fork_pin(name))
        if not self._clear(name, pin=pin) and pin is None:
            raise self.absent(name)
        if pin is not None and self._tags.find(fork_pin(name)) == pin:
            mark = Deletable(published_mark(name, pin), 0, f"of the deleted branch {name}")
            Sweeper(self._store, self._environment).delete_all([mark])
            self._tags.unpin_hidden(f"branch.{name}")

    def _clear(self, name: str, *, pin: Tag | None) -> bool:
        """Delete everything in a branch's folder, until a listing finds nothing; whether there was anything.

        It ends when the pin is another: the branch was deleted and made anew meanwhile.

        Raises `Unavailable` when something cannot be deleted: the pin then stays.
        """
        layout = Layout(branch=name)
        found = False
        for _ in range(_CLEAR_TRIES_MAX):
            paths = [meta.path for meta in self._store.list(layout.root.removesuffix("/"))]
            if not paths:
                return found
            if found and self._tags.find(fork_pin(name)) != pin:
                return found
            found = True
            hide = tuple(path for path in paths if parse_schema(path) is not None)
            rest = tuple(Deletable(path, 0, f"of the deleted branch {name}") for path in paths if path not in set(hide))
            report = Sweeper(self._store, self._environment).sweep(ReclaimPlan(store="", hide=hide, doomed=rest))
            if report.warnings:
                raise Unavailable(f"The branch {name!r} is not deleted yet, try again: {report.warnings[0]}")
        raise Unavailable(
            f"The branch {name!r} is not deleted yet: its folder was cleared {_CLEAR_TRIES_MAX} times, and something "
            "was written into it each time. Stop its writers and delete it again."
        )

    def absent(self, name: str) -> NotFound:
        """The error that says which branches there are instead."""
        names = self.names()
        there = f"it has {', '.join(names)}" if names else "it has none but main"
        return NotFound(f"The table has no branch {name!r}: {there}.", kind="branch_not_found", branch=name)


def check_branch_name(name: str) -> None:
    """Raise `InvalidRequest` unless `name` may be given to a branch: the rules of tag names, and not ``main``."""
    if name == MAIN_BRANCH:
        raise InvalidRequest(
            f"{name!r} is the table's own line of versions: choose another name.", kind="invalid_branch_name"
        )
    check_tag_name(name, of="branch")


def _taken(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"The branch {name!r} exists already: delete it or choose another name.", kind="branch_exists", branch=name
    )
