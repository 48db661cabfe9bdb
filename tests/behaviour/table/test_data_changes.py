"""What changed between versions: written rows, and row-level differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakebed.errors import InvalidRequest
from lakebed.objects.open import open_store
from lakebed.table.changes.incremental import diff_scans
from lakebed.table.schema.schema import drop_not_null
from lakebed.table.table import Table
from lakebed.testing import seed_count

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


def make(name: str, *, keyed: bool = True) -> Table:
    keys = ["id"] if keyed else []
    return Table.create(
        open_store(f"memory://{name}"),
        name="t",
        schema=SCHEMA,
        primary_keys=keys,
        options={"bucket": "2"} if keyed else {},
    )


def rows(ids: Any, *, v: float | None = 0.0) -> pa.Table:
    ids = list(ids)
    values = pa.array([v] * len(ids), pa.float64())
    return pa.table({"id": pa.array(ids, pa.int64()), "v": values, "s": pa.array([f"s{i}" for i in ids], pa.string())})


def test_changes_are_the_last_row_of_each_key_written() -> None:
    """Every key written in between comes once, as it is at the end, deletes marked; compactions are silent."""
    table = make("changes-keyed")
    table.upsert(rows(range(10), v=1))
    table.upsert(rows([1, 2], v=2))
    table.compact(full=True)
    table.upsert(rows([2, 50], v=3))
    table.delete(keys=pa.table({"id": [3]}))
    got = table.changes(1).sort_by("id").to_pylist()
    assert [(row["id"], row["v"], row["_row_kind"]) for row in got] == [
        (1, 2.0, "+I"),
        (2, 3.0, "+I"),
        (3, None, "-D"),
        (50, 3.0, "+I"),
    ]
    assert table.changes(2, 3).num_rows == 0
    assert table.changes(None, 1).num_rows == 10


def test_changes_of_a_bucket_that_was_emptied_are_the_newest() -> None:
    """Its rows are numbered from 0 again, and yet they are newer than those that were deleted before."""
    table = make("changes-emptied")
    table.upsert(rows(range(10), v=1))
    table.delete(keys=pa.table({"id": list(range(10))}))
    table.compact(full=True)
    table.upsert(rows([3], v=2))
    got = table.changes(None).sort_by("id").to_pylist()
    assert [(row["id"], row["v"]) for row in got if row["_row_kind"] == "+I"] == [(3, 2.0)]
    assert len(got) == 10


def test_changes_of_an_append_table_are_its_rows() -> None:
    """Append tables give the rows appended in between, with no row kind."""
    table = make("changes-append", keyed=False)
    for v in range(3):
        table.append(rows([v, v], v=v))
    got = table.changes(1)
    assert got.column_names == SCHEMA.names
    assert sorted(got["id"].to_pylist()) == [1, 1, 2, 2]
    with pytest.raises(InvalidRequest, match="newer"):
        table.changes(3, 1)


def test_a_column_with_the_name_of_the_kinds_is_said() -> None:
    """A copy of another table's changes may have a column of this name; its own changes need another one."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("_row_kind", pa.string())])
    table = Table.create(open_store("memory://named-kind"), name="t", schema=schema, primary_keys=["id"])
    table.upsert(pa.table({"id": [1], "_row_kind": ["x"]}))
    with pytest.raises(InvalidRequest, match="rename the column"):
        table.changes(None)
    table.rename_column("_row_kind", "kind")
    table.upsert(pa.table({"id": [1], "kind": ["x"]}))
    assert table.changes(None).to_pylist() == [{"id": 1, "kind": "x", "_row_kind": "+I"}]


def test_a_difference_to_an_older_version_has_the_nulls_of_the_later_one() -> None:
    """The older version's column is NOT NULL, and may be null since: both directions have the same rows."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    table = Table.create(open_store("memory://diff-nulls"), name="t", schema=schema)
    table.append(pa.table({"id": [1], "v": ["a"]}).cast(schema))
    table.context.schemas.store_next(drop_not_null(table.schema, "v"))
    table.append(pa.table({"id": [2], "v": pa.array([None], pa.string())}))
    back = table.diff(2, 1)
    assert back.removed.to_pylist() == table.diff(1, 2).added.to_pylist() == [{"id": 2, "v": None}]
    assert (back.counts, table.read(version=1).schema.field("v").nullable) == (
        {"added": 0, "removed": 1, "changed": 0},
        False,
    )


@pytest.mark.parametrize("keyed", [True, False])
def test_nulls_in_a_column_that_another_client_made_not_null_are_one_sentence(keyed: bool) -> None:
    """Whatever reads the rows says which column it is, and what to do; what reads older versions or others goes on."""
    table = make(f"not-null-{keyed}", keyed=keyed)
    for number in (1, 2):
        table.write(rows([number], v=None))
    fields = tuple(replace(field, nullable=field.name != "v") for field in table.schema.fields)
    table.context.schemas.store_next(replace(table.schema, id=1, fields=fields))
    table = Table.open(table.store, name="t")
    reads: dict[str, Callable[[], object]] = {
        "all": table.read,
        "first": lambda: table.read(limit=1),
        "update": lambda: table.update("id = 1", {"s": "x"}),
    }
    if not keyed:  # there files are put together through Arrow
        reads["compact"] = lambda: table.compact(full=True)
    for name, read in reads.items():
        with pytest.raises(
            InvalidRequest, match=r"'v' is NOT NULL, but null in .* ALTER COLUMN v DROP NOT NULL"
        ) as raised:
            read()
        assert raised.value.kind == "null_value", name
    assert sorted(table.read(columns=["s"])["s"].to_pylist()) == ["s1", "s2"]
    assert table.read(version=2).num_rows == 2
    table.context.schemas.store_next(drop_not_null(table.refresh(), "v"))
    assert table.read().num_rows == 2


def test_a_difference_names_rows_added_removed_and_changed() -> None:
    """After any changes in between, the difference is that of the two states; changed rows come in pairs."""
    table = make("diff-keyed")
    table.upsert(rows(range(5), v=1))
    table.create_tag("then")
    table.upsert(rows([4], v=None))
    table.upsert(rows([0], v=7))
    table.upsert(rows([0, 9], v=1))
    table.delete(keys=pa.table({"id": [2]}))
    table.compact(full=True)
    difference = table.diff("then")
    assert difference.counts == {"added": 1, "removed": 1, "changed": 1}
    assert difference.added["id"].to_pylist() == [9]
    assert difference.removed["id"].to_pylist() == [2]
    assert (difference.before["v"].to_pylist(), difference.after["v"].to_pylist()) == ([1.0], [None])
    assert difference.keys == ("id",)
    assert table.diff("then", "then").is_empty


def test_unchanged_files_are_not_read_for_a_difference() -> None:
    """Only what the versions do not share is read."""
    table = make("diff-cost", keyed=False)
    table.append(rows(range(50_000)))
    table.append(rows([1]))
    with table.store.count() as requests:
        assert table.diff(1, 2).counts["added"] == 1
    assert requests.bytes_read < 20_000


def test_rows_without_a_key_differ_as_a_multiset() -> None:
    """Without a key a row is added as often as the newer version has more of it; rewritten files are no change."""
    table = make("diff-rows", keyed=False)
    table.append(rows([1, 1, 2]))
    table.append(rows([3]))
    table.delete("id = 2")
    table.append(rows([1, 5]))
    table.compact(full=True)
    difference = table.diff(1, None)
    assert sorted(difference.added["id"].to_pylist()) == [1, 3, 5]
    assert difference.removed["id"].to_pylist() == [2]
    assert difference.counts["changed"] == 0
    with pytest.raises(InvalidRequest, match="not unique"):
        table.diff(1, None, keys=["id"])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("upsert"), st.lists(st.integers(0, 12), max_size=6), st.integers(0, 3)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 12), max_size=4), st.just(0)),
        st.tuples(st.just("compact"), st.just([]), st.integers(0, 1)),
        st.tuples(st.just("overwrite"), st.lists(st.integers(0, 12), max_size=4), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=seed_count(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 2**32))
def test_any_history_equals_a_dictionary(steps: list[tuple[str, list[int], int]], seed: int) -> None:
    """After any upserts, deletes, overwrites and compactions every version reads and differs as the model says."""
    table = make(f"model-{seed}-{len(steps)}-{np.random.default_rng(abs(hash(str(steps)))).integers(2**62)}")
    state: dict[int, float] = {}
    versions: dict[int, dict[int, float]] = {}
    for verb, ids, v in steps:
        if verb == "upsert":
            table.upsert(rows(ids, v=v))
            state |= dict.fromkeys(ids, float(v))
        elif verb == "delete":
            table.delete(keys=pa.table({"id": pa.array(ids, pa.int64())}))
            state = {key: value for key, value in state.items() if key not in ids}
        elif verb == "compact":
            table.compact(full=bool(v))
        else:
            table.overwrite(rows(ids, v=v))
            state = dict.fromkeys(ids, float(v))
        newest = table.latest()
        if newest is not None:
            versions[newest.id] = dict(state)
    for version, expected in versions.items():
        scan = table.scan(version=version)
        got = scan.to_arrow()
        assert dict(zip(got["id"].to_pylist(), got["v"].to_pylist(), strict=True)) == expected
        assert scan.count() == len(expected) == got.num_rows
    if versions:
        first, last = versions[min(versions)], versions[max(versions)]
        difference = table.diff(min(versions), max(versions))
        assert Counter(difference.added["id"].to_pylist()) == Counter(last.keys() - first.keys())
        assert Counter(difference.removed["id"].to_pylist()) == Counter(first.keys() - last.keys())
        assert set(difference.after["id"].to_pylist()) == {k for k in first.keys() & last.keys() if first[k] != last[k]}


def test_windows_find_the_same_difference() -> None:
    """Buckets too large to compare at once are compared in key order, window by window, with the same result."""
    table = make("diff-windows")
    rng = np.random.default_rng(5)
    table.upsert(rows(range(0, 300_000, 2)))
    for v in (1, 2):
        table.upsert(rows(rng.choice(300_000, 40_000, replace=False), v=v))
    table.delete(keys=pa.table({"id": rng.choice(300_000, 20_000, replace=False)}))
    table.upsert(rows(range(400_000, 400_010)))
    ends = {"start": table.scan(version=1), "end": table.scan(version=5)}
    at_once = diff_scans(table.store, **ends)
    windowed = diff_scans(table.store, **ends, at_once_bytes_max=0)
    assert at_once.counts == windowed.counts
    assert all(count > 0 for count in at_once.counts.values())
    for name in ("added", "removed", "before", "after"):
        assert getattr(windowed, name).sort_by("id").equals(getattr(at_once, name).sort_by("id"))
    assert windowed.before["id"].equals(windowed.after["id"])


def test_windows_compare_whole_buckets_that_came_or_went() -> None:
    """A bucket that only one of the versions has files in is added, or removed, as a whole."""
    table = make("diff-windows-ends")
    table.upsert(rows(range(10)))
    table.overwrite(rows([]))
    gone = diff_scans(table.store, start=table.scan(version=1), end=table.scan(version=2), at_once_bytes_max=0)
    assert gone.counts == {"added": 0, "removed": 10, "changed": 0}
    back = diff_scans(table.store, start=table.scan(version=2), end=table.scan(version=1), at_once_bytes_max=0)
    assert back.counts == {"added": 10, "removed": 0, "changed": 0}
