"""Merge units: tables and databases inside a branch are merged whole."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import lakebed.kv
from lakebed.errors import InvalidRequest
from lakebed.objects import open_store
from lakebed.repo.committed.store import Committed
from lakebed.repo.committed.units import find_folders, folders_of, outermost, parse_root, roots_among
from lakebed.repo.model.options import RangeOptions
from lakebed.table.table import Table
from worlds.errors import raises
from worlds.repo.states import (
    SMALL_RANGES,
    TINY_RANGES,
    entry_value,
    merge,
    merged,
    open_committed,
)

X, Y, Z = (entry_value(content) for content in "xyz")

MANIFEST = b"manifest/00000000000000000001.manifest"


@pytest.fixture(
    params=[SMALL_RANGES, pytest.param(TINY_RANGES, marks=pytest.mark.long), RangeOptions()],
    ids=["small", "tiny", "one"],
)
def committed(request: pytest.FixtureRequest) -> Iterator[Committed]:
    """A repository in memory, with ranges of some entries, of one, and of all.

    Units in ranges of one entry are merged by `test_repo_merge_units` in every run.
    """
    with open_committed(request.param) as opened:
        yield opened


def a_table(root: bytes, snapshots: int, *, by: bytes = b"") -> dict[bytes, bytes]:
    """The files of a table after so many commits; the last ones by another writer."""
    files = {root + b"schema/schema-0": X}
    for number in range(1, snapshots + 1):
        who = by if number > 1 else b""
        files[root + b"snapshot/snapshot-%d" % number] = entry_value((number, who))
        files[root + b"manifest/manifest-list-%d%s" % (number, who)] = X
        files[root + b"bucket-0/data-%d%s.parquet" % (number, who)] = X
    return files


AROUND: dict[bytes, bytes] = {
    b"%s/%03d" % (folder, number): X for folder in (b"a", b"lake/plain", b"lake/zz", b"z") for number in range(20)
}


@pytest.mark.parametrize(
    ("path", "root"),
    [
        (b"t/schema/schema-0", b"t/"),
        (b"t/snapshot/snapshot-12", b"t/"),
        (b"a/b/t/snapshot/snapshot-1", b"a/b/t/"),
        (b"schema/schema-0", b""),
        (b"db/" + MANIFEST, b"db/"),
        (MANIFEST, b""),
        (b"t/branch/branch-x/schema/schema-0", b"t/branch/branch-x/"),
        (b"schema/schema/schema-0", b"schema/"),
        (b"a/schema/readme", None),
        (b"a/schema/schema-", None),
        (b"a/schema/schema-01", None),
        (b"a/schema/schema-1.json", None),
        (b"a/schema/schema-1\n", None),
        (b"a/schema/schema-1/file", None),
        (b"a/my-schema/schema-1", None),
        (b"a/snapshot/LATEST", None),
        (b"a/snapshot-1", None),
        (b"a/manifest/1.manifest", None),
        (b"a/manifest/manifest-3c1f", None),
        (b"a/tag/tag-1", None),
        (b"a/wal/00000000000000000001.wal", None),
        (b"", None),
    ],
)
def test_which_paths_make_a_root(path: bytes, root: bytes | None) -> None:
    """Schemas, snapshots and manifests of databases make a root, by their whole name; nothing else does."""
    assert parse_root(path) == root
    assert roots_among([pa.array([path, b"other"], pa.binary())]) == ({root} if root is not None else set())


def test_folders() -> None:
    """The folders of a path, and those in which some of many paths lie, at any depth; a leading slash is a folder."""
    assert list(folders_of(b"a/b/c")) == [b"", b"a/", b"a/b/"]
    assert list(folders_of(b"a")) == [b""]
    assert list(folders_of(b"/a//b")) == [b"", b"/", b"/a/", b"/a//"]
    paths = [b"a/b/c", b"a/b/d", b"a/e", b"f", b"g/h\n/i", b"\xff/\xfe/x", b"/lead"]
    columns = [pa.array(paths[:3], pa.binary()), pa.array([], pa.binary()), pa.array(paths[3:], pa.binary())]
    assert find_folders(columns) == {folder for path in paths for folder in folders_of(path)}
    assert find_folders([pa.array([], pa.binary())]) == set()
    assert outermost([b"t/branch/branch-x/", b"t/", b"s/", b"t2/"]) == [b"s/", b"t/", b"t2/"]
    assert outermost([b"a/", b""]) == [b""]


def test_what_the_house_writes_is_recognised() -> None:
    """The root of a real table, with a tag and a branch, and of a real database: found in the paths they write."""
    store = open_store("memory://units-recognised-table")
    table = Table.create(store, name="t", schema=pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1, 2, 3]}))
    table.create_tag("first")
    table.create_branch("b", tag="first").append(pa.table({"a": [4]}))
    paths = [f"lake/t/{meta.path}".encode() for meta in store.list()]
    assert outermost(roots_among([pa.array(paths, pa.binary())])) == [b"lake/t/"]
    lakebed.kv.open("memory://units-recognised-database").close()
    paths = [f"lake/db/{meta.path}".encode() for meta in open_store("memory://units-recognised-database").list()]
    assert outermost(roots_among([pa.array(paths, pa.binary())])) == [b"lake/db/"]


@pytest.mark.parametrize("root", [b"lake/t/", b"t/", b""])
def test_two_appends_to_one_table_are_one_conflict(committed: Committed, root: bytes) -> None:
    """Both sides committed to a table: one conflict, of its root; a strategy takes all of it from one side.

    Merged by path, a snapshot of one side would refer to manifests next to those of the other.
    """
    base = {**AROUND, **a_table(root, 1)}
    source = {**AROUND, **a_table(root, 3, by=b"s"), b"a/005": Y}
    destination = {**AROUND, **a_table(root, 2, by=b"d"), b"z/005": Z}
    outcome = merge(committed, base, source, destination)
    assert outcome.ref is None
    assert (outcome.conflicts, outcome.conflict_count) == ([root.decode() or "/"], 1)
    by_path = {**AROUND, b"a/005": Y, b"z/005": Z}
    won = merged(committed, merge(committed, base, source, destination, strategy="source-wins"))
    kept = merged(committed, merge(committed, base, source, destination, strategy="dest-wins"))
    if root:
        assert won == {**by_path, **a_table(root, 3, by=b"s")}
        assert kept == {**by_path, **a_table(root, 2, by=b"d")}
    else:  # all of the branch is the table
        assert won == source
        assert kept == destination


def test_a_table_that_one_side_changed_is_that_sides(committed: Committed) -> None:
    """A side that did not touch the table takes the other's commits; files elsewhere are merged by path."""
    base = {**AROUND, **a_table(b"lake/t/", 1), **a_table(b"lake/u/", 1)}
    source = {**AROUND, **a_table(b"lake/t/", 3, by=b"s"), **a_table(b"lake/u/", 1)}
    destination = {**AROUND, **a_table(b"lake/t/", 1), **a_table(b"lake/u/", 2, by=b"d")}
    assert merged(committed, merge(committed, base, source, destination)) == {
        **AROUND,
        **a_table(b"lake/t/", 3, by=b"s"),
        **a_table(b"lake/u/", 2, by=b"d"),
    }


def test_the_same_change_of_both_sides_is_none(committed: Committed) -> None:
    """Both sides hold the same table after the merge base: it is not a conflict."""
    base = {**AROUND, **a_table(b"lake/t/", 1)}
    same = a_table(b"lake/t/", 2, by=b"x")
    outcome = merge(committed, base, {**AROUND, **same, b"a/001": Y}, {**AROUND, **same, b"z/001": Y})
    assert merged(committed, outcome) == {**AROUND, **same, b"a/001": Y, b"z/001": Y}


def test_changes_that_share_no_path_still_conflict(committed: Committed) -> None:
    """A tag on one side and a file on the other: the table's own files did not change, and it is one conflict."""
    files = {b"t/bucket-%d/data-%d" % (number, number): X for number in range(60)}
    base = {**AROUND, **a_table(b"t/", 1), **files}
    source = {**base, b"t/tag/tag-release": Y}
    destination = {**base, b"t/bucket-0/data-new": Z}
    outcome = merge(committed, base, source, destination)
    assert outcome.conflicts == ["t/"]
    assert merged(committed, merge(committed, base, source, destination, strategy="source-wins")) == source
    assert merged(committed, merge(committed, base, source, destination, strategy="dest-wins")) == destination


def test_branches_and_tables_inside_a_table_belong_to_it(committed: Committed) -> None:
    """Of roots inside one another the outermost is the unit."""
    base = {**AROUND, **a_table(b"t/", 1), **a_table(b"t/branch/branch-b/", 1), **a_table(b"t/inner/", 1)}
    source = {**base, **a_table(b"t/branch/branch-b/", 2, by=b"s")}
    destination = {**base, **a_table(b"t/inner/", 2, by=b"d")}
    outcome = merge(committed, base, source, destination)
    assert (outcome.conflicts, outcome.conflict_count) == (["t/"], 1)
    both = {**base, **a_table(b"t/inner/", 2, by=b"s")}
    assert merge(committed, base, both, destination).conflicts == ["t/"]


def test_a_database_is_a_unit(committed: Committed) -> None:
    """Logs and sorted files of a database never come from two sides, whichever of its files changed."""
    base = {**AROUND, b"db/" + MANIFEST: X, b"db/wal/00000000000000000001.wal": X}
    source = {**base, b"db/wal/00000000000000000002.wal": Y}
    destination = {**base, b"db/sst/01J00000000000000000000000.sst": Y}
    assert merge(committed, base, source, destination).conflicts == ["db/"]
    assert merged(committed, merge(committed, base, source, destination, strategy="dest-wins")) == destination


def test_a_table_that_was_dropped_on_one_side_and_changed_on_the_other(committed: Committed) -> None:
    """The base shows that it is a unit: it is gone as a whole, or there as a whole."""
    base = {**AROUND, **a_table(b"t/", 2)}
    changed = {**AROUND, **a_table(b"t/", 2), b"t/bucket-9/data": X}
    assert merge(committed, base, AROUND, changed).conflicts == ["t/"]
    assert merged(committed, merge(committed, base, AROUND, changed, strategy="source-wins")) == AROUND
    assert merged(committed, merge(committed, base, AROUND, changed, strategy="dest-wins")) == changed
    assert merged(committed, merge(committed, base, changed, AROUND, strategy="source-wins")) == changed


def test_a_table_that_both_sides_made(committed: Committed) -> None:
    """Two tables of one name are one conflict, though the base knows nothing of either."""
    source, destination = {**AROUND, **a_table(b"t/", 2, by=b"s")}, {**AROUND, **a_table(b"t/", 1)}
    assert merge(committed, AROUND, source, destination).conflicts == ["t/"]
    assert merged(committed, merge(committed, AROUND, source, destination, strategy="source-wins")) == source


def test_a_file_that_looks_like_one_makes_no_unit(committed: Committed) -> None:
    """A folder called ``schema`` or ``manifest`` is a folder: its files and its siblings are merged by path."""
    base = {**AROUND, b"a/schema/readme": X, b"a/manifest/list": X, b"a/snapshot/LATEST": X}
    source = {**base, b"a/schema/readme": Y, b"a/one": Y}
    destination = {**base, b"a/manifest/list": Z, b"a/two": Z}
    assert merged(committed, merge(committed, base, source, destination)) == {
        **source,
        b"a/manifest/list": Z,
        b"a/two": Z,
    }


def test_conflicts_of_units_and_of_paths_are_listed_together(committed: Committed) -> None:
    """Sorted, each unit once, and no path below a conflicting unit."""
    base = {**AROUND, **a_table(b"lake/t/", 1), **a_table(b"lake/u/", 1)}
    source = {**base, **a_table(b"lake/t/", 9, by=b"s"), **a_table(b"lake/u/", 2, by=b"s"), b"a/001": Y, b"z/001": Y}
    destination = {
        **base,
        **a_table(b"lake/t/", 8, by=b"d"),
        **a_table(b"lake/u/", 2, by=b"d"),
        b"a/001": Z,
        b"z/001": Z,
    }
    outcome = merge(committed, base, source, destination)
    assert outcome.conflicts == ["a/001", "lake/t/", "lake/u/", "z/001"]
    assert outcome.conflict_count == 4
    assert merge(committed, base, source, destination, conflicts_max=2).conflicts == ["a/001", "lake/t/"]


@pytest.mark.parametrize("prefix", [b"t/s", b"t/bucket-0/", b"t/branch/branch-b/", b"t/nothing/there"])
def test_a_prefix_inside_a_unit_is_refused(committed: Committed, prefix: bytes) -> None:
    """A partial merge never cuts a unit, and says which one it would cut; nothing else is wrong with the merge."""
    base = {**AROUND, **a_table(b"t/", 1)}
    source = {**base, **a_table(b"t/", 2, by=b"s")}
    with raises(InvalidRequest, "prefix_cuts_unit", match="merged whole: merge 't/'", root="t/"):
        merge(committed, base, source, base, prefix=prefix)


def test_a_prefix_that_holds_whole_units_merges_them(committed: Committed) -> None:
    """Units inside the prefix are merged whole, and conflicts of units outside of it are none."""
    base = {**AROUND, **a_table(b"s/", 1), **a_table(b"t/", 1), **a_table(b"u/", 1)}
    source = dict(base.items())
    for root in (b"s/", b"t/", b"u/"):
        source |= a_table(root, 2, by=b"s")
    destination = {**base, **a_table(b"s/", 3, by=b"d"), **a_table(b"u/", 3, by=b"d")}
    expected = {**destination, **a_table(b"t/", 2, by=b"s")}
    for prefix in (b"t/", b"t"):
        assert merged(committed, merge(committed, base, source, destination, prefix=prefix)) == expected
    assert merge(committed, base, source, destination, prefix=b"u").conflicts == ["u/"]


def test_without_units_paths_are_paths(committed: Committed) -> None:
    """A caller who knows that there are no roots can merge by path alone."""
    base = {**AROUND, **a_table(b"t/", 1)}
    source, destination = {**base, b"t/one": Y}, {**base, b"t/two": Z}
    assert merged(committed, merge(committed, base, source, destination, units=False)) == {
        **source,
        b"t/two": Z,
    }
