"""`RepositoryContext`: everything that the operations on one repository use.

Owns: the assembly of the parts. Invariants: a context is immutable. Its parts (the committed data, the counters of
staging compaction, the hooks) do not import it, so there is no import cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import NotFound
from lakebed.key_value.port import KeyValue
from lakebed.lsm.cache import BlockCache
from lakebed.objects.port import ObjectStore
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.commit_graph import CommitGraph
from lakebed.repo.model.layout import CLOCK_PATH, Keys
from lakebed.repo.model.model import RepositoryRecord
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.model.positions import KEPT_BYTES_MAX, KEPT_MAX
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.outside.outbound import parse_allowed
from lakebed.repo.records.counters import Counters
from lakebed.repo.records.hooks import Hooks
from lakebed.repo.records.records import OrderedIds, trim_records
from lakebed.runtime import Environment, Runtime


class KeptGraph:
    """The commit graph that was read last, and the facts that tell whether it is still complete. Thread-safe.

    Attributes:
        indexed_heads: a least number of missing commits, and the heads behind which fewer were missing; None: not
            looked up yet.
    """

    def __init__(self, *, runtime: Runtime) -> None:
        self.indexed_heads: tuple[int, set[str]] | None = None
        self._lock = runtime.lock()
        self._kept: tuple[int, bytes, CommitGraph] | None = None

    def get(self) -> tuple[int, bytes, CommitGraph] | None:
        """How many segments were read, the checksum of the last, and the graph; None: there is none yet."""
        with self._lock:
            return self._kept

    def put(self, count: int, checksum: bytes, graph: CommitGraph) -> None:
        """Replace the kept graph."""
        with self._lock:
            self._kept = (count, checksum, graph)


@dataclass(frozen=True, slots=True)
class RepositoryContext:
    """One open repository.

    Attributes:
        record: the repository's record when it was opened.
        key_value: where the records are; shared by all repositories of a context, whose owner closes it.
        committed: its ranges and metaranges.
        counters: the counts of the sensor of staging compaction.
        hooks: run before and after commits and merges.
        moves: ULIDs for the reference log, in the order of the moves.
        positions: where pages of the log of commits ended: the commits that waited to be shown, by the head, whether
            only first parents were followed, and the last commit shown.
        graph: the index of its history, as it was read last.
        foreign: where imported objects are read.
    """

    name: str
    record: RepositoryRecord
    keys: Keys
    key_value: KeyValue
    store: ObjectStore
    committed: Committed
    options: RepositoryOptions
    environment: Environment
    counters: Counters
    hooks: Hooks
    moves: OrderedIds
    positions: BoundedCache
    graph: KeptGraph
    foreign: ForeignStores = field(default_factory=ForeignStores)

    def now_ms(self) -> int:
        """Unix time in milliseconds, UTC."""
        return self.environment.clock.now_ms()

    def earlier_ms(self) -> int:
        """As the function of this name. Cost: 1 PUT, 1 HEAD."""
        return earlier_ms(self.store, self.environment)

    def trim_old(self, prefix: bytes, made_ms: Callable[[bytes, bytes], int], *, kept_ms: int) -> int:
        """Remove the records below a prefix that are older than `kept_ms`, both by our clock and by the store's.

        Each process has its own clock. A process whose clock was set forward would remove what the others keep.

        Args:
            made_ms: gets the key and bytes of a record; when the record was made or last changed.

        Returns and raises as `trim_records`. Cost: as `trim_records`, and as `earlier_ms` if a record is old.
        """
        before_ms, is_proven = self.now_ms() - kept_ms, False

        def is_old(key: bytes, raw: bytes) -> bool:
            nonlocal before_ms, is_proven
            if not is_proven and made_ms(key, raw) < before_ms:
                before_ms, is_proven = self.earlier_ms() - kept_ms, True
            return made_ms(key, raw) < before_ms

        return trim_records(self.key_value, prefix, is_old)

    def as_writable(self) -> RepositoryContext:
        """The same repository for a caller who may change it although it is read-only. Cost: no request."""
        if not self.record.read_only:
            return self
        return replace(self, record=msgspec.structs.replace(self.record, read_only=False))


def earlier_ms(store: ObjectStore, environment: Environment) -> int:
    """The earlier of our time and the store's, in Unix milliseconds: what is deleted for its age is old by both.

    Args:
        store: a namespace. If another process sweeps it at this moment, the time is 0, so nothing is old.

    Cost: 1 PUT, 1 HEAD.
    """
    return min(environment.clock.now_ms(), storage_ms(store))


def storage_ms(store: ObjectStore) -> int:
    """The time of a namespace's store, in Unix milliseconds, or 0, as in `earlier_ms`. Cost: 1 PUT, 1 HEAD."""
    store.put(CLOCK_PATH, b"", durable=False)
    try:
        return store.head(CLOCK_PATH).modified_ms
    except NotFound:
        return 0


def make_context(
    name: str,
    record: RepositoryRecord,
    *,
    store: ObjectStore,
    key_value: KeyValue,
    options: RepositoryOptions | None = None,
    environment: Environment | None = None,
    cache: BlockCache | None = None,
    foreign: ForeignStores | None = None,
) -> RepositoryContext:
    """A context of a repository, whether it is recorded or about to be.

    Args:
        key_value: where the records of all repositories are.
        cache: of range blocks; None: the process's shared cache.
        foreign: where imported objects are read; None: everywhere, without credentials.

    Cost: no request.
    """
    options = options or RepositoryOptions()
    environment = environment or Environment()
    keys = Keys(record.uid)
    return RepositoryContext(
        name=name,
        record=record,
        keys=keys,
        key_value=key_value,
        store=store,
        committed=Committed(
            store,
            options=options.ranges,
            cache=cache,
            diff_cache_count=options.diff_cache_count,
            environment=environment,
        ),
        options=options,
        environment=environment,
        counters=Counters(runtime=environment.runtime),
        hooks=Hooks(
            key_value=key_value,
            keys=keys,
            runtime=environment.runtime,
            allowed=parse_allowed(options.webhook_hosts),
        ),
        moves=OrderedIds(environment),
        positions=BoundedCache(KEPT_BYTES_MAX, count_max=KEPT_MAX, runtime=environment.runtime),
        graph=KeptGraph(runtime=environment.runtime),
        foreign=(foreign or ForeignStores(environment=environment)).of(
            name, namespace=store.root_url if record.is_shared else None
        ),
    )
