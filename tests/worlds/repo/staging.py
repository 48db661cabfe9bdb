"""A repository's one branch, moved by hand: for tests of staging, where a test decides when a token is sealed.

Owns: `StagedBranch`, a context in memory (or on whatever key-value store is given) with a branch ``main``, and the
moves of the branch that elsewhere belong to commits and compactions, here without any of their checks. Invariants: what
a branch shows is read only through `lakebed.repo.staging`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import md5

import msgspec

from lakebed.key_value.port import KeyValue
from lakebed.objects import open_store
from lakebed.repo.committed.apply import apply_changes
from lakebed.repo.committed.store import EMPTY_METARANGE
from lakebed.repo.heads.write import delete, delete_many, delete_prefix, stage
from lakebed.repo.model.entry import encode_entry, new_address
from lakebed.repo.model.model import Branch, Commit, DiffKind, Entry, MetarangeRef, RepositoryRecord
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.model.rows import rows_of
from lakebed.repo.records.context import RepositoryContext, make_context
from lakebed.repo.records.records import decode_record, encode_record, new_token
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.commits import commit_id, load_commit
from lakebed.repo.staging.changes import changes_of
from lakebed.repo.staging.uncommitted import uncommitted
from lakebed.repo.staging.view import View, branch_view
from lakebed.runtime import Environment
from worlds.memory_key_value import MemoryKeyValue

BRANCH = "main"
"""The branch's branch."""


class StagedBranch:
    """A branch, moved by hand.

    Args:
        committed: what its head holds, by path: what the bytes are (`entry`).
        key_value: where records are; None: in memory.
        options, environment: of the home.

    Example:
        >>> branch = StagedBranch({"a": "1"})
        >>> branch.put("b", "2")
        >>> branch.seal()
        >>> branch.shown()
        {'a': '1', 'b': '2'}
    """

    def __init__(
        self,
        committed: Mapping[str, str] | None = None,
        *,
        key_value: KeyValue | None = None,
        options: RepositoryOptions | None = None,
        environment: Environment | None = None,
    ) -> None:
        self.environment = environment or Environment()
        self.home: RepositoryContext = make_context(
            "a-repository",
            RepositoryRecord("01HFAKE0000000000000000000", "a-repository.repo", BRANCH, 0),
            store=open_store(f"memory://{uuid.uuid4().hex}", environment=self.environment),
            key_value=key_value or MemoryKeyValue(environment=self.environment),
            options=options,
            environment=self.environment,
        )
        head = self._commit_of(self.metarange_of(committed or {}))
        token = new_token(self.environment)
        self.home.key_value.set(self.key, encode_record(Branch(head, token)))

    @property
    def key(self) -> bytes:
        """Of the branch's record."""
        return self.home.keys.branch(BRANCH)

    # ---- what is written

    def entry(self, text: str) -> Entry:
        """An entry of an object whose bytes are some text, at a new address: equal texts are the same entry."""
        return Entry(new_address(self.environment), len(text), md5(text.encode()).hexdigest(), 0, metadata={"is": text})

    def put(self, path: str, text: str) -> None:
        """Stage a path."""
        stage(self.home, branch=BRANCH, path=path, entry=self.entry(text))

    def delete(self, *paths: str) -> int:
        """Take paths away; how many were there."""
        if len(paths) == 1:
            return int(delete(self.home, branch=BRANCH, path=paths[0]))
        return delete_many(self.home, branch=BRANCH, paths=paths)

    def delete_prefix(self, prefix: str) -> bool:
        """Take a prefix away."""
        return delete_prefix(self.home, branch=BRANCH, prefix=prefix)

    def metarange_of(self, texts: Mapping[str, str]) -> MetarangeRef:
        """A metarange of some paths."""
        if not texts:
            return EMPTY_METARANGE
        writer = self.home.committed.writer()
        pairs = sorted((path.encode(), encode_entry(self.entry(text))) for path, text in texts.items())
        writer.write_rows(rows_of([path for path, _ in pairs], [value for _, value in pairs]))
        return writer.finish()

    # ---- how the branch moves

    @property
    def record(self) -> Branch:
        """The branch's record as it is now."""
        raw = self.home.key_value.get(self.key)
        assert raw is not None
        return decode_record(raw, Branch, key=self.key)

    def replace(self, **fields: object) -> Branch:
        """Change the record, whatever it is; the record then."""
        after = msgspec.structs.replace(self.record, **fields)
        self.home.key_value.set(self.key, encode_record(after))
        return after

    def seal(self) -> None:
        """Seal the staging token."""
        record = self.record
        self.replace(staging=new_token(self.environment), sealed=(record.staging, *record.sealed))

    def compact(self) -> None:
        """Seal, and make the compacted metarange of everything sealed, also where it equals the head."""
        self.seal()
        self.replace(compacted=self._applied(), sealed=())

    def commit(self) -> None:
        """Seal, and make a head of everything sealed."""
        self.seal()
        self.replace(commit_id=self._commit_of(self._applied()), compacted=None, sealed=())

    def _applied(self) -> MetarangeRef:
        record = self.record
        base = record.compacted or load_commit(self.home, record.commit_id).metarange
        with self.home.key_value.snapshot() as snapshot:
            return apply_changes(self.home.committed, base, changes_of(self.home, snapshot, record.sealed)).ref

    def _commit_of(self, metarange: MetarangeRef) -> str:
        commit = Commit((), metarange, "a commit", "ada", 0, 1)
        id = commit_id(commit)
        self.home.key_value.set(self.home.keys.commit(id), encode_record(commit))
        return id

    # ---- what is read

    @contextmanager
    def view(self) -> Iterator[View]:
        """The branch as it is now."""
        with self.home.key_value.snapshot() as snapshot:
            record, _ = load_branch(self.home, BRANCH, snapshot=snapshot)
            yield branch_view(self.home, record, snapshot=snapshot)

    def shown(self) -> dict[str, str]:
        """What the branch shows: the texts by path, in the order of a listing."""
        with self.view() as view:
            return {line.path: line.entry.metadata["is"] for line in view.list() if line.entry is not None}

    def differences(self, *, start: bytes | None = None, end: bytes | None = None) -> list[tuple[str, str]]:
        """The uncommitted difference: paths, and what happened to each."""
        with self.home.key_value.snapshot() as snapshot:
            record, _ = load_branch(self.home, BRANCH, snapshot=snapshot)
            batches = list(uncommitted(self.home, snapshot, record, start=start, end=end))
        return [
            (row["path"].decode(), DiffKind(row["kind"]).name.lower()) for batch in batches for row in batch.to_pylist()
        ]
