"""Repositories through Spark: uploads by tasks and one staging, collections and listings as on one machine."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import lakebed.repo
from lakebed.errors import InvalidRequest, NotFound
from lakebed.repo import CollectionOptions, Entry, RangeOptions, Repository, RepositoryOptions
from lakebed.repo.transport.transport import context_of
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.spark import jobs

SMALL_RANGES = RangeOptions(entry_count_min=2, raggedness=4, entry_count_max=16)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    """A repository in a folder, with ranges of a few entries."""
    options = RepositoryOptions(background=False, ranges=SMALL_RANGES)
    with lakebed.repo.open(tmp_path / "lake" / "analytics.repo", options=options, durable=False) as opened:
        yield opened


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    """A repository behind a server."""
    with start_server(tmp_path / "served", options=ServerOptions(durable=False)) as running:
        messages = running.started
        url = f"{messages.endpoint}/analytics"
        with lakebed.repo.open(
            url, access=lakebed.repo.Access(access_key=messages.access_key, secret=messages.secret)
        ) as opened:
            yield opened


@pytest.fixture(params=["repo", "served"])
def either(request: pytest.FixtureRequest) -> Any:
    """A repository of this process, or of a server."""
    return request.getfixturevalue(request.param)


def shown(spark: SparkSession, repository: Any, ref: str | None = None) -> dict[str, Entry]:
    """A listing by Spark, by path."""
    rows = jobs.list_repository(spark, repository, ref).collect()
    return {row["path"]: msgspec.convert([*row[1:-1], dict(row["metadata"])], Entry) for row in rows}


def listed(repository: Any, ref: str = "main") -> dict[str, Entry]:
    """The same by the facade."""
    return {entry.path: entry.entry for entry in repository.ref(ref).list()}


def test_rows_become_objects_at_one_moment(spark: SparkSession, either: Any) -> None:
    """Tasks upload what the rows hold, and the driver stages all of it; bytes and facts are those of a put."""
    rows = [(f"raw/{number:03}", b"%d" % number * number) for number in range(40)]
    frame = spark.createDataFrame(rows, "path string, content binary").repartition(4)
    assert jobs.stage_files(spark, either.branch(), frame, content_type="text/plain") == 40
    result = listed(either)
    assert {path: either.branch().get(path) for path in result} == dict(rows)
    entry = either.branch().put("as-put", dict(rows)["raw/007"], content_type="text/plain")
    same = {"address": "", "modified_ms": 0}
    assert msgspec.structs.replace(result["raw/007"], **same) == msgspec.structs.replace(entry, **same)
    assert shown(spark, either) == listed(either)


def test_files_of_a_job_become_objects(spark: SparkSession, either: Any, tmp_path: Path) -> None:
    """What a job has written elsewhere is copied by tasks and staged under the paths that were given."""
    out = tmp_path / "out"
    spark.range(0, 1_000, 1, 3).write.parquet(str(out))
    parts = sorted(out.glob("*.parquet"))
    named = {f"tables/ids/{part.name}": f"file://{part}" for part in parts}
    assert jobs.stage_files(spark, either.branch(), named) == 3
    assert {path: either.branch().get(path) for path in named} == {
        path: part.read_bytes() for path, part in zip(named, parts, strict=True)
    }
    assert jobs.stage_files(spark, either.branch(), {}) == 0
    with pytest.raises(NotFound):
        jobs.stage_files(spark, either.branch(), {"a": f"file://{out}/nothing"})
    assert not either.branch().exists("a")


def test_wrong_files_are_refused(spark: SparkSession, repo: Repository) -> None:
    """Columns of other names, bodies that are none, paths that cannot be, and memory: each with a sentence."""
    for wrong in ("path string, body binary", "path string, content string"):
        with pytest.raises(InvalidRequest) as caught:
            jobs.stage_files(spark, repo.branch(), spark.createDataFrame([], wrong))
        assert caught.value.kind == "invalid_columns"
    for rows in ([("a", None)], [("a/../b", b"x")], [("a", b"x"), ("", b"x")]):
        frame = spark.createDataFrame(rows, "path string, content binary")
        with pytest.raises(InvalidRequest):
            jobs.stage_files(spark, repo.branch(), frame)
    assert listed(repo) == {}
    with lakebed.repo.open("memory://spark-cannot-see/analytics.repo") as hidden:
        for act in (
            lambda: jobs.stage_files(spark, hidden.branch(), {"a": "file:///b"}),
            lambda: jobs.list_repository(spark, hidden),
            lambda: jobs.collect_repository(spark, hidden),
        ):
            with pytest.raises(InvalidRequest) as caught:
                act()
            assert caught.value.kind == "memory_store"


def test_a_listing_is_that_of_the_facade(spark: SparkSession, repo: Repository) -> None:
    """Of commits, tags and branches, with what is staged, deleted, cleared and compacted."""
    main = repo.branch()
    assert shown(spark, repo) == {}
    for number in range(60):
        main.put(f"a/{number:02}", b"x", metadata={"n": str(number)})
    main.commit("sixty")
    repo.create_tag("sixty")
    main.delete_many([f"a/{number:02}" for number in range(0, 60, 7)])
    main.put("a/03", b"changed")
    main.put("b", b"new", metadata={"ü": "é"})
    assert shown(spark, repo, "main") == listed(repo)
    main.compact()
    main.delete_prefix("a/1")
    main.put("a/11", b"again")
    assert shown(spark, repo, "main") == listed(repo)
    assert shown(spark, repo, "sixty") == listed(repo, "sixty") == listed(repo, "main@")
    with pytest.raises(NotFound) as caught:
        jobs.list_repository(spark, repo, "nothing")
    assert caught.value.kind == "reference_not_found"


def test_a_collection_is_that_of_one_machine(spark: SparkSession, repo: Repository) -> None:
    """Spark finds the same garbage, in the same order; what a commit, a tag or a staged entry needs stays."""
    at_once = CollectionOptions(grace=timedelta(0))
    main = repo.branch()
    for number in range(50):
        main.put(f"a/{number:02}", b"kept %d" % number)
    main.commit("kept")
    for number in range(20):
        main.upload(b"never staged %d" % number)
    main.put("staged", b"staged")
    main.put("staged", b"staged again")
    while context_of(repo).now_ms() <= main.stat("staged").modified_ms:
        pass  # the age of everything is more than zero, for both
    wanted = repo.collect(at_once, dry_run=True)
    planned = jobs.collect_repository(spark, repo, at_once, dry_run=True)
    assert planned == wanted
    assert planned.plan is not None
    assert len(planned.plan.doomed) >= 21
    done = jobs.collect_repository(spark, repo, at_once)
    assert (done.deleted_count, done.deleted_bytes) == (len(planned.plan.doomed), planned.plan.bytes_freed)
    assert repo.plan_collection(at_once).doomed == ()
    assert len({path: main.get(path) for path in listed(repo)}) == 51


def test_a_damaged_range_protects_everything(spark: SparkSession, repo: Repository, tmp_path: Path) -> None:
    """A task that cannot read a range deletes nothing, and the report says which it was."""
    at_once = CollectionOptions(grace=timedelta(0))
    main = repo.branch()
    for number in range(20):
        main.put(f"a/{number:02}", b"kept")
    main.commit("kept")
    main.upload(b"garbage")
    damaged = max((tmp_path / "lake" / "analytics.repo" / "_lakebed").rglob("ranges/*"), default=None) or max(
        path for path in (tmp_path / "lake" / "analytics.repo").rglob("*") if "range" in str(path) and path.is_file()
    )
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    report = jobs.collect_repository(spark, repo, at_once)
    assert report.deleted_count == 0
    assert "Nothing is deleted" in report.warnings[0]


def test_a_server_collects_by_itself(spark: SparkSession, served: Any) -> None:
    """Only the owner of the records may raise the boundary: the job says who to ask."""
    with pytest.raises(InvalidRequest) as caught:
        jobs.collect_repository(spark, served)
    assert caught.value.kind == "not_over_http"
