"""Pipelines that write to a branch of each table and publish by fast-forwards: steps that need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Conflict, InvalidRequest, LakebedError
from lakebed.pipeline import Pipeline, RunSummary
from lakebed.pipeline import table_branch as module
from lakebed.table.table import Table, branch_of
from lakebed.table.versions.fast_forward import FAST_FORWARDED
from lakebed.testing.faulty import Crashed

TEXT = """
name: nightly
lake: {root}/lake
table_branch: etl
vars: {{days: "1"}}
tables:
  fares:
    primary_key: [id]
    options: {{bucket: 1}}
    schema: {{id: BIGINT, note: STRING}}
steps:
  - step: ingest
    from: "{root}/${{days}}.csv"
    as: delivery
    schema: {{id: bigint, note: string}}
  - {{step: merge, name: merge trips, into: trips, from: delivery}}
  - {{step: merge, name: merge fares, into: fares, from: delivery}}
  - {{step: audit, from: delivery, every_row: {{small: id < 9}}}}
  - {{step: publish}}
  - {{step: tag, name: tag trips, table: trips, tag: "day-${{days}}"}}
  - {{step: report, to: "{root}/report.html", verify: false}}
"""
STOPS = TEXT.replace(
    "step: audit, from: delivery, every_row: {{small: id < 9}}",
    "step: ingest, name: late, from: '{root}/late.csv', as: late, schema: {{id: bigint}}",
)
"""A run that stops before the publish, without Spark, until there is a file."""
OLD = {0: "old"}
NEW = {1: "a", 2: "b"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A lake with the table trips, and the rows of two days."""
    table = lakebed.open(tmp_path / "lake").create_table(
        "trips",
        pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("note", pa.string())]),
        primary_keys=["id"],
        options={"bucket": "1"},
    )
    table.upsert(pa.table({"id": [0], "note": ["old"]}))
    (tmp_path / "1.csv").write_text("id,note\n1,a\n2,b\n")
    (tmp_path / "2.csv").write_text("id,note\n2,c\n3,d\n")
    return tmp_path


def run(root: Path, text: str = TEXT, **options: Any) -> RunSummary:
    """Run the pipeline, without Spark."""
    return Pipeline.parse(text.format(root=root)).run(**options)


def main(root: Path, name: str) -> Table:
    """The table, opened again."""
    return lakebed.open(root / "lake").table(name)


def rows(table: Table) -> dict[int, str]:
    """Its rows by their keys."""
    return {row["id"]: row["note"] for row in table.read().to_pylist()}


def latest(root: Path, name: str) -> int:
    """The newest snapshot of main."""
    return max(snapshot.id for snapshot in main(root, name).snapshots())


def publications(table: Table) -> int:
    """Snapshots of main that published a branch."""
    return sum(FAST_FORWARDED in snapshot.properties for snapshot in table.snapshots())


def test_main_changes_by_the_publish_alone(root: Path) -> None:
    """Before the publish a run changes nothing in main; the next call publishes; the next day starts at main."""
    with pytest.raises(LakebedError):
        run(root, STOPS)
    assert rows(main(root, "trips")) == OLD
    assert rows(main(root, "fares")) == {}
    assert rows(branch_of(main(root, "trips"), "etl")) == OLD | NEW
    summary = run(root)  # the edited file takes over the merges
    assert summary.steps_carried == 3
    assert rows(main(root, "trips")) == OLD | NEW
    assert rows(main(root, "fares")) == NEW
    assert main(root, "trips").branches() == main(root, "fares").branches() == []
    published = {item["table"]: item["snapshot"] for item in summary.records[4].metrics["published"]}
    assert published == {name: latest(root, name) for name in ("trips", "fares")}
    assert main(root, "trips").tag("day-1").snapshot.id == published["trips"]
    assert (run(root).steps_run, publications(main(root, "trips"))) == (0, 1)
    run(root, variables={"days": "2"})
    page = (root / "report.html").read_text()
    assert f"publish: 2 rows, snapshot {published['trips']}" in page
    assert "publications of branches" in page
    assert rows(main(root, "trips")) == OLD | NEW | {2: "c", 3: "d"}
    assert rows(main(root, "trips").at("day-1")) == OLD | NEW
    assert "day-2" in (root / "report.html").read_text()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("dies_in", ["commit", "delete"])
def test_a_publish_that_dies_continues_with_the_next_table(
    root: Path, monkeypatch: pytest.MonkeyPatch, dies_in: str, call: int, after: bool
) -> None:
    """Killed before or after each fast-forward and each deletion: each table is published once, and the report says."""
    calls = 0

    def dying(real: Any) -> Any:
        def one(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += not named.get("dry_run")
            if calls != call or named.get("dry_run"):
                return real(*arguments, **named)
            if after:
                real(*arguments, **named)
            raise Crashed("killed")

        return one

    with monkeypatch.context() as patch:
        if dies_in == "commit":
            patch.setattr(module, "fast_forward", dying(module.fast_forward))
        else:
            patch.setattr(Table, "delete_branch", dying(Table.delete_branch))
        with pytest.raises(Crashed):
            run(root)
    record = next(item for item in run(root).records if item.verb == "publish")
    page = (root / "report.html").read_text()
    assert all(f"publish: 2 rows, snapshot {item['snapshot']}" in page for item in record.metrics["published"])
    done_before = [item["table"] for item in record.metrics["published"] if item["earlier"]]
    assert done_before == ["trips", "fares"][: call if after or dies_in == "delete" else call - 1]
    assert rows(main(root, "trips")) == OLD | NEW
    assert rows(main(root, "fares")) == NEW
    for name in ("trips", "fares"):
        assert publications(main(root, name)) == 1
        assert main(root, name).branches() == []


def test_a_table_that_moved_stops_the_publish(root: Path) -> None:
    """Nothing is published when main of any table has moved; dropping the branches and a replay publish all."""
    with pytest.raises(LakebedError):
        run(root, STOPS)
    (root / "late.csv").write_text("id\n1\n")
    main(root, "fares").upsert(pa.table({"id": [7], "note": ["other"]}))
    sentence = r"line \d+: main of 'fares' has moved .* Nothing was published.* --replay .* --run-id"
    with pytest.raises(Conflict, match=sentence) as refused:
        run(root, STOPS)
    assert refused.value.kind == "not_fast_forward"
    assert (rows(main(root, "trips")), rows(main(root, "fares"))) == (OLD, {7: "other"})
    for name in ("trips", "fares"):
        main(root, name).delete_branch("etl")
    with pytest.raises(Conflict, match=r"rows are gone.* --replay .* --run-id") as gone:
        run(root, STOPS)
    assert gone.value.kind == "branch_gone"
    run(root, STOPS, replay=["merge *"])
    assert (rows(main(root, "trips")), rows(main(root, "fares"))) == (OLD | NEW, NEW | {7: "other"})


def test_a_dry_run_publishes_nothing(root: Path) -> None:
    """Its record has the tables that would be published; without it the same rows are."""
    dry = TEXT[: TEXT.index("  - {{step: tag")].replace("step: publish", "step: publish, dry_run: true")
    metrics = run(root, dry).records[-1].metrics
    assert (metrics["planned"], metrics["published"]) == (["trips", "fares"], [])
    assert (rows(main(root, "trips")), rows(main(root, "fares"))) == (OLD, {})
    run(root)
    assert (rows(main(root, "trips")), rows(main(root, "fares"))) == (OLD | NEW, NEW)


def test_only_the_rows_of_the_run_are_published(root: Path) -> None:
    """Another run does not write on top of unpublished rows; a commit of another writer stops the publish."""
    with pytest.raises(LakebedError):
        run(root, STOPS)
    with pytest.raises(Conflict) as taken:
        run(root, variables={"days": "2"})
    assert taken.value.kind == "branch_taken"
    branch_of(main(root, "trips"), "etl").upsert(pa.table({"id": [7], "note": ["other"]}))
    with pytest.raises(Conflict) as written:
        run(root)
    assert written.value.kind == "branch_written"
    assert (rows(main(root, "trips")), rows(main(root, "fares"))) == (OLD, {})


def test_an_edit_publishes_what_is_new(root: Path) -> None:
    """Finished merges that were published are not asked for again; the table that an edit adds is published."""
    first = TEXT.replace("  - {{step: merge, name: merge fares, into: fares, from: delivery}}\n", "")
    run(root, first)
    run(root, carry=["tag *"])
    assert (rows(main(root, "trips")), rows(main(root, "fares"))) == (OLD | NEW, NEW)
    assert (publications(main(root, "trips")), publications(main(root, "fares"))) == (1, 1)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (TEXT.replace("table_branch: etl", "table_branch: etl\nbranch: analytics/etl"), "both `branch` and"),
        (TEXT.replace("table_branch: etl", "table_branch: [a]"), "`table_branch` must be one value"),
        (TEXT.replace("table_branch: etl", "table_branch: main"), "`table_branch`: 'main' is the name"),
        (TEXT.replace("table_branch: etl", "table_branch: a/b"), "`table_branch`: "),
        (TEXT.replace("table_branch: etl\n", ""), "`table_branch: dev`"),
        (TEXT.replace("step: publish", "step: publish, into: dev"), "'into' of step 'publish' is for a pipeline with"),
        (TEXT.replace("  - {{step: publish}}\n", ""), "put the step 'tag' after the step 'publish'"),
    ],
    ids=["both", "no text", "main", "no name", "no branch", "into", "tag before"],
)
def test_mistakes_have_their_line(root: Path, wrong: str, said: str) -> None:
    """Both kinds of branch, a name that cannot be, a publish without a branch: one sentence, and nothing runs."""
    with pytest.raises(InvalidRequest, match=r"line \d+") as refused:
        run(root, wrong)
    assert said in refused.value.message
    assert main(root, "trips").branches() == []


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of these steps may start a session."""
    monkeypatch.setattr("lakebed.pipeline.execute._spark_starter", lambda spark, progress: lambda: pytest.fail("Spark"))
