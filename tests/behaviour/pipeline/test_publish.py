"""Pipelines that work inside a repository branch and publish by a merge: steps that need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
import lakebed.repo
from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound
from lakebed.lake.lake import Lake
from lakebed.pipeline import Pipeline, status, write_report
from lakebed.repo import Repository, RepositoryOptions
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.testing.faulty import Crashed

TEXT = """
name: nightly
lake: {lake}
branch: analytics/etl
steps:
  - step: tag
    name: tag trips
    table: trips
    tag: monday
  - step: tag
    name: tag fares
    table: fares
    tag: monday
  - step: publish
    message: Monday
"""
ROWS = pa.table({"id": [1, 2], "note": ["a", "b"]})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with a repository whose branch etl has two tables that main has not."""
    folder = tmp_path / "lake"
    lakebed.open(folder)
    with opened(folder, create=True) as repo:
        inside = Lake.open(repo.create_branch("etl").store("lake"))
        for name in ("trips", "fares"):
            inside.create_table(name, ROWS.schema, primary_keys=["id"]).upsert(ROWS)
    return folder


def opened(folder: Path, *, create: bool = False) -> Repository:
    """The repository of the lake; to be closed."""
    options = RepositoryOptions(background=False)
    return lakebed.open(folder).repository("analytics", create=create, options=options)


def run(folder: Path | str, text: str = TEXT) -> Any:
    """Run the pipeline, without Spark."""
    return Pipeline.parse(text.format(lake=folder)).run()


def tags_on(repo: Any, ref: str) -> dict[str, list[str]]:
    """Every table of a branch with its tags."""
    inside = Lake(repo.ref(ref).store("lake"), environment=lakebed.open("memory://any").environment)
    return {name: [tag.name for tag in inside.table(name).tags()] for name in inside.tables()}


def test_several_tables_appear_by_one_merge(lake: Path) -> None:
    """Before the publish main has no table, after it both with their tags; the commit names the run and the step."""
    with opened(lake) as repo:
        assert tags_on(repo, "main") == {}
    summary = run(lake)
    with opened(lake) as repo:
        assert tags_on(repo, "main") == {"fares": ["monday"], "trips": ["monday"]}
        metrics = summary.records[-1].metrics
        head = repo.branch("main").head()
        assert (metrics["into"], metrics["merge"], head.commit.message) == ("main", head.id, "Monday")
        assert head.commit.metadata["run"] == summary.run_id
        assert head.commit.metadata["step"] == "3"
    assert [difference.state for difference in status(str(lake), branch="analytics/etl")] == ["complete"]
    report = write_report(str(lake), branch="analytics/etl", path=lake.parent / "report.html")
    assert "monday" in Path(report.html).read_text()
    assert (run(lake).steps_run, run(lake).steps_skipped) == (0, 3)


def test_nothing_is_published_before_its_step(lake: Path) -> None:
    """A step that fails before the publish leaves main as it was; the run goes on where it stopped."""
    failing = TEXT.replace("table: fares", "table: missing")
    with pytest.raises(LakebedError):
        run(lake, failing)
    with opened(lake) as repo:
        assert tags_on(repo, "main") == {}
        assert repo.branch("main").head().commit.parents == ()
    run(lake)
    with opened(lake) as repo:
        assert set(tags_on(repo, "main")) == {"fares", "trips"}


@pytest.mark.parametrize("dies_in", ["commit", "merge"])
@pytest.mark.parametrize("after", [False, True])
def test_a_publish_that_dies_is_made_again(
    lake: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str, after: bool
) -> None:
    """Killed before or after the commit, before or after the merge: the next call publishes, and once is enough."""
    from lakebed.repo.branch import Branch

    real = getattr(Branch, dies_in)

    def dies(self: Branch, *arguments: Any, **named: Any) -> Any:
        if after:
            real(self, *arguments, **named)
        raise Crashed("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Branch, dies_in, dies)
        with pytest.raises(Crashed):
            run(lake)
    assert run(lake).steps_run == 1
    with opened(lake) as repo:
        assert tags_on(repo, "main") == {"fares": ["monday"], "trips": ["monday"]}


def test_an_edit_publishes_again(lake: Path) -> None:
    """A publish that was finished is made again when a step before it was not: nothing stays behind in the branch."""
    run(lake)
    edited = TEXT.replace(
        "  - step: publish", "  - {{step: tag, name: more, table: trips, tag: more}}\n  - step: publish"
    )
    assert run(lake, edited).steps_run == 2
    with opened(lake) as repo:
        assert tags_on(repo, "main") == {"fares": ["monday"], "trips": ["monday", "more"]}


def test_a_reset_takes_back_the_records_with_the_data(lake: Path) -> None:
    """After a reset of the branch its steps run again, for the ledger lies in the branch."""
    with opened(lake) as repo:
        repo.branch("etl").commit("two tables")
    fails = TEXT.replace("message: Monday", "into: production")
    with pytest.raises(NotFound):
        run(lake, fails)
    with opened(lake) as repo:
        assert tags_on(repo, "etl")["trips"] == ["monday"]
        repo.branch("etl").reset()
        repo.create_branch("production")
    assert run(lake, fails).steps_skipped == 0
    with opened(lake) as repo:
        assert tags_on(repo, "production") == {"fares": ["monday"], "trips": ["monday"]}


def test_both_sides_changed_a_table(lake: Path) -> None:
    """A table that main has changed too is a conflict that names it, and main keeps what it has."""
    run(lake)
    with opened(lake) as repo:
        for branch in ("main", "etl"):
            Lake.open(repo.branch(branch).store("lake")).table("trips").upsert(pa.table({"id": [9], "note": [branch]}))
        repo.branch("main").commit("changed here")
    with pytest.raises(Conflict) as refused:
        run(lake, TEXT.replace("monday", "tuesday").replace("nightly", "weekly"))
    assert "lake/default.db/trips/" in refused.value.message
    with opened(lake) as repo:
        assert tags_on(repo, "main")["fares"] == ["monday"]


def test_a_pipeline_behind_a_server(tmp_path: Path) -> None:
    """With a server's URL as the lake the same steps go through the server."""
    options = RepositoryOptions(background=False)
    with start_server(tmp_path / "served", options=ServerOptions(durable=False, repository_options=options)) as running:
        messages = running.started
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LAKEBED_ACCESS_KEY_ID", messages.access_key)
            patch.setenv("LAKEBED_SECRET_ACCESS_KEY", messages.secret)
            remote: Any = lakebed.repo.open(f"{messages.endpoint}/analytics")
            with remote:
                inside = Lake.open(remote.create_branch("etl").store("lake"))
                for name in ("trips", "fares"):
                    inside.create_table(name, ROWS.schema, primary_keys=["id"]).upsert(ROWS)
                run(messages.endpoint)
                assert tags_on(remote, "main") == {"fares": ["monday"], "trips": ["monday"]}
            with pytest.raises(InvalidRequest) as refused:
                run(
                    messages.endpoint,
                    TEXT.replace("branch: analytics/etl", "").replace("  - step: publish\n    message: Monday\n", ""),
                )
            assert refused.value.kind == "no_branch"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (TEXT.replace("branch: analytics/etl", "branch: etl"), "does not name a branch of a repository"),
        (TEXT.replace("branch: analytics/etl", "branch: [a]"), "`branch` must be one value"),
        (TEXT.replace("branch: analytics/etl\n", ""), "branch: analytics/dev"),
        (TEXT.replace("message: Monday", "into: etl"), "works in 'etl' already"),
    ],
    ids=["no repository", "no text", "no branch", "into itself"],
)
def test_mistakes_have_their_line(lake: Path, wrong: str, said: str) -> None:
    """A branch that cannot be, a publish without one, a publish into itself: one sentence with the line."""
    with pytest.raises(InvalidRequest, match=r"line \d+") as refused:
        run(lake, wrong)
    assert said in refused.value.message


def test_what_is_missing_is_said(lake: Path) -> None:
    """A repository is never made; a branch to publish into must be there before anything is committed."""
    with pytest.raises(NotFound):
        run(lake, TEXT.replace("analytics/", "analitics/"))
    with pytest.raises(NotFound) as gone:
        run(lake, TEXT.replace("message: Monday", "into: production"))
    assert gone.value.kind == "reference_not_found"
    with opened(lake) as repo:
        assert repo.branch("etl").head().commit.parents == ()
    with pytest.raises(NotFound):
        status(str(lake), branch="analytics/never")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these steps may start a session."""
    monkeypatch.setattr("lakebed.pipeline.execute._spark_starter", lambda spark, progress: lambda: pytest.fail("Spark"))


@pytest.mark.parametrize("name", ["report.json", "/"])
def test_a_page_has_a_name_of_its_own(lake: Path, name: str) -> None:
    """A report whose page and JSON file would be one file, or have no name, is refused."""
    with pytest.raises(InvalidRequest, match=r"ends with \.html"):
        write_report(str(lake), branch="analytics/etl", path=lake.parent / name)
