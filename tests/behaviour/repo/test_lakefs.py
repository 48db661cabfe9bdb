"""Dumps of lakeFS: restored whole or not at all, with their ids, and written so that ids stay where they can."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import lakebed.repo
from lakebed.errors import Conflict, Corruption, InvalidRequest, LakebedError, NotFound, OutcomeUnknown
from lakebed.lsm.file_id import file_id_at
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.repo import RefsDump, Repositories, Repository, RepositoryOptions
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.drop import sweep_deleted
from lakebed.repo.lakefs import restore
from lakebed.repo.lakefs.metaranges import LakefsNamespace
from lakebed.repo.model.layout import MARKER_PATH, repository_key
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.repositories import local_catalog
from lakebed.repo.transport.transport import context_of
from lakebed.runtime import Environment
from lakebed.testing import ManualClock


@pytest.fixture
def lake() -> Iterator[Repositories]:
    """Repositories in memory."""
    with lakebed.repo.open_all(
        f"memory://{uuid.uuid4()}", options=RepositoryOptions(background=False, committer="ann")
    ) as repositories:
        yield repositories


@pytest.fixture
def namespace() -> ObjectStore:
    """An empty storage namespace of lakeFS."""
    return open_store(f"memory://{uuid.uuid4()}/lakefs")


def make_history(repository: Repository) -> None:
    """Commits that add, change and delete, a merge, a branch and a tag."""
    main = repository.branch("main")
    for number in range(6):
        main.put(f"data/{number % 4}.csv", b"x%d" % number, content_type="text/csv", metadata={"n": str(number)})
        main.put(f"other/größe {number}", b"")
        main.commit(f"day {number}", metadata={"day": str(number)})
    dev = repository.create_branch("dev", version="main~3")
    dev.put("dev/1", b"dev")
    dev.commit("on dev")
    main.delete("data/0.csv")
    main.commit("deleted")
    main.merge("dev", message="dev is done")
    repository.create_branch("open", version="main~1").put("staged", b"is not in a dump")
    repository.create_tag("v1", ref="main~2")


def history(repository: Repository, ref: str = "main") -> list[object]:
    """What a log says, but for ids; and what each commit has, byte by byte."""
    commits = []
    for commit in repository.log(ref):
        at = repository.ref(commit.id)
        bodies = {
            row.path: (at.get(row.path), row.entry.checksum, row.entry.content_type, row.entry.metadata)
            for row in at.list()
            if row.entry is not None
        }
        commits.append((commit.message, commit.committer, commit.created_at_ms, commit.metadata, bodies))
    return commits


def shape(repository: Repository) -> dict[str, list[str]]:
    """Ids of the commits of each branch and tag, with their parents."""
    names = [*(branch.name for branch in repository.branches()), *(tag.name for tag in repository.tags())]
    return {name: [f"{commit.id} {' '.join(commit.parents)}" for commit in repository.log(name)] for name in names}


def test_a_history_goes_there_and_comes_back(lake: Repositories, namespace: ObjectStore) -> None:
    """Every commit, branch, tag and object is as before; ids are those of the dump, and stay in the next one."""
    source = lake.create("source")
    make_history(source)
    report = source.dump_refs(namespace)
    assert (report.branch_count, report.tag_count, report.commit_count) == (3, 1, len(list(source.log("main"))))
    moved = lake.create("moved", bare=True)
    restored = moved.restore_refs(report.refs, url=namespace.root_url)
    assert (restored.commit_count, restored.branch_count, restored.tag_count) == (report.commit_count, 3, 1)
    assert restored.object_count == len(list(source.ref("main").list()))
    for ref in ("main", "dev", "open@", "v1"):
        assert history(moved, ref) == history(source, ref)
    ids = report.commit_ids
    renamed = {
        name: [" ".join(ids[id] for id in line.split()) for line in lines] for name, lines in shape(source).items()
    }
    assert {name: [line.strip() for line in lines] for name, lines in shape(moved).items()} == renamed
    assert not list(moved.branch("open").status())
    again = moved.dump_refs(namespace)
    assert (again.commit_ids, again.copied_count, again.refs) == ({}, 0, report.refs)
    elsewhere = open_store(f"memory://{uuid.uuid4()}/lakefs")
    assert moved.dump_refs(elsewhere).commit_ids.keys() <= {commit.split()[0] for commit in shape(moved)["main"]}
    assert not moved.collect(CollectionOptions(grace=CollectionOptions().grace * 0)).deleted_count
    assert history(moved) == history(source)


def test_a_restored_repository_goes_on(lake: Repositories, namespace: ObjectStore) -> None:
    """Commits, merges, reverts, the log by path and blame work over what was restored."""
    source = lake.create("source")
    make_history(source)
    moved = lake.create("moved", bare=True)
    moved.restore_refs(source.dump_refs(namespace).refs, url=namespace.root_url)
    main = moved.branch("main")
    main.put("data/1.csv", b"changed here")
    main.commit("here")
    assert main.get("data/1.csv") == b"changed here"
    assert [commit.message for commit in moved.log("main", paths=["data/1.csv"])][:2] == ["here", "day 5"]
    main.revert("main")
    assert main.get("data/1.csv") == b"x5"
    dev = moved.branch("dev")
    dev.put("dev/2", b"2")
    dev.commit("more")
    main.merge("dev")
    assert main.get("dev/2") == b"2"


def test_only_a_bare_repository_takes_a_dump(lake: Repositories, namespace: ObjectStore) -> None:
    """One with a branch refuses it, also while another restore was faster; nothing changes."""
    source = lake.create("source")
    make_history(source)
    refs = source.dump_refs(namespace).refs
    before = shape(source)
    with pytest.raises(InvalidRequest, match="bare repository"):
        source.restore_refs(refs, url=namespace.root_url)
    assert shape(source) == before
    moved = lake.create("moved", bare=True)
    assert list(moved.branches()) == []
    with pytest.raises(NotFound):
        moved.branch("main").put("x", b"1")
    slow = restore._Restore(
        context_of(moved), LakefsNamespace(namespace), refs, committer="", progress=None
    )  # looked while it was bare
    moved.restore_refs(refs, url=namespace.root_url)
    first = shape(moved)
    with pytest.raises(InvalidRequest, match="bare repository"):
        slow.run()
    assert shape(moved) == first


def test_a_collection_during_a_restore_ends_it(
    lake: Repositories, namespace: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a restore has written may be collected before it is named: it says so, and is done again."""
    source = lake.create("source")
    make_history(source)
    refs = source.dump_refs(namespace).refs
    moved = lake.create("moved", bare=True)
    publish = restore._Restore._publish

    def collect_first(self: restore._Restore, *arguments: object) -> None:
        collect_garbage(context_of(moved), options=CollectionOptions(grace=CollectionOptions().grace * 0))
        publish(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(restore._Restore, "_publish", collect_first)
        with pytest.raises(Conflict, match="run the restore again"):
            moved.restore_refs(refs, url=namespace.root_url)
    assert list(moved.branches()) == []
    moved.restore_refs(refs, url=namespace.root_url)
    assert history(moved) == history(source)


def test_a_restore_that_ends_anywhere_is_done_again(
    lake: Repositories, namespace: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash at any write there is a bare repository, and the next restore makes it whole."""
    source = lake.create("source")
    make_history(source)
    refs = source.dump_refs(namespace).refs
    moved = lake.create("moved", bare=True)
    key_value = context_of(moved).key_value
    write, writes_left = key_value.write, 0

    def fail(*arguments: object, **rest: object) -> None:
        nonlocal writes_left
        if not writes_left:
            raise OutcomeUnknown("the process ended here", kind="outcome_unknown")
        writes_left -= 1
        write(*arguments, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(restore, "_COMMITS_WRITTEN", 4)
    for count in range(3):
        writes_left = count
        with monkeypatch.context() as patched:
            patched.setattr(key_value, "write", fail)
            with pytest.raises(LakebedError):
                moved.restore_refs(refs, url=namespace.root_url)
        assert list(moved.branches()) == []
    moved.restore_refs(refs, url=namespace.root_url)
    assert history(moved) == history(source)


def test_what_is_missing_or_damaged_makes_no_history(lake: Repositories, namespace: ObjectStore) -> None:
    """Without any one of lakeFS's files, or with another content of it, there is an error and no branch."""
    source = lake.create("source")
    make_history(source)
    refs = source.dump_refs(namespace).refs
    moved = lake.create("moved", bare=True)
    paths = [meta.path for meta in namespace.list("_lakefs") if not meta.path.endswith(".json")]
    assert len(paths) > 10
    for path in paths:
        content = bytes(namespace.get(path))
        namespace.delete([path])
        with pytest.raises(NotFound, match="is not there"):
            moved.restore_refs(refs, url=namespace.root_url)
        namespace.put(path, bytes(namespace.get(paths[0] if path != paths[0] else paths[1])))
        with pytest.raises(Corruption):
            moved.restore_refs(refs, url=namespace.root_url)
        namespace.put(path, content)
        assert list(moved.branches()) == []
    moved.restore_refs(url=namespace.root_url)  # the ids that the dump has left in the namespace
    assert history(moved) == history(source)


@pytest.mark.parametrize("field", RefsDump.__struct_fields__)
def test_ids_that_are_none_are_refused(lake: Repositories, namespace: ObjectStore, field: str) -> None:
    """Before anything is read; and a namespace that has no dump says so."""
    moved = lake.create("moved", bare=True)
    refs = RefsDump("0" * 64, "1" * 64, "2" * 64)
    with pytest.raises(InvalidRequest, match=field):
        moved.restore_refs(msgspec.structs.replace(refs, **{field: "../data"}), url=namespace.root_url)
    with pytest.raises(NotFound):
        moved.restore_refs(refs, url=namespace.root_url)
    with pytest.raises(NotFound, match="refs-dump"):
        moved.restore_refs(url=namespace.root_url)


def test_the_default_branch_has_to_be_in_the_dump(lake: Repositories, namespace: ObjectStore) -> None:
    """A repository whose default branch the dump has not names those that it has."""
    source = lake.create("source")
    make_history(source)
    moved = lake.create("moved", bare=True, default_branch="trunk")
    with pytest.raises(InvalidRequest, match=r"dev, main, open.*default branch"):
        moved.restore_refs(source.dump_refs(namespace).refs, url=namespace.root_url)


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_shared_namespace_keeps_what_is_of_lakefs(tmp_path: Path) -> None:
    """A repository in lakeFS's namespace reads it; collected, deleted and swept, just its own files go."""
    clock = ManualClock()
    environment = Environment(clock=clock)
    options = RepositoryOptions(background=False)
    grace = CollectionOptions().grace
    with lakebed.repo.open_all(tmp_path, options=options, environment=environment) as repositories:
        source = repositories.create("source")
        make_history(source)
        source.dump_refs(open_store(tmp_path / "theirs"))
        folder = tmp_path / "theirs"
        for number, upload in enumerate(sorted((folder / "data").iterdir())):  # names as lakeFS gives them
            upload.rename(folder / "data" / f"g{number}-of-lakefs")
        for path in ("uploads/report.csv", "uploads/{0}", "derived/{0}.parquet", "data/{0}", "ranges/a-{0}"):
            place = folder / path.format(file_id_at(clock.now_ms() - 1))  # what users had there before
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(b"of a user")
        theirs = files_of(folder)
        with pytest.raises(LakebedError, match="in use"):
            repositories.create("moved", namespace="local://theirs")
        moved = repositories.create("moved", namespace="local://theirs", bare=True)
        moved.restore_refs()
        messages = [sorted(commit.message for commit in repository.log()) for repository in (moved, source)]
        assert messages[0] == messages[1]  # commits of one moment are ordered by their ids
        moved.branch("main").put("new", b"1")
        moved.branch("main").commit("new")
        moved.branch("main").delete("new")
        clock.advance(grace.total_seconds() * 2)
        moved.collect(CollectionOptions(grace=grace * 0))
        assert {path: files_of(folder).get(path) for path in theirs} == theirs
        repositories.delete("moved")
        clock.advance(grace.total_seconds() * 2)
        sweep_deleted(repositories)
        assert files_of(folder) == theirs
        repositories.create("moved", namespace="local://theirs", bare=True).restore_refs()


def forget_sharing(repositories: Repositories, name: str) -> None:
    """As a version does that does not know shared namespaces, when it changes the metadata of a repository."""
    key_value, key = local_catalog(repositories).key_value, repository_key(name)
    record = msgspec.json.decode(key_value.get(key) or b"")
    assert record.pop("is_shared")
    key_value.write([(key, msgspec.json.encode(record))])


def test_a_shared_namespace_is_remembered_where_an_older_version_changed_the_record(tmp_path: Path) -> None:
    """A version that does not know shared namespaces drops the field; the marker protects what is there."""
    clock = ManualClock()
    environment, options = Environment(clock=clock), RepositoryOptions(background=False)
    grace = CollectionOptions().grace
    with lakebed.repo.open_all(tmp_path, options=options, environment=environment) as repositories:
        source = repositories.create("source")
        make_history(source)
        source.dump_refs(open_store(tmp_path / "theirs"))
        folder = tmp_path / "theirs"
        for number, upload in enumerate(sorted((folder / "data").iterdir())):  # names as lakeFS gives them
            upload.rename(folder / "data" / f"g{number}-of-lakefs")
        (folder / "data" / file_id_at(clock.now_ms() - 1)).write_bytes(b"of a user")
        theirs = files_of(folder)
        repositories.create("moved", namespace="local://theirs", bare=True).restore_refs()
        forget_sharing(repositories, "moved")

    def end_process(_: object) -> None:
        if not (folder / MARKER_PATH).exists():
            raise KeyboardInterrupt

    with lakebed.repo.open_all(tmp_path, options=options, environment=environment) as repositories:
        clock.advance(grace.total_seconds() * 2)
        repositories.repository("moved").collect(CollectionOptions(grace=grace * 0))
        assert {path: files_of(folder).get(path) for path in theirs} == theirs
        repositories.delete("moved")
        clock.advance(grace.total_seconds() * 2)
        with pytest.raises(KeyboardInterrupt):
            sweep_deleted(repositories, progress=end_process)
        assert repositories.deleted()
        sweep_deleted(repositories)
        assert files_of(folder) == theirs
        assert not repositories.deleted()


def test_a_change_of_metadata_puts_back_that_a_namespace_is_shared(tmp_path: Path) -> None:
    """What a repository has from lakeFS cannot be read after an older version changed its metadata, and can again."""
    options = RepositoryOptions(background=False)
    with lakebed.repo.open_all(tmp_path, options=options) as repositories:
        source = repositories.create("source")
        source.branch("main").put("file", b"1")
        source.branch("main").commit("one")
        source.dump_refs(open_store(tmp_path / "theirs"))
        for upload in (tmp_path / "theirs" / "data").iterdir():
            upload.rename(upload.with_name(f"{upload.name}-of-lakefs"))
        repositories.create("moved", namespace="local://theirs", bare=True)
        forget_sharing(repositories, "moved")
        repositories.set_metadata("moved", {"team": "data"})
        key_value = local_catalog(repositories).key_value
        assert msgspec.json.decode(key_value.get(repository_key("moved")) or b"")["is_shared"] is True
    with lakebed.repo.open_all(tmp_path, options=options) as repositories:
        repositories.repository("moved").restore_refs()
