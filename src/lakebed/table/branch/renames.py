"""Renaming a branch: its small files are copied to the new name. Any process can finish an interrupted rename.

Owns: the folder ``lakebed/renamed/<old name>/<id of the old pin>/`` in main, and the steps of a rename
(docs/design/0057):

    mark        {"to": new name} for a rename, {"to": null} for a deletion. Create-only, so it decides between two
                renames, and between a rename and a deletion
    schema-<n>  each schema of the old name, saved before it is deleted
    state       all files that the new name gets, with their bytes. Create-only, put when no schema is left. It decides
                which snapshots and tags move

DO NOT CHANGE: on disk.

Invariants:
- The new name's pin is put first, create-only, and says which branches it was renamed from. Both pins hold the fork
  snapshot until the old folder is empty.
- Once the mark exists, a rename is only ever finished, never undone. The old pin is its lease: a process that reads
  another pin there, or none, has nothing more to do. A process that stalls between that look and its request may repeat
  that one request.
- Nothing is acknowledged to the old name once its schemas are gone. A writer that put a snapshot there finishes the
  rename and looks whether its snapshot moved (`confirm_commit`). So the state and the writer agree.
- The new name's schemas are put last, the newest first: after that the branch is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from lakebed.errors import AlreadyExists, Conflict, NotFound, OutcomeUnknown
from lakebed.objects.create_once import create_once
from lakebed.objects.document import decode_object
from lakebed.objects.port import ObjectMeta, has_object
from lakebed.table.branch.branch_folder import (
    branch_exists,
    branch_id,
    branch_not_found,
    branch_replaced,
    clear_branch,
    delete_files,
    find_branch_id,
    fork_pin,
    mark_path,
)
from lakebed.table.branch.context import TableBranch
from lakebed.table.branch.tags import HIDDEN_PREFIX
from lakebed.table.model.layout import Layout, parse_schema
from lakebed.table.model.model import Snapshot, TableSchema, Tag

RENAMED_FOLDER: Final = "lakebed/renamed"
RENAMED_FROM: Final = "lakebed.renamed-from"
"""Property of a pin: a line ``<name>/<id>`` for each earlier name of the branch, oldest first. On disk."""
CREATED: Final = "lakebed.created-ms"
"""Property of a pin: when the branch was created, Unix ms, under its first name. On disk."""

_LOOKS_MAX: Final = 100
_REASON: Final = "its branch has another name"


class _Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: str | None
    """The new name; None: the branch is being deleted."""


class _State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: dict[str, bytes]
    """Bytes by path in the branch's folder, schemas included."""


class _Finished(Exception):
    """Another process has finished the rename."""


@dataclass(frozen=True, slots=True)
class Rename:
    """A rename that was begun, or with `new` None a deletion."""

    old: str
    old_id: str
    new: str | None

    @property
    def folder(self) -> str:
        """The folder of its mark, the saved schemas and the state."""
        return f"{RENAMED_FOLDER}/{self.old}/{self.old_id}"

    @property
    def mark(self) -> str:
        """The path of its mark."""
        return f"{self.folder}/mark"


def load_renames(main: TableBranch) -> list[Rename]:
    """Renames that are not finished; deletions are left out. Cost: 1 LIST, and 1 GET each."""
    renames: list[Rename] = []
    for meta in list(main.store.list(RENAMED_FOLDER)):
        name, _, rest = meta.path.removeprefix(f"{RENAMED_FOLDER}/").partition("/")
        identity, _, file = rest.partition("/")
        rename = Rename(name, identity, None)
        if file == "mark" and (to := _load_mark(main, rename)) is not None:
            renames.append(Rename(name, identity, to))
    return renames


def _load_mark(main: TableBranch, rename: Rename) -> str | None:
    try:
        return decode_object(main.store.get(rename.mark), _Mark, path=rename.mark).to
    except NotFound:
        return None  # finished since the listing


def finish_renames(main: TableBranch) -> list[Rename]:
    """Finish every rename that was begun, and return them.

    Raises `AlreadyExists`: another branch has taken the new name. Cost: 1 LIST when there is no rename.
    """
    renames = load_renames(main)
    for rename in renames:
        finish_rename(main, rename)
    return renames


def claim(main: TableBranch, name: str, pin: Tag, *, to: str | None) -> Rename:
    """Decide what becomes of a branch: a rename or, with `to` None, its deletion. Return what was decided.

    Cost: 1 PUT, and 2 GETs when another process decided first.
    """
    rename = Rename(name, branch_id(pin), to)
    body = msgspec.json.encode(_Mark(to))
    try:
        create_once(main.store, rename.mark, body, environment=main.environment)
    except AlreadyExists:
        return Rename(name, rename.old_id, _load_mark(main, rename))
    return rename


def take_name(main: TableBranch, old: str, pin: Tag, new: str) -> None:
    """Put the pin of the new name, unless this rename has put it already.

    Raises `AlreadyExists`: the name belongs to another branch; `NotFound`: the old branch is gone.
    """
    lines = [*_lines(pin), f"{old}/{branch_id(pin)}"]
    marks = {RENAMED_FROM: "\n".join(lines), CREATED: str(read_created_ms(main, old, pin))}
    try:
        main.tags.copy_hidden(f"branch.{old}", f"branch.{new}", marks=marks)
    except NotFound as error:
        raise branch_not_found(main.store, old) from error
    except AlreadyExists as error:
        other_pin = main.tags.find(fork_pin(new))
        if other_pin is not None and _lines(other_pin) == lines:
            return
        raise AlreadyExists(
            f"The branch {old!r} cannot be called {new!r}: a branch of that name exists or is being created. Choose "
            "another name, or rename or delete that branch.",
            kind="branch_exists",
            branch=new,
        ) from error


def read_created_ms(main: TableBranch, name: str, pin: Tag | None) -> int:
    """When a branch was created, whatever its name is now: Unix ms, UTC, by the store's clock.

    Args:
        pin: the branch's; None: another client made it.
    Cost: 1 LIST; none for a branch that was renamed.
    """
    created_text = None if pin is None else pin.snapshot.properties.get(CREATED)
    if created_text is not None and created_text.isascii() and created_text.isdigit():
        return int(created_text)
    times = [meta.modified_ms for meta in main.store.list(Layout(branch=name).schema_folder)]
    return min(times, default=0)


def release_name(main: TableBranch, old: str, pin: Tag, new: str) -> None:
    """Remove the pin of a new name whose rename will not take place."""
    other_pin = main.tags.find(fork_pin(new))
    if other_pin is not None and _lines(other_pin) == [*_lines(pin), f"{old}/{branch_id(pin)}"]:
        main.tags.unpin_hidden(f"branch.{new}")


def was_renamed(pin: Tag, old: str) -> bool:
    """Whether the branch of this pin was once called `old`."""
    return any(line.rpartition("/")[0] == old for line in _lines(pin))


def _lines(pin: Tag) -> list[str]:
    return pin.snapshot.properties.get(RENAMED_FROM, "").split("\n") if RENAMED_FROM in pin.snapshot.properties else []


# ---- the steps


def finish_rename(main: TableBranch, rename: Rename) -> None:
    """Finish a rename from whatever state it is in; a no-op when it is finished.

    Raises `AlreadyExists`: another branch has taken the new name. Cost: 1 GET and 2 PUTs for each file of the branch's
    folder, and about 20 requests.
    """
    assert rename.new is not None
    try:
        pin = _look(main, rename)
        _take_name(main, rename, pin)
        state = _load_state(main, rename)
        if state is None:
            _hide(main, rename)
            state = _decide(main, rename)
        if any(parse_schema(path) is not None for path in state.files):
            _put_branch(main, rename, pin, state)
        else:  # another client has deleted the branch meanwhile
            release_name(main, rename.old, pin, rename.new)
        _look(main, rename)
        clear_branch(main, rename.old, pin=pin)
        _look(main, rename)
        delete_files(main.store, [mark_path(rename.old, pin)], reason=_REASON)
        _look(main, rename)
        main.tags.unpin_hidden(f"branch.{rename.old}")
    except _Finished:
        pass
    paths = [meta.path for meta in main.store.list(rename.folder)]
    delete_files(main.store, [path for path in paths if path != rename.mark], reason=_REASON)
    delete_files(main.store, [rename.mark], reason=_REASON)


def _take_name(main: TableBranch, rename: Rename, pin: Tag) -> None:
    assert rename.new is not None
    try:
        take_name(main, rename.old, pin, rename.new)
    except NotFound as error:
        raise _Finished from error


def _look(main: TableBranch, rename: Rename) -> Tag:
    """Return the old pin. Raises `_Finished` when it is gone or belongs to another branch. Cost: 1 GET."""
    pin = main.tags.find(fork_pin(rename.old))
    if pin is None or branch_id(pin) != rename.old_id:
        raise _Finished
    return pin


def _hide(main: TableBranch, rename: Rename) -> None:
    """Save, then delete, the schemas of the old name, until none is left.

    A schema that a writer puts meanwhile was either confirmed by an older schema that still existed, or is withdrawn.
    """
    folder = Layout(branch=rename.old).schema_folder
    for _ in range(_LOOKS_MAX):
        paths = [meta.path for meta in main.store.list(folder) if parse_schema(meta.path) is not None]
        if not paths:
            return
        for path in paths:
            with suppress(NotFound):  # another process has saved and deleted it
                main.store.put(f"{rename.folder}/{path.rpartition('/')[2]}", main.store.get(path))
        _look(main, rename)
        delete_files(main.store, paths, reason=_REASON)
    raise _busy(rename)


def _load_state(main: TableBranch, rename: Rename) -> _State | None:
    path = f"{rename.folder}/state"
    try:
        return decode_object(main.store.get(path), _State, path=path)
    except NotFound:
        return None


def _decide(main: TableBranch, rename: Rename) -> _State:
    """Decide, once, which files move: those still under the old name, whose schemas are gone, and the saved schemas."""
    root = Layout(branch=rename.old).root
    for _ in range(_LOOKS_MAX):
        metas = _list_files(main, root)
        files = {meta.path.removeprefix(root): body for meta, body in _read(main, metas)}
        if _list_files(main, root) == metas:
            break
    else:
        raise _busy(rename)
    saved = [meta for meta in main.store.list(rename.folder) if "/schema-" in meta.path]
    files |= {f"schema/{meta.path.rpartition('/')[2]}": body for meta, body in _read(main, saved)}
    _look(main, rename)
    path, body = f"{rename.folder}/state", msgspec.json.encode(_State(files))
    with suppress(AlreadyExists):
        create_once(main.store, path, body, environment=main.environment)
    state = _load_state(main, rename)
    if state is None:
        raise _Finished
    return state


def _list_files(main: TableBranch, root: str) -> list[ObjectMeta]:
    """The files to move. Snapshots come first, and last what a deletion stores before it hides them."""
    left_out = Layout(branch=root.removeprefix("branch/branch-").removesuffix("/")).tag_index
    metas = [
        meta
        for meta in main.store.list(root.removesuffix("/"))
        if parse_schema(meta.path) is None and meta.path != left_out
    ]
    return sorted(metas, key=lambda meta: (meta.path.startswith(f"{root}lakebed/"), meta.path))


def _read(main: TableBranch, metas: list[ObjectMeta]) -> Iterator[tuple[ObjectMeta, bytes]]:
    for meta in metas:
        with suppress(NotFound):  # withdrawn, or hidden by a deletion that began before
            yield meta, bytes(main.store.get(meta.path))


def _put_branch(main: TableBranch, rename: Rename, pin: Tag, state: _State) -> None:
    """Put the new name's files, its schemas last."""
    assert rename.new is not None
    root = Layout(branch=rename.new).root
    schemas = {path: number for path in state.files if (number := parse_schema(path)) is not None}
    if not branch_exists(main.store, rename.new):
        for path, body in state.files.items():
            if path not in schemas:
                _put(main, rename, root + path, body)
        late = [meta.path for meta in main.store.list(root.removesuffix("/"))]  # of an earlier branch of this name
        late = [path for path in late if path.removeprefix(root) not in state.files]
        if late and not branch_exists(main.store, rename.new):
            _look(main, rename)
            delete_files(main.store, late, reason="of an earlier branch of the name")
    _take_name(main, rename, pin)  # a collection of orphans without a grace may have deleted the pin
    new_pin = main.tags.find(fork_pin(rename.new))
    if new_pin is not None and has_object(main.store, mark_path(rename.old, pin)):
        _look(main, rename)
        main.store.put(mark_path(rename.new, new_pin), b"")
    for path in sorted(schemas, key=lambda path: -schemas[path]):
        _put(main, rename, root + path, state.files[path])


def _put(main: TableBranch, rename: Rename, path: str, body: bytes) -> None:
    _look(main, rename)
    try:
        main.store.put(path, body, create_only=True)
    except AlreadyExists:
        # An earlier try of this rename put it, or a late writer of an earlier branch of the name.
        if bytes(main.store.get(path)) != body and not branch_exists(main.store, str(rename.new)):
            main.store.put(path, body)


def _busy(rename: Rename) -> Conflict:
    return Conflict(
        f"The branch {rename.old!r} is being renamed to {rename.new!r}, and its files changed {_LOOKS_MAX} times "
        "while they were listed: stop its writers, and rename it again.",
        kind="branch_busy",
        branch=rename.old,
    )


# ---- writers of the old name


def confirm_commit(
    branch: TableBranch, snapshot: Snapshot, began_in: str | None, schema: TableSchema, listed: ObjectMeta | None
) -> None:
    """As `SchemaLog.confirm`, for a snapshot that was just put. A snapshot that a rename moved to the new name counts.

    Args:
        began_in: `find_branch_id` of the branch, called before the snapshot was read that this one is based on. A
            branch that was created since may have the same schemas.

    Raises also `OutcomeUnknown`: the rename cannot be finished, or the new name has forgotten the snapshot. Cost: as
    `confirm`; in a branch 1 GET more.
    """
    try:
        branch.schemas.confirm(schema, listed)
        if find_branch_id(branch) != began_in:
            raise branch_replaced(branch.branch)
    except (NotFound, Conflict):
        if branch.branch is None or not _has_moved(branch.main, branch.branch, snapshot):
            raise
        if not branch.store.is_versioned:
            hint = [branch.layout.latest_hint]  # the hint that was put into the empty folder
            delete_files(branch.store, hint, reason=_REASON)


def _has_moved(main: TableBranch, old: str, snapshot: Snapshot) -> bool:
    try:
        finish_renames(main)
    except (AlreadyExists, Conflict) as error:
        raise _unclear(old, snapshot) from error
    for _ in range(_LOOKS_MAX):
        pins = _pins(main)
        for pin in (pin for pin in pins if was_renamed(pin, old)):
            log = main.of_branch(pin.name.removeprefix(f"{HIDDEN_PREFIX}branch.")).snapshots
            match = log.find(snapshot.id)
            if match is not None and match.uuid == snapshot.uuid:
                return True
            outcome = log.log.create_outcome(snapshot.id, snapshot.uuid)
            if outcome == "forgotten":
                raise _unclear(old, snapshot)
            if outcome == "won":
                return True
        if _pins(main) == pins:
            return False
    raise _unclear(old, snapshot)


def _pins(main: TableBranch) -> list[Tag]:
    """The pins of all branches, by name. Cost: 1 LIST, and 1 GET each."""
    names = [name for name in main.tags.all_names() if name.startswith(f"{HIDDEN_PREFIX}branch.")]
    return [pin for name in names if (pin := main.tags.find(name)) is not None]


def branch_ids(main: TableBranch) -> frozenset[str]:
    """One id for each branch that lakebed made; a rename changes the id. Cost: 1 LIST, and 1 GET each."""
    return frozenset(f"{pin.name}/{branch_id(pin)}" for pin in _pins(main))


def _unclear(old: str, snapshot: Snapshot) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"Snapshot {snapshot.id} was put into the branch {old!r} while it was renamed, and whether it is in the new "
        "one is not known: look before you retry.",
        kind="branch_renamed",
        branch=old,
    )
