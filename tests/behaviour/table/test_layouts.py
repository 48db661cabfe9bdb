"""Tables whose files lie as other clients put them: read, written, cleaned and never damaged."""

from __future__ import annotations

import datetime
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Corruption, LakebedError, NotFound
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.codec.manifest import files_of
from lakebed.table.model.model import BucketChange
from lakebed.table.rows.rows import commit_changes
from lakebed.table.table import Table
from lakebed.testing.clock import ManualClock

EVER_MS = 2**60


@dataclass
class Partitioned:
    """A table partitioned by ``p``, with short words for what tests do with it."""

    store: ObjectStore
    table: Table
    clock: ManualClock
    expected: list[tuple[Any, int]] = field(default_factory=list)

    def append(self, *values: Any) -> None:
        """One commit with a row for each value."""
        self.clock.advance(1)
        start = len(self.expected)
        rows = {"p": pa.array(values, self.table.arrow_schema.field("p").type), "id": range(start, start + len(values))}
        self.table.write(pa.table(rows))
        self.expected += [(value, start + i) for i, value in enumerate(values)]

    def rows(self) -> list[tuple[Any, int]]:
        """What a reader without a warm cache sees, by id."""
        opened = Table.open(self.store, name="t", environment=self.table.context.environment)
        result = opened.read().to_pydict()
        return sorted(zip(result["p"], result["id"], strict=True), key=lambda row: row[1])

    def data(self) -> list[str]:
        """Paths of all data files."""
        return sorted(meta.path for meta in self.store.list("") if meta.path.endswith(".parquet"))

    def move(self, spelled: Callable[[str], str]) -> None:
        """Put every data file where another writer would have put it."""
        for path in self.data():
            target = spelled(path)
            if target != path:
                self.store.put(target, self.store.get(path))
                self.store.delete([path])


def make(
    kind: pa.DataType | str, options: dict[str, str] | None = None, *, keyed: bool = False, at: str = ""
) -> Partitioned:
    """A new table with the columns ``p`` and ``id``."""
    clock = ManualClock()
    environment = Environment(clock=clock, rng=random.Random(3))
    store = open_store(at or f"memory://{uuid.uuid4()}", environment=environment)
    table = Table.create(
        store,
        name="t",
        schema=pa.schema([("p", kind), ("id", pa.int64())]),
        primary_keys=["p", "id"] if keyed else [],
        partition_keys=["p"],
        options=options or {},
        environment=environment,
    )
    return Partitioned(store, table, clock)


DAY = datetime.date(2013, 1, 1)
NOON = datetime.datetime(2013, 1, 1, 12)
LAYOUTS = {
    "date-as-days": (pa.date32(), {"partition.legacy-name": "true"}, DAY, "p=15706"),
    "date": (pa.date32(), {}, DAY, "p=2013-01-01"),
    "timestamp-legacy": (pa.timestamp("us"), {"partition.legacy-name": "true"}, NOON, "p=2013-01-01T12%3A00"),
    "timestamp": (pa.timestamp("ms"), {}, NOON, "p=2013-01-01 12%3A00%3A00.000"),
    "double": (pa.float64(), {}, 1e10, "p=1.0E10"),
    "float": (pa.float32(), {}, 2.0**33, "p=8.5899346E9"),
    "decimal": (pa.decimal128(10, 2), {}, Decimal("1.50"), "p=1.50"),
    "boolean": (pa.bool_(), {}, True, "p=true"),
    "null": (pa.string(), {"partition.default-name": "no value"}, None, "p=no value"),
    "directory": (pa.string(), {"data-file.path-directory": "the/data/"}, "a/b", "the/data/p=a%2Fb"),
    "line-breaks": (pa.string(), {}, "a\r\n/b\n", "p=a%0D%0A%2Fb%0A"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_files_lie_where_java_looks(name: str) -> None:
    """Rows are written to the folders of the Java client, and survive every verb that deletes files."""
    kind, options, value, folder = LAYOUTS[name]
    made = make(kind, options)
    for _ in range(3):
        made.append(value)
    assert {path.rpartition("/")[0] for path in made.data()} == {f"{folder}/bucket-0"}
    made.store.put(f"{folder}/bucket-0/data-stray.parquet", b"x")
    assert made.table.collect(grace_ms=0).deleted_count == 1
    made.table.compact(full=True)
    assert len(made.data()) == 4
    made.table.expire(retain_max=1, retain_min=1)
    assert len(made.data()) == 1
    assert made.rows() == made.expected
    assert made.table.collect(grace_ms=0).deleted_count == 0


SPELLINGS: dict[str, tuple[Any, dict[str, str], Any, str, str]] = {
    "earlier-date": (pa.date32(), {"partition.legacy-name": "true"}, DAY, "p=15706", "p=2013-01-01"),
    "earlier-double": (pa.float64(), {}, 1e10, "p=1.0E10", "p=10000000000.0"),
    "earlier-null": (pa.string(), {"partition.default-name": "none"}, None, "p=none", "p=__DEFAULT_PARTITION__"),
    "earlier-directory": (pa.string(), {"data-file.path-directory": "data"}, "x", "data/p=x", "p=x"),
    "earlier-timestamp": (pa.timestamp("us"), {}, NOON, "12%3A00%3A00.000000", "12%3A00%3A00"),
    "newer-java": (pa.float32(), {}, 2.0**33, "p=8.5899346E9", "p=8.589935E9"),
    "pypaimon-boolean": (pa.bool_(), {}, True, "p=true", "p=True"),
    "pypaimon-text": (pa.string(), {}, "a:b", "p=a%3Ab", "p=a:b"),
    "pypaimon-line-break": (pa.string(), {}, "a\nb", "p=a%0Ab", "p=a\nb"),
}


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("keyed", [False, True], ids=["append", "keyed"])
def test_files_of_other_writers_are_found_and_cleaned(name: str, keyed: bool) -> None:
    """Files in the folder of another spelling are read, kept while they live and deleted when they do not."""
    kind, options, value, ours, theirs = SPELLINGS[name]
    if keyed and value is None:
        pytest.skip("a primary key is never null")
    made = make(kind, options, keyed=keyed)
    made.append(value)
    made.append(value)
    made.move(lambda path: path.replace(ours, theirs, 1))
    old = made.data()
    assert all(theirs in path and ours + "/" not in path for path in old)
    made.append(value)
    assert made.rows() == made.expected
    assert made.table.collect(grace_ms=0).deleted_count == 0
    made.table.create_tag("before")
    made.table.compact(full=True)
    assert made.rows() == made.expected
    made.table.expire(retain_max=1, retain_min=1)
    assert set(old) <= set(made.data()), "the tag needs them"
    made.table.delete_tag("before")
    assert not set(old) & set(made.data())
    assert made.rows() == made.expected
    assert made.table.collect(grace_ms=0).deleted_count == 0


def test_line_breaks_in_a_bucket(s3_server: Any) -> None:
    """Where a store takes no line break in a path, the folder without escapes is no obstacle to reads and deletions."""
    environment = Environment()
    store = open_store(s3_server.url(), storage_options=s3_server.options, environment=environment)
    columns = pa.schema([("p", pa.string()), ("id", pa.int64())])
    table = Table.create(store, name="t", schema=columns, partition_keys=["p"], environment=environment)
    for number in range(2):
        table.append(pa.table({"p": ["a\nb"], "id": [number]}))
    table.create_tag("before")
    table.compact(full=True)
    table.expire(retain_max=1, retain_min=1)
    assert table.delete_tag("before").warnings == ()
    (path,) = (meta.path for meta in store.list("") if meta.path.endswith(".parquet"))
    assert path.startswith("p=a%0Ab/")
    assert table.read().num_rows == 2
    assert table.collect(grace_ms=0).deleted_count == 0
    store.delete([path])
    with pytest.raises(LakebedError, match="p=a%0Ab/bucket-0/data-") as gone:
        table.read()
    assert isinstance(gone.value, NotFound | Corruption)


@pytest.mark.parametrize("dry_run", [False, True])
def test_cleaning_stops_when_a_live_file_is_elsewhere(dry_run: bool) -> None:
    """When a live file is not where lakebed looks for it, nothing is deleted and the error names the file."""
    made = make(pa.string())
    made.append("x", "y")
    made.store.put("p=x/bucket-0/data-stray.parquet", b"x")
    made.move(lambda path: path.replace("p=x/", "p=unheard of/") if "stray" not in path else path)
    before = made.data()
    with pytest.raises(Corruption, match="not where lakebed looks for them, such as p=x/bucket-0/data-") as stopped:
        made.table.collect(grace_ms=0, dry_run=dry_run)
    assert stopped.value.kind == "live_files_missing"
    assert made.data() == before


def test_the_name_of_a_live_file_protects_it_in_every_folder() -> None:
    """A file whose name a version uses is never an orphan, in any folder."""
    made = make(pa.string())
    made.append("x")
    (path,) = made.data()
    copy = path.replace("p=x", "p=somewhere else")
    made.store.put(copy, made.store.get(path))
    assert made.table.collect(grace_ms=0).deleted_count == 0
    assert made.data() == sorted((path, copy))


def test_external_files_are_read_and_kept(tmp_path: Path) -> None:
    """A file with an external path, and its extra files, are kept by cleaning even below the table's own folder."""
    made = make(pa.string(), at=str(tmp_path / "t"))
    made.append("x")
    made.append("x")
    head = made.table.context.snapshots.latest()
    assert head is not None
    entries = made.table.context.manifests.live_entries(head)
    files = files_of(entries)
    folder = tmp_path / "t" / "outside" / "p=x" / "bucket-0"
    folder.mkdir(parents=True)
    moved = []
    for file in files:
        (tmp_path / "t" / "p=x" / "bucket-0" / file.file_name).rename(folder / file.file_name)
        (folder / f"{file.file_name}.index").touch()
        url = f"file:{folder}/{file.file_name}"
        moved.append(replace(file, external_path=url, extra_files=(f"{file.file_name}.index",)))
    partition = entries["partition"][0].as_py()
    change = BucketChange(partition, 0, -1, added=tuple(moved), deleted=tuple(files))
    made.clock.advance(1)
    commit_changes(made.table.context, [change], kind="OVERWRITE")
    assert made.rows() == made.expected
    made.table.expire(retain_max=1, retain_min=1)
    assert made.table.collect(grace_ms=0).deleted_count == 0
    assert made.rows() == made.expected
