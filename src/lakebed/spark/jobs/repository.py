"""Repositories through Spark: objects that tasks upload and the driver stages, collections, and listings.

Owns: how this work is distributed over tasks. The repository's own modules stage, decide and delete on the driver: a
job that fails has made nothing visible and deleted nothing, and a later collection deletes what its tasks uploaded. A
retried task uploads again; only the attempt that Spark accepted is staged.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.storagelevel import StorageLevel

from lakebed.errors import InvalidRequest, LakebedError, NotFound
from lakebed.lsm.columns import keys_of
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.reclaim.model import CollectionReport
from lakebed.repo.branch import Branch
from lakebed.repo.collect.addresses import LISTED_SCHEMA, addresses_of_ranges
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.committed.store import Committed
from lakebed.repo.model.columns import columns_of
from lakebed.repo.model.model import Entry, MetarangeRef, RangeMeta
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.objects.data import CONTENT_TYPE, upload_to
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.references.refs import resolve
from lakebed.repo.repository import Repository
from lakebed.repo.staging.listing import decode_entries
from lakebed.repo.staging.uncommitted import uncommitted
from lakebed.repo.transport.http_transport import HttpTransport
from lakebed.repo.transport.transport import context_of, transport_of
from lakebed.runtime import Environment
from lakebed.spark.plan.shipping import pack_units, ship
from lakebed.spark.tasks.tasks import LASTING, Batches, collect_changes, deal, parallelism, returning_changes

_ENTRIES: Final = (
    "path string, address string, size_bytes bigint, checksum string, modified_ms bigint, content_type string, "
    "metadata map<string, string>"
)
_NAMED: Final = "ulid string, problem binary"
_LASTING: Final = (*LASTING, NotFound)
"""Errors that a retry would repeat. They are raised unchanged, and keep a collection from deleting anything."""
_ROWS_AT_ONCE: Final = 16_384

Upload = Callable[[Any, str], Entry]
"""Maps an object's bytes and content type to the entry to stage."""
RangeOf = tuple[MetarangeRef, RangeMeta]


# ---- writing


def stage_files(
    spark: SparkSession,
    branch: Branch,
    files: DataFrame | Mapping[str, str],
    *,
    content_type: str = CONTENT_TYPE,
    storage_options: Mapping[str, str] | None = None,
) -> int:
    """Upload many objects in parallel, then stage all of them in one change. All of them appear, or none.

    Args:
        branch: of an open repository, or of one behind a server.
        files: a DataFrame with the columns ``path`` (text) and ``content`` (binary), one row for each object; or a
            mapping of paths on the branch to URLs, such as the files that a job has written.
        content_type: of all objects.
        storage_options: settings for reading the URLs.

    Returns:
        The number of staged, uncommitted objects.

    Raises:
        InvalidRequest: as `Branch.stage_many`; the repository is in this process's memory; or the DataFrame has other
            columns.
        NotFound: there is no object at a URL, or no such branch. Otherwise as `Branch.stage_many`.

    Cost: a copy of the bytes, by tasks. The driver makes 1 write of about 150 bytes for each object, and holds as much.
    """
    upload = _uploader(branch)
    if isinstance(files, DataFrame):
        _check_columns(files)
        results = collect_changes(files.select("path", "content"), _uploading_rows(upload, content_type))
    elif files:
        packs = pack_units(list(files.items()), size_bytes=lambda _: 0, task_count_min=parallelism(spark))
        options = dict(storage_options or {})
        results = collect_changes(*deal(spark, packs, _uploading_urls(upload, content_type, options)))
    else:
        results = []
    staged_results: Sequence[Any] = results
    return branch.stage_many(pa.Table.from_batches(staged_results)) if staged_results else 0


def _uploader(branch: Branch) -> Upload:
    """Return how a task uploads: into the storage, or through the server."""
    if isinstance(transport_of(branch), HttpTransport):
        return partial(_upload_through, pickle.dumps(branch))
    return partial(_upload_into, ship(context_of(branch).store))


def _upload_through(branch: bytes, content: Any, content_type: str) -> Entry:
    target: Branch = _unpickle(branch)
    return target.upload(content, content_type=content_type)


def _upload_into(store: bytes, content: Any, content_type: str) -> Entry:
    target: ObjectStore = _unpickle(store)
    return upload_to(target, content, content_type=content_type, environment=Environment())


_OPENED: dict[bytes, Any] = {}


def _unpickle(pickled: bytes) -> Any:
    """Unpickle the shared state of tasks once for each process, so that its connections serve all rows."""
    if pickled not in _OPENED:
        _OPENED.clear()
        _OPENED[pickled] = pickle.loads(pickled)
    return _OPENED[pickled]


def _check_columns(files: DataFrame) -> None:
    kinds = dict(files.dtypes)
    if kinds.get("path") != "string" or kinds.get("content") != "binary":
        raise InvalidRequest(
            f"Files are rows of path (string) and content (binary), but these have {files.dtypes}: select those two.",
            kind="invalid_columns",
        )


def _uploading_rows(upload: Upload, content_type: str) -> Callable[[Batches], Batches]:
    def lakebed_upload(batches: Batches) -> Batches:
        return _stage_pairs(
            (path, upload(content, content_type))
            for batch in batches
            for path, content in zip(batch.column(0).to_pylist(), _contents(batch.column(1)), strict=True)
        )

    return lakebed_upload


def _contents(column: Any) -> Iterator[Any]:
    """Yield bodies without copies."""
    return (None if value.as_py() is None else memoryview(value.as_buffer()) for value in column)


def _uploading_urls(upload: Upload, content_type: str, options: dict[str, str]) -> Callable[[Any], Batches]:
    def lakebed_upload(pairs: Iterator[tuple[str, str]]) -> Batches:
        return _stage_pairs((path, upload(_chunks_at(url, options), content_type)) for path, url in pairs)

    return lakebed_upload


def _chunks_at(url: str, options: dict[str, str]) -> Iterator[Any]:
    folder, _, name = url.rpartition("/")
    return open_store(folder, storage_options=options or None, create=False).get_stream(name)


def _stage_pairs(pairs: Iterator[tuple[str, Entry]]) -> Batches:
    return returning_changes(lambda: columns_of(pairs).to_batches(), lasting=_LASTING)


# ---- collecting


def collect_repository(
    spark: SparkSession,
    repository: Repository,
    options: CollectionOptions | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[Any], None] | None = None,
) -> CollectionReport:
    """Delete the unneeded objects of a repository. Tasks of Spark read the ranges and compare.

    Args:
        repository: open in this process. A server collects the repositories behind it itself.
        options, dry_run, progress: as `Repository.collect`, and so is the report.

    Raises:
        InvalidRequest: as `Repository.collect`; or the repository is behind a server, or in this process's memory.

    Cost: as `Repository.collect`. The driver holds the listing and the garbage, and no range.
    """
    if isinstance(transport_of(repository), HttpTransport):
        raise InvalidRequest(
            "A repository behind a server is collected by the server: call its collect, or open the storage "
            "here while no server runs.",
            kind="not_over_http",
        )
    return collect_garbage(
        context_of(repository),
        options=options,
        dry_run=dry_run,
        subtract=partial(_subtract, spark, ship(context_of(repository).store)),
        progress=progress,
    )


def _subtract(
    spark: SparkSession,
    store: bytes,
    home: RepositoryContext,
    listing: pa.Table,
    *,
    ranges: Sequence[RangeOf],
    staged: pa.ChunkedArray,
) -> pa.Table:
    """As `lakebed.repo.collect.collect.Subtraction`, computed by Spark."""
    if not listing.num_rows:
        return listing
    remaining = spark.createDataFrame(listing)
    if len(staged):
        remaining = remaining.join(spark.createDataFrame(pa.table({"ulid": staged})), on="ulid", how="left_anti")
    if ranges:
        named_addresses = _list_addresses(spark, store, ranges)
        try:
            problem = named_addresses.filter(functions.col("problem").isNotNull()).select("problem").first()
            if problem is not None:
                raise pickle.loads(problem[0])
            return _sort(remaining.join(named_addresses, on="ulid", how="left_anti"))
        finally:
            named_addresses.unpersist()
    return _sort(remaining)


def _sort(left: DataFrame) -> pa.Table:
    return left.orderBy("ulid").toArrow().cast(LISTED_SCHEMA)


def _list_addresses(spark: SparkSession, store: bytes, ranges: Sequence[RangeOf]) -> DataFrame:

    def lakebed_names(assigned: Iterator[RangeOf]) -> Batches:
        with _open_committed(store) as committed:
            for ref, meta in assigned:
                try:
                    for batch in addresses_of_ranges(committed.open(ref), [meta]):
                        yield _problem_row(batch.column(0), None)
                except _LASTING as error:
                    yield _problem_row(pa.array([None], pa.string()), error)

    packs = pack_units(ranges, size_bytes=lambda unit: unit[1].file.size_bytes, task_count_min=parallelism(spark))
    tasks, function = deal(spark, packs, lakebed_names)
    return tasks.mapInArrow(function, _NAMED).persist(StorageLevel.DISK_ONLY)


def _problem_row(ulids: pa.Array, problem: LakebedError | None) -> pa.RecordBatch:
    problems = [None if problem is None else pickle.dumps(problem)] * len(ulids)
    return pa.RecordBatch.from_arrays([ulids, pa.array(problems, pa.binary())], names=["ulid", "problem"])


def _open_committed(store: bytes) -> AbstractContextManager[Committed]:
    return closing(Committed(pickle.loads(store), environment=Environment()))


# ---- listing


def list_repository(spark: SparkSession, repository: Repository, ref: str | None = None) -> DataFrame:
    """List the objects of a reference as a DataFrame, all of one moment.

    A branch is listed with its uncommitted changes.

    Args:
        repository: open in this process, or behind a server, which then lists page by page for the driver.
        ref: a branch, tag or commit; None: the default branch.

    Returns:
        ``path``, ``address``, ``size_bytes``, ``checksum``, ``modified_ms``, ``content_type`` and ``metadata`` of every
        object, in any order.

    Raises:
        NotFound: kind ``reference_not_found``.
        InvalidRequest: the repository is in this process's memory.

    Cost: 1 GET for each range, by tasks, whenever the DataFrame is computed. The driver holds the uncommitted changes.
    """
    text = repository.default_branch if ref is None else ref
    if isinstance(transport_of(repository), HttpTransport):
        pairs = ((line.path, line.entry) for line in repository.ref(text).list() if line.entry is not None)
        return spark.createDataFrame(columns_of(pairs), _ENTRIES)
    home = context_of(repository)
    store = ship(home.store)
    with home.key_value.snapshot() as snapshot:
        resolved = resolve(home, text, snapshot=snapshot)
        changes = [] if resolved.branch is None else list(uncommitted(home, snapshot, resolved.branch))
    metarange = resolved.commit.metarange
    committed_frame = _frame_of_ranges(
        spark, store, [(metarange, meta) for meta in home.committed.open(metarange).ranges()]
    )
    changed_rows = pa.Table.from_batches(changes) if changes else None
    if changed_rows is None:
        return committed_frame
    paths = pa.table({"path": changed_rows.column("path").cast(pa.string())})
    staged_rows = changed_rows.filter(changed_rows.column("right").is_valid()).combine_chunks()
    kept_frame = committed_frame.join(spark.createDataFrame(paths), on="path", how="left_anti")
    tables = [_decode(batch.column("path"), batch.column("right")) for batch in staged_rows.to_batches()]
    return kept_frame.unionByName(spark.createDataFrame(pa.concat_tables(tables), _ENTRIES)) if tables else kept_frame


def _frame_of_ranges(spark: SparkSession, store: bytes, ranges: Sequence[RangeOf]) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], _ENTRIES)

    def lakebed_list(assigned: Iterator[RangeOf]) -> Batches:
        with _open_committed(store) as committed:
            for ref, meta in assigned:
                for rows in committed.open(ref).rows_of(meta):
                    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
                        part = rows.slice(start, _ROWS_AT_ONCE)
                        yield from _decode(part.column(0), part.column(1)).to_batches()

    packs = pack_units(ranges, size_bytes=lambda unit: unit[1].file.size_bytes, task_count_min=parallelism(spark))
    tasks, function = deal(spark, packs, lakebed_list)
    return tasks.mapInArrow(function, _ENTRIES)


def _decode(paths: pa.Array, values: pa.Array) -> pa.Table:
    texts = [path.decode() for path in keys_of(paths)]
    return columns_of(zip(texts, decode_entries(values, paths=texts), strict=True))
