"""The committed data of one repository: metaranges to read, and writers of new ones.

The entry point of this package; it owns nothing. Invariants: everything below it is immutable and named by its
contents. Nothing is deleted here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from lakebed.bounded_cache import BoundedCache
from lakebed.lsm.cache import BlockCache, block_cache
from lakebed.objects.port import ObjectStore
from lakebed.repo.committed.content_hash import EMPTY_METARANGE_ID
from lakebed.repo.committed.metarange import Metarange
from lakebed.repo.committed.range_files import RangeCounts, RangeFiles
from lakebed.repo.committed.range_writer import MetarangeWriter
from lakebed.repo.model.model import MetarangeRef
from lakebed.repo.model.options import RangeOptions
from lakebed.runtime import Environment

EMPTY_METARANGE: Final = MetarangeRef(EMPTY_METARANGE_ID)
"""The metarange without entries, which the first commit of a repository names."""

_DIFFS_BYTES_MAX: Final = 16 << 20
"""Most bytes of all kept differences together."""


class Committed:
    """Ranges and metaranges. Thread-safe.

    Args:
        options: where ranges break.
        cache: the cache of tails, blocks and lists of ranges; None: the process's shared cache.
        diff_cache_count: number of small differences of two metaranges to keep (`RepositoryOptions.diff_cache_count`).
        environment: randomness for names, threads for reading ahead and writing.

    Examples:
        >>> from lakebed.objects import open_store
        >>> from lakebed.repo.model.entry import encode_entry
        >>> from lakebed.repo.model.model import Entry
        >>> from lakebed.repo.model.rows import rows_of
        >>> committed = Committed(open_store("memory://a-repository"), environment=Environment())
        >>> writer = committed.writer()
        >>> writer.write_rows(rows_of([b"a/b"], [encode_entry(Entry("s3://elsewhere/b", 4, "", 0))]))
        >>> ref = writer.finish()
        >>> ref.entry_count, committed.open(ref).get(b"a/c")
        (1, None)
        >>> committed.close()
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        options: RangeOptions | None = None,
        cache: BlockCache | None = None,
        diff_cache_count: int = 64,
        environment: Environment,
    ) -> None:
        self.diffs: Final = BoundedCache(_DIFFS_BYTES_MAX, count_max=diff_cache_count, runtime=environment.runtime)
        self.files: Final = RangeFiles(
            store,
            options=options or RangeOptions(),
            cache=block_cache() if cache is None else cache,
            environment=environment,
        )

    @property
    def empty(self) -> MetarangeRef:
        """The metarange without entries, which has no file."""
        return EMPTY_METARANGE

    def open(self, ref: MetarangeRef) -> Metarange:
        """Open a metarange to read it. Cost: no request. The blocks that are read stay in the cache."""
        return Metarange(ref, files=self.files)

    def writer(self, *, base: MetarangeRef | None = None) -> MetarangeWriter:
        """Return a writer of a new metarange.

        Args:
            base: the metarange that is changed. New ranges that equal one of its ranges are taken over. None: no base.

        Cost: no request. The base's list of ranges is read when the first range is written.
        """
        return MetarangeWriter(self.files, base=self.open(base or EMPTY_METARANGE))

    def count(self) -> AbstractContextManager[RangeCounts]:
        """Count ranges read and written inside the ``with`` block, by all threads."""
        return self.files.count()

    def close(self) -> None:
        """End the threads. After that, nothing can be written or read ahead."""
        self.files.pool.close()
