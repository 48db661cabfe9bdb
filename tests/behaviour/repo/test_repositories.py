"""Repositories of a storage: made once, found, listed, deleted; under crashes and with other processes."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lakebed.repo
from lakebed.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Corruption,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from lakebed.objects import open_store
from lakebed.reclaim import sweep
from lakebed.repo import Repositories, Repository, RepositoryOptions
from lakebed.repo.drop import sweep_deleted
from lakebed.repo.model.layout import MARKER_PATH, Keys, repository_key
from lakebed.repo.model.options import Access
from lakebed.repo.outside.namespace import namespace_folder, overlaps
from lakebed.repo.references.branches import load_branch
from lakebed.repo.repositories import local_catalog
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.repo.transport.transport import context_of
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from lakebed.testing.faulty import Crashed
from lakebed.testing.wrapper import StoreWrapper
from worlds.errors import raises, refused
from worlds.key_value_wrapper import Rival
from worlds.memory_key_value import MemoryKeyValue, MemorySpace
from worlds.repo.memory_repository import Pause, Trap, TrappedKeyValue, TrappedStore

QUIET = RepositoryOptions(background=False)


class Storage:
    """A storage and its records; every home of it is a process of its own."""

    def __init__(self) -> None:
        self.environment = Environment(clock=ManualClock(), rng=random.Random(uuid.uuid4().int))
        self.url = f"memory://{uuid.uuid4()}"
        self.space = MemorySpace(environment=self.environment)

    def open(
        self, *, trap: Trap | None = None, store: Any = None, key_value: Any = None, space: MemorySpace | None = None
    ) -> Repositories:
        """A process of its own."""
        store = store or open_store(self.url, environment=self.environment)
        key_value = key_value or MemoryKeyValue(space or self.space)
        if trap is not None:
            store, key_value = TrappedStore(store, trap), TrappedKeyValue(key_value, trap)
        return Repositories(LocalCatalog(store, key_value, options=QUIET, environment=self.environment))


@pytest.fixture
def storage() -> Storage:
    """An empty storage."""
    return Storage()


@pytest.fixture
def home(storage: Storage) -> Iterator[Repositories]:
    """Its repositories."""
    with storage.open() as opened:
        yield opened


# ---- making and finding


def test_a_new_repository_has_a_first_commit(home: Repositories) -> None:
    """It holds nothing, says so, and is where it was asked for."""
    repo = home.create("analytics", default_branch="trunk", metadata={"team": "a"}, committer="ann")
    assert (repo.name, repo.default_branch, repo.metadata, repo.is_read_only) == (
        "analytics",
        "trunk",
        {"team": "a"},
        False,
    )
    assert repo.url == f"{home.url}/analytics.repo"
    assert repo.namespace == "analytics.repo"
    head = repo.branch().head()
    assert (head.message, head.committer, head.parents, head.commit.generation) == ("Repository created", "ann", (), 1)
    assert list(repo.branch().list()) == []
    again = home.repository("analytics")
    assert (again.id, again.created_at_ms) == (repo.id, repo.created_at_ms)
    assert context_of(again) is context_of(repo)  # what the sensor counts is counted once
    assert home.exists("analytics")
    assert not home.exists("analysis")


def test_repositories_are_listed_in_pages(home: Repositories) -> None:
    """By prefix and behind a name, in the order of names."""
    for name in ("web-2", "web-1", "app"):
        home.create(name)
    names = [repo.name for repo in home.list()]
    assert names == ["app", "web-1", "web-2"]
    assert [repo.name for repo in home.list(prefix="web")] == ["web-1", "web-2"]
    assert [repo.name for repo in home.list(after="app", amount=1)] == ["web-1"]
    assert [repo.name for repo in home.list(prefix="a", after="b")] == []


def test_wrong_names_are_named(home: Repositories) -> None:
    """Names that cannot be, are taken, or are not there: each has its kind, and what is near."""
    home.create("analytics")
    refused(AlreadyExists, "repository_exists", home.create, "analytics", namespace="elsewhere")
    for name in ("ab", "Upper", "a" * 64, "under_score", "../up", "-dash", ""):
        refused(InvalidRequest, "invalid_repository_name", home.create, name)
    refused(InvalidRequest, "invalid_branch_name", home.create, "other", default_branch="a b")
    assert "Did you mean analytics?" in str(refused(NotFound, "repository_not_found", home.repository, "analytic"))
    assert "It has analytics." in str(refused(NotFound, "repository_not_found", home.repository, "quite-different"))
    refused(InvalidRequest, "oversized_metadata", home.create, "other", metadata={"k": "v" * 100_000})
    assert [repo.name for repo in home.list()] == ["analytics"]


def test_metadata_is_replaced(home: Repositories) -> None:
    """Every later open of the repository has the new ones, and what was opened keeps working."""
    old = home.create("analytics", metadata={"a": "1"})
    home.set_metadata("analytics", {"b": "2"})
    assert home.repository("analytics").metadata == {"b": "2"}
    old.branch().put("a", b"1")
    assert home.repository("analytics").branch().get("a") == b"1"
    refused(NotFound, "repository_not_found", home.set_metadata, "nobody", {})


def test_a_read_only_repository_does_not_change(home: Repositories) -> None:
    """Neither by writes, branches nor tags; deleting it has to be meant."""
    repo = home.create("frozen", read_only=True)
    refused(InvalidRequest, "read_only_repository", repo.branch().put, "a", b"1")
    refused(InvalidRequest, "read_only_repository", repo.branch().commit, "m", allow_empty=True)
    refused(InvalidRequest, "read_only_repository", repo.create_branch, "dev")
    refused(InvalidRequest, "read_only_repository", repo.create_tag, "v1")
    refused(InvalidRequest, "read_only_repository", home.delete, "frozen")
    home.delete("frozen", force=True)
    assert not home.exists("frozen")


# ---- namespaces


def test_a_namespace_is_a_folder_of_the_storage() -> None:
    """However it is written, it is that folder; what is outside, the storage itself or its records is refused."""
    root = "s3://bucket/lake"
    for text, folder in (
        ("a.repo", "a.repo"),
        ("/a/b/".strip("/"), "a/b"),
        ("local://a/b", "a/b"),
        ("s3://bucket/lake/a/b/", "a/b"),
        ("s3a://bucket/lake/a", "a"),
    ):
        assert namespace_folder(text, root_url=root) == folder
    for text in ("s3://bucket/other", "s3://bucket/lake-2/a", "gs://bucket/lake/a", "/tmp/a", "file:///tmp/a"):
        assert root in str(refused(InvalidRequest, "outside_storage", namespace_folder, text, root_url=root))
    for text in ("", "/", "local://", root, f"{root}/", "_repositories", "local://_repositories/x", "a/../b", "a//b"):
        kind = "outside_storage" if text == "/" else "invalid_namespace"
        refused(InvalidRequest, kind, namespace_folder, text, root_url=root)
    assert [overlaps("a/b", other) for other in ("a", "a/b", "a/b/c", "a/bc", "b")] == [True, True, True, False, False]


def test_namespaces_do_not_overlap(home: Repositories) -> None:
    """The same folder, one above and one below are in use; a sibling is fine."""
    home.create("one", namespace="data/one")
    for taken in ("data/one", "local://data/one", f"{home.url}/data/one", "data", "data/one/inside"):
        refused(AlreadyExists, "namespace_in_use", home.create, "two", namespace=taken)
    two = home.create("two", namespace="local://data/one-more")
    assert (two.namespace, two.url) == ("local://data/one-more", f"{home.url}/data/one-more")


def test_a_folder_with_something_in_it_is_in_use(storage: Storage, home: Repositories) -> None:
    """Objects of others are not taken for ours; nor is the repository of another home over the same storage."""
    store = open_store(storage.url, environment=storage.environment)
    store.put("tables/db.db/t/schema/schema-0", b"{}")
    refused(AlreadyExists, "namespace_in_use", home.create, "one", namespace="tables/db.db")
    home.create("mine")
    other = storage.open(space=MemorySpace(environment=storage.environment))
    assert "another catalog" in str(refused(AlreadyExists, "namespace_in_use", other.create, "mine"))
    other.create("mine", namespace="mine-too")
    store.put(f"broken.repo/{MARKER_PATH}", b"{")
    refused(Corruption, "corruption", home.create, "broken")


def test_a_store_that_ignores_create_only_is_refused(storage: Storage) -> None:
    """In it two repositories could take one folder: nothing is recorded."""

    class Careless(StoreWrapper):
        def intercept(self, call: Any, perform: Any) -> Any:
            return perform()

        def put(self, path: str, body: Any, *, create_only: bool = False, durable: bool = True) -> None:
            super().put(path, body, durable=durable)

    store = Careless(open_store(storage.url, environment=storage.environment))
    with storage.open(store=store) as home:
        refused(InvalidRequest, "create_only_ignored", home.create, "analytics")
        assert not home.exists("analytics")


# ---- deleting


def test_a_deleted_repository_is_gone_at_once(home: Repositories) -> None:
    """A new one of its name has nothing of it, and does not get its folder before it is cleaned."""
    old = home.create("analytics")
    old.branch().put("a", b"1")
    old.branch().commit("first")
    old.create_tag("v1")
    home.delete("analytics")
    refused(NotFound, "repository_not_found", home.repository, "analytics")
    refused(NotFound, "repository_not_found", home.delete, "analytics")
    assert "not cleaned up" in str(refused(AlreadyExists, "namespace_in_use", home.create, "analytics"))
    new = home.create("analytics", namespace="analytics-2")
    assert new.id != old.id
    assert (list(new.tags()), list(new.branch().list())) == ([], [])
    assert [(record.name, record.record.uid) for record in home.deleted()] == [("analytics", old.id)]


# ---- records of another storage


@pytest.fixture
def mixed() -> Iterator[tuple[Storage, Storage]]:
    """Two storages with a repository of the same name, as long ago as a collection needs."""
    first, second = Storage(), Storage()
    for storage in (first, second):
        with storage.open() as home:
            repo = home.create("analytics")
            repo.branch().put("a", storage.url.encode())
            repo.branch().commit("first")
        storage.environment.clock.sleep(3 * 86_400)
    yield first, second
    with second.open() as home:
        assert home.repository("analytics").branch().get("a") == second.url.encode()


def test_an_upload_does_not_make_the_folder_of_a_repository_anew(tmp_path: Path, storage: Storage) -> None:
    """It was acknowledged, and gone once the folder had its name again."""
    folder, elsewhere = tmp_path / "analytics.repo", tmp_path / "elsewhere"
    with storage.open(store=open_store(tmp_path, environment=storage.environment)) as home:
        branch = home.create("analytics", namespace="analytics.repo").branch()
        branch.put("a", b"1")
        folder.rename(elsewhere)
        for body in (b"2", bytes(20 << 20)):
            with raises(Unavailable, "folder_moved", match=r"analytics\.repo is not there any more.*move it back"):
                branch.put("a", body)
        assert not folder.exists()
        elsewhere.rename(folder)
        assert branch.get("a") == b"1"
        branch.put("a", b"3")
        assert branch.get("a") == b"3"


def test_reads_of_a_repository_whose_folder_was_renamed_say_so(tmp_path: Path, storage: Storage) -> None:
    """They said that its objects were deleted, and to restore them from a backup."""
    folder, elsewhere = tmp_path / "analytics.repo", tmp_path / "elsewhere"
    with storage.open(store=open_store(tmp_path, environment=storage.environment)) as home:
        branch = home.create("analytics", namespace="analytics.repo").branch()
        branch.put("a", b"1")
        branch.commit("a")
        branch.put("b", b"2")
    with storage.open(store=open_store(tmp_path, environment=storage.environment)) as home:
        branch = home.repository("analytics").branch()
        folder.rename(elsewhere)
        reads: list[Callable[[], object]] = [
            lambda: branch.get("a"),
            lambda: branch.get("b"),
            lambda: list(branch.list()),
            lambda: branch.commit("b"),
        ]
        for read in reads:
            with raises(Unavailable, "folder_moved", match=r"analytics\.repo is not there any more.*move it back"):
                read()
        elsewhere.rename(folder)
        assert (branch.get("a"), branch.get("b")) == (b"1", b"2")


def test_records_of_another_storage_are_refused(mixed: tuple[Storage, Storage]) -> None:
    """What they put would be garbage to the repository that is there."""
    first, second = mixed
    with first.open(store=open_store(second.url, environment=first.environment)) as home:
        problem = refused(Conflict, "namespace_of_other_records", home.repository, "analytics")
        assert "belong to it (--metadata)" in str(problem)


def test_a_collection_with_records_of_another_storage_deletes_nothing(mixed: tuple[Storage, Storage]) -> None:
    """It names every file that was older than a day as one that no commit needs. A dry run says the same."""
    first, second = mixed
    with first.open(store=open_store(second.url, environment=first.environment)) as home:
        for dry_run in (True, False):
            for repository in home.list():
                report = repository.collect(dry_run=dry_run)
                assert report.deleted_count == 0
                assert "Nothing is deleted: The records" in report.warnings[0]


def test_remains_of_a_repository_of_another_storage_are_not_deleted(mixed: tuple[Storage, Storage]) -> None:
    """The one of its name lives there."""
    first, second = mixed
    with first.open() as home:
        home.delete("analytics")
    first.environment.clock.sleep(3 * 86_400)
    with first.open(store=open_store(second.url, environment=first.environment)) as home:
        for dry_run in (True, False):
            (report,) = sweep_deleted(home, dry_run=dry_run)
            assert report.deleted_count == 0
            assert "Nothing is deleted" in report.warnings[0]
        assert len(home.deleted()) == 1
    with first.open() as home:
        sweep_deleted(home)
        assert not home.deleted()


# ---- crashes and rivals


@pytest.mark.parametrize("mode", ["crash before", "crash after", "reply lost", "request lost"])
def test_a_creation_that_broke_off_blocks_nobody(mode: Any) -> None:
    """At any call: the repository is there whole, or the next try with the same name and folder makes it."""
    for at in range(60):
        storage = Storage()
        trap = Trap(at, mode)
        failure: BaseException | None = None
        try:
            storage.open(trap=trap).create("analytics")
        except (Crashed, OutcomeUnknown) as error:
            failure = error
        with storage.open() as home:
            if home.exists("analytics"):
                repo = home.repository("analytics")
            else:
                assert failure is not None
                repo = home.create("analytics")
            repo.branch().put("a", b"1")
            assert repo.branch().commit("first").commit.generation == 2
            assert len(list(repo.reflog())) == 2
        if not trap.has_sprung:
            assert at > 5
            return
    raise AssertionError("a creation makes more calls than were tried")


@pytest.mark.parametrize("other", ["same name", "above", "below", "beside"])
def test_two_creations_at_once_see_each_other(storage: Storage, other: str) -> None:
    """Of one name or overlapping folders only one is made, also when both looked before either wrote."""
    name, namespace = {
        "same name": ("one", "data/one"),
        "above": ("two", "data"),
        "below": ("two", "data/one/in"),
        "beside": ("two", "data/two"),
    }[other]
    rival = storage.open()
    racing = storage.open(
        key_value=Rival(MemoryKeyValue(storage.space), lambda: rival.create(name, namespace=namespace))
    )
    if other == "beside":
        racing.create("one", namespace="data/one")
        assert [repo.name for repo in rival.list()] == ["one", "two"]
        return
    kind = "repository_exists" if other == "same name" else "namespace_in_use"
    if other == "above":  # its folder was not empty any more: the first one's marker was there
        with pytest.raises(AlreadyExists):
            racing.create("one", namespace="data/one")
    else:
        refused(AlreadyExists, kind, racing.create, "one", namespace="data/one")
    assert [repo.name for repo in rival.list()] in (["one"], ["two"], [])
    for repo in rival.list():
        repo.branch().put("a", b"1")


def test_a_damaged_record_is_corruption(storage: Storage, home: Repositories) -> None:
    """It is said, with its key, and hides no other repository from being opened."""
    home.create("one")
    home.create("two")
    MemoryKeyValue(storage.space).set(repository_key("one"), b"{}")
    with pytest.raises(Corruption) as caught:
        home.repository("one")
    assert caught.value.facts["path"] == "repos/one"
    assert home.repository("two").name == "two"


# ---- background and end


def test_a_step_of_the_background_compacts_and_cleans(storage: Storage) -> None:
    """What the sensor asks for is compacted; rows of dropped tokens and old lines of the log go."""
    options = RepositoryOptions(background=False, compaction_tombstones_min=3)
    store = open_store(storage.url, environment=storage.environment)
    with Repositories(
        LocalCatalog(store, MemoryKeyValue(storage.space), options=options, environment=storage.environment)
    ) as home:
        repo = home.create("analytics")
        main = repo.branch()
        for number in range(5):
            main.put(f"{number}", b"x")
        main.commit("five")
        main.delete_many([f"{number}" for number in range(4)])
        home.step_once()
        record = load_branch(context_of(repo), "main")[0]
        assert record.compacted is not None
        assert record.sealed == ()
        assert [listed.path for listed in main.list()] == ["4"]
        storage.environment.clock.sleep(30 * 86_400)
        home.step_once()
        assert list(repo.reflog()) == []
        keys = Keys(repo.id)
        with MemoryKeyValue(storage.space).snapshot() as snapshot:
            assert list(snapshot.scan(keys.staging(), keys.staging()[:-1] + b"0")) == []


def test_changes_that_meet_another_are_made_again(storage: Storage) -> None:
    """Metadata and deletions are decided again on what others have made of the record meanwhile."""
    with storage.open() as other:
        other.create("one")
        other.create("two")
        with storage.open(trap=Pause(1, lambda: other.set_metadata("one", {"b": "2"}))) as slow:
            slow.set_metadata("one", {"a": "1"})
        assert other.repository("one").metadata == {"a": "1"}
        with storage.open(trap=Pause(1, lambda: other.set_metadata("one", {"b": "2", "c": "1"}))) as slow:
            slow.update_metadata("one", {"a": "2"}, removed=["c"])
        assert other.repository("one").metadata == {"a": "2", "b": "2"}
        with storage.open(trap=Pause(1, lambda: other.set_metadata("one", {"b": "3"}))) as slow:
            slow.delete("one")

        def faster() -> None:
            storage.environment.clock.sleep(1)
            other.delete("two")

        with storage.open(trap=Pause(1, faster)) as slow, pytest.raises(NotFound):
            slow.delete("two")
        assert [repository.name for repository in other.list()] == []
        assert {deleted.name for deleted in other.deleted()} == {"one", "two"}


def test_a_repository_that_cannot_be_served_keeps_no_other_waiting(storage: Storage) -> None:
    """The background goes on with the others, and says what was wrong with the first."""
    options = RepositoryOptions(background=False, compaction_tombstones_min=2)
    store = open_store(storage.url, environment=storage.environment)
    with Repositories(
        LocalCatalog(store, MemoryKeyValue(storage.space), options=options, environment=storage.environment)
    ) as home:
        damaged, sound = home.create("damaged"), home.create("sound")
        main = sound.branch()
        for path in ("a", "b"):
            main.put(path, b"x")
        main.commit("two")
        main.delete_many(["a", "b"])
        local_catalog(home).key_value.set(context_of(damaged).keys.branch("main"), b"{")
        with pytest.raises(Corruption):
            home.step_once()
        assert load_branch(context_of(sound), "main")[0].compacted is not None


def test_closed_repositories_say_so(home: Repositories) -> None:
    """Nothing is done after the end, which may come twice."""
    repo = home.create("analytics")
    home.close()
    home.close()
    for act in (lambda: home.create("other"), lambda: home.repository("analytics"), lambda: list(home.list())):
        with pytest.raises(Closed):
            act()
    with pytest.raises(Closed):
        repo.branch().get("a")


# ---- opening by URL


@pytest.fixture(params=["memory", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage, with the default database of records."""
    return f"memory://{uuid.uuid4()}" if request.param == "memory" else str(tmp_path / "lake")


def test_what_was_written_is_there_when_opened_again(url: str) -> None:
    """A repository is made by opening it, found the next time, and closing it closes everything."""
    with lakebed.repo.open(f"{url}/analytics.repo", durable=False) as repo:
        repo.branch().put("a", b"1")
        first = repo.branch().commit("first")
        repo.branch().put("b", b"2")
    with lakebed.repo.open(f"{url}/analytics.repo", create=False, durable=False) as repo:
        assert repo.branch().head() == first
        assert {listed.path: repo.branch().get(listed.path) for listed in repo.branch().list()} == {
            "a": b"1",
            "b": b"2",
        }
        assert [difference.path for difference in repo.branch().status()] == ["b"]
    with lakebed.repo.open_all(url, durable=False) as home:
        assert [repo.name for repo in home.list()] == ["analytics"]


def test_opening_what_is_not_there_creates_nothing(url: str) -> None:
    """With create=False nothing is made; with a wrong URL neither; and the next try is not in our own way."""
    kind = "repositories_not_found" if url.startswith("memory") else "store_not_found"
    refused(NotFound, kind, lakebed.repo.open, f"{url}/analytics.repo", create=False)
    with lakebed.repo.open_all(url, durable=False) as home:
        home.create("other")
    refused(NotFound, "repository_not_found", lakebed.repo.open, f"{url}/analytics.repo", create=False, durable=False)
    for wrong in (f"{url}/analytics", f"{url}/.repo"):
        refused(InvalidRequest, "not_a_repository", lakebed.repo.open, wrong, durable=False)
    refused(InvalidRequest, "invalid_repository_name", lakebed.repo.open, f"{url}/Wrong.repo", durable=False)
    with lakebed.repo.open_all(url, durable=False) as home:
        assert [repo.name for repo in home.list()] == ["other"]


def test_records_have_one_owner(url: str) -> None:
    """A second owner is refused, and the error names the first; reads need no ownership; a takeover ends the first."""
    with lakebed.repo.open_all(
        url, options=QUIET, durable=False, access=Access(endpoint="http://127.0.0.1:8000")
    ) as home:
        home.create("analytics").branch().put("a", b"1")
        sentence = str(
            refused(Conflict, "owned", lakebed.repo.open_all, url, durable=False, access=Access(owner_wait_ms=60_000))
        )
        assert "http://127.0.0.1:8000" in sentence
        with lakebed.repo.open_all(url, access=Access(read_only=True)) as reading:
            assert reading.repository("analytics").branch().get("a") == b"1"
            refused(InvalidRequest, "read_only", reading.create, "other")


def test_a_passing_owner_is_waited_for(url: str) -> None:
    """Until it has closed, by the injected clock; one that stays is named in the end."""
    first = lakebed.repo.open_all(url, options=QUIET, durable=False)
    looks = 0

    class Impatient(ManualClock):
        def sleep(self, seconds: float) -> None:
            nonlocal looks
            looks += 1
            super().sleep(seconds)
            if looks == 3:
                first.close()

    clock = Impatient(start_ms=local_catalog(first).environment.clock.now_ms())
    environment = Environment(clock=clock)
    refused(
        Conflict,
        "owned",
        lakebed.repo.open_all,
        url,
        durable=False,
        environment=environment,
        access=Access(owner_wait_ms=150),
    )
    with lakebed.repo.open_all(
        url, options=QUIET, durable=False, environment=environment, access=Access(owner_wait_ms=5_000)
    ) as second:
        assert looks >= 3
        assert list(second.list()) == []


def test_the_background_ends_with_its_home(url: str) -> None:
    """Its thread is there while the home is open, and not after; nothing went wrong in it."""
    with lakebed.repo.open_all(url, durable=False) as home:
        home.create("analytics").branch().put("a", b"1")
        names = [name for name in _thread_names() if name.startswith("lakebed repositories")]
        assert len(names) == 1
        assert home.last_failure is None
    assert not [name for name in _thread_names() if name.startswith("lakebed repositories")]


def _thread_names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_second_repository_in_one_process_is_opened_with_the_first(tmp_path: Path) -> None:
    """The error names `open_all`; a name that no repository can have is said first, and nothing is made for it."""
    with raises(InvalidRequest, "invalid_repository_name"):
        lakebed.repo.open(tmp_path / "new" / "Bad.repo")
    assert not (tmp_path / "new").exists()
    with lakebed.repo.open(tmp_path / "two" / "aaa.repo"):
        with raises(Conflict, "owned", match=r"lakebed\.repo\.open_all\('file://.*/two'\)"):
            lakebed.repo.open(tmp_path / "two" / "bbb.repo")
        with pytest.raises(InvalidRequest):
            lakebed.repo.open(tmp_path / "two" / "Bad.repo")


# ---- handles of deleted repositories


def test_a_deleted_repository_takes_no_write(storage: Storage, home: Repositories) -> None:
    """A handle of another process is refused what the deletion would take away, also where the name is used again."""
    home.create("shop")

    class Once(MemoryKeyValue):
        """The process ends after its first write."""

        writes = 0

        def write(self, *args: Any, **named: Any) -> None:
            self.writes += 1
            if self.writes > 1:
                raise Crashed
            super().write(*args, **named)

    with storage.open() as other, storage.open(key_value=Once(storage.space)) as operator:
        old = other.repository("shop")
        main = old.branch("main")
        main.put("a", b"1")
        commit = main.commit("one")
        operator.delete("shop")
        refused(NotFound, "repository_not_found", main.put, "b", b"2")
        refused(NotFound, "repository_not_found", main.commit, "two")
        refused(NotFound, "repository_not_found", main.get, "a")
        refused(NotFound, "repository_not_found", old.create_branch, "dev", version=commit.id)
        refused(NotFound, "repository_not_found", old.create_tag, "v1", ref=commit.id)
        home.create("shop", namespace="elsewhere")
        refused(NotFound, "repository_not_found", main.put, "c", b"3")
        assert [entry.path for entry in home.repository("shop").branch("main").list()] == []


FIRST: dict[str, str] = {}
"""A commit of each repository, by its id."""
QUESTIONS_OF_DELETED: dict[str, Callable[[Repository], object]] = {
    "branches": lambda old: list(old.branches()),
    "tags": lambda old: list(old.tags()),
    "reflog": lambda old: list(old.reflog()),
    "delete_tag": lambda old: old.delete_tag("v1"),
    "unpin": lambda old: old.unpin("v1"),
    "undelete_branch": lambda old: old.undelete_branch("main"),
    "protect": lambda old: old.protect("main"),
    "protected": lambda old: old.protected(),
    "retention": lambda old: old.retention(),
    "delete_retention": lambda old: old.delete_retention(),
    "webhooks": lambda old: old.webhooks(),
    "why": lambda old: old.why("data/1"),
    "object of a tag": lambda old: old.ref("v1").get("a"),
    "list of a tag": lambda old: list(old.ref("v1").list()),
    "list of a commit": lambda old: list(old.ref(FIRST[old.id]).list()),
    "log of a tag": lambda old: list(old.log("v1")),
    "differences of a tag": lambda old: list(old.diff("v1", "v1~1")),
    "branch of a tag": lambda old: old.create_branch("dev", version="v1"),
    "why_version": lambda old: old.why_version("v1"),
    "plan_collection": lambda old: old.plan_collection(),
    "collect": lambda old: old.collect(),
}


def test_a_deleted_repository_answers_no_question(storage: Storage, home: Repositories) -> None:
    """What its handle would read or change beside the branches is of a repository that is not there."""
    shop = home.create("shop")
    shop.branch("main").put("a", b"1")
    FIRST[shop.id] = shop.branch("main").commit("one").id
    shop.create_tag("v1")
    with storage.open() as other:
        old = other.repository("shop")
        home.delete("shop")
        for ask in QUESTIONS_OF_DELETED.values():
            refused(NotFound, "repository_not_found", ask, old)
        home.create("shop", namespace="elsewhere")
        for ask in QUESTIONS_OF_DELETED.values():
            refused(NotFound, "repository_not_found", ask, old)


def test_a_branch_that_is_made_while_its_repository_is_deleted_goes_too(storage: Storage, home: Repositories) -> None:
    """Between the look at the branches and the deletion; nothing can be written to it."""
    repository = home.create("shop")
    late = repository.create_branch
    looks: list[int] = []

    class Between(MemoryKeyValue):
        def write(self, *args: Any, **named: Any) -> None:
            if not looks:
                looks.append(1)
                late("dev", version="main")
            super().write(*args, **named)

    with storage.open(key_value=Between(storage.space)) as other:
        other.delete("shop")
    refused(NotFound, "repository_not_found", repository.branch("dev").put, "a", b"1")


def test_no_branch_is_made_in_a_repository_that_is_deleted_meanwhile(storage: Storage, home: Repositories) -> None:
    """Between the look at the version and the write of the branch."""
    home.create("shop")
    looks: list[int] = []

    class Between(MemoryKeyValue):
        def write(self, *args: Any, **named: Any) -> None:
            if not looks:
                looks.append(1)
                home.delete("shop")
            super().write(*args, **named)

    with storage.open(key_value=Between(storage.space)) as other:
        refused(NotFound, "repository_not_found", other.repository("shop").create_branch, "dev", version="main")
    assert looks


@pytest.mark.parametrize("batch_count_max", [1000, 1])
def test_a_sweep_that_sleeps_takes_nothing_of_the_next_repository_there(
    batch_count_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sweeps, and the folder is used again, before each call of a sweep: what is new stays.

    Just before the request that deletes the marker no look helps: then it goes.
    """
    monkeypatch.setattr(sweep, "BATCH_COUNT_MAX", batch_count_max)
    swept = unmarked = 0
    for at in range(100):
        storage = Storage()
        with storage.open() as other:
            old = other.create("shop")
            for name in ("notes/1", "notes/2"):
                open_store(old.url, environment=storage.environment).put(name, b"of a user")
            old.branch().put("old", b"1")
            old.branch().commit("old")
            other.delete("shop")
            storage.environment.clock.sleep(2 * 86_400)

            def use_again(other: Repositories = other, storage: Storage = storage) -> None:
                sweep_deleted(other)
                storage.environment.clock.sleep(1)
                new = other.create("shop")
                new.branch().put("new", b"2")
                new.branch().commit("new")

            pause = Pause(at, use_again)
            with storage.open(trap=pause) as slow:
                sweep_deleted(slow)
            if not pause.has_sprung:
                break
            if not other.exists("shop"):
                continue
            new = other.repository("shop")
            assert bytes(new.branch().get("new")) == b"2", at
            paths = [meta.path for meta in open_store(new.url, environment=storage.environment).list()]
            unmarked += MARKER_PATH not in paths
            assert not other.deleted()
            swept += 1
    assert (swept > 5, unmarked <= 1) == (True, True)
