"""Records of a newer lakebed: what is not known here is dropped by no change, and a collection deletes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.objects.open import open_store
from lakebed.repo import Repositories, RepositoryOptions
from lakebed.repo.collect.collect import collect_garbage
from lakebed.repo.heads.compact import compact_once
from lakebed.repo.heads.importing import ImportSource, cancel_import, run_import
from lakebed.repo.heads.multipart import abort_upload, begin_upload, list_parts, load_upload, put_part
from lakebed.repo.heads.write import delete_prefix
from lakebed.repo.model.entry import IDENTITY_BYTES
from lakebed.repo.model.layout import RECORD_FOLDERS, SETTINGS, Keys, deletion_key, repository_key
from lakebed.repo.model.options import CollectionOptions
from lakebed.repo.objects import data
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.hooks import Webhook, set_webhooks, webhooks
from lakebed.repo.records.protection import protect, unprotect
from lakebed.repo.records.pulls import create_pull, encode_merged, update_pull
from lakebed.repo.records.records import encode_record
from lakebed.repo.records.retention import store_retention
from lakebed.repo.records.tasks import end_task, load_task, record_task
from lakebed.repo.references.branches import create_branch, delete_branch
from lakebed.repo.references.tags import create_tag, delete_tag
from lakebed.repo.transport.catalog import LocalCatalog
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.memory_key_value import MemoryKeyValue
from worlds.repo.memory_repository import MemoryRepository, contents, open_context, put
from worlds.repo.operations import commit, commit_text, hard_reset, start_import

AT_ONCE = CollectionOptions(grace=timedelta(0))
NEW = "pinned_by_a_newer_lakebed"


@pytest.fixture
def clock() -> ManualClock:
    """Moved by hand."""
    return ManualClock()


@pytest.fixture
def home(clock: ManualClock) -> Iterator[RepositoryContext]:
    """A repository with records of many kinds, and an upload that nothing needs."""
    place = MemoryRepository(environment=Environment(clock=clock, rng=random.Random(1)))
    with open_context(place) as opened:
        put(opened, "main", "a", "kept")
        opened.key_value.set(repository_key(opened.name), encode_record(opened.record))
        commit(opened, "main", message="1")
        create_tag(opened, "kept", commit_id=_head(opened))
        create_tag(opened, "gone", commit_id=_head(opened))
        delete_tag(opened, "gone")
        create_branch(opened, "work", source="main")
        store_retention(opened, default_days=300)
        protect(opened, "release-*")
        data.upload(opened, b"garbage")
        put(opened, "main", "staged", "staged")
        clock.advance(86_400)
        yield opened


def _head(home: RepositoryContext) -> str:
    commit_id: str = msgspec.json.decode(home.key_value.get(home.keys.branch("main")) or b"")["commit_id"]
    return commit_id


def _first(home: RepositoryContext, prefix: bytes) -> bytes:
    """The key of the first record below a prefix."""
    with home.key_value.snapshot() as snapshot:
        return next(iter(snapshot.scan(prefix, prefix + b"\xff")))[0]


def _add_field(raw: bytes, *path: str) -> bytes:
    """A record with one more member, in the object at a path inside of it."""
    members = inner = msgspec.json.decode(raw)
    for name in path:
        inner = inner[name]
    inner[NEW] = ["data/01"]
    return msgspec.json.encode(members)


def _change(home: RepositoryContext, key: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change a record as a newer lakebed; what it was before."""
    raw = home.key_value.get(key)
    assert raw is not None
    home.key_value.set(key, change(raw))
    return raw


KEYS: dict[str, Callable[[RepositoryContext], bytes]] = {
    "repository": lambda home: repository_key(home.name),
    "branch": lambda home: home.keys.branch("main"),
    "tag": lambda home: home.keys.tag("kept"),
    "commit": lambda home: home.keys.commit(_head(home)),
    "move": lambda home: _first(home, home.keys.reflog()),
    "state given up": lambda home: _first(home, home.keys.supersession()),
    "retention": lambda home: home.keys.setting("retention"),
}
INSIDE = {"branch": ("staging",), "commit": ("metarange",)}
FIELDS = [(kind, ()) for kind in KEYS] + list(INSIDE.items()) + [("commit", ("metarange", "file"))]


@pytest.mark.parametrize(("kind", "path"), FIELDS)
def test_a_collection_deletes_nothing_where_a_record_has_a_field_that_it_does_not_know(
    home: RepositoryContext, kind: str, path: tuple[str, ...]
) -> None:
    """The field may name objects. Without it the same collection takes the garbage."""
    key = KEYS[kind](home)
    raw = _change(home, key, lambda raw: _add_field(raw, *path))
    report = collect_garbage(home, options=AT_ONCE)
    assert report.deleted_count == 0
    assert NEW in report.warnings[0]
    assert "upgrade lakebed" in report.warnings[0]
    home.key_value.set(key, raw)
    assert collect_garbage(home, options=AT_ONCE).deleted_count == 1
    assert contents(home, "main") == {"a": "kept", "staged": "staged"}


@pytest.mark.parametrize(
    "name", ["aaa/1", "boundary-of/1", "boundary.x", "branches-of/1", "holds/1", "zzz", "settings/a", "settings/tags-x"]
)
def test_a_collection_deletes_nothing_beside_records_of_a_kind_that_it_does_not_know(
    home: RepositoryContext, name: str
) -> None:
    """They may be pins, or rules of retention."""
    key = home.keys.root + name.encode()
    home.key_value.set(key, b"{}")
    report = collect_garbage(home, options=AT_ONCE)
    assert report.deleted_count == 0
    assert key.decode() in report.warnings[0]
    assert "upgrade lakebed" in report.warnings[0]
    home.key_value.delete(key)
    assert collect_garbage(home, options=AT_ONCE).deleted_count == 1


@pytest.mark.parametrize("committed", [False, True])
def test_a_collection_deletes_nothing_beside_an_entry_with_more_elements(
    home: RepositoryContext, committed: bool
) -> None:
    """The further ones may name objects; readers ignore them."""
    with home.key_value.snapshot() as snapshot:
        staged = next(key for key, _ in snapshot.scan(*(home.keys.staging(), home.keys.staging() + b"\xff")))
    members = msgspec.msgpack.decode

    def lengthen(raw: bytes) -> bytes:
        elements = members(raw[IDENTITY_BYTES:])
        more = ["application/octet-stream", {}][len(elements) - 4 :]
        return raw[:IDENTITY_BYTES] + msgspec.msgpack.encode([*elements, *more, ["data/01"]])

    _change(home, staged, lengthen)
    if committed:
        commit(home, "main", message="2")
    assert contents(home, "main") == {"a": "kept", "staged": "staged"}
    report = collect_garbage(home, options=AT_ONCE)
    assert report.deleted_count == 0
    assert "more elements" in report.warnings[0]


def test_every_kind_of_record_of_this_version_is_known() -> None:
    """A kind that is added to the keys is added to what collections know."""
    keys = Keys("01")
    names = [name for name in dir(Keys) if not name.startswith("_") and name not in ("uid", "root", "deleted", "token")]
    arguments: dict[str, tuple[Any, ...]] = {"parts": ("01",), "part": ("01", 1)}
    made = {
        name: value if isinstance(value := getattr(keys, name), bytes) else value(*arguments.get(name, ()))
        for name in names
    }
    assert {key[len(keys.root) :].partition(b"/")[0] for key in made.values()} == RECORD_FOLDERS
    assert {b"retention", b"protected_branches", b"webhooks"} == SETTINGS


def _upload(home: RepositoryContext) -> str:
    return begin_upload(home, branch="main", path="b", content_type="x/y", metadata={}, owner="")


def _import(home: RepositoryContext) -> str:
    source = ImportSource("memory://of-others/", "in/")
    return start_import(home, "main", sources=[source])


CHANGES: dict[str, Callable[[RepositoryContext], tuple[bytes, Callable[[], Any]]]] = {
    "commit": lambda home: (home.keys.branch("main"), partial(commit, home, "main", message="2")),
    "compact": lambda home: (home.keys.branch("main"), partial(compact_once, home, "main", force=True)),
    "delete prefix": lambda home: (home.keys.branch("main"), partial(delete_prefix, home, branch="main", prefix="")),
    "delete branch": lambda home: (home.keys.branch("work"), partial(delete_branch, home, "work")),
    "hard reset": lambda home: (home.keys.branch("work"), partial(hard_reset, home, "work", ref="main")),
    "protect": lambda home: (home.keys.setting("protected_branches"), partial(protect, home, "v*")),
    "unprotect": lambda home: (home.keys.setting("protected_branches"), partial(unprotect, home, "release-*")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_a_record_drops_no_field_that_it_does_not_know(home: RepositoryContext, change: str) -> None:
    """It is refused, and the record stays as it was."""
    key, act = CHANGES[change](home)
    _change(home, key, _add_field)
    newer = home.key_value.get(key)
    with pytest.raises(UnsupportedFormat, match=f"{NEW}.*upgrade lakebed"):
        act()
    assert home.key_value.get(key) == newer


def test_no_other_record_that_is_changed_loses_a_field(home: RepositoryContext) -> None:
    """Pull requests, tasks, uploads in parts and imports."""
    pull = create_pull(home, title="t", description="", source="work", destination="main", author="ada")
    task = record_task(home, "dump")
    upload, started = _upload(home), _import(home)
    _, expected = load_upload(home, upload, branch="main", path="b")
    put_part(home, upload, number=1, stored=data.upload(home, b"part"), expected=expected)
    acts: list[tuple[bytes, Callable[[], Any]]] = [
        (home.keys.pull(pull), partial(update_pull, home, pull, title="u")),
        (home.keys.pull(pull), partial(encode_merged, home, pull, "01")),
        (home.keys.task(task.id), partial(load_task, home, task.id)),
        (home.keys.task(task.id), partial(end_task, home, task)),
        (home.keys.upload(upload), partial(load_upload, home, upload, branch="main", path="b")),
        (home.keys.upload(upload), partial(abort_upload, home, upload, branch="main", path="b")),
        (home.keys.part(upload, 1), lambda: list(list_parts(home, upload))),
        (home.keys.import_record(started), partial(cancel_import, home, started)),
        (home.keys.import_record(started), partial(run_import, home, started)),
    ]
    for key, act in acts:
        raw = _change(home, key, _add_field)
        newer = home.key_value.get(key)
        with pytest.raises(UnsupportedFormat, match=f"{NEW}.*upgrade lakebed"):
            act()
        assert home.key_value.get(key) == newer
        home.key_value.set(key, raw)


def test_a_webhook_with_a_field_that_is_not_known_is_not_passed_by(home: RepositoryContext) -> None:
    """It may say when a commit has to be refused."""
    set_webhooks(home.key_value, keys=home.keys, hooks=[Webhook("a", "http://127.0.0.1/", ("pre-commit",))])
    _change(home, home.keys.setting("webhooks"), lambda raw: raw.replace(b'"name"', b'"%s":1,"name"' % NEW.encode()))
    with pytest.raises(UnsupportedFormat, match="upgrade lakebed"):
        webhooks(home.key_value, keys=home.keys)


def test_a_value_that_is_not_known_is_a_newer_ones(home: RepositoryContext) -> None:
    """No user is told to restore what is not damaged; words in texts are no values."""
    protect(home, "Invalid enum value 'x'")
    raw = _change(home, home.keys.setting("protected_branches"), lambda raw: raw.replace(b'"commit"', b'"merge"'))
    with pytest.raises(UnsupportedFormat, match=r"a value 'merge' .*upgrade lakebed"):
        commit(home, "main", message="2")
    home.key_value.set(home.keys.setting("protected_branches"), raw[:-1])
    with pytest.raises(Corruption):
        commit(home, "main", message="2")


def test_commits_and_tags_with_a_field_that_is_not_known_are_read(home: RepositoryContext) -> None:
    """They never change, so nothing is lost by it: machines can be upgraded one by one."""
    for kind in ("commit", "tag", "repository"):
        _change(home, KEYS[kind](home), _add_field)
    assert contents(home, "kept") == {"a": "kept"}
    commit_text(home, "main", "b", "new", message="2")
    assert contents(home, "main") == {"a": "kept", "staged": "staged", "b": "new"}


@pytest.fixture
def catalog(clock: ManualClock) -> Iterator[tuple[Repositories, MemoryKeyValue]]:
    """Repositories, and their records."""
    environment = Environment(clock=clock, rng=random.Random(1))
    key_value = MemoryKeyValue(environment=environment)
    store = open_store(f"memory://newer-{id(key_value)}", environment=environment)
    options = RepositoryOptions(background=False)
    with Repositories(LocalCatalog(store, key_value, options=options, environment=environment)) as opened:
        opened.create("flights").close()
        yield opened, key_value


@pytest.mark.parametrize("change", ["metadata", "delete", "create", "sweep"])
def test_the_record_of_a_repository_loses_no_field(catalog: tuple[Repositories, MemoryKeyValue], change: str) -> None:
    """Nor does the note of a deleted one, by which its objects are swept; but it is listed."""
    opened, key_value = catalog
    key = b"home" if change == "create" else repository_key("flights")
    if change == "sweep":
        uid = msgspec.json.decode(key_value.get(key) or b"")["uid"]
        opened.delete("flights")
        key = deletion_key(uid)
    raw = key_value.get(key)
    assert raw is not None
    key_value.set(key, _add_field(raw))
    assert [item.name for item in opened.list()] == ([] if change == "sweep" else ["flights"])
    acts: dict[str, Callable[[], Any]] = {
        "metadata": partial(opened.set_metadata, "flights", {"a": "b"}),
        "delete": partial(opened.delete, "flights"),
        "create": partial(opened.create, "trains"),
        "sweep": opened.deleted,
    }
    with pytest.raises(UnsupportedFormat, match=f"{NEW}.*upgrade lakebed"):
        acts[change]()
    assert key_value.get(key) == _add_field(raw)
