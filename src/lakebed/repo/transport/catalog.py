"""`Catalog`: how the facade reaches all repositories of a storage; `LocalCatalog`, for records that this process owns.

Owns: the records of repositories, and the open contexts. Invariants:
- A repository comes into existence by one atomic write, which records it with its first commit and default branch.
  Before that, there is at most a marker in its folder, which the next attempt takes over
  (`lakebed.repo.outside.namespace`).
- No two repositories have overlapping namespaces. The count in `CatalogRecord` lets concurrent creations detect each
  other.
- A deleted repository disappears at once. Its objects and records are remembered until they are cleaned up, and its
  folder is not used again before that.
- No lock is held across a call of the key-value store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from lakebed.errors import AlreadyExists, Closed, Conflict, InvalidRequest, LakebedError, NotFound, Unavailable
from lakebed.key_value.port import KeyValue
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.objects.port import ObjectStore
from lakebed.objects.reserve import freeing_space
from lakebed.repo.collect.upkeep import Upkeep
from lakebed.repo.committed.store import EMPTY_METARANGE
from lakebed.repo.heads.commit import check_commit_metadata, new_commit
from lakebed.repo.model.layout import CATALOG_KEY, DELETED_PREFIX, REPOSITORY_PREFIX, Keys, repository_key
from lakebed.repo.model.model import Branch, CatalogRecord, DeletedRepository, RepositoryRecord
from lakebed.repo.model.names import check_repository_name, missing_repository
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.model.rows import prefix_range
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.outside.namespace import check_namespace, is_shared_namespace, namespace_folder, overlaps
from lakebed.repo.records.context import RepositoryContext, make_context
from lakebed.repo.records.records import (
    decode_record,
    decode_whole,
    encode_record,
    new_token,
    race_error,
    read_records,
    replace_record,
    write_unique,
)
from lakebed.repo.records.reflog import reflog_line
from lakebed.repo.transport.transport import LocalTransport, Transport
from lakebed.repo.verbs.repositories import ATTEMPTS_MAX, CatalogVerb, CreateRepository, ListRepositories
from lakebed.runtime import Environment

if TYPE_CHECKING:
    from lakebed.repo.transport.http_keys import RemoteAccessKeys

NAMES_COMPARED_MAX: Final = 1000
"""Most names that an unknown name is compared with."""

R = TypeVar("R")


class Catalog(Protocol):
    """The operations that the facade of all repositories needs. Errors are those of the facade's methods."""

    @property
    def url(self) -> str:
        """The URL of the storage, or of the server."""

    @property
    def local(self) -> LocalCatalog:
        """The catalog that owns the records. Raises `InvalidRequest` (``not_over_http``) if a server owns them."""

    @property
    def access_keys(self) -> RemoteAccessKeys:
        """The access keys of the server. Raises `InvalidRequest` (``no_server``) if this process owns the records."""

    def call(self, verb: CatalogVerb[R]) -> R:
        """Run a verb."""

    def create(self, verb: CreateRepository) -> Transport:
        """Make a repository."""

    def repository(self, name: str) -> Transport:
        """A repository by name."""

    def exists(self, name: str) -> bool:
        """Whether there is a repository of this name."""

    def repositories(self, verb: ListRepositories, *, amount: int | None) -> Iterator[Transport]:
        """Repositories in the order of their names, lazily, at most `amount`; None: all."""

    def delete(self, name: str, *, force: bool) -> None:
        """Delete a repository."""

    def close(self) -> None:
        """Close what the catalog has opened."""


class LocalCatalog(Catalog):
    """The repositories of one storage. Thread-safe.

    Args:
        store: the storage, below which default namespaces are.
        key_value: the records of all repositories; closed by `close`.
        options: settings of every repository.
        foreign: where imported objects are read; None: everywhere, without credentials.
    """

    def __init__(
        self,
        store: ObjectStore,
        key_value: KeyValue,
        *,
        options: RepositoryOptions | None = None,
        environment: Environment | None = None,
        foreign: ForeignStores | None = None,
    ) -> None:
        options = options or RepositoryOptions()
        environment = environment or Environment()
        self.store = store
        self.key_value = key_value
        self.options = options
        self.environment = environment
        self._lock = environment.runtime.lock()
        self._foreign = (foreign or ForeignStores(environment=environment)).protecting(self._namespaces)
        self._cache = None
        if options.cache_bytes is not None:
            self._cache = BlockCache(options.cache_bytes, runtime=environment.runtime)
        self._contexts: dict[str, RepositoryContext] = {}
        self._known: dict[str, tuple[bytes, RepositoryContext]] = {}
        """By name: the bytes of the record that was read last, and its context."""
        self._checked: set[str] = set()
        """Uids of repositories whose namespaces were checked to be theirs."""
        self._is_closed = False
        self._upkeep = Upkeep(
            key_value,
            open_contexts=self._open_contexts,
            all_contexts=lambda: tuple(self.contexts()),
            environment=environment,
        )
        if options.background:
            self._upkeep.start(store.root_url)

    def __repr__(self) -> str:
        return f"LocalCatalog({self.url!r}{', closed' if self._is_closed else ''})"

    @property
    def url(self) -> str:
        return self.store.root_url

    @property
    def local(self) -> LocalCatalog:
        return self

    @property
    def access_keys(self) -> RemoteAccessKeys:
        raise InvalidRequest(
            f"This process owns the repositories at {self.url}, and access keys are those of a server: open a server's "
            "URL, or use lakebed.server.keys.",
            kind="no_server",
        )

    def call(self, verb: CatalogVerb[R]) -> R:
        self.check_open()
        return verb.run(self, lambda name: True)

    def create(self, verb: CreateRepository) -> Transport:
        context = self.call(verb)
        with self._lock:
            return LocalTransport(self._contexts[context.id])

    def repository(self, name: str) -> Transport:
        self.check_open()
        _, raw, record = self._load(name)
        context = self._context(name, record)
        self._check_namespace(context)
        self._known[name] = raw, context
        return LocalTransport(context)

    def _check_namespace(self, context: RepositoryContext) -> None:
        """Check a repository's namespace once. Pass if the storage is unavailable: some calls need only records."""
        if context.record.uid in self._checked:
            return
        with suppress(Unavailable):
            check_namespace(context.store, context.record, name=context.name)
            self._checked.add(context.record.uid)

    def known_context(self, name: str) -> RepositoryContext | None:
        """The context of a repository, if this process knows of no change of its record since it was read; else None.

        Use it only before a read of a snapshot of the records, or a conditional write of them: these prove that no
        other process had changed the record. None: use `repository`.

        Cost: 1 peek.
        """
        raw, context = self._known.get(name, (None, None))
        return context if raw is not None and self.key_value.peek(repository_key(name)) == raw else None

    def exists(self, name: str) -> bool:
        self.check_open()
        return self.key_value.get(repository_key(check_repository_name(name))) is not None

    def repositories(self, verb: ListRepositories, *, amount: int | None) -> Iterator[Transport]:
        self.check_open()
        contexts = self.contexts(prefix=verb.prefix, after=verb.after)
        return (LocalTransport(context) for context in islice(contexts, amount))

    def contexts(self, *, prefix: str = "", after: str | None = None) -> Iterator[RepositoryContext]:
        """All repositories at one moment, in the order of their names, lazily. Cost: 1 snapshot, 1 scan."""
        with self.key_value.snapshot() as snapshot:
            records = read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord, begins_with=prefix, after=after)
            for name, record in records:
                yield self._context(name, record)

    def record_of_catalog(self) -> CatalogRecord:
        """The identity of this catalog, which is made if it is missing."""
        for _ in range(ATTEMPTS_MAX):
            raw = self.key_value.get(CATALOG_KEY)
            if raw is not None:
                return decode_record(raw, CatalogRecord, key=CATALOG_KEY)
            record = CatalogRecord(mint_file_id(environment=self.environment))
            try:
                self.key_value.set_if(CATALOG_KEY, encode_record(record), expected=None)
            except Conflict:
                continue  # another process was faster
            return record
        raise self.race_error("creation")

    def race_error(self, operation: str) -> Conflict:
        """The error of a change of the catalog if other writers were faster at every attempt."""
        return race_error(operation, of=f"the repositories at {self.url}", kind="repositories_moved", url=self.url)

    def _namespaces(self) -> tuple[str, ...]:
        """The folders of all repositories, including deleted ones that are not cleaned up yet. Cost: 1 snapshot."""
        with self.key_value.snapshot() as snapshot:
            records = [record for _, record in read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord)]
            records += [
                repository.record for _, repository in read_records(snapshot, DELETED_PREFIX, DeletedRepository)
            ]
        return tuple(namespace_folder(record.namespace, root_url=self.url) for record in records)

    def check_free(self, name: str, folder: str) -> None:
        """Raise `AlreadyExists` if a repository, even a deleted one, has the name or an overlapping folder."""
        with self.key_value.snapshot() as snapshot:
            for other, record in read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord):
                if other == name:
                    raise AlreadyExists(
                        f"There is a repository {name!r} already: open it, or choose another name.",
                        kind="repository_exists",
                        repository=name,
                    )
                self._refuse_overlap(folder, record, reason=f"repository {other!r} has it")
            for _, deleted in read_records(snapshot, DELETED_PREFIX, DeletedRepository):
                reason = (
                    f"repository {deleted.name!r}, which was deleted, is not cleaned up there yet, as a collection of "
                    "the lake does a day later"
                )
                self._refuse_overlap(folder, deleted.record, reason=reason)

    def _refuse_overlap(self, folder: str, record: RepositoryRecord, *, reason: str) -> None:
        taken_folder = namespace_folder(record.namespace, root_url=self.url)
        if overlaps(folder, taken_folder):
            where = "is in use" if folder == taken_folder else f"overlaps with {taken_folder}, which is in use"
            raise AlreadyExists(
                f"The namespace {folder} {where}: {reason}. Choose another folder.",
                kind="namespace_in_use",
                namespace=folder,
            )

    def store_new(
        self,
        name: str,
        record: RepositoryRecord,
        *,
        catalog_record: CatalogRecord,
        committer: str | None,
        bare: bool = False,
    ) -> RepositoryContext:
        """Record a repository with its first commit and branch, in one write. Raises `Conflict` after a lost race.

        Args:
            bare: without commit and branch.
        """
        context = self._make_context(name, record)
        after = CatalogRecord(catalog_record.id, catalog_record.created_count + 1)
        puts = [(repository_key(name), encode_record(record)), (CATALOG_KEY, encode_record(after))]
        # Only this call writes this line, or this mark of a token that was never used, whatever other calls write.
        cleanup_row = context.keys.cleanup(new_token(self.environment).id), str(context.now_ms()).encode()
        write_unique(
            self.key_value,
            [*([cleanup_row] if bare else self._first_commit(context, committer)), *puts],
            expected={repository_key(name): None, CATALOG_KEY: encode_record(catalog_record)},
        )
        with self._lock:
            return self._contexts.setdefault(record.uid, context)

    def _first_commit(self, context: RepositoryContext, committer: str | None) -> list[tuple[bytes, bytes]]:
        """The records of an empty commit, and of the default branch, whose head is that commit."""
        record = context.record
        commit = new_commit(
            context,
            parents=(),
            metarange=EMPTY_METARANGE,
            message="Repository created",
            metadata=None,
            committer=committer,
            created_at_ms=record.created_at_ms,
        )
        branch = Branch(commit.id, new_token(self.environment), created_at_ms=record.created_at_ms)
        by = commit.commit.committer
        return [
            reflog_line(context, record.default_branch, before=None, after=commit.id, what="create", committer=by),
            (context.keys.branch(record.default_branch), encode_record(branch)),
            (context.keys.commit(commit.id), encode_record(commit.commit)),
        ]

    def change_metadata(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        """Replace a repository's metadata by a function of it, which runs again if another process was faster.

        An older version that changed the metadata may have dropped the fact that the namespace is shared. This restores
        it.
        """
        for _ in range(ATTEMPTS_MAX):
            key, raw, record = self._load_whole(name)
            metadata = dict(change(record.metadata))
            check_commit_metadata(metadata)
            store = self.store.sub(namespace_folder(record.namespace, root_url=self.url))
            is_shared = is_shared_namespace(store, record)
            new_raw = encode_record(msgspec.structs.replace(record, metadata=metadata, is_shared=is_shared))
            if new_raw == raw or replace_record(self.key_value, key, new_raw, expected=raw):
                return
        raise race_error("change", of=f"repository {name}", kind="repository_moved", repository=name)

    @freeing_space()
    def delete(self, name: str, *, force: bool) -> None:
        self.check_open()
        for _ in range(ATTEMPTS_MAX):
            key, raw, record = self._load_whole(name)
            if record.read_only and not force:
                raise read_only_error(name)
            keys = Keys(record.uid)
            note = encode_record(DeletedRepository(name, record, self.environment.clock.now_ms()))
            # Every write expects its branch's record. Once these are deleted, no write is acknowledged and then lost.
            branches = self._branch_keys(keys)
            try:
                write_unique(self.key_value, [(keys.deleted, note)], [key, *branches], expected={key: raw})
            except Conflict:
                continue  # its metadata changed, or another process has deleted it
            new_keys = self._branch_keys(keys)  # between the two; after the note none is created
            if new_keys:
                self.key_value.write((), new_keys)
            with self._lock:
                self._contexts.pop(record.uid, None)
                self._known.pop(name, None)
            return
        raise race_error("deletion", of=f"repository {name}", kind="repository_moved", repository=name)

    def _branch_keys(self, keys: Keys) -> list[bytes]:
        with self.key_value.snapshot() as snapshot:
            return [key for key, _ in snapshot.scan(*prefix_range(keys.branch()))]

    def deleted(self) -> tuple[DeletedRepository, ...]:
        """Repositories that are deleted and not cleaned up yet. Cost: 1 scan of the key-value store."""
        with self.key_value.snapshot() as snapshot:
            records = read_records(snapshot, DELETED_PREFIX, DeletedRepository, whole=True)
            return tuple(repository for _, repository in records)

    def _load(self, name: str) -> tuple[bytes, bytes, RepositoryRecord]:
        """Key, bytes and record of a repository. Raises `NotFound`, `InvalidRequest`, `Corruption`."""
        key = repository_key(check_repository_name(name))
        raw = self.key_value.get(key)
        if raw is None:
            raise self._missing(name)
        return key, raw, decode_record(raw, RepositoryRecord, key=key)

    def _load_whole(self, name: str) -> tuple[bytes, bytes, RepositoryRecord]:
        """As `_load`, to change or delete the record. Raises also `UnsupportedFormat` for an unknown field."""
        key, raw, _ = self._load(name)
        return key, raw, decode_whole(raw, RepositoryRecord, key=key)

    def _missing(self, name: str) -> NotFound:
        with self.key_value.snapshot() as snapshot:
            records = read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord)
            names = [other for other, _ in islice(records, NAMES_COMPARED_MAX)]
        return missing_repository(name, names=names, url=self.url)

    def _context(self, name: str, record: RepositoryRecord) -> RepositoryContext:
        """The single open context of a repository. All its users share its counters."""
        with self._lock:
            context = self._contexts.get(record.uid)
        if context is not None and context.record == record:
            return context
        new_context = self._make_context(name, record) if context is None else replace(context, record=record)
        with self._lock:
            if context is None:
                return self._contexts.setdefault(record.uid, new_context)
            self._contexts[record.uid] = new_context
        return new_context

    def _make_context(self, name: str, record: RepositoryRecord) -> RepositoryContext:
        store = self.store.sub(namespace_folder(record.namespace, root_url=self.url))
        return make_context(
            name,
            record,
            store=store.require_folder(with_descriptor=False),  # a server may have thousands of repositories
            key_value=self.key_value,
            options=self.options,
            environment=self.environment,
            cache=self._cache,
            foreign=self._foreign,
        )

    def _open_contexts(self) -> tuple[RepositoryContext, ...]:
        with self._lock:
            return tuple(self._contexts.values())

    def step_once(self) -> None:
        """Run one round of the background's work: see `Repositories.step_once`."""
        self.check_open()
        self._upkeep.step_once()

    @property
    def last_failure(self) -> LakebedError | None:
        """The last error of the background work; None: none yet."""
        return self._upkeep.last_failure

    def check_open(self) -> None:
        """Raise `Closed` if the catalog is closed."""
        if self._is_closed:
            raise Closed(f"The repositories at {self.url} were closed: open them again.")

    def close(self) -> None:
        self._is_closed = True
        self._upkeep.stop()
        with self._lock:
            contexts, self._contexts = tuple(self._contexts.values()), {}
        for context in contexts:
            context.committed.close()
        self.key_value.close()


def read_only_error(name: str) -> InvalidRequest:
    """The error for the deletion of a read-only repository."""
    return InvalidRequest(
        f"Repository {name} is read-only: drop it with force (--force).", kind="read_only_repository", repository=name
    )
