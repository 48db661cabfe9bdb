"""Writing to a branch and reading it back, over every kind of layer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.key_value.open import open_key_value
from lakebed.lsm.file_id import file_id_at
from lakebed.repo.heads.write import stage, stage_if_absent, stage_if_match, stage_many
from lakebed.repo.model.model import Entry
from lakebed.repo.model.options import RepositoryOptions
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import protect
from lakebed.repo.references.branches import load_branch
from lakebed.repo.staging.listing import text_of
from lakebed.repo.staging.uncommitted import uncommitted
from lakebed.repo.staging.view import branch_view
from lakebed.runtime import Environment
from lakebed.testing import ManualClock
from worlds.errors import raises
from worlds.repo.staging import BRANCH, StagedBranch


def staged_keys(branch: StagedBranch) -> list[bytes]:
    """Keys of all staged rows, without what is before their tokens."""
    prefix = branch.home.keys.staging()
    with branch.home.key_value.snapshot() as snapshot:
        return [key[len(prefix) :] for key, _ in snapshot.scan(prefix, prefix + b"\xff")]


def test_what_is_staged_is_read() -> None:
    """A put is visible at once, over any committed entry, and the newest put of a path counts."""
    branch = StagedBranch({"a": "old", "b": "kept"})
    branch.put("a", "new")
    branch.put("c", "first")
    branch.put("c", "second")
    assert branch.shown() == {"a": "new", "b": "kept", "c": "second"}
    with branch.view() as view:
        entry = view.get("a")
        assert entry is not None
        assert entry.metadata == {"is": "new"}
        assert view.get("nowhere") is None
        assert [result is None for result in view.get_many(["c", "nowhere", "a", "c"])] == [False, True, False, False]


def test_changes_of_most_entries_are_told_from_additions() -> None:
    """Many changes of one range are compared with a reading of it, few with reads of their own: the same answer."""
    paths = [f"p{number:02}" for number in range(40)]
    for changed in (paths[::2], paths[7:8]):
        branch = StagedBranch(dict.fromkeys(paths, "old"))
        for path in changed:
            branch.put(path, "new")
        branch.delete(paths[-1])
        branch.put("p99", "new")
        assert branch.differences() == [
            *((path, "changed") for path in changed), (paths[-1], "removed"), ("p99", "added"),
        ]  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "b/"])
def test_what_a_cleared_prefix_hides_is_removed(prefix: str) -> None:
    """Everything below it, up to the last path; of a part of the paths what is in it."""
    paths = ["a", "b/1", "b/2", "c"]
    branch = StagedBranch(dict.fromkeys(paths, "old"))
    branch.delete_prefix(prefix)
    expected = [(path, "removed") for path in paths if path.startswith(prefix)]
    assert branch.differences() == expected
    assert branch.differences(start=b"b/2", end=b"c") == [pair for pair in expected if pair[0] == "b/2"]
    assert branch.differences(start=b"d") == branch.differences(end=b"a") == []


def test_a_stored_path_that_is_no_text_is_damage() -> None:
    """It is named, and not shown as something else."""
    with pytest.raises(Corruption, match=r"not valid text: b'a\\xff'"):
        text_of(b"a\xff")


@pytest.mark.parametrize("delimiter", ["/", "--"])
@pytest.mark.parametrize("prefix", ["", "a", "a/", "a/b", "a--", "b/", "nowhere"])
def test_a_listing_folds_behind_its_prefix(prefix: str, delimiter: str) -> None:
    """Common prefixes begin behind the prefix and end with the delimiter; the rest are entries; pages go on behind."""
    paths = ["a", "a--b--c", "a--d", "a/b/c", "a/b/d/e", "a/b/d/f", "a/bc", "a/x", "b/y/z"]
    branch = StagedBranch(dict.fromkeys(paths[::2], "1"))
    for path in paths[1::2]:
        branch.put(path, "2")
    expected: dict[str, bool] = {}
    for path in paths:
        if path.startswith(prefix):
            at = path.find(delimiter, len(prefix))
            expected[path if at < 0 else path[: at + len(delimiter)]] = at >= 0
    with branch.view() as view:
        lines = [(line.path, line.is_prefix) for line in view.list(prefix, delimiter=delimiter)]
        assert lines == sorted(expected.items())
        for count, (after, _) in enumerate(lines, 1):
            page = [line.path for line in view.list(prefix, delimiter=delimiter, after=after, amount=2)]
            assert page == [path for path, _ in lines[count : count + 2]]


@pytest.mark.parametrize("move", ["seal", "compact", "commit"])
def test_a_delete_hides_every_older_layer(move: str) -> None:
    """A deleted path is gone from every layer, and comes back with a put."""
    branch = StagedBranch({"a": "1", "b": "1"})
    branch.put("c", "1")
    getattr(branch, move)()
    assert branch.delete("a", "c", "nowhere") == 2
    assert branch.shown() == {"b": "1"}
    assert branch.delete("a") == 0
    branch.put("a", "2")
    assert branch.shown() == {"a": "2", "b": "1"}


def test_a_delete_of_nothing_writes_nothing() -> None:
    """What is nowhere needs no tombstone."""
    branch = StagedBranch({"a": "1"})
    assert branch.delete("b") == 0
    assert staged_keys(branch) == []


def test_an_entry_that_is_only_staged_is_removed_without_a_tombstone() -> None:
    """No row is left of a path that no older layer has; one that an older layer has leaves a tombstone."""
    branch = StagedBranch({"a": "1"})
    branch.put("a", "2")
    branch.put("b", "2")
    assert branch.delete("a", "b") == 2
    assert staged_keys(branch) == [branch.record.staging.id.encode() + b"/a"]
    assert branch.shown() == {}


def test_a_staged_entry_over_a_cleared_layer_leaves_no_tombstone() -> None:
    """Below a cleared prefix there is nothing to hide."""
    branch = StagedBranch({"d/a": "1"})
    assert branch.delete_prefix("d/")
    branch.put("d/a", "2")
    assert branch.delete("d/a") == 1
    assert staged_keys(branch) == []
    assert branch.shown() == {}


def test_a_deleted_prefix_costs_no_row() -> None:
    """Everything below a prefix goes with one change of the record; what is written later is not hidden."""
    branch = StagedBranch({"a/1": "x", "a/2": "x", "ab": "x", "b": "x"})
    branch.put("a/3", "x")
    before = staged_keys(branch)
    assert branch.delete_prefix("a/")
    assert staged_keys(branch) == before
    assert branch.shown() == {"ab": "x", "b": "x"}
    branch.put("a/2", "again")
    branch.seal()
    assert branch.shown() == {"a/2": "again", "ab": "x", "b": "x"}
    assert not branch.delete_prefix("nothing/")
    assert branch.delete_prefix("")
    assert branch.shown() == {}
    with branch.view() as view:
        assert view.get("a/2") is None
        assert view.get_many(["a/2", "b"]) == [None, None]


def test_prefixes_that_are_deleted_again_and_again_leave_a_short_list() -> None:
    """Each deletion seals; from the bound on the branch is compacted first, and what it shows stays the same."""
    branch = StagedBranch({"kept": "x"}, options=RepositoryOptions(background=False, sealed_tokens_max=4))
    for number in range(20):
        branch.put(f"tmp/{number}", "x")
        assert branch.delete_prefix("tmp/")
        assert len(branch.record.sealed) <= 5
        assert branch.shown() == {"kept": "x"}
    assert branch.differences() == []


def test_a_conditional_put_looks_through_all_layers() -> None:
    """What is visible anywhere is met; what was deleted is not; and our own earlier try is success."""
    branch = StagedBranch({"a": "1"})
    entry = branch.entry("2")
    with raises(AlreadyExists, "path_exists"):
        stage_if_absent(branch.home, branch=BRANCH, path="a", entry=entry)
    branch.delete("a")
    stage_if_absent(branch.home, branch=BRANCH, path="a", entry=entry)
    for move in (branch.seal, branch.compact, branch.commit):
        move()
        stage_if_absent(branch.home, branch=BRANCH, path="a", entry=entry)
        with pytest.raises(AlreadyExists):
            stage_if_absent(branch.home, branch=BRANCH, path="a", entry=branch.entry("2"))


def stage_over_any(home: RepositoryContext, *, branch: str, path: str, entry: Entry) -> None:
    """Stage over anything and nothing: a condition that always holds."""
    stage_if_match(home, branch=branch, path=path, entry=entry, matches=lambda visible: True)


def test_an_entry_is_staged_over_the_one_that_was_expected() -> None:
    """Over no other one, in any layer; a repetition of an earlier try is success."""
    branch = StagedBranch({"a": "0"})

    def over(expected: str | None, entry: Entry) -> None:
        stage_if_match(
            branch.home,
            branch=BRANCH,
            path="a",
            entry=entry,
            matches=lambda visible: (None if visible is None else visible.metadata["is"]) == expected,
        )

    last = "0"
    for number, move in enumerate((branch.seal, branch.compact, branch.commit, lambda: None), 1):
        for wrong in ("other", None):
            with raises(Conflict, "path_changed"):
                over(wrong, branch.entry("lost"))
        entry = branch.entry(f"{number}")
        over(last, entry)
        move()
        over(last, entry)  # its reply was lost
        last = f"{number}"
        assert branch.shown() == {"a": last}
    branch.delete("a")
    with pytest.raises(Conflict):
        over(last, branch.entry("lost"))
    over(None, branch.entry("new"))
    assert branch.shown() == {"a": "new"}


@pytest.mark.parametrize("as_columns", [False, True])
def test_many_entries_are_staged_at_once(as_columns: bool) -> None:
    """One call stages any number of paths, from pairs or from columns; of a path that repeats the last counts."""
    branch = StagedBranch()
    entries = [(f"part-{number:03}", branch.entry(str(number))) for number in range(300)]
    entries.append(("part-000", branch.entry("last")))
    given: object = entries
    if as_columns:
        given = pa.table(
            {
                "path": [path for path, _ in entries],
                "address": [entry.address for _, entry in entries],
                "size_bytes": [entry.size_bytes for _, entry in entries],
                "checksum": [entry.checksum for _, entry in entries],
                "modified_ms": [entry.modified_ms for _, entry in entries],
                "metadata": pa.array(
                    [list(entry.metadata.items()) for _, entry in entries], pa.map_(pa.string(), pa.string())
                ),
            }
        )
    assert stage_many(branch.home, branch=BRANCH, entries=given) == 300  # type: ignore[arg-type]
    shown = branch.shown()
    assert len(shown) == 300
    assert shown["part-000"] == "last"
    assert shown["part-299"] == "299"
    assert stage_many(branch.home, branch=BRANCH, entries=[]) == 0


def test_a_batch_with_one_bad_entry_stages_nothing() -> None:
    """A batch is staged whole or not at all."""
    branch = StagedBranch()
    with raises(InvalidRequest, "invalid_path"):
        stage_many(branch.home, branch=BRANCH, entries=[("good", branch.entry("1")), ("a/../b", branch.entry("1"))])
    assert branch.shown() == {}


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"path": ["a"]}, "invalid_columns"),
        ({"path": [None], "address": ["data/x"], "size_bytes": [1], "checksum": [""], "modified_ms": [0]}, None),
        ({"path": ["a"], "address": ["s3://b/c"], "size_bytes": ["1"], "checksum": [""], "modified_ms": [0]}, None),
        ({"path": ["a"], "address": ["c"], "size_bytes": [1], "checksum": [""], "modified_ms": [0]}, "invalid_address"),
        (
            {
                "path": ["a"],
                "address": ["s3://b/c"],
                "size_bytes": [1],
                "checksum": [""],
                "modified_ms": [0],
                "metadata": ["x"],
            },
            None,
        ),
    ],
)
def test_columns_that_are_no_entries_are_refused(columns: dict[str, list[object]], kind: str | None) -> None:
    """Missing, empty and wrong columns are named in one sentence."""
    branch = StagedBranch()
    with raises(InvalidRequest, kind or "invalid_columns"):
        stage_many(branch.home, branch=BRANCH, entries=pa.table(columns))


@pytest.mark.parametrize(
    "path",
    ["with space", "ünï/cødé/✓", "per%20cent", "a+b", "/leading", "a//b", "trailing/", "😀", "a\nb", "~^@$", "..a/b.."],
)
def test_odd_paths_are_paths(path: str) -> None:
    """Any text without a step upwards names an object, through every layer."""
    branch = StagedBranch({path: "1"})
    assert branch.shown() == {path: "1"}
    branch.put(path, "2")
    branch.compact()
    assert branch.shown() == {path: "2"}
    assert branch.delete(path) == 1
    assert branch.shown() == {}


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", "invalid_path"),
        ("a/../b", "invalid_path"),
        ("..", "invalid_path"),
        ("a\0b", "invalid_path"),
        ("x" * 1025, "invalid_path"),
        ("\ud800", "invalid_path"),
        (7, "invalid_path"),
        ("_lakefs/x", "reserved_path"),
        ("_lakebed/x", "reserved_path"),
    ],
)
def test_paths_that_cannot_be_are_refused(path: str, kind: str) -> None:
    """A bad path is refused by every verb that writes, and nothing changes."""
    branch = StagedBranch()
    for write in (
        lambda: branch.put(path, "1"),
        lambda: branch.delete(path),
        lambda: stage_if_absent(branch.home, branch=BRANCH, path=path, entry=branch.entry("1")),
        lambda: stage_over_any(branch.home, branch=BRANCH, path=path, entry=branch.entry("1")),
        lambda: stage_many(branch.home, branch=BRANCH, entries=[(path, branch.entry("1"))]),
    ):
        with raises(InvalidRequest, kind):
            write()
    assert staged_keys(branch) == []


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (Entry("nowhere", 1, "", 0), "invalid_address"),
        (Entry("data/../../etc", 1, "", 0), "invalid_address"),
        (Entry("s3://b/k", -1, "", 0), "invalid_size"),
        (Entry("s3://b/k", 1, "", 0, metadata={"k": "x" * 70_000}), "oversized_metadata"),
        (Entry("s3://b/k", 1, "", 0, metadata={"k": "\ud800"}), "invalid_entry"),
        (Entry("s3://b/k", 1 << 70, "", 0), "invalid_entry"),
        (Entry("s3://b/k", 1.5, "", 0), "invalid_size"),  # type: ignore[arg-type]
        (Entry("s3://b/k", 1, None, 0), "invalid_entry"),  # type: ignore[arg-type]
        (Entry("s3://b/k", 1, "", 0, None), "invalid_entry"),  # type: ignore[arg-type]
        (Entry("s3://b/k", 1, "", 0, metadata={"k": None}), "invalid_entry"),  # type: ignore[dict-item]
        (Entry("s3://b/k", 1, "", 0, metadata={"k": object()}), "invalid_entry"),  # type: ignore[dict-item]
        (Entry(None, 1, "", 0), "invalid_address"),  # type: ignore[arg-type]
        ("no entry", "wrong_type"),
    ],
)
def test_entries_that_cannot_be_are_refused(entry: Entry, kind: str) -> None:
    """A bad entry is refused with one sentence, and nothing changes."""
    branch = StagedBranch()
    with raises(InvalidRequest, kind):
        stage(branch.home, branch=BRANCH, path="a", entry=entry)
    assert branch.shown() == {}


def test_writes_to_a_branch_that_is_not_there_say_so() -> None:
    """Every verb names the branch it did not find."""
    branch = StagedBranch()
    for name, error in (("other", NotFound), ("no such name", InvalidRequest)):
        for verb in (stage, stage_if_absent, stage_over_any):
            with pytest.raises(error):
                verb(branch.home, branch=name, path="a", entry=branch.entry("1"))
        with pytest.raises(error):
            stage_many(branch.home, branch=name, entries=[])


def test_an_upload_that_a_collection_may_have_taken_is_refused() -> None:
    """An address below the boundary is not staged, one above it is; imported objects have no age."""
    clock = ManualClock()
    branch = StagedBranch(environment=Environment(clock=clock))
    old = branch.entry("old")
    clock.advance(3600)
    branch.home.key_value.set(branch.home.keys.boundary, file_id_at(clock.now_ms()).encode())
    for verb in (stage, stage_if_absent, stage_over_any):
        with raises(Conflict, "upload_expired"):
            verb(branch.home, branch=BRANCH, path="a", entry=old)
    with pytest.raises(Conflict):
        stage_many(branch.home, branch=BRANCH, entries=[("b", branch.entry("new")), ("a", old)])
    assert branch.shown() == {}
    branch.put("a", "new")
    stage(branch.home, branch=BRANCH, path="b", entry=Entry("s3://elsewhere/b", 1, "", 0, metadata={"is": "imported"}))
    assert branch.shown() == {"a": "new", "b": "imported"}


def test_what_was_acknowledged_outlives_the_process(tmp_path: Path) -> None:
    """On a database in a folder, every verb's effect is there when the folder is opened again."""
    with closing(open_key_value(tmp_path / "records", durable=False)) as key_value:
        branch = StagedBranch({"a": "1", "b": "1", "d/x": "1"}, key_value=key_value)
        branch.put("c", "1")
        stage_many(branch.home, branch=BRANCH, entries=[(f"many/{n:03}", branch.entry("1")) for n in range(200)])
        branch.seal()
        branch.delete("b", "c", "many/007")
        branch.delete_prefix("d/")
        branch.put("d/y", "1")
        stage_if_absent(branch.home, branch=BRANCH, path="e", entry=branch.entry("1"))
        expected = {"a": "1", "d/y": "1", "e": "1"} | {f"many/{n:03}": "1" for n in range(200) if n != 7}
        assert branch.shown() == expected
        differences = branch.differences()
    with closing(open_key_value(tmp_path / "records", durable=False)) as key_value:
        again = replace(branch.home, key_value=key_value)
        with key_value.snapshot() as snapshot:
            record, _ = load_branch(again, BRANCH, snapshot=snapshot)
            view = branch_view(again, record, snapshot=snapshot)
            assert {line.path: line.entry.metadata["is"] for line in view.list() if line.entry} == expected
            result = [
                path.decode()
                for batch in uncommitted(again, snapshot, record)
                for path in batch.column("path").to_pylist()
            ]
    assert result == [path for path, _ in differences]


def test_a_protected_branch_takes_no_writes() -> None:
    """Every verb asks the protection rules first."""
    branch = StagedBranch({"a": "1"})
    protect(branch.home, "ma*")
    for write in (
        lambda: branch.put("b", "1"),
        lambda: branch.delete("a"),
        lambda: branch.delete_prefix(""),
        lambda: stage_if_absent(branch.home, branch=BRANCH, path="b", entry=branch.entry("1")),
        lambda: stage_over_any(branch.home, branch=BRANCH, path="b", entry=branch.entry("1")),
        lambda: stage_many(branch.home, branch=BRANCH, entries=[("b", branch.entry("1"))]),
    ):
        with raises(InvalidRequest, "protected_branch"):
            write()
    assert branch.shown() == {"a": "1"}
