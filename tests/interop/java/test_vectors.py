"""Deletion vectors, written by Java and lakebed by turns. A dictionary is the judge."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed import Lake
from lakebed.errors import InvalidRequest
from lakebed.table.table import Table

if TYPE_CHECKING:
    from conftest import Java

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
VECTORS = {"deletion-vectors.enabled": "true"}
Model = dict[int, int]


def rows(numbers: list[int], v: int) -> pa.Table:
    """Rows of one value."""
    return pa.table({"id": numbers, "v": [v] * len(numbers)}, SCHEMA)


def as_model(found: pa.Table) -> Model:
    """Rows by id, each once."""
    model = dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))
    assert len(model) == found.num_rows
    return model


def positions_of(table: Table, ids: set[int]) -> dict[str, list[int]]:
    """Where the rows of some ids are, deleted ones included: row numbers by name of the data file."""
    result: dict[str, list[int]] = {}
    for split in table.scan().splits():
        for file in split.files:
            body = bytes(table.store.get(f"{split.folder}/{file.file_name}"))
            stored = pq.read_table(pa.BufferReader(body))["id"].to_pylist()
            positions = [at for at, number in enumerate(stored) if number in ids]
            if positions:
                result[file.file_name] = positions
    return result


@pytest.mark.parametrize(
    ("maker", "options"),
    [
        ("java", {}),
        ("lakebed", {"bucket": "2", "bucket-key": "id"}),
        pytest.param("lakebed", {}, marks=pytest.mark.long),
        pytest.param("java", {"bucket": "2", "bucket-key": "id"}, marks=pytest.mark.long),
    ],
)
def test_alternation(java: Java, lake: Lake, maker: str, options: dict[str, str]) -> None:
    """Appends, deletes, compactions, overwrites, tags, rollback and expiry by turns; both read the same."""
    if maker == "java":
        java.create("default.t", SCHEMA, options={**VECTORS, **options, "target-file-size": "8 kb"})
    else:
        lake.create_table("t", SCHEMA, options={**VECTORS, **options, "target-file-size": "8 kb"})
    table = lake.table("t")
    chance = random.Random(f"{maker} {options}")
    model: Model = {}
    tagged: Model = {}
    for step in range(14):
        java_turn = (step % 2 == 0) == (maker == "java")
        if step % 3 != 1:
            numbers = [step * 1000 + n for n in range(60)]
            java.write("default.t", rows(numbers, step)) if java_turn else table.append(rows(numbers, step))
            model |= dict.fromkeys(numbers, step)
        elif step == 10:
            java.write("default.t", rows([1], 1), overwrite={}) if java_turn else table.overwrite(rows([1], 1))
            model = {1: 1}
        else:
            gone = set(chance.sample(sorted(model), min(30, len(model))))
            if java_turn:
                java.call("mark", "default.t", positions=positions_of(table, gone))
            else:
                table.delete(f"id in ({', '.join(map(str, sorted(gone)))})")
            model = {number: v for number, v in model.items() if number not in gone}
        if step == 4:
            table.create_tag("four")
            tagged = dict(model)
        if step in (5, 11):
            java.call("compact") if java_turn else table.compact(full=True)
        if step == 8:
            java.call("rollback", tag="four") if java_turn else table.rollback_to("four")
            model = dict(tagged)
        if step in (6, 12):
            java.call("expire_snapshots") if java_turn else table.expire(retain_max=1, older_than_ms=2**50)
            java.call("remove_orphans")
            table.collect(grace_ms=0)
        assert as_model(table.read()) == model, step
        assert table.scan().count() == len(model), step
        assert as_model(java.read("default.t")) == model, step
    assert as_model(java.read("default.t", options={"scan.tag-name": "four"})) == tagged
    assert as_model(table.read(tag="four")) == tagged


def test_vectors_of_64_bits(java: Java, lake: Lake) -> None:
    """Java's wide vectors are read; lakebed refuses to write narrow ones, and a compaction ends them."""
    java.create("default.t", SCHEMA, options={**VECTORS, "deletion-vectors.bitmap64": "true"})
    java.write("default.t", rows(list(range(100)), 1))
    java.write("default.t", rows([200, 201], 1))
    table = lake.table("t")
    java.call("mark", "default.t", positions=positions_of(table, {3, 4, 5}))
    expected = dict.fromkeys([*range(3), *range(6, 100), 200, 201], 1)
    assert as_model(table.read()) == expected == as_model(java.read("default.t"))
    with pytest.raises(InvalidRequest, match="bitmap64"):
        table.delete("id = 7")
    table.compact(full=True)
    assert table.latest().index_manifest is None  # type: ignore[union-attr]
    assert as_model(table.read()) == expected == as_model(java.read("default.t"))


def test_rows_that_no_compaction_has_seen(java: Java, lake: Lake) -> None:
    """They are left out as Java does, or merged where the table's option says so."""
    for name, merges in (("t", "false"), ("u", "true")):
        options = {**VECTORS, "bucket": "1", "deletion-vectors.merge-on-read": merges, "write-only": "true"}
        java.create(f"default.{name}", SCHEMA, primary_keys=["id"], options=options)
        java.write(f"default.{name}", rows([1, 2], 1))
    assert as_model(lake.table("t").read()) == {} == as_model(java.read("default.t"))
    assert as_model(lake.table("u").read()) == {1: 1, 2: 1}


@pytest.mark.parametrize("options", [{"bucket": "2"}, {"bucket": "-1"}], ids=["fixed", "dynamic"])
def test_tables_with_a_primary_key(java: Java, lake: Lake, options: dict[str, str]) -> None:
    """Java writes and compacts; lakebed reads the same rows at every step, and counts them."""
    java.create("default.t", SCHEMA, primary_keys=["id"], options={**VECTORS, **options})
    table = lake.table("t")
    chance = random.Random(4)
    versions: dict[int, Model] = {}
    for step in range(5):
        numbers = sorted(chance.sample(range(200), 60))
        kind = "-D" if step == 3 else "+I"
        java.write("default.t", rows(numbers, step), kind=kind, wait_compaction=step % 3 != 1)
        result = as_model(java.read("default.t"))
        assert as_model(table.read()) == result, step
        assert table.scan().count() == len(result)
        assert as_model(table.read(where="v >= 2")) == {key: v for key, v in result.items() if v >= 2}
        assert as_model(table.read(where="id < 50")) == {key: v for key, v in result.items() if key < 50}
        versions[table.latest().id] = result  # type: ignore[union-attr]
    assert any(split.vectors for split in table.scan().splits())
    for version, result in versions.items():
        assert as_model(table.read(version=version)) == result
    newest: Any = table.latest()
    compared = table.diff(min(versions))
    assert set(compared.added["id"].to_pylist()) == set(versions[newest.id]) - set(versions[min(versions)])
    before = as_model(table.read())
    table.create_tag("kept", snapshot_id=min(versions))
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    assert as_model(table.read()) == before == as_model(java.read("default.t"))
    assert as_model(table.read(tag="kept")) == versions[min(versions)]
    table.rollback_to("kept")
    assert as_model(table.read()) == versions[min(versions)] == as_model(java.read("default.t"))


@pytest.mark.parametrize(
    ("maker", "options"),
    [
        ("lakebed", {"bucket": "2"}),
        ("java", {"bucket": "-1"}),
        pytest.param("java", {"bucket": "1", "sequence.field": "v"}, marks=pytest.mark.long),
        pytest.param("lakebed", {"bucket": "-1"}, marks=pytest.mark.long),
        pytest.param("lakebed", {"bucket": "1", "merge-engine": "partial-update"}, marks=pytest.mark.long),
    ],
)
def test_alternation_of_compactions(java: Java, lake: Lake, maker: str, options: dict[str, str]) -> None:
    """Upserts, deletes and compactions that look rows up, by turns; a row is visible after the next compaction."""
    options = {**VECTORS, "target-file-size": "8 kb", **options}
    if maker == "java":
        java.create("default.t", SCHEMA, primary_keys=["id"], options=options)
    else:
        lake.create_table("t", SCHEMA, primary_keys=["id"], options=options)
    table = lake.table("t")
    takes_deletes = "merge-engine" not in options
    chance = random.Random(f"{maker} {options}")
    written: Model = {}
    visible: Model = {}
    tagged: Model = {}
    marks = 0
    for step in range(12):
        numbers = sorted(chance.sample(range(3000), 1500 if step == 0 else 40))
        java_turn = (step % 2 == 0) == (maker == "java")
        deletes = takes_deletes and step % 4 == 3
        if java_turn:
            java.write("default.t", rows(numbers, step), kind="-D" if deletes else "+I", wait_compaction=True)
        elif deletes:
            table.delete(keys=rows(numbers, step))
        else:
            table.upsert(rows(numbers, step))
        written = {key: v for key, v in written.items() if key not in numbers}
        written |= {} if deletes else dict.fromkeys(numbers, step)
        if not java_turn and step % 5 != 1:
            table.compact(full=step == 9)
        if java_turn or step % 5 != 1:
            visible = dict(written)
        if step == 5:
            table.create_tag("five")
            tagged = dict(visible)
        assert as_model(table.read()) == visible, step
        assert table.scan().count() == len(visible)
        assert as_model(java.read("default.t")) == visible, step
        marks += any(split.vectors for split in table.scan().splits())
        assert not any(split.needs_merge for split in table.scan().splits()) or "sequence.field" in options
    assert marks > 3
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**50)
    java.call("remove_orphans")
    assert as_model(java.read("default.t")) == visible == as_model(table.read())
    assert as_model(java.read("default.t", options={"scan.tag-name": "five"})) == tagged
    assert as_model(table.read(tag="five")) == tagged
