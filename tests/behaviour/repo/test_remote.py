"""The facade through a server: the same methods as in this process, large things in little memory, and its mistakes."""

from __future__ import annotations

import pickle
import random
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import lakebed.repo
from lakebed.clock import SystemClock
from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound, OutcomeUnknown, Unavailable
from lakebed.repo import CollectionOptions, Entry, RepositoryOptions
from lakebed.repo.branch import Branch
from lakebed.repo.reference import Reference
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.repository import Repository
from lakebed.repo.transport import http_client
from lakebed.repo.transport.http_catalog import HttpCatalog
from lakebed.repo.transport.http_client import Client
from lakebed.repo.transport.http_transport import HttpTransport
from lakebed.repo.transport.transport import context_of, transport_of
from lakebed.repo.verbs import CATALOG_VERBS, PAGE_COUNT_MAX, VERBS
from lakebed.repo.verbs.message import RepositoryFacts
from lakebed.runtime import Environment
from lakebed.server.lifecycle import Running
from lakebed.server.options import ServerOptions
from lakebed.server.serve import start_server
from lakebed.table.rows.rows import commit_changes, new_writer
from lakebed.table.table import Table
from lakebed.testing import ManualClock
from worlds.errors import kind_of, raises
from worlds.listener import Reply, Request, listen
from worlds.scripts import run_script

MEGABYTE = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """A running server."""
    options = RepositoryOptions(background=False)
    with start_server(tmp_path / "lake", options=ServerOptions(durable=False, repository_options=options)) as running:
        yield running


@pytest.fixture
def home(server: Running) -> Iterator[Repositories]:
    """Its repositories."""
    messages = server.started
    opened: Any = lakebed.repo.open_all(
        messages.endpoint, access=lakebed.repo.Access(access_key=messages.access_key, secret=messages.secret)
    )
    with opened:
        yield opened


@pytest.fixture
def repo(home: Repositories) -> Repository:
    """A repository behind it."""
    return home.create("analytics")


def client_of(repo: Repository) -> Client:
    """Of the server that a repository is behind."""
    assert isinstance(transport_of(repo), HttpTransport)
    return transport_of(repo).client


# ---- the same facade


def use_in_each_way(shop: Repository) -> dict[str, Callable[[], object]]:
    """What reads a repository, and what would change it, by way of every kind of request."""
    main, row = shop.branch("main"), Entry("data/0", 0, "", 0)
    return {
        "get": lambda: main.get("a"),
        "list": lambda: list(main.list()),
        "log": lambda: list(main.log()),
        "tags": lambda: list(shop.tags()),
        "put": lambda: main.put("b", b"2"),
        "put of much": lambda: main.put("b", iter([b"2" * MEGABYTE])),
        "upload": lambda: main.upload(b"2"),
        "stage_many": lambda: main.stage_many([("b", row)]),
        "delete_prefix": lambda: main.delete_prefix(""),
        "commit": lambda: main.commit("two", allow_empty=True),
        "create_branch": lambda: shop.create_branch("dev"),
        "create_tag": lambda: shop.create_tag("v1", ref="main"),
        "put in a store": lambda: main.store().put("b", b"2"),
        "collect": lambda: shop.collect(),
    }


def test_a_handle_of_a_repository_that_was_made_again_is_refused(home: Repositories) -> None:
    """As in one process: it neither reads nor changes the other repository, also in the task of a job."""
    opened = home.create("shop")
    opened.branch("main").put("a", b"1")
    pickled = pickle.dumps(opened)
    home.delete("shop")
    shop = home.create("shop", namespace="elsewhere")
    shop.branch("main").put("a", b"of another")
    head = shop.branch("main").commit("of another").id
    for old in (opened, pickle.loads(pickled)):
        for name, use in use_in_each_way(old).items():
            with pytest.raises(NotFound) as refusal:
                use()
            assert (refusal.value.kind, "Open it again" in str(refusal.value)) == ("repository_not_found", True), name
    assert [entry.path for entry in shop.branch("main").list()] == ["a"]
    assert (shop.branch("main").commit_id, [row.name for row in shop.branches()], list(shop.tags())) == (
        head,
        ["main"],
        [],
    )
    assert home.repository("shop").branch("main").get("a") == b"of another"


@pytest.mark.parametrize("name", sorted(VERBS))
def test_verbs_are_methods(name: str) -> None:
    """The facade has a method for each verb; its docstring says what the verb does."""
    if name != "describe":
        assert any(callable(getattr(owner, name, None)) for owner in (Repository, Reference, Branch))
        assert VERBS[name].summary


def test_what_needs_the_storage_is_refused(home: Repositories, repo: Repository) -> None:
    """Hooks that are functions, records and views are of the process that has the storage: it is said so."""
    main = repo.branch()
    acts: list[Callable[[], Any]] = [
        lambda: repo.hooks,
        lambda: context_of(repo),
        lambda: context_of(main),
        lambda: main.view(),
        lambda: local_catalog(home).store,
        lambda: local_catalog(home).key_value,
        lambda: local_catalog(home).environment,
        lambda: home.step_once(),
        lambda: main.import_objects([], storage_options={"key": "value"}),
    ]
    assert {kind_of(act) for act in acts} == {"not_over_http"}


def test_a_home_through_a_server(home: Repositories, server: Running) -> None:
    """Repositories are made, found, listed in pages, given metadata, dropped; each is what the server says it is."""
    made = home.create("beta-one", metadata={"k": "v"}, default_branch="trunk", committer="ann")
    local = server.site.repositories.repository("beta-one")
    for name in ("name", "id", "url", "namespace", "default_branch", "created_at_ms", "metadata", "is_read_only"):
        assert getattr(made, name) == getattr(local, name)
    assert made.branch().head().committer == "ann"
    for number in range(4):
        home.create(f"alpha-{number}")
    assert [entry.name for entry in home.list()] == ["alpha-0", "alpha-1", "alpha-2", "alpha-3", "beta-one"]
    assert [entry.name for entry in home.list(prefix="alpha", after="alpha-0", amount=2)] == ["alpha-1", "alpha-2"]
    assert list(home.list(amount=0)) == []
    home.set_metadata("beta-one", {"gone": "x"})
    home.update_metadata("beta-one", {"other": "x"}, removed=["gone", "missing"])
    assert home.repository("beta-one").metadata == {"other": "x"}
    home.delete("alpha-0")
    assert not home.exists("alpha-0")
    assert [record.name for record in home.deleted()] == ["alpha-0"]
    assert kind_of(lambda: home.repository("alpha-0")) == "repository_not_found"
    assert kind_of(lambda: home.create("beta-one")) == "repository_exists"
    assert kind_of(lambda: home.create("x")) == "invalid_repository_name"
    frozen = home.create("frozen", read_only=True)
    assert frozen.is_read_only
    assert kind_of(lambda: home.delete("frozen")) == "read_only_repository"
    home.delete("frozen", force=True)


def test_versions_and_pins_through_a_server(repo: Repository) -> None:
    """The contract of versioned stores: versions, pins, forks, restores, plans and reports."""
    main = repo.branch()
    main.put("a", b"1")
    first = main.commit("first")
    main.put("a", b"2")
    main.commit("second")
    assert [version.id for version in repo.versions()][1] == first.id
    pin = repo.pin("kept", version=first.id, lifetime_ms=60_000)
    assert (pin.version, pin.name) == (first.id, "kept")
    assert [item.name for item in repo.pins()] == ["kept"]
    assert repo.at("kept").get("a") == b"1"
    fork = repo.create_branch("old", version="kept")
    assert fork.get("a") == b"1"
    assert repo.restore(first.id).id == main.commit_id
    assert main.head().committer == first.committer == client_of(repo).access_key
    assert main.get("a") == b"1"
    repo.unpin("kept")
    assert "a" not in [item.name for item in repo.pins()]
    assert [line.what for line in repo.reflog("old")] == ["create"]
    assert repo.plan_collection(CollectionOptions()).doomed == ()
    report = repo.collect(dry_run=True)
    assert (report.dry_run, report.plan is not None) == (True, True)
    assert repo.why(main.stat("a").address).path == main.stat("a").address
    assert [(pin.kind, pin.name) for pin in repo.why_version(first.id).pins][-1] == ("branch", "main")


# ---- large and many


def test_large_objects_pass_in_little_memory(repo: Repository) -> None:
    """What is larger than memory goes up in chunks and comes down in chunks, whole, and in any part."""
    main = repo.branch()
    block = random.Random(1).randbytes(MEGABYTE)
    size_bytes = 64 * MEGABYTE
    tracemalloc.start()
    try:
        entry = main.put("large", (block for _ in range(64)))
        tracemalloc.reset_peak()
        total = sum(len(chunk) for chunk in main.stream("large"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (entry.size_bytes, total) == (size_bytes, size_bytes)
    assert peak < 40 * MEGABYTE  # of the server too, which is in this process
    assert main.get("large", byte_range=(MEGABYTE - 2, MEGABYTE + 2)) == block[-2:] + block[:2]
    with main.open("large") as file:
        file.seek(-3, 2)
        assert file.read() == block[-3:]


def test_pages_make_the_whole(repo: Repository) -> None:
    """A list of more than a page is the whole list, with any amount, of objects, differences, branches and commits."""
    main = repo.branch()
    entry = main.put("seed", b"x")
    count = PAGE_COUNT_MAX + 10
    paths = [f"p/{number:05}" for number in range(count)]
    assert main.stage_many([(path, entry) for path in paths]) == count
    assert [listed.path for listed in main.list("p/")] == paths
    assert len(list(main.list("p/", amount=PAGE_COUNT_MAX))) == PAGE_COUNT_MAX
    assert len(list(main.list("p/", amount=PAGE_COUNT_MAX + 3))) == PAGE_COUNT_MAX + 3
    assert [difference.path for difference in main.status("p/")] == paths
    main.commit("many")
    assert [difference.path for difference in repo.diff("main~1", "main", prefix="p/")] == paths
    assert main.delete_many(paths) == count


def test_a_delete_of_what_was_seen(repo: Repository) -> None:
    """A mapping of paths to entries deletes exactly these entries: all of them, or none if one was replaced."""
    main = repo.branch()
    seen = {path: main.put(path, path.encode()) for path in ("a", "b", "c")}
    main.commit("some")
    main.delete("c")
    newer = main.put("b", b"newer")
    with raises(Conflict, "path_changed", paths=["b"]):
        main.delete_many(seen)
    assert sorted(line.path for line in main.list()) == ["a", "b"]
    assert main.delete_many({**seen, "b": newer}) == 2
    assert list(main.list()) == []
    with raises(InvalidRequest, "wrong_type"):
        main.delete_many({"a": "an entry"})  # type: ignore[dict-item]


def test_a_client_whose_clock_is_ahead_takes_no_file_of_a_table_in_a_branch(repo: Repository) -> None:
    """Its collection is told the server's time, and leaves what a writer is about to commit."""
    store = repo.branch("main").store("stock")
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = Table.create(store, name="stock", schema=schema)
    writer = new_writer(table.context)
    writer.write(pa.table({"id": [1]}, schema=schema))
    changes = writer.finish()
    ahead = Environment(clock=ManualClock(start_ms=SystemClock().now_ms() + 400 * 86_400_000))
    assert Table.open(store, name="stock", environment=ahead).collect().deleted_count == 0
    commit_changes(table.context, changes)
    assert table.read().num_rows == 1


def test_a_log_is_of_the_commit_at_which_it_began(repo: Repository) -> None:
    """Commits that are made while a log is being read are not in it, on no page."""
    main = repo.branch()
    for number in range(4):
        main.commit(f"{number}", allow_empty=True)
    log = main.log()
    assert next(log).message == "3"
    main.commit("later", allow_empty=True)
    assert [commit.message for commit in log] == ["2", "1", "0", "Repository created"]


def test_an_open_file_stays_what_it_was(repo: Repository) -> None:
    """A reader that opened an object reads that object to its end, even when its path is changed or deleted."""
    main = repo.branch()
    body = random.Random(2).randbytes(3 * MEGABYTE)
    main.put("a", body)
    with main.open("a") as file:
        first = file.read(10)
        main.put("a", b"other")
        main.delete("a")
        assert first + file.read() == body


def test_many_entries_are_staged_in_one_call(repo: Repository) -> None:
    """A hundred thousand entries become visible at one moment, as pairs or as columns, with all that is said."""
    main = repo.branch()
    entry = main.put("seed", b"x", metadata={"ü": "é"}, content_type="text/x")
    assert main.stage_many((f"p/{number:06}", entry) for number in range(100_000)) == 100_000
    assert main.stat("p/099999") == entry
    table = pa.table(
        {
            "path": ["c/1", "c/2"],
            "address": [entry.address] * 2,
            "size_bytes": [1, 1],
            "checksum": [entry.checksum] * 2,
            "modified_ms": [entry.modified_ms] * 2,
        }
    )
    assert main.stage_many(table) == main.stage_many(table.to_batches()[0]) == 2
    assert main.get("c/2") == b"x"
    assert kind_of(lambda: main.stage_many([("a", "no entry")])) == "wrong_type"  # type: ignore[list-item]
    for wrong in (["ab"], [("a",)], [("a", entry, entry)], [{"a": entry, "b": entry}], [7], 7, "ab", None):
        assert kind_of(lambda: main.stage_many(wrong)) == "wrong_type", wrong  # type: ignore[arg-type] # noqa: B023
    assert kind_of(lambda: main.stage_many([("a", Entry("data/x", 1, "", 0))])) == "invalid_address"
    assert kind_of(lambda: main.stage_many([("a", Entry(entry.address, "1", "", 0))])) == "invalid_entry"  # type: ignore[arg-type]
    assert kind_of(lambda: main.stage_many(table.drop_columns("path"))) == "invalid_columns"
    assert main.stage_many([]) == 0


def test_uploads_are_staged_when_it_is_said(repo: Repository) -> None:
    """What is only uploaded is nowhere until it is staged."""
    main = repo.branch()
    entry = main.upload(b"bytes", content_type="text/x", metadata={"k": "v"})
    assert list(main.list()) == []
    main.stage_many([("a", entry)])
    assert (main.get("a"), main.stat("a")) == (b"bytes", entry)


def test_tasks_of_a_job_take_it_along(repo: Repository) -> None:
    """A repository, a branch and a reference can be pickled; what comes out works, and shows no secret."""
    repo.branch().put("a", b"1")
    for item in (repo.branch(), repo.ref("main"), repo):
        document = pickle.loads(pickle.dumps(item))
        assert (document if not isinstance(document, Repository) else document.branch()).get("a") == b"1"
        assert repr(document) == repr(item)
        assert "secret" not in repr(item).lower()


# ---- mistakes and faults


@pytest.mark.parametrize(
    "chunks",
    [
        lambda: (chunk for chunk in [b"x" * MEGABYTE, "text"]),
        lambda: (chunk for chunk in [b"x" * MEGABYTE, 5]),
    ],
)
def test_a_body_that_goes_wrong_leaves_nothing(repo: Repository, chunks: Callable[[], Any]) -> None:
    """An error in the middle of a body comes out as it is, and nothing is staged."""
    main = repo.branch()
    assert kind_of(lambda: main.put("a", chunks())) == "invalid_body"

    def broken() -> Iterator[bytes]:
        yield b"x" * MEGABYTE
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        main.put("a", broken())
    assert not main.exists("a")


def test_large_bodies_are_refused_before_they_are_sent(repo: Repository) -> None:
    """Of a body that will not be taken nothing but its beginning is read."""
    main = repo.branch()
    main.put("a", b"1")
    repo.create_branch("release")
    repo.protect("release")
    read: list[int] = []

    def body() -> Iterator[bytes]:
        for number in range(64):
            read.append(number)
            yield b"x" * MEGABYTE

    assert kind_of(lambda: main.put("a", body(), only_if_absent=True)) == "path_exists"
    assert kind_of(lambda: repo.branch("release").put("a", body())) == "protected_branch"
    assert kind_of(lambda: repo.branch("nobody").put("a", body())) == "branch_not_found"
    assert len(read) <= 6


def test_errors_have_their_class_and_facts(repo: Repository) -> None:
    """What the server raised is raised here: the class, the kind, the sentence and the facts."""
    main = repo.branch()
    with raises(NotFound, "path_not_found", path="nothing"):
        main.stat("nothing")
    main.put("a", b"base")
    main.commit("base")
    dev = repo.create_branch("dev")
    for branch in (main, dev):
        branch.put("a", branch.name.encode())
        branch.commit(branch.name)
    with raises(Conflict, "merge_conflict", paths=["a"]):
        main.merge(dev)
    assert kind_of(lambda: main.commit("x", created_at_ms="soon")) == "wrong_type"  # type: ignore[arg-type]
    assert kind_of(lambda: main.commit("x", metadata={"k": object()})) == "wrong_type"  # type: ignore[dict-item]
    assert kind_of(lambda: main.commit("\ud800")) == "invalid_argument"


def test_a_server_that_is_gone(repo: Repository, server: Running) -> None:
    """Reads and writes that no server took are `Unavailable`: nothing happened."""
    main = repo.branch()
    main.put("a", b"1")
    server.stop()
    for act in (lambda: main.get("a"), lambda: list(main.list()), lambda: main.open("a")):
        with pytest.raises(Unavailable):
            act()
    with pytest.raises((Unavailable, OutcomeUnknown)):
        main.commit("first")
    with pytest.raises((Unavailable, OutcomeUnknown)):
        main.put("b", b"2")


def test_a_forked_process_has_connections_of_its_own() -> None:
    """The child does not send on its parent's connection, on which each would read replies to the other."""
    ports: list[int] = []

    def answer(request: Request) -> Reply:
        ports.append(request.port)
        return Reply()

    script = (
        "import os, sys\n"
        "from lakebed.repo.transport.http_client import Client\n"
        "client = Client(sys.argv[1], access_key='k', secret='s')\n"
        "client.request('GET', '/repositories')\n"
        "child = os.fork() == 0\n"
        "assert child or os.wait()[1] == 0\n"
        "client.request('GET', '/repositories')\n"
        "os._exit(0)\n"
    )
    with listen(answer) as port:
        url = f"http://127.0.0.1:{port}"
        run_script(script, url)
    before, of_child, after = ports
    assert before == after != of_child


def test_a_lost_answer_is_unknown_or_asked_again() -> None:
    """A server that hangs up instead of answering: a read is asked again, a change is not, for it may be made."""
    asked: list[str] = []
    with listen(lambda request: asked.append(request.path)) as port:
        main = repository_at(port).branch()
        with pytest.raises(OutcomeUnknown):
            main.commit("x")
        assert len(asked) == 1
        with pytest.raises(OutcomeUnknown):
            main.put("a", b"1")
        asked.clear()
        with pytest.raises(Unavailable):
            main.head()
        assert len(asked) == 4


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client asks soon whether a silent server lives."""
    for name, seconds in {"_NOTE_S": 0.05, "_SILENT_S": 0.1, "_HEALTH_S": 0.2}.items():
        monkeypatch.setattr(http_client, name, seconds)


def repository_at(port: int) -> Repository:
    """A repository behind a server that need not be one."""
    client = Client(f"http://127.0.0.1:{port}", access_key="a", secret="b")
    facts = RepositoryFacts("analytics", "", "", "", "main", 0, {}, is_read_only=False)
    return Repository(HttpTransport(client, facts))


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_stands_still_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """It takes connections and says nothing, as one that is stopped: a read was silent for eight minutes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        shop = repository_at(port)
        with raises(Unavailable, "unavailable", match="does not answer"):
            shop.branch().head()
        with raises(OutcomeUnknown, "outcome_unknown"):
            shop.branch().commit("x")
        with raises(OutcomeUnknown, "outcome_unknown"):  # a long call, which has no limit
            shop.collect()
    waiting = [vars(record)["fields"] for record in caplog.records if record.getMessage() == "waiting for a reply"]
    assert waiting == [{"server": f"http://127.0.0.1:{port}"}] * 3


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_takes_its_time_is_waited_for() -> None:
    """It says that it lives."""
    asked: list[str] = []
    enough = threading.Event()

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        if request.path == "/healthcheck":
            if asked.count("/healthcheck") == 5:
                enough.set()
            return Reply(404)
        assert enough.wait(30)
        return Reply(418)

    with listen(answer) as port, pytest.raises(LakebedError):
        repository_at(port).branch().head()
    assert asked[1:6] == ["/healthcheck"] * 5
    assert len([path for path in asked if path != "/healthcheck"]) == 1


_HALF: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n" + b" " * 50
"""The head of a reply, and half of its body."""


@pytest.mark.usefixtures("quick_looks")
@pytest.mark.parametrize("act", [lambda shop: shop.branch().head(), lambda shop: list(shop.branch().stream("a"))])
def test_a_server_that_stops_within_a_reply_is_not_waited_for(act: Callable[[Repository], object]) -> None:
    """It is asked whether it lives, as one that is silent before its reply: a read was silent for two minutes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> list[socket.socket]:
            connection, _ = listener.accept()
            connection.recv(1 << 16)
            connection.sendall(_HALF)
            looks = [connection]
            with suppress(TimeoutError):
                while len(looks) < 4:
                    looks.append(listener.accept()[0])
            return looks

        with ThreadPoolExecutor(1) as pool:
            served = pool.submit(lambda: [connection.close() for connection in serve()])
            with pytest.raises(Unavailable):
                act(repository_at(listener.getsockname()[1]))
            assert len(served.result()) == 4


@pytest.mark.usefixtures("quick_looks")
def test_a_server_that_takes_its_time_within_a_reply_is_waited_for() -> None:
    """It says that it lives, and what it sends after that is read."""
    looks, enough = list[str](), threading.Event()

    def answer(request: Request) -> Reply:
        if request.path != "/healthcheck":
            return Reply(200, later(), {"Content-Length": "8"})
        looks.append(request.path)
        if len(looks) == 5:
            enough.set()
        return Reply(404)

    def later() -> Iterator[bytes]:
        yield b"one, "
        assert enough.wait(30)
        yield b"two"

    with listen(answer) as port:
        assert b"".join(repository_at(port).branch().stream("a")) == b"one, two"
    assert len(looks) >= 5


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:1", "not_a_repository"),
        ("http://127.0.0.1:1/", "not_a_repository"),
        ("http://user:pass@127.0.0.1:1/analytics", "invalid_url"),
        ("http:///analytics", "invalid_url"),
        ("http://127.0.0.1:0/analytics", "invalid_url"),
        ("http://127.0.0.1:1?token=x/analytics", "not_a_repository"),
        ("http://127.0.0.1:1/a/b?token=x", "invalid_repository_name"),
    ],
)
def test_wrong_urls(url: str, kind: str) -> None:
    """What names no server, or no repository of one, is refused before a request is made."""
    assert kind_of(lambda: lakebed.repo.open(url, access=lakebed.repo.Access(access_key="a", secret="b"))) == kind


def test_credentials_are_needed(monkeypatch: pytest.MonkeyPatch, server: Running) -> None:
    """They are arguments, or in the environment; what is wrong of them is said, and no secret is."""
    for name in ("LAKEBED_ACCESS_KEY_ID", "LAKEBED_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    messages = server.started
    assert kind_of(lambda: lakebed.repo.open_all(messages.endpoint)) == "no_credentials"
    assert (
        kind_of(
            lambda: lakebed.repo.open(
                f"{messages.endpoint}/x-y-z", access=lakebed.repo.Access(access_key="a", secret="b")
            )
        )
        == "unauthorized"
    )
    monkeypatch.setenv("LAKEBED_ACCESS_KEY_ID", str(messages.access_key))
    monkeypatch.setenv("LAKEBED_SECRET_ACCESS_KEY", str(messages.secret))
    assert kind_of(lambda: lakebed.repo.open(f"{messages.endpoint}/x-y-z", create=False)) == "repository_not_found"
    with (
        lakebed.repo.open(f"{messages.endpoint}/x-y-z") as made,
        lakebed.repo.open(f"{messages.endpoint}/x-y-z/") as again,
    ):
        assert made.id == again.id
    assert str(messages.secret) not in repr(Client(messages.endpoint))


def test_home_verbs_are_few() -> None:
    """Of all repositories there are these verbs; everything else is of one."""
    assert sorted(CATALOG_VERBS) == ["create", "deleted", "list", "set_metadata", "update_metadata"]
    with pytest.raises(InvalidRequest):
        Repositories(HttpCatalog(Client("http://127.0.0.1:1", access_key="a", secret="b"))).step_once()
