"""Tables inside repository branches through Spark: read and write by physical addresses, several tables, one merge.

The oracles are Python rows of each branch and plain local reads of the same tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

import lakebed
import lakebed.repo
import lakebed.spark
from lakebed import Table
from lakebed.errors import Conflict, InvalidRequest, NotFound, Rejected, Unavailable
from lakebed.pipeline import run_file
from lakebed.repo import CollectionOptions, Repository, RepositoryOptions
from lakebed.repo.transport.transport import context_of
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.spark import jobs
from lakebed.spark.tasks import tasks

TRIPS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
READINGS = pa.schema([("day", pa.string()), ("value", pa.int64())])
Rows = list[tuple[Any, ...]]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    """A repository in a folder; its branch main holds two empty tables."""
    options = RepositoryOptions(background=False)
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=options, durable=False) as opened:
        main = opened.branch()
        make_tables(main)
        main.commit("two tables")
        yield opened


def make_tables(branch: Any) -> None:
    """A primary-key table and a partitioned append table."""
    store = branch.store()
    Table.create(store.sub("t/trips"), name="trips", schema=TRIPS, primary_keys=["id"], options={"bucket": "2"})
    Table.create(store.sub("t/readings"), name="readings", schema=READINGS, partition_keys=["day"])


def table_at(repository: Any, ref: str, name: str) -> Table:
    """A table as a reference shows it."""
    return Table.open(repository.ref(ref).store(f"t/{name}"), name=name)


def on_branch(repository: Any, branch: str, name: str) -> Table:
    """A table of a branch, to be written to."""
    return Table.open(repository.branch(branch).store(f"t/{name}"), name=name)


def plain(table: Table) -> Rows:
    """What lakebed reads without Spark."""
    return sorted(zip(*(column.to_pylist() for column in table.read().columns), strict=True))


def through(spark: SparkSession, table: Table, **how: Any) -> Rows:
    """What Spark reads."""
    return sorted(tuple(row) for row in lakebed.spark.read(spark, table, **how).collect())


def trips(spark: SparkSession, rows: Rows) -> Any:
    """Rows of trips as a DataFrame of several tasks."""
    return spark.createDataFrame(rows, "id bigint, note string").repartition(3)


def readings(spark: SparkSession, rows: Rows) -> Any:
    """Rows of readings as a DataFrame of several tasks."""
    return spark.createDataFrame(rows, "day string, value bigint").repartition(3)


def test_two_tables_are_written_and_merged_at_one_moment(spark: SparkSession, repo: Repository) -> None:
    """Spark writes two tables in a branch; main sees neither before the one merge, and both after it."""
    dev = repo.create_branch("dev")
    first = [(number, f"trip {number}") for number in range(40)]
    days = [(f"2013-01-{number % 3 + 1:02}", number) for number in range(30)]
    lakebed.spark.upsert(trips(spark, first), on_branch(repo, "dev", "trips"))
    lakebed.spark.write(readings(spark, days), on_branch(repo, "dev", "readings"))
    lakebed.spark.upsert(trips(spark, [(3, "three"), (90, None)]), on_branch(repo, "dev", "trips"))
    expected = sorted({**dict(first), 3: "three", 90: None}.items())
    assert through(spark, on_branch(repo, "dev", "trips")) == expected
    assert through(spark, on_branch(repo, "dev", "readings"), native=False) == sorted(days)
    dev.commit("January")
    assert through(spark, table_at(repo, "main", "trips")) == through(spark, table_at(repo, "main", "readings")) == []
    repo.branch("main").merge("dev")
    for native in (None, False):
        assert through(spark, table_at(repo, "main", "trips"), native=native) == expected
        assert through(spark, table_at(repo, "main", "readings"), native=native) == sorted(days)
    assert plain(table_at(repo, "main", "trips")) == expected


def test_every_reference_shows_its_own_version(spark: SparkSession, repo: Repository) -> None:
    """A branch, a tag, a commit and main~1 read as they were, by both readers, whatever was written since."""
    main = repo.branch()
    seen: dict[str, Rows] = {}
    for number in range(2):
        on_branch(repo, "main", "trips").upsert(pa.table({"id": [number, 100 + number], "note": ["a", str(number)]}))
        seen[main.commit(f"step {number}").id] = plain(on_branch(repo, "main", "trips"))
    repo.create_tag("second")
    on_branch(repo, "main", "trips").upsert(pa.table({"id": [0], "note": ["uncommitted"]}))
    commits = list(seen)
    refs = {commits[0]: commits[0], "main~1": commits[0], "second": commits[1], "main@": commits[1]}
    for ref, commit in refs.items():
        assert through(spark, table_at(repo, ref, "trips")) == seen[commit], ref
    newest = [(0, "uncommitted"), (1, "a"), (100, "0"), (101, "1")]
    assert through(spark, table_at(repo, "main", "trips")) == newest
    frame = lakebed.spark.read(spark, on_branch(repo, "main", "trips"), where="id >= 1")
    main.reset()
    assert sorted(tuple(row) for row in frame.collect()) == newest[1:], "a frame keeps the files that it began with"
    with pytest.raises(InvalidRequest) as refused:
        lakebed.spark.upsert(trips(spark, [(1, "x")]), table_at(repo, "second", "trips"))
    assert refused.value.kind == "read_only"


def test_no_byte_of_a_read_passes_the_driver(spark: SparkSession, repo: Repository) -> None:
    """Planning reads metadata; the rows are read by tasks: the driver's requests do not grow with the data."""
    table = on_branch(repo, "main", "readings")
    for number in range(3):
        table.append(pa.table({"day": ["a"] * 20_000, "value": range(number * 20_000, (number + 1) * 20_000)}))
    lakebed.spark.read(spark, table)  # manifests are in the cache now
    for native in (None, False):
        with context_of(repo).store.count() as stored, table.store.count() as asked:
            frame = lakebed.spark.read(spark, table, native=native)
            rows = frame.agg(functions.sum("value"), functions.count("value")).collect()[0]
        assert tuple(rows) == (sum(range(60_000)), 60_000)
        assert stored.bytes_read < 10_000, stored
        assert asked.bytes_read < 10_000, asked
        assert asked.total < 12, asked


def test_the_jobs_work_in_a_branch(spark: SparkSession, repo: Repository) -> None:
    """Compaction, deletion, merge, comparison, expiry and orphans: the same rows and versions as on any store."""
    table = on_branch(repo, "main", "trips")
    lakebed.spark.upsert(trips(spark, [(number, "old") for number in range(20)]), table)
    table.create_tag("before")
    lakebed.spark.merge(trips(spark, [(1, "new"), (50, "new")]), table, not_matched="ignore")
    lakebed.spark.delete("id >= 15", table)
    expected = [(number, "new" if number == 1 else "old") for number in range(15)]
    assert through(spark, table) == expected
    report = jobs.compact_table(spark, table, full=True)
    assert report.snapshot is not None
    assert through(spark, table) == plain(table) == expected
    changes = {(row["id"], row["_row_kind"]) for row in jobs.diff_versions(spark, table, "before").collect()}
    assert changes == {(1, "-U"), (1, "+U"), *((number, "-D") for number in range(15, 20))}
    assert jobs.expire(table, retain_max=1, retain_min=1, older_than_ms=2**50).plan is not None
    table.store.put("bucket-0/data-lost.parquet", b"of a writer that died")
    removed = jobs.collect_table(spark, table, grace_ms=0)
    assert [target.path for target in removed.plan.doomed] == ["bucket-0/data-lost.parquet"]
    assert through(spark, table) == expected
    assert through(spark, table, version="before") == [(number, "old") for number in range(20)]
    days = on_branch(repo, "main", "readings")
    lakebed.spark.write(readings(spark, [("a", 1), ("b", 2), ("b", 3)]), days)
    lakebed.spark.delete("value = 2", days)
    lakebed.spark.write(readings(spark, [("a", 9)]), days, mode="overwrite", partition={"day": "a"})
    assert through(spark, days) == [("a", 9), ("b", 3)]


def before_staging(patch: pytest.MonkeyPatch, act: Callable[[], Any], *, after: bool = False) -> None:
    """Let another process act once, when all uploads of a job are done: before they are staged, or after."""
    stage, acts = tasks._stage, [act]

    def stage_and_act(store: Any, uploads: Any) -> None:
        if after:
            stage(store, uploads)
        if acts:
            acts.pop()()
        if not after:
            stage(store, uploads)

    patch.setattr(tasks, "_stage", stage_and_act)


def test_a_branch_that_went_back_or_away_while_a_job_ran(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset the job's rows are the only ones; after a deletion nothing is written; main stays as it was."""
    dev = repo.create_branch("dev")
    table = on_branch(repo, "dev", "trips")
    lakebed.spark.upsert(trips(spark, [(1, "uncommitted")]), table)
    before_staging(monkeypatch, dev.reset)
    lakebed.spark.upsert(trips(spark, [(2, "of the job")]), table)
    assert (
        through(spark, on_branch(repo, "dev", "trips")) == plain(on_branch(repo, "dev", "trips")) == [(2, "of the job")]
    )
    before_staging(monkeypatch, dev.reset, after=True)
    with pytest.raises(Conflict) as moved:
        lakebed.spark.upsert(trips(spark, [(3, "lost")]), table)
    assert moved.value.kind == "branch_moved"
    dev.reset()
    before_staging(monkeypatch, lambda: repo.delete_branch("dev"))
    with pytest.raises(NotFound) as gone:
        lakebed.spark.upsert(trips(spark, [(3, "lost")]), table)
    assert gone.value.kind == "branch_not_found"
    assert through(spark, table_at(repo, "main", "trips")) == []


def test_two_writers_of_one_table_both_win(
    spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer's commit between a job's plan and its own is kept; a commit that was made is not made again."""
    table = on_branch(repo, "main", "trips")
    source = trips(spark, [(1, "job"), (2, "job")])
    other = on_branch(repo, "main", "trips")
    before_staging(monkeypatch, lambda: other.upsert(pa.table({"id": [1, 3], "note": ["other", "other"]})))
    lakebed.spark.upsert(source, table)
    assert through(spark, table)[1:] == [(2, "job"), (3, "other")]
    assert through(spark, table) == plain(on_branch(repo, "main", "trips"))
    lakebed.spark.upsert(source, table, commit_user="loader", commit_identifier=7)
    staged = len(list(repo.branch().list("t/trips/")))
    again = lakebed.spark.upsert(trips(spark, [(9, "no")]), table, commit_user="loader", commit_identifier=7)
    assert again.commit_identifier == 7
    assert len(list(repo.branch().list("t/trips/"))) == staged


def test_a_collection_beside_a_job(spark: SparkSession, repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tasks have uploaded is too young to go; a collection that goes too far fails the job, not the table."""
    table = on_branch(repo, "main", "trips")
    before_staging(monkeypatch, lambda: repo.collect(CollectionOptions()))
    lakebed.spark.upsert(trips(spark, [(1, "kept")]), table)
    assert through(spark, table) == [(1, "kept")]
    too_far = CollectionOptions(grace=timedelta(0))

    def collect() -> None:
        while not repo.collect(too_far).deleted_count:
            pass  # until the uploads are older than the clock's resolution

    before_staging(monkeypatch, collect)
    with pytest.raises(Unavailable) as refused:
        lakebed.spark.upsert(trips(spark, [(2, "lost")]), table)
    assert refused.value.kind == "upload_expired"
    assert through(spark, table) == plain(on_branch(repo, "main", "trips")) == [(1, "kept")]


def test_a_table_behind_a_server(spark: SparkSession, tmp_path: Path) -> None:
    """Through a server executors read and write through it; the driver stages and commits; no secret is in a plan."""
    options = RepositoryOptions(background=False)
    with start_server(tmp_path / "served", options=ServerOptions(durable=False, repository_options=options)) as running:
        messages = running.started
        url = f"{messages.endpoint}/analytics"
        opened: Any = lakebed.repo.open(
            url, access=lakebed.repo.Access(access_key=messages.access_key, secret=messages.secret)
        )
        with opened as remote:
            main = remote.branch()
            make_tables(main)
            main.commit("two tables")
            dev = remote.create_branch("dev")
            first = [(number, f"trip {number}") for number in range(10)]
            lakebed.spark.upsert(trips(spark, first), on_branch(remote, "dev", "trips"))
            lakebed.spark.write(readings(spark, [("a", 1), ("b", 2)]), on_branch(remote, "dev", "readings"))
            dev.commit("ten trips")
            assert through(spark, table_at(remote, "main", "trips")) == []
            main.merge("dev")
            merged = table_at(remote, "main", "trips")
            assert through(spark, merged) == first
            assert jobs.compact_table(spark, on_branch(remote, "dev", "trips"), full=True).snapshot is not None
            assert plain(on_branch(remote, "dev", "trips")) == first
            frame = lakebed.spark.read(spark, merged)
            explained = frame._jdf.queryExecution().toString()
            told_everything = [
                explained,
                str(frame.schema),
                repr(merged.store),
                *map(str, spark.sparkContext.getConf().getAll()),
            ]
            assert not [text for text in told_everything if messages.secret in text]


PIPELINE = """
name: nightly
lake: ${here}/lake
branch: analytics/etl
tables:
  trips: {primary_key: [id], options: {bucket: 1}, schema: {id: BIGINT, note: STRING}}
  fares: {primary_key: [id], options: {bucket: 1}, schema: {id: BIGINT, cents: BIGINT}}
steps:
  - step: ingest
    name: read trips
    from: ${here}/trips.csv
    as: new_trips
    schema: {id: bigint, note: string}
  - step: ingest
    name: read fares
    from: ${here}/fares.csv
    as: new_fares
    schema: {id: bigint, cents: bigint}
  - {step: merge, name: merge trips, into: trips, from: new_trips}
  - {step: merge, name: merge fares, into: fares, from: new_fares}
  - step: audit
    query: SELECT t.id, f.cents FROM trips t LEFT JOIN fares f ON t.id = f.id
    every_row:
      a trip has a fare: cents IS NOT NULL
  - step: publish
"""


def test_a_pipeline_writes_audits_and_publishes_two_tables(spark: SparkSession, repo: Repository) -> None:
    """Rows that an audit over both tables refuses stay in the branch; main gets both tables by one merge, or none."""
    folder = Path(repo.url.removeprefix("file://")).parent.parent
    (folder / "trips.csv").write_text("id,note\n1,a\n2,b\n")
    (folder / "fares.csv").write_text("id,cents\n1,500\n")
    (folder / "nightly.yaml").write_text(PIPELINE)
    repo.close()
    with pytest.raises(Rejected):
        run_file(folder / "nightly.yaml", spark=spark)
    with lakebed.open(folder / "lake").repository("analytics") as opened:
        assert not list(opened.ref("main").list("lake/"))
        opened.branch("etl").reset()
    (folder / "fares.csv").write_text("id,cents\n1,500\n2,700\n")
    summary = run_file(folder / "nightly.yaml", spark=spark)
    assert summary.records[-1].metrics["into"] == "main"
    with lakebed.open(folder / "lake").repository("analytics") as opened:
        inside = lakebed.Lake.open(opened.ref("main").store("lake"))
        assert plain(inside.table("trips")) == [(1, "a"), (2, "b")]
        assert through(spark, inside.table("fares")) == [(1, 500), (2, 700)]
        assert [commit.commit.message for commit in opened.ref("main").log()][:1] == ["nightly: publish"]


def test_the_example_of_the_guide_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block about branches in the Spark guide, as pasted, in an empty folder."""
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "spark.md").read_text()
    block = guide.split("## Tables in branches", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Any] = {}
    exec(compile(block, "spark.md", "exec"), shown)
    assert shown["trips"].name == "trips"  # it came to its end; its own assertions say what it did
