"""The log of a table's schemas: the objects ``schema/schema-<id>`` of main or of a branch.

Owns: `SchemaLog`: which schema is the newest, loading one, and the create-only put that adds the next.

Invariants:
- Every change creates a new schema object by a create-only put. So of two concurrent changes, one is redone on top of
  the other. A schema is never changed or deleted, except with its table or its branch.
- What a log has seen may be out of date: verbs look again (`TableBranch.look`), and so does each try of a commit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lakebed.errors import AlreadyExists, Conflict, Corruption, NotFound
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.reclaim.model import Deletable
from lakebed.reclaim.sweep import Sweeper
from lakebed.table.model.layout import Layout, parse_schema
from lakebed.table.model.model import TableSchema
from lakebed.table.schema.schema import decode_schema, encode_schema

_STORE_ATTEMPT_COUNT_MAX: Final = 100


class SchemaLog:
    """The schema objects of one table or branch.

    Args:
        newest: what counts as the newest schema until the first `refresh`; None: no schema does.
    """

    def __init__(self, store: ObjectStore, layout: Layout, *, newest: TableSchema | None = None) -> None:
        self._store = store
        self._layout = layout
        self._newest = newest
        self._object: ObjectMeta | None = None  # the object of `_newest`, as listed; None: not listed
        self._loaded: dict[int, TableSchema] = {}
        self._listed: dict[int, ObjectMeta] = {}  # the objects that `_loaded` was loaded from, as listed
        self._origin: SchemaLog | None = None

    @property
    def listed(self) -> ObjectMeta | None:
        """The object of `seen`, as listed; None if it was not listed."""
        return self._object

    @property
    def seen(self) -> TableSchema:
        """The newest schema that this object has seen; `refresh` looks for a newer one."""
        assert self._newest is not None, "the log was opened without a schema"
        return self._newest

    def refresh(self) -> TableSchema:
        """Look for the newest schema and remember it.

        The newest schema also changes when the table was created again, or is in a branch of a repository that was
        reset.

        Raises `NotFound`: the table, or this branch of it, is gone. Cost: 1 LIST; 1 GET when the newest schema has
        changed or was not listed before, that is after a change by this object, or in an object that was pickled.
        """
        newest = self.latest()
        if newest is None:
            raise self._missing_error()
        return newest

    def _note(self, newest: TableSchema, meta: ObjectMeta | None) -> None:
        self._newest, self._object = newest, meta
        if self._origin is not None:
            self._origin._note(newest, meta)

    def detach(self) -> SchemaLog:
        """A log of the same objects with what this one has seen. Only its own `refresh` changes its newest schema.

        Schemas that it reads are seen by this log too. Cost: no request.
        """
        copy = SchemaLog(self._store, self._layout, newest=self._newest)
        copy._object, copy._loaded, copy._listed, copy._origin = self._object, self._loaded, self._listed, self
        return copy

    def _missing_error(self) -> NotFound:
        branch = self._layout.branch
        url = self._store.root_url
        return NotFound(
            f"There is no table at {url} any more: it was dropped."
            if branch is None
            else f"The branch {branch!r} was deleted or renamed: the table at {url} has no schema of it any more.",
            kind="table_not_found" if branch is None else "branch_not_found",
            branch=branch,
        )

    def confirm_branch(self) -> None:
        """Raise `NotFound` if this branch of the table is gone. Main is not checked. Cost: in a branch 1 LIST."""
        if self._layout.branch is not None and not self._objects():
            raise self._missing_error()

    def confirm(self, seen: TableSchema, listed: ObjectMeta | None) -> None:
        """Raise unless a schema is still the same object: the table was neither dropped nor created again since.

        Args:
            listed: the schema's object as listed; None: its content is compared.

        Raises `NotFound`: the table, or this branch of it, is gone; `Conflict`, kind ``schema_changed``: it was created
        again. Cost: 1 HEAD, and 1 GET when the object differs.
        """
        path = self._layout.schema(seen.id)
        try:
            now = self._store.head(path)
            if listed is not None and _etag_of(listed) is not None and _etag_of(now) == _etag_of(listed):
                return
            # Some stores return different etags for one object, so the content decides.
            is_same = decode_schema(self._store.get(path), path=path) == seen
        except NotFound as error:
            raise self._missing_error() from error
        if not is_same:
            raise self.replacement_error()

    def replacement_error(self) -> Conflict:
        """Return the error for a table that was created again, or reset, after a change was made."""
        return Conflict(
            f"The table at {self._store.root_url} was dropped and created again, or reset, while a change of it was "
            "made. Nothing was changed: open the table again and redo the change.",
            kind="schema_changed",
        )

    def ids(self) -> list[int]:
        """Every schema id, ascending. Cost: 1 LIST."""
        return sorted(self._objects())

    def look(self) -> list[int]:
        """As `ids`. Schemas loaded from objects that were replaced since will be loaded again. Cost: 1 LIST."""
        objects = self._objects()
        self._forget_replaced(objects)
        return sorted(objects)

    def _objects(self) -> dict[int, ObjectMeta]:
        objects = ((parse_schema(meta.path), meta) for meta in self._store.list(self._layout.schema_folder))
        return {schema_id: meta for schema_id, meta in objects if schema_id is not None}

    def latest(self) -> TableSchema | None:
        """As `refresh`; None if there is no table."""
        objects = self._objects()
        if not objects:
            return None
        newest, schema = max(objects), self._newest
        self._forget_replaced(objects)
        if schema is None or self._object is None or self._object != objects.get(schema.id):
            schema = None
        if schema is None or schema.id != newest:
            schema = self.load(newest)
        self._note(schema, objects[newest])
        return schema

    def _forget_replaced(self, objects: dict[int, ObjectMeta]) -> None:
        """Forget schemas that were loaded from objects other than those listed now, or before their id was listed."""
        for schema_id in list(self._loaded):
            if schema_id not in self._listed or self._listed[schema_id] != objects.get(schema_id):
                self._loaded.pop(schema_id, None)
        self._listed.clear()
        self._listed.update(objects)

    def load(self, schema_id: int) -> TableSchema:
        """One schema. Raises `NotFound`, `Corruption`, `UnsupportedFormat`. Cost: 1 GET, none if loaded before."""
        schema = self._loaded.get(schema_id)
        if schema is None:
            path = self._layout.schema(schema_id)
            try:
                body = self._store.get(path)
            except NotFound as error:
                raise NotFound(f"Schema {schema_id} does not exist at {self._store.url(path)}.", path=path) from error
            schema = decode_schema(body, path=path)
            if schema.id != schema_id:
                raise Corruption(f"{path} contains schema {schema.id}.", path=path)
            self._loaded[schema_id] = schema
        return schema

    def store_next(self, schema: TableSchema) -> TableSchema:
        """Write a schema under its own id. Cost: 1 PUT.

        Raises `Conflict`: another client took the id with other content; read again, change again.
        """
        path, body = self._layout.schema(schema.id), encode_schema(schema)
        try:
            self._store.put(path, body, create_only=True)
        except AlreadyExists as error:
            # After a lost reply the object may be ours; equal content is just as good.
            if bytes(self._store.get(path)) != body:
                raise Conflict(f"Schema {schema.id} was written by another client.", path=path) from error
        self._loaded[schema.id] = schema
        self._note(schema, None)
        return schema

    def change(self, change: Callable[[TableSchema], TableSchema], *, time_ms: int) -> TableSchema:
        """Apply a change to the newest schema and store the result; repeat while other writers win the race.

        If the change changes nothing, no schema is stored. So a job that sets its options each time it runs adds no
        schemas.

        Raises `NotFound` when there is no table, and what `change` raises.
        """
        for _ in range(_STORE_ATTEMPT_COUNT_MAX):
            before, listed_object = self.refresh(), self._object
            changed_schema = replace(change(before), time_ms=time_ms)
            if replace(changed_schema, id=before.id, time_ms=before.time_ms) == before:
                return before
            try:
                stored_schema = self.store_next(changed_schema)
            except Conflict:
                continue
            try:
                self.confirm(before, listed_object)
            except (Conflict, NotFound):
                # Left alone, it would be a table again, or give a table the columns of another.
                alone = Deletable(self._layout.schema(changed_schema.id), 0, "its table was dropped meanwhile")
                Sweeper(self._store).delete_all([alone])
                self._note(before, None)
                raise
            return stored_schema
        raise Conflict(
            f"The schema of {self._store.root_url} was not changed: other writers changed it "
            f"{_STORE_ATTEMPT_COUNT_MAX} times during this call. Try again."
        )


def _etag_of(meta: ObjectMeta) -> str | None:
    """Return an etag without the quotes that some stores put into replies but not into listings."""
    return None if meta.etag is None else meta.etag.removeprefix("W/").strip('"')
