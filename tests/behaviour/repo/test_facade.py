"""The facade: what a person does with a repository, in memory, in a folder, and through a real server over HTTP."""

from __future__ import annotations

import io
import random
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

import lakebed.repo
from lakebed import Table
from lakebed.errors import AlreadyExists, Closed, Conflict, InvalidRequest, NotFound, Rejected
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.repo import (
    Branch,
    Difference,
    DiffKind,
    HookCall,
    ImportSource,
    Repository,
    RepositoryOptions,
    Webhook,
)
from lakebed.repo.transport.transport import context_of
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.table.commit.prepared import commit_prepared
from lakebed.testing.between import Between
from lakebed.testing.wrapper import Call, StoreWrapper
from worlds.errors import raises, refused
from worlds.forks import answer_in_fork
from worlds.meanwhile import Meanwhile

R = TypeVar("R")


def opened(where: str, folder: Path) -> AbstractContextManager[Repository]:
    """A new repository in memory or in a folder."""
    url = f"memory://{uuid.uuid4()}" if where == "memory" else str(folder / "lake")
    options = RepositoryOptions(background=False, committer="ann")
    result: Repository = lakebed.repo.open(f"{url}/analytics.repo", options=options, durable=False)
    return result


@contextmanager
def served(folder: Path) -> Iterator[Repository]:
    """A new repository behind a server, whose facade is the same."""
    options = RepositoryOptions(background=False)
    elsewhere = ["memory://outside", str(folder / "outside")]
    with (
        start_server(
            folder / "lake", options=ServerOptions(durable=False, repository_options=options, import_from=elsewhere)
        ) as running,
        lakebed.repo.open(
            f"{running.started.endpoint}/analytics",
            access=lakebed.repo.Access(access_key=running.started.access_key, secret=running.started.secret),
        ) as result,
    ):
        yield result


@pytest.fixture(params=["memory", "folder", "server"])
def repo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    """A new repository, local or remote."""
    with served(tmp_path) if request.param == "server" else opened(request.param, tmp_path) as result:
        yield result


@pytest.fixture(params=["memory", "folder"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Repository]:
    """A new repository of this process, for what no server can do for it."""
    with opened(request.param, tmp_path) as result:
        yield result


def short(differences: Iterator[Difference]) -> list[tuple[str, str]]:
    """Kinds and paths."""
    return [
        ("prefix" if difference.is_prefix else DiffKind(difference.kind).name.lower(), difference.path)
        for difference in differences
    ]


def test_every_name_of_the_package_is_there() -> None:
    """What is listed can be imported."""
    assert sorted([*lakebed.repo.__all__, "open"]) == dir(lakebed.repo)
    for name in dir(lakebed.repo):
        assert getattr(lakebed.repo, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lakebed.repo.nothing  # noqa: B018  # reading it is what is tested


def test_objects_come_in_any_form(repo: Repository, tmp_path: Path) -> None:
    """Bytes, views, files and chunks are stored alike; what is known of them is right."""
    main = repo.branch()
    body = random.Random(1).randbytes(100_000)
    file = tmp_path / "body"
    file.write_bytes(body)
    with file.open("rb") as opened:
        entries = [
            main.put("bytes", body, content_type="text/csv", metadata={"k": "v"}),
            main.put("view", memoryview(body)),
            main.put("array", bytearray(body)),
            main.put("file", opened),
            main.put("buffer", io.BytesIO(body)),
            main.put("chunks", (body[at : at + 999] for at in range(0, len(body), 999))),
        ]
    assert len({entry.checksum for entry in entries}) == 1
    assert len({entry.address for entry in entries}) == len(entries)
    for path in ("bytes", "view", "array", "file", "buffer", "chunks"):
        assert main.get(path) == body
    result = main.stat("bytes")
    assert (result.size_bytes, result.content_type, result.metadata) == (100_000, "text/csv", {"k": "v"})
    assert main.get("bytes", byte_range=(10, 20)) == body[10:20]
    assert b"".join(main.stream("bytes", byte_range=(5, 50_000))) == body[5:50_000]
    with main.open("bytes") as reading:
        assert reading.seek(-7, io.SEEK_END) == 99_993
        assert reading.read() == body[-7:]
    main.put("empty", b"")
    assert main.get("empty") == b""


def test_wrong_objects_are_refused(repo: Repository, tmp_path: Path) -> None:
    """Missing ones, wrong paths, wrong ranges, files opened for text: each has its kind."""
    main = repo.branch()
    main.put("a", b"123")
    for act in (main.get, main.stat, main.open, main.signed_url, lambda path: list(main.stream(path))):
        assert refused(NotFound, "path_not_found", act, "nothing").facts["path"] == "nothing"
    refused(InvalidRequest, "invalid_range", main.get, "a", byte_range=(3, 4))
    refused(InvalidRequest, "invalid_path", main.put, "", b"")
    refused(InvalidRequest, "invalid_path", main.put, "a/../b", b"")
    refused(InvalidRequest, "reserved_path", main.put, "_lakefs/x", b"")
    text = tmp_path / "text"
    text.write_text("abc")
    with text.open() as opened:
        refused(InvalidRequest, "invalid_body", main.put, "b", opened)
    for wrong in (5, "text", None, ["text"], [1, 2]):
        refused(InvalidRequest, "invalid_body", main.put, "b", wrong)
    refused(InvalidRequest, "wrong_type", main.put, "b", b"", metadata={"k": 5})
    assert [listed.path for listed in main.list()] == ["a"]


def test_what_is_refused_uploads_nothing(local: Repository) -> None:
    """A missing or protected branch, and an object that is there, are seen before the bytes are sent."""
    main = local.branch()
    main.put("a", b"first")
    local.create_branch("release")
    local.protect("release")
    with context_of(local).store.count() as requests:
        refused(NotFound, "branch_not_found", local.branch("nobody").put, "a", b"x")
        refused(InvalidRequest, "protected_branch", local.branch("release").put, "a", b"x")
        refused(AlreadyExists, "path_exists", main.put, "a", b"x", only_if_absent=True)
        refused(InvalidRequest, "invalid_branch_name", local.branch, "a/b")
    assert requests.put == 0
    assert main.get("a") == b"first"
    main.put("b", b"new", only_if_absent=True)


def test_a_session_of_work(repo: Repository) -> None:
    """Stage, look, commit in parts, branch, merge, undo: each step shows what it should."""
    main = repo.branch()
    for number in range(3):
        main.put(f"raw/{number}.csv", b"%d" % number)
    main.put("readme", b"hello")
    assert short(main.status(delimiter="/")) == [("prefix", "raw/"), ("added", "readme")]
    assert short(main.status("raw/", after="raw/0.csv", amount=1)) == [("added", "raw/1.csv")]
    first = main.commit("raw data", prefixes=["raw/"], metadata={"ticket": "7"}, committer="ann")
    assert (first.message, first.committer, first.metadata) == ("raw data", "ann", {"ticket": "7"})
    assert short(main.status()) == [("added", "readme")]
    assert main.is_dirty()
    second = main.commit("readme")
    assert (second.parents, main.commit_id) == ((first.id,), second.id)
    refused(InvalidRequest, "no_changes", main.commit, "nothing")

    dev = repo.create_branch("dev")
    dev.delete("raw/0.csv")
    dev.put("raw/1.csv", b"one")
    dev.put("raw/3.csv", b"3")
    assert short(dev.status()) == [("removed", "raw/0.csv"), ("changed", "raw/1.csv"), ("added", "raw/3.csv")]
    refused(InvalidRequest, "dirty_branch", dev.merge, "main~1")
    dev.commit("work")
    main.put("readme", b"hello again")
    main.commit("readme again")
    assert short(repo.diff("main", "dev")) == [
        ("removed", "raw/0.csv"),
        ("changed", "raw/1.csv"),
        ("added", "raw/3.csv"),
    ]
    assert ("changed", "readme") in short(main.diff(dev, kind="two_dot"))
    assert repo.merge_base("main", dev) == second.id
    merged = main.merge("dev", message="take it")
    assert [commit.message for commit in main.log(amount=3)] == ["take it", "readme again", "work"]
    assert {listed.path for listed in main.list()} == {"raw/1.csv", "raw/2.csv", "raw/3.csv", "readme"}
    assert main.blame("raw/1.csv").message == "work"
    assert {path: item.message for path, item in main.blame_many(["readme", "raw/2.csv"]).items()} == {
        "readme": "readme again",
        "raw/2.csv": "raw data",
    }
    undone = main.revert(merged.id, parent_number=1)
    assert main.exists("raw/0.csv")
    main.cherry_pick("dev")
    assert not main.exists("raw/0.csv")
    assert main.hard_reset(undone.id).id == undone.id
    assert main.exists("raw/0.csv")


def test_a_conflict_lists_its_paths(repo: Repository) -> None:
    """Nothing moves, unless a side was chosen to win."""
    main = repo.branch()
    main.put("a", b"base")
    main.commit("base")
    dev = repo.create_branch("dev")
    for branch, body in ((main, b"ours"), (dev, b"theirs")):
        branch.put("a", body)
        branch.put(f"only-{branch.name}", body)
        branch.commit(branch.name)
    head = main.head()
    assert refused(Conflict, "merge_conflict", main.merge, dev).facts["paths"] == ["a"]
    assert main.head() == head
    main.merge(dev, strategy="source-wins", squash=True)
    assert (main.get("a"), main.get("only-dev"), main.get("only-main")) == (b"theirs", b"theirs", b"ours")
    assert main.head().parents == (head.id,)


def test_resets_give_up_what_they_say(repo: Repository) -> None:
    """One path, a prefix, or everything; not two of them at once."""
    main = repo.branch()
    main.put("a", b"1")
    main.commit("first")
    for path in ("a", "b/1", "b/2", "c"):
        main.put(path, b"2")
    refused(InvalidRequest, "two_targets", main.reset, path="a", prefix="b")
    main.reset(path="a")
    assert main.get("a") == b"1"
    main.reset(prefix="b/")
    assert short(main.status()) == [("added", "c")]
    main.reset()
    assert not main.is_dirty()


def test_deletes_copies_and_links(repo: Repository, tmp_path: Path) -> None:
    """Deletes report what they deleted; a copy is independent; what is linked is read where it is and never owned."""
    main = repo.branch()
    for path in ("a", "p/1", "p/2", "p/3"):
        main.put(path, path.encode(), metadata={"of": path})
    main.commit("first")
    assert main.delete("a")
    assert not main.delete("a")
    assert main.delete_many(["p/1", "nothing"]) == 1
    assert main.delete_prefix("p/")
    assert not main.delete_prefix("p/")
    assert list(main.list()) == []
    copied = main.copy("p/1", "again", ref="main@")
    original = repo.ref("main@").stat("p/1")
    assert copied.address != original.address
    assert (main.get("again"), copied.metadata) == (b"p/1", {"of": "p/1"})
    refused(NotFound, "path_not_found", main.copy, "nothing", "b")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"elsewhere")
    linked = main.link("linked", f"file://{outside}/file")
    assert (linked.size_bytes, main.get("linked")) == (9, b"elsewhere")
    assert main.stage_many([("more/1", copied), ("more/2", copied)]) == 2
    for wrong in (["ab"], [("a",)], [("a", copied, copied)], [{"a": copied, "b": copied}], [7], 7, "ab", None):
        refused(InvalidRequest, "wrong_type", main.stage_many, wrong)
    assert main.get("more/2") == b"p/1"


def test_listings_fold_and_go_on(repo: Repository) -> None:
    """Pages with a delimiter make the whole listing, at a branch and at its commit."""
    main = repo.branch()
    paths = sorted({f"{a}/{b}{c}" for a in "xyz" for b in ("", "b/") for c in range(3)} | {"x", "z"})
    for path in paths:
        main.put(path, path.encode())
    main.commit("all")
    for reading in (main, repo.ref("main@"), repo.ref(main.commit_id[:10])):
        assert [listed.path for listed in reading.list()] == paths
        for delimiter, wanted in (("/", ["x", "x/", "y/", "z", "z/"]), ("b/", None)):
            whole = [listed.path for listed in reading.list(delimiter=delimiter)]
            assert wanted is None or whole == wanted
            lines: list[str] = []
            while page := list(reading.list(delimiter=delimiter, after=lines[-1] if lines else "", amount=2)):
                lines += [listed.path for listed in page]
            assert lines == whole
        assert [listed.path for listed in reading.list("x/", delimiter="/")] == ["x/0", "x/1", "x/2", "x/b/"]


def test_numbers_and_names_that_no_list_has(repo: Repository) -> None:
    """A length beyond what a list can hold means all; half a character in a name is refused with a sentence."""
    main = repo.branch("main")
    main.put("a", b"1")
    main.commit("one")
    main.put("b", b"1")
    repo.create_branch("other", version="main")
    for amount in (2**63, 2**70):
        assert [entry.path for entry in main.list(amount=amount)] == ["a", "b"]
        assert [entry.path for entry in main.list(amount=amount, delimiter="/")] == ["a", "b"]
        assert [difference.path for difference in main.status(amount=amount)] == ["b"]
        assert list(main.diff("other", amount=amount)) == []
        assert len(list(main.log(amount=amount))) == 2
    for act in (repo.unpin, repo.reflog, main.download_directory):
        with pytest.raises(InvalidRequest):
            act("\ud800")


def test_an_open_file_that_nothing_was_read_of(local: Repository) -> None:
    """It has the object that replaced a collected one, whole; after a read, or a look at its size, it stays."""
    main = local.branch("main")

    def replace(body: bytes) -> None:
        gone = main.stat("a").address
        main.put("a", body)
        context_of(local).store.delete([gone])

    main.put("a", b"first")
    unread, sized, begun, sought = (main.open("a") for _ in range(4))
    assert sized.seek(0, io.SEEK_END) == 5
    assert begun.read(2) == b"fi"
    sought.seek(3)
    for body in (b"another", b"the last, which is the longest"):
        replace(body)
    assert unread.read() == b"the last, which is the longest"
    assert sought.read() == b" last, which is the longest"
    assert begun.read() == b"rst"  # it was read ahead
    sized.seek(0)
    with raises(NotFound, "object_gone"):
        sized.read()
    lost, address = main.open("a"), main.stat("a").address
    main.delete("a")
    context_of(local).store.delete([address])
    with raises(NotFound, "path_not_found"):
        lost.read()


def test_differences_fold_and_go_on(repo: Repository) -> None:
    """Pages of differences make the whole, of references and of what is staged, and agree with whole states."""
    rng = random.Random(2)
    main = repo.branch()
    paths = [f"{a}/{b}/{c}" for a in "ab" for b in "cd" for c in range(6)]
    for path in paths:
        main.put(path, b"old")
    main.commit("old")
    wanted: dict[str, str] = {}
    for path in rng.sample(paths, 8):
        main.delete(path)
        wanted[path] = "removed"
    for path in rng.sample(sorted(set(paths) - set(wanted)), 4):
        main.put(path, b"new")
        wanted[path] = "changed"
    main.put("b/new", b"new")
    wanted["b/new"] = "added"

    def staged(**page: Any) -> list[tuple[str, str]]:
        return short(main.status(**page))

    def committed(**page: Any) -> list[tuple[str, str]]:
        return short(repo.diff("main~1", "main", **page))

    expected = sorted((path, kind) for path, kind in wanted.items())
    for differences in (staged, committed):
        if differences is committed:
            main.commit("new")
        assert [(path, kind) for kind, path in differences()] == expected
        folded = sorted({path[:2] for path in wanted})
        assert [path for _, path in differences(delimiter="/")] == folded
        pages: list[dict[str, Any]] = [{}, {"delimiter": "/"}, {"delimiter": "/", "prefix": "a/"}, {"prefix": "b/c"}]
        for page in pages:
            whole = differences(**page)
            items: list[tuple[str, str]] = []
            while more := differences(**page, amount=3, after=items[-1][1] if items else ""):
                items += more
            assert items == whole
    refused(InvalidRequest, "invalid_diff_kind", lambda: repo.diff("main", "main", kind="four_dot"))  # type: ignore[arg-type]
    refused(InvalidRequest, "invalid_reference", repo.diff, "main$", "main")
    refused(InvalidRequest, "invalid_amount", repo.diff, "main", "main", amount=-1)


def test_an_iterator_stays_at_its_moment(repo: Repository) -> None:
    """Changes made while a listing of a branch is paged through are not in that listing."""
    main = repo.branch()
    for number in range(5):
        main.put(f"{number}", b"x")
    listing, status = main.list(), main.status()
    assert (next(listing).path, next(status).path) == ("0", "0")
    main.delete_prefix("")
    main.put("9", b"x")
    main.commit("other")
    assert [listed.path for listed in listing] == ["1", "2", "3", "4"]
    assert [difference.path for difference in status] == ["1", "2", "3", "4"]


def test_branches_and_tags_by_name(repo: Repository) -> None:
    """They are made from any reference, listed with their commits, deleted, and a branch is brought back."""
    main = repo.branch()
    main.put("a", b"1")
    first = main.commit("first")
    main.put("a", b"2")
    second = main.commit("second")
    dev = repo.create_branch("dev", version="main~1")
    repo.create_branch("txn", version=dev, hidden=True)
    repo.create_tag("v1", ref=dev)
    repo.create_tag("v2")
    assert list(repo.branches()) == [("dev", first.id), ("main", second.id)]
    assert [branch.name for branch in repo.branches(hidden=True)] == ["dev", "main", "txn"]
    assert [(tag.name, tag.commit_id) for tag in repo.tags()] == [("v1", first.id), ("v2", second.id)]
    assert repo.ref("v1").get("a") == b"1"
    repo.delete_tag("v1")
    repo.delete_branch("dev")
    assert [branch.name for branch in repo.branches()] == ["main"]
    assert repo.undelete_branch("dev").commit_id == first.id
    refused(NotFound, "reference_not_found", repo.ref("v1").head)
    refused(NotFound, "reference_not_found", repo.create_branch, "x", version="v1")
    assert {line.what for line in repo.reflog("dev")} == {"create", "delete", "undelete"}


def test_settings_are_kept(repo: Repository) -> None:
    """Protection, retention and webhooks are set, shown and taken away."""
    main = repo.branch()
    repo.protect("main", blocked=("commit",))
    main.put("a", b"1")
    refused(InvalidRequest, "protected_branch", main.commit, "direct")
    assert [rule.pattern for rule in repo.protected()] == ["main"]
    repo.unprotect("main")
    assert repo.retention() is None
    repo.set_retention(default_days=30, branch_days={"main": 90})
    rules = repo.retention()
    assert rules is not None
    assert rules.days_of("main") == 90
    repo.delete_retention()
    assert repo.webhooks() == ()
    repo.set_webhooks([Webhook("audit", "http://127.0.0.1:1/audit", ("post-commit",), timeout_ms=500)])
    assert [(hook.name, hook.events) for hook in repo.webhooks()] == [("audit", ("post-commit",))]
    repo.set_webhooks([])
    assert main.commit("yes").message == "yes"


def test_a_hook_refuses(local: Repository) -> None:
    """A function that is called before a commit refuses it, and then nothing moves."""
    main = local.branch()
    main.put("a", b"1")

    def strict(call: HookCall) -> None:
        if "ticket" not in call.metadata:
            raise ValueError("name a ticket")

    local.hooks.register("pre-commit", strict)
    assert "name a ticket" in str(refused(Rejected, "hook_rejected", main.commit, "no"))
    main.commit("yes", metadata={"ticket": "7"})


def test_objects_of_another_place_are_imported(repo: Repository) -> None:
    """They appear in one commit, are read where they are, and are not copied."""
    outside = open_store(f"memory://outside/{uuid.uuid4()}")
    for number in range(3):
        outside.put(f"raw/{number}", b"%d" % number)
    main = repo.branch()
    done = main.import_objects([ImportSource(f"{outside.root_url}/raw/", "in/")], message="import")
    assert (done.state, done.ingested_count, done.commit_id) == ("completed", 3, main.commit_id)
    assert [main.get(listed.path) for listed in main.list("in/")] == [b"0", b"1", b"2"]
    assert not main.is_dirty()


@pytest.mark.parametrize("takes_back", ["reset", "hard_reset", "made again"])
def test_a_long_write_to_a_table_whose_branch_is_reset_is_not_committed(repo: Repository, takes_back: str) -> None:
    """What it had written is gone: it is refused, and the table is as the reset left it."""
    etl = repo.create_branch("etl")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
    options = {"bucket": "1", "write-buffer-size": "64 kb"}
    Table.create(etl.store("t"), name="t", schema=schema, primary_keys="id", options=options).upsert(
        pa.table({"id": [1], "v": ["before"]}, schema)
    )
    head = etl.commit("a table").id
    table = Table.open(etl.store("t"), name="t")
    committed = {meta.path for meta in etl.store("t").list("bucket-0")}

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(6):
            ids = range(number * 5_000, (number + 1) * 5_000)
            yield pa.record_batch({"id": ids, "v": [f"{id * 7_919 % 1_000_003}" for id in ids]}, schema)
        assert {meta.path for meta in etl.store("t").list("bucket-0")} > committed
        if takes_back == "reset":
            etl.reset()
        elif takes_back == "hard_reset":
            etl.hard_reset(head, force=True)
        else:
            repo.delete_branch("etl")
            repo.create_branch("etl", version=head)

    with raises(Conflict, "branch_moved"):
        table.upsert(pa.RecordBatchReader.from_batches(schema, batches()))
    assert Table.open(etl.store("t"), name="t").read().to_pylist() == [{"id": 1, "v": "before"}]


class ResetBeforeSnapshot(StoreWrapper):
    """Resets the branch once, right before a snapshot is put."""

    def __init__(self, inner: ObjectStore, branch: Branch) -> None:
        super().__init__(inner)
        self.branch, self.was_reset = branch, False

    def intercept(self, call: Call, perform: Callable[[], R]) -> R:
        if call.kind == "put" and call.path.startswith("snapshot/") and not self.was_reset:
            self.was_reset = True
            self.branch.reset()
        return perform()


def make_table_in_branch(repo: Repository) -> tuple[Branch, pa.Table]:
    """A table in the branch etl: one row is committed, and another one staged."""
    etl, rows = repo.create_branch("etl"), pa.table({"id": [1]})
    table = Table.create(etl.store("t"), name="t", schema=rows.schema)
    table.append(rows)
    etl.commit("a row")
    table.append(pa.table({"id": [2]}))
    return etl, rows


def test_a_reset_between_the_look_for_files_and_the_commit_leaves_no_snapshot(repo: Repository) -> None:
    """The commit looks once more: it is taken back and refused, and the table is as the reset left it."""
    etl, rows = make_table_in_branch(repo)
    store = ResetBeforeSnapshot(etl.store("t"), etl)
    with raises(Conflict, "branch_moved"):
        Table.open(store, name="t").append(pa.table({"id": [3]}))
    assert store.was_reset
    table = Table.open(etl.store("t"), name="t")
    assert (table.read(), len(list(table.snapshots()))) == (rows, 1)
    table.append(pa.table({"id": [4]}))
    assert table.read()["id"].to_pylist() == [1, 4]


@pytest.mark.parametrize("verb", ["delete", "overwrite"])
def test_a_change_whose_manifests_a_reset_took_is_made_again(repo: Repository, verb: str) -> None:
    """It brings no data files that could be missing, so it is made again on what the reset left."""
    etl, _ = make_table_in_branch(repo)
    store = Between(etl.store("t"), kind="put", prefix="manifest", happens=etl.reset)
    late = Table.open(store, name="t")
    if verb == "delete":
        late.delete("id = 1")
    else:
        late.overwrite(pa.table({"id": pa.array([], pa.int64())}))
    assert store.happened
    table = Table.open(etl.store("t"), name="t")
    assert (table.read().num_rows, len(list(table.snapshots()))) == (0, 2)


def put_late_snapshot(etl: Branch) -> str:
    """Put a snapshot whose parts a reset took just before, as a writer does that has not looked yet; its path."""
    store = etl.store("t")
    [newest] = [meta.path for meta in store.list("snapshot") if meta.path.endswith("-2")]
    body = bytes(store.get(newest))
    etl.reset()
    store.put(newest, body)
    return newest


@pytest.mark.parametrize("verb", ["append", "overwrite"])
def test_a_writer_waits_until_a_snapshot_that_is_not_whole_is_withdrawn(repo: Repository, verb: str) -> None:
    """It does not fail for a reset that met another writer, and nothing is committed on top of that snapshot."""
    etl, _ = make_table_in_branch(repo)
    late = put_late_snapshot(etl)
    store = Meanwhile(
        etl.store("t"),
        lambda: etl.store("t").delete([late]),
        at=6,
        counts=lambda call: call.kind == "get" and call.path == late,
    )
    table = Table.open(store, name="t")
    if verb == "append":
        table.append(pa.table({"id": [4]}))
    else:
        table.overwrite(pa.table({"id": [4]}))
    assert store.happened
    expected = [1, 4] if verb == "append" else [4]
    assert Table.open(etl.store("t"), name="t").read()["id"].to_pylist() == expected


def test_a_snapshot_whose_writer_died_before_it_looked_is_named(repo: Repository) -> None:
    """A writer that finds it says what to do, and a reset of the table's folder does it."""
    etl, _ = make_table_in_branch(repo)
    put_late_snapshot(etl)
    table = Table.open(etl.store("t"), name="t")
    with raises(Conflict, "commit_stuck") as refusal:
        table.append(pa.table({"id": [4]}))
    assert "reset the folder of the table" in str(refusal.value)
    etl.reset(prefix="t/")
    table.append(pa.table({"id": [4]}))
    assert table.read()["id"].to_pylist() == [1, 4]


def test_a_prepared_commit_whose_files_a_reset_takes_at_last_leaves_no_snapshot(repo: Repository) -> None:
    """Its client finds no snapshot of it, and is told to prepare it again."""
    etl, rows = make_table_in_branch(repo)
    store = etl.store("t")
    prepared = Table.open(store, name="t").latest()
    assert prepared is not None
    files = {
        meta.path: bytes(store.get(meta.path)) for folder in ("bucket-0", "manifest") for meta in store.list(folder)
    }
    etl.reset()
    for path, body in files.items():
        store.put(path, body)
    late = ResetBeforeSnapshot(store, etl)
    assert commit_prepared(Table.open(late, name="t").context, replace(prepared, properties={})) is None
    assert late.was_reset
    assert Table.open(store, name="t").read() == rows


def test_an_object_that_names_others_is_created_only_where_they_are(repo: Repository) -> None:
    """In the branch at that moment: also what is committed counts, and what was deleted does not."""
    main = repo.branch()
    store = main.store("t")
    store.put("a", b"1")
    main.commit("a")
    store.put("b", b"2")
    store.requiring(["a", "b"]).put("first", b"", create_only=True)
    store.delete(["a"])
    with raises(Conflict, "path_gone", path="t/a"):
        store.requiring(["b", "a"]).put("second", b"", create_only=True)
    with pytest.raises(AlreadyExists):
        store.requiring(["a"]).put("first", b"other", create_only=True)
    assert [meta.path for meta in store.list()] == ["b", "first"]


def test_a_branch_is_a_store(local: Repository) -> None:
    """What is put through the port is staged; a commit can be read through it, and not written."""
    store = local.branch().store("tables")
    store.put("t/x", b"1")
    assert local.branch().get("tables/t/x") == b"1"
    local.branch().commit("table")
    reading = local.ref("main@").store("tables")
    assert [meta.path for meta in reading.list()] == ["t/x"]
    with pytest.raises(InvalidRequest):
        reading.put("t/y", b"2")


def test_compaction_changes_no_read(repo: Repository) -> None:
    """Before and after it a branch shows the same, and the same is uncommitted."""
    main = repo.branch()
    for number in range(20):
        main.put(f"{number:02}", b"x")
    main.commit("base")
    main.delete_many([f"{number:02}" for number in range(15)])
    main.put("new", b"y")
    before = ([listed.path for listed in main.list()], short(main.status()))
    done = main.compact()
    assert (done.outcome, done.entry_count, done.tombstone_count) == ("published", 1, 15)
    assert ([listed.path for listed in main.list()], short(main.status())) == before
    assert main.compact(force=False).outcome == "idle"
    main.commit("after")
    assert [listed.path for listed in main.list()] == before[0]


def test_a_rebase_makes_commits_again(repo: Repository) -> None:
    """The branch's own commits follow the other branch's head afterwards."""
    main = repo.branch()
    main.put("a", b"1")
    main.commit("base")
    dev = repo.create_branch("dev")
    dev.put("b", b"1")
    dev.commit("own")
    main.put("c", b"1")
    onto = main.commit("moved on")
    dev.rebase(main)
    assert [commit.message for commit in dev.log(amount=2)] == ["own", "moved on"]
    assert dev.head().parents == (onto.id,)


def test_it_says_what_it_is(local: Repository) -> None:
    """Representations name the repository and the reference, and nothing secret."""
    assert repr(local) == f"Repository('analytics', url='{local.url}')"
    assert repr(local.branch("dev")) == "Branch('analytics', 'dev')"
    assert repr(local.ref("main~2")) == "Reference('analytics', 'main~2')"
    assert (str(local.ref("main~2")), local.branch("dev").name, local.ref("v1").text) == ("main~2", "dev", "v1")
    local.hooks.register("post-commit", lambda call: None)
    assert repr(local.hooks) == "Hooks(functions=1, failures=0)"
    local.close()
    assert repr(local) == f"Repository('analytics', url='{local.url}', closed)"


def test_what_was_closed_is_named(local: Repository) -> None:
    """A verb after `close` names the repositories, not only the database of their records."""
    dev = local.create_branch("dev")
    local.close()
    for verb in (dev.head, lambda: dev.put("a", b"1"), lambda: list(local.log()), lambda: dev.commit("late")):
        with pytest.raises(Closed, match="was closed with the repositories whose records it has: open these again"):
            verb()


def test_in_a_forked_process_the_repositories_are_named(local: Repository) -> None:
    """A verb there says whose the repositories are, and what can be done: to read them, as the sentence says."""
    says = "Closed: The database .*/_repositories has the records of repositories that belong to the process that this"
    main = local.branch("main")
    main.put("a", b"1")
    for verb in (main.head, lambda: main.put("b", b"1"), lambda: list(local.log()), lambda: main.commit("late")):
        assert re.match(says, answer_in_fork(verb))
    if not local.url.startswith("memory"):
        reader = partial(lakebed.repo.open, local.url, access=lakebed.repo.Access(read_only=True))
        assert answer_in_fork(lambda: reader().branch("main").get("a")) == str(b"1")
    assert main.get("a") == b"1"
