"""What a check of a pipeline finds before anything runs: tables, columns and input files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.errors import InvalidRequest
from lakebed.lake.lake import open_lake
from lakebed.pipeline import check_file, run_file

TEXT = """\
name: checked
lake: ${here}/lake
tables:
  sales:
    primary_key: [id]
    schema: {id: BIGINT, amount: INT, at: TIMESTAMP(3)}
steps:
  - step: ingest
    from: ${here}/in*.csv
    as: delivery
    schema: {id: bigint, amount: int, at: timestamp, gone: boolean}
  - step: merge
    into: sales
    from: delivery
    deletes: gone
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A pipeline and its input."""
    (tmp_path / "in1.csv").write_text("id,amount,at,gone\n")
    (tmp_path / "checked.yaml").write_text(TEXT)
    return tmp_path / "checked.yaml"


def test_a_good_pipeline_passes_and_nothing_is_made(file: Path) -> None:
    """Spark's timestamp may go into a TIMESTAMP(3)."""
    report = check_file(file)
    assert (len(report.plan.steps), report.sql_unchecked) == (2, None)
    assert sorted(path.name for path in file.parent.iterdir()) == ["checked.yaml", "in1.csv"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("into: sales", "into: sails", "line 12: there is no table 'sails' in the lake, and `tables` declares none."),
        ("from: delivery", "from: deliverys", "line 12: there is neither a table nor a view 'deliverys'"),
        ("in*.csv", "out*.csv", "line 8: there is no file '"),
        ("in*.csv", "in1.cs*", "line 8: step 'ingest': the name '"),
        ("primary_key: [id]", "comment: no key", "line 12: 'sales' has no primary key, so rows cannot be merged"),
        ("deletes: gone", "version: 3", "line 12: 'delivery' is a view, which has no versions: leave `version`"),
        ("deletes: gone", "deletes: gonee", "line 12: the rows have no column 'gonee', which `deletes` names."),
        (
            "schema: {id: bigint, ",
            "schema: {ident: bigint, ",
            "line 12: the rows have no column 'id', which is a key of",
        ),
        ("{id: bigint, amount:", "{id: bigint, amuont:", "line 12: the table 'sales' has no column 'amuont'"),
        ("amount: int,", "amount: string,", "line 12: column 'amount' of the table 'sales' is INT, and the rows have"),
        (
            "at: timestamp,",
            "at: date,",
            "line 12: column 'at' of the table 'sales' is TIMESTAMP(3), and the rows have",
        ),
    ],
)
def test_a_mistake_is_found_with_its_line(file: Path, old: str, new: str, words: str) -> None:
    """Before Spark, and before the lake is made."""
    assert TEXT.count(old) == 1
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(InvalidRequest) as caught:
        check_file(file)
    assert words in caught.value.message
    assert not (file.parent / "lake").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("in*.csv", "in1.cs*", "' has no known ending: add `format: csv`, `json` or `parquet`."),
        ("deletes: gone", "version: 3", "'delivery' is a view, which has no versions"),
        ("into: sales", "into: sails", "there is no table 'sails' in the lake, and `tables` declares none."),
    ],
)
def test_a_mistake_in_the_text_leaves_no_lake_behind(file: Path, old: str, new: str, words: str) -> None:
    """A run finds it before it makes the lake or records a run."""
    file.write_text(TEXT.replace(old, new))
    with pytest.raises(InvalidRequest) as caught:
        run_file(file)
    assert words in caught.value.message
    assert not (file.parent / "lake").exists()


def test_every_missing_file_is_counted(file: Path) -> None:
    """One sentence, not one error after the other."""
    days = (
        '  - for_each: {n: {from: 1, to: 5}}\n    steps:\n      - {step: ingest, from: "${here}/in${n}.csv", as: a}\n'
    )
    file.write_text(TEXT.replace("steps:\n", "steps:\n" + days))
    with pytest.raises(InvalidRequest, match=r"in2\.csv' .* 3 more are missing\."):
        check_file(file)


def test_a_table_of_the_lake_is_known(file: Path) -> None:
    """Its own columns count, whatever the file declares."""
    lake = open_lake(str(file.parent / "lake"))
    lake.create_table("sales", pa.schema([pa.field("number", pa.int64(), nullable=False)]), primary_keys=["number"])
    with pytest.raises(InvalidRequest, match="no column 'number', which is a key of 'sales'"):
        check_file(file)
    file.write_text(TEXT[: TEXT.index("tables:")] + "steps:\n  - {step: tag, table: sales, tag: now}\n")
    check_file(file)
