"""All repositories of one storage: made, found, listed, deleted.

Owns: the records of repositories, the homes that are open. Invariants:
- A repository is there from the one atomic write on that records it with its first commit and default branch. Before,
  there is at most a marker in its folder, which the next try takes over (`lakebed.repo.namespace`).
- No two repositories have overlapping namespaces; the count in `HomeRecord` makes two creations at once see each other.
- A deleted repository is gone at once; what it leaves is remembered until it is cleaned up, and its folder is not used
  again before.
- No lock is held across a call of the key-value store.

Does not know: what is in a repository, or how it is kept in order (`lakebed.repo.upkeep`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Final

import msgspec

from lakebed.errors import AlreadyExists, Closed, Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.key_value.port import KeyValue
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.objects.port import ObjectStore
from lakebed.repo.commit import check_commit_metadata, new_commit
from lakebed.repo.committed.store import EMPTY_METARANGE
from lakebed.repo.context import RepositoryContext, make_context
from lakebed.repo.foreign import ForeignStores
from lakebed.repo.layout import DELETED_PREFIX, HOME_KEY, REPOSITORY_PREFIX, deleted_key, repository_key
from lakebed.repo.model import Branch, DeletedRepository, HomeRecord, RepositoryRecord
from lakebed.repo.names import check_amount, check_branch_name, check_repository_name, missing_repository
from lakebed.repo.namespace import (
    REPOSITORY_SUFFIX,
    check_new_folder,
    check_new_namespace,
    claim_namespace,
    namespace_folder,
    overlaps,
)
from lakebed.repo.options import RepositoryOptions
from lakebed.repo.records import (
    decode_record,
    encode_record,
    lost_race,
    new_token,
    read_records,
    replace_record,
    write_unique,
)
from lakebed.repo.reflog import reflog_line
from lakebed.repo.repository import Repository
from lakebed.repo.transport import LocalTransport
from lakebed.repo.upkeep import Upkeep
from lakebed.runtime import Environment

__all__ = ["Repositories"]

_TRIES_MAX: Final = 16
_NAMES_LOOKED_AT_MAX: Final = 1000


class Repositories:
    """The repositories of one storage; made by `lakebed.repo.open_all`. Thread-safe. Close it, or use it in a ``with``.

    Args:
        store: the storage, below which default namespaces are.
        key_value: the records of all repositories; closed by `close`.
        options: settings of every repository.
        environment: clock, randomness and concurrency.
        foreign: where imported objects are read; None: everywhere, without credentials.

    Attributes:
        options: settings of every repository.
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
        self._store = store
        self._key_value = key_value
        self.options = options
        self._environment = environment
        self._lock = environment.runtime.lock()
        self._foreign = (foreign or ForeignStores(environment=environment)).protecting(self._namespaces)
        self._cache = None
        if options.cache_bytes is not None:
            self._cache = BlockCache(options.cache_bytes, runtime=environment.runtime)
        self._homes: dict[str, RepositoryContext] = {}
        self._is_closed = False
        self._upkeep = Upkeep(
            key_value, open_contexts=self._open_contexts, all_contexts=self._all_contexts, environment=environment
        )
        if options.background:
            self._upkeep.start(store.root_url)

    @property
    def url(self) -> str:
        """Of the storage."""
        return self._store.root_url

    @property
    def store(self) -> ObjectStore:
        """The storage."""
        return self._store

    @property
    def key_value(self) -> KeyValue:
        """The records of all repositories; it stays ours, and is closed by `close`."""
        return self._key_value

    @property
    def environment(self) -> Environment:
        """Clock, randomness and concurrency."""
        return self._environment

    def __repr__(self) -> str:
        return f"Repositories({self.url!r}{', closed' if self._is_closed else ''})"

    # ---- making and finding

    def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        default_branch: str = "main",
        metadata: Mapping[str, str] | None = None,
        committer: str | None = None,
        read_only: bool = False,
    ) -> Repository:
        """Make a repository, with a first commit that holds nothing.

        Args:
            name: 3 to 63 lower-case letters, digits and hyphens.
            namespace: where its objects are: a folder relative to the storage, ``local://folder`` for the same, or a
                URL inside the storage; by default ``<name>.repo``.
            default_branch: its name.
            metadata: the user's own.
            committer: of the first commit.
            read_only: nothing can be changed in it.

        Raises:
            AlreadyExists: kind ``repository_exists``; ``namespace_in_use``: another repository, perhaps a deleted one
                that is not cleaned up yet, or any other object is in that folder, above it or below it.
            InvalidRequest: kind ``invalid_repository_name``, ``invalid_branch_name``, ``invalid_namespace``,
                ``outside_storage``, ``oversized_metadata``; ``create_only_ignored``: the store cannot be used.
            Conflict: kind ``repositories_moved``: others made repositories at the same time, again and again.
            Unavailable, OutcomeUnknown: try again; what there is then is taken over or named.
        Cost: 1 LIST + 3 PUT + 1 DELETE of the storage; 1 snapshot and 1 write of the key-value store.
        """
        self._check_open()
        check_repository_name(name)
        check_branch_name(default_branch)
        check_commit_metadata(metadata or {})
        given = f"{name}{REPOSITORY_SUFFIX}" if namespace is None else namespace
        check_new_namespace(given)
        folder = namespace_folder(given, root_url=self.url)
        check_new_folder(folder)
        tries = 0
        while True:
            tries += 1
            home_record = self._home_record()
            self._refuse_taken(name, folder)
            uid = claim_namespace(self._store, folder, name=name, home_id=home_record.id, environment=self._environment)
            record = RepositoryRecord(
                uid=uid,
                namespace=given if given.startswith("local://") else folder,
                default_branch=default_branch,
                created_at_ms=self._environment.clock.now_ms(),
                read_only=read_only,
                metadata=dict(metadata or {}),
            )
            try:
                return self._record(name, record, home_record=home_record, committer=committer)
            except Conflict:
                if tries == _TRIES_MAX:
                    raise self._busy("creation") from None

    def _home_record(self) -> HomeRecord:
        """Which home this is; made when it is not there yet."""
        for _ in range(_TRIES_MAX):
            raw = self._key_value.get(HOME_KEY)
            if raw is not None:
                return decode_record(raw, HomeRecord, key=HOME_KEY)
            made = HomeRecord(mint_file_id(environment=self._environment))
            try:
                self._key_value.set_if(HOME_KEY, encode_record(made), expected=None)
            except Conflict:
                continue  # somebody else was faster
            return made
        raise self._busy("creation")

    def _busy(self, operation: str) -> Conflict:
        return lost_race(operation, of=f"the repositories at {self.url}", kind="repositories_moved", url=self.url)

    def _namespaces(self) -> tuple[str, ...]:
        """The folders of all repositories, also of those that are deleted and not cleaned up. Cost: 1 snapshot."""
        with self._key_value.snapshot() as snapshot:
            found = [record for _, record in read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord)]
            found += [one.record for _, one in read_records(snapshot, DELETED_PREFIX, DeletedRepository)]
        return tuple(namespace_folder(record.namespace, root_url=self.url) for record in found)

    def _refuse_taken(self, name: str, folder: str) -> None:
        """Raise when a repository has the name or a folder that overlaps, or had until lately."""
        with self._key_value.snapshot() as snapshot:
            for other, record in read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord):
                if other == name:
                    raise AlreadyExists(
                        f"There is a repository {name!r} already: open it, or choose another name.",
                        kind="repository_exists",
                        repository=name,
                    )
                self._refuse_overlap(folder, record, who=f"repository {other!r} has it")
            for _, deleted in read_records(snapshot, DELETED_PREFIX, DeletedRepository):
                who = f"repository {deleted.name!r}, which was deleted, is not cleaned up there yet"
                self._refuse_overlap(folder, deleted.record, who=who)

    def _refuse_overlap(self, folder: str, record: RepositoryRecord, *, who: str) -> None:
        taken = namespace_folder(record.namespace, root_url=self.url)
        if overlaps(folder, taken):
            where = "is in use" if folder == taken else f"overlaps with {taken}, which is in use"
            raise AlreadyExists(
                f"The namespace {folder} {where}: {who}. Choose another folder.",
                kind="namespace_in_use",
                namespace=folder,
            )

    def _record(
        self, name: str, record: RepositoryRecord, *, home_record: HomeRecord, committer: str | None
    ) -> Repository:
        """The one write that makes a repository."""
        home = self._make_context(name, record)
        commit = new_commit(
            home,
            parents=(),
            metarange=EMPTY_METARANGE,
            message="Repository created",
            metadata=None,
            committer=committer,
            created_at_ms=record.created_at_ms,
        )
        branch = Branch(commit.id, new_token(self._environment), created_at_ms=record.created_at_ms)
        after = HomeRecord(home_record.id, home_record.created_count + 1)
        by = commit.commit.committer
        write_unique(
            self._key_value,
            [
                reflog_line(home, record.default_branch, before=None, after=commit.id, what="create", committer=by),
                (repository_key(name), encode_record(record)),
                (home.keys.branch(record.default_branch), encode_record(branch)),
                (home.keys.commit(commit.id), encode_record(commit.commit)),
                (HOME_KEY, encode_record(after)),
            ],
            expected={repository_key(name): None, HOME_KEY: encode_record(home_record)},
        )
        with self._lock:
            home = self._homes.setdefault(record.uid, home)
        return Repository(LocalTransport(home))

    def repository(self, name: str) -> Repository:
        """A repository by name.

        Raises:
            NotFound: kind ``repository_not_found``; with the nearest names.
            InvalidRequest: kind ``invalid_repository_name``.
            Corruption: its record is damaged.
        Cost: 1 linearizable read of the key-value store.
        """
        self._check_open()
        _, _, record = self._load(name)
        return Repository(LocalTransport(self._home(name, record)))

    def _load(self, name: str) -> tuple[bytes, bytes, RepositoryRecord]:
        """Key, bytes and record of a repository. Raises `NotFound`, `InvalidRequest`, `Corruption`."""
        key = repository_key(check_repository_name(name))
        raw = self._key_value.get(key)
        if raw is None:
            raise self._missing(name)
        return key, raw, decode_record(raw, RepositoryRecord, key=key)

    def exists(self, name: str) -> bool:
        """Whether there is a repository of this name. Cost: 1 linearizable read of the key-value store."""
        self._check_open()
        return self._key_value.get(repository_key(check_repository_name(name))) is not None

    def list(self, *, prefix: str = "", after: str | None = None, amount: int | None = None) -> Iterator[Repository]:
        """Repositories in the order of their names, those of one moment, lazily.

        Args:
            prefix: only names that begin so.
            after: only names greater than this.
            amount: at most so many; None: all.

        Raises:
            InvalidRequest: kind ``invalid_amount``.
            Corruption: a record is damaged.
        Cost: 1 snapshot, 1 scan of the key-value store.
        """
        self._check_open()
        check_amount(amount)
        with self._key_value.snapshot() as snapshot:
            found = read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord, begins_with=prefix, after=after)
            for name, record in islice(found, amount):
                yield Repository(LocalTransport(self._home(name, record)))

    def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        """Replace a repository's metadata.

        Raises:
            NotFound: kind ``repository_not_found``.
            InvalidRequest: kind ``oversized_metadata``.
            Conflict: kind ``repository_moved``: its record changed at the same time, again and again.
        Cost: 1 read and 1 write of the key-value store.
        """
        self._change_metadata(name, lambda before: metadata)

    def update_metadata(self, name: str, changed: Mapping[str, str], *, removed: Iterable[str] = ()) -> None:
        """Set some keys of a repository's metadata and remove others; what others set meanwhile stays.

        Raises and costs as `set_metadata`.
        """
        gone = set(removed)
        self._change_metadata(
            name, lambda before: {**{key: value for key, value in before.items() if key not in gone}, **changed}
        )

    def _change_metadata(self, name: str, change: Callable[[Mapping[str, str]], Mapping[str, str]]) -> None:
        self._check_open()
        for _ in range(_TRIES_MAX):
            key, raw, record = self._load(name)
            metadata = dict(change(record.metadata))
            check_commit_metadata(metadata)
            changed = encode_record(msgspec.structs.replace(record, metadata=metadata))
            if changed == raw or replace_record(self._key_value, key, changed, expected=raw):
                return
        raise lost_race("change", of=f"repository {name}", kind="repository_moved", repository=name)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a repository: it is gone at once. Its objects and records are cleaned up later.

        Until then nothing else can use its namespace.

        Args:
            force: also when it is read-only.

        Raises:
            NotFound: kind ``repository_not_found``.
            InvalidRequest: kind ``read_only_repository``.
            Conflict: kind ``repository_moved``: its record changed at the same time, again and again.
            OutcomeUnknown: look before you retry.
        Cost: 1 read and 1 write of the key-value store.
        """
        self._check_open()
        for _ in range(_TRIES_MAX):
            key, raw, record = self._load(name)
            if record.read_only and not force:
                raise InvalidRequest(
                    f"Repository {name} is read-only: say that it is to be deleted all the same (force).",
                    kind="read_only_repository",
                    repository=name,
                )
            note = encode_record(DeletedRepository(name, record, self._environment.clock.now_ms()))
            try:
                write_unique(self._key_value, [(deleted_key(record.uid), note)], [key], expected={key: raw})
            except Conflict:
                continue  # its metadata changed, or somebody else has deleted it
            with self._lock:
                self._homes.pop(record.uid, None)
            return
        raise lost_race("deletion", of=f"repository {name}", kind="repository_moved", repository=name)

    def deleted(self) -> tuple[DeletedRepository, ...]:
        """Repositories that are deleted and not cleaned up yet. Cost: 1 scan of the key-value store."""
        self._check_open()
        with self._key_value.snapshot() as snapshot:
            return tuple(one for _, one in read_records(snapshot, DELETED_PREFIX, DeletedRepository))

    # ---- homes

    def _home(self, name: str, record: RepositoryRecord) -> RepositoryContext:
        """The one open home of a repository, whose counters all its users share."""
        with self._lock:
            home = self._homes.get(record.uid)
        if home is not None and home.record == record:
            return home
        made = self._make_context(name, record) if home is None else replace(home, record=record)
        with self._lock:
            if home is None:
                return self._homes.setdefault(record.uid, made)
            self._homes[record.uid] = made
        return made

    def _make_context(self, name: str, record: RepositoryRecord) -> RepositoryContext:
        return make_context(
            name,
            record,
            store=self._store.sub(namespace_folder(record.namespace, root_url=self.url)),
            key_value=self._key_value,
            options=self.options,
            environment=self._environment,
            cache=self._cache,
            foreign=self._foreign,
        )

    def _missing(self, name: str) -> NotFound:
        with self._key_value.snapshot() as snapshot:
            found = read_records(snapshot, REPOSITORY_PREFIX, RepositoryRecord)
            names = [other for other, _ in islice(found, _NAMES_LOOKED_AT_MAX)]
        return missing_repository(name, names=names, url=self.url)

    # ---- in the background

    def step_once(self) -> None:
        """One round of what the background does: compact where it is wanted, clean up, give back what nothing needs.

        The background compacts every second, cleans up every minute, and every hour looks for what nobody marked, and
        maintains the records. Cost: nothing where nothing is to be done, but a few scans of the key-value store a
        repository, and `KeyValue.maintain`.
        """
        self._check_open()
        self._upkeep.step_once()

    @property
    def last_failure(self) -> LakebedError | None:
        """What went wrong last in the background; None: nothing yet. A step that failed is tried again."""
        return self._upkeep.last_failure

    def _open_contexts(self) -> tuple[RepositoryContext, ...]:
        with self._lock:
            return tuple(self._homes.values())

    def _all_contexts(self) -> tuple[RepositoryContext, ...]:
        """Of every repository there is; the snapshot that tells is closed by then."""
        return tuple(repository.context for repository in self.list())

    # ---- the end

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(f"The repositories at {self.url} were closed: open them again.")

    def close(self) -> None:
        """End the background and close the records; what was acknowledged is durable. Again is fine.

        Raises:
            Fenced, Unavailable, OutcomeUnknown: of the key-value store.
        """
        self._is_closed = True
        self._upkeep.stop()
        with self._lock:
            homes, self._homes = tuple(self._homes.values()), {}
        for home in homes:
            home.committed.close()
        self._key_value.close()

    def __enter__(self) -> Repositories:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except LakebedError as failure:
            error.add_note(f"and closing the repositories at {self.url} failed: {failure}")
