"""Imports: objects of elsewhere in one commit, without a copy, once, and stopped on request."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from lakebed.errors import Conflict, InvalidRequest, LakebedError, NotFound, UnsupportedFormat
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.repo.heads import importing
from lakebed.repo.heads.importing import (
    ImportSource,
    cancel_import,
    import_status,
    list_unfinished_imports,
    run_import,
    trim_imports,
)
from lakebed.repo.model.entry import address_ulid
from lakebed.repo.outside.foreign import ForeignStores
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.records.protection import protect
from lakebed.repo.records.records import encode_record
from lakebed.repo.references.branches import load_branch
from lakebed.repo.references.refs import resolve
from lakebed.repo.staging.view import at_reference
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.repo.memory_repository import MemoryRepository, open_context, put, put_many
from worlds.repo.operations import commit, start_import


@pytest.fixture
def home() -> Iterator[RepositoryContext]:
    """A repository with a few committed paths."""
    with open_context(MemoryRepository()) as opened:
        put_many(opened, "main", {"kept": "1", "in/old": "1", "in/1": "1"})
        commit(opened, "main", message="base")
        yield opened


@pytest.fixture
def elsewhere(tmp_path: Path) -> ObjectStore:
    """A folder of objects that are not versioned."""
    store = open_store(tmp_path)
    for number in range(12):
        store.put(f"lake/{number}", b"x" * number)
    store.put("lake/deep/er/a b+%c", b"odd")
    store.put("other/single", b"12345")
    return store


def sizes(home: RepositoryContext, branch: str = "main") -> dict[str, int]:
    """What a branch shows: sizes by path."""
    with at_reference(home, branch) as view:
        return {entry.path: entry.entry.size_bytes for entry in view.list() if entry.entry is not None}


def head(home: RepositoryContext) -> str:
    """The id of the branch's head."""
    return load_branch(home, "main")[0].commit_id


def started(home: RepositoryContext, *sources: ImportSource, **arguments: object) -> str:
    """The id of a new import."""
    return start_import(home, "main", sources=sources, **arguments)  # type: ignore[arg-type]


def test_folders_and_objects_come_in_one_commit(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """They are named where they are, nothing is copied, and what was there stays."""
    folder = ImportSource(f"{elsewhere.root_url}/lake", "in")
    single = ImportSource(f"{elsewhere.root_url}/other/single", "one/object", "object")
    before = head(home)
    id = started(home, folder, single, message="bring", metadata={"k": "v"}, committer="grace")
    assert import_status(home, id).state == "running"
    with home.store.count() as counts:
        done = run_import(home, id)
    assert counts.copy == 0
    assert not list(home.store.list("data"))
    assert (done.state, done.ingested_count, done.commit_id) == ("completed", 14, head(home))
    expected = {"kept": 1, "in/old": 1, "one/object": 5, "in/deep/er/a b+%c": 3} | {f"in/{n}": n for n in range(12)}
    assert sizes(home) == expected
    resolved = resolve(home, "main@")
    assert resolved.commit.parents == (before,)
    assert (resolved.commit.message, resolved.commit.committer, resolved.commit.metadata) == (
        "bring",
        "grace",
        {"k": "v"},
    )
    with at_reference(home, "main") as view:
        entry = view.get("in/7")
    assert entry is not None
    assert entry.address == f"{elsewhere.root_url}/lake/7"
    assert address_ulid(entry.address) is None  # not one of our addresses, so never deleted
    assert run_import(home, id) == done  # again is fine
    assert list_unfinished_imports(home) == []


def test_what_is_below_the_destination_can_be_replaced(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """With replace it is as the folder is; the rest of the branch stays."""
    run_import(home, started(home, ImportSource(f"{elsewhere.root_url}/lake", "in/"), replace=True))
    assert "in/old" not in sizes(home)
    assert {"kept", "in/1"} < set(sizes(home))


def test_later_folders_and_objects_win(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """Of one destination the later folder is taken, and an object before all folders."""
    elsewhere.put("new/1", b"later")
    sources = [
        ImportSource(f"{elsewhere.root_url}/other/single", "in/2", "object"),
        ImportSource(f"{elsewhere.root_url}/lake", "in"),
        ImportSource(f"{elsewhere.root_url}/new", "in"),
    ]
    run_import(home, started(home, *sources))
    assert (sizes(home)["in/1"], sizes(home)["in/2"], sizes(home)["in/3"]) == (5, 5, 3)


def test_the_root_of_a_branch_is_a_destination(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """An empty prefix puts the folder's objects at the top."""
    run_import(home, started(home, ImportSource(f"{elsewhere.root_url}/other", "")))
    assert sizes(home)["single"] == 5


def test_a_dirty_branch_is_refused(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """The import has failed, and its record says why."""
    put(home, "main", "x", "1")
    before = head(home)
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    with raises(InvalidRequest, "dirty_branch") as caught:
        run_import(home, id)
    record = import_status(home, id)
    assert (record.state, record.error) == ("failed", str(caught.value))
    assert head(home) == before


def test_a_source_that_is_not_there_fails(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """A missing folder or object is an error, not an empty import."""
    before = head(home)
    for source in (
        ImportSource(f"{elsewhere.root_url}/nowhere", "in"),
        ImportSource(f"{elsewhere.root_url}/other/nothing", "in", "object"),
    ):
        id = started(home, source)
        with pytest.raises(NotFound):
            run_import(home, id)
        assert import_status(home, id).state == "failed"
    assert head(home) == before


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (ImportSource("ftp://host/x", "in"), "invalid_url"),
        (ImportSource("s3://user@bucket/x", "in"), "invalid_url"),
        (ImportSource("s3://bucket", "in", "object"), "invalid_url"),
        (ImportSource("memory://x/y", "", "object"), "invalid_path"),
        (ImportSource("memory://x/y", "a/../b", "object"), "invalid_path"),
        (ImportSource("memory://x/y", "_lakefs/x", "object"), "reserved_path"),
    ],
)
def test_what_cannot_be_imported_is_refused_at_once(home: RepositoryContext, source: ImportSource, kind: str) -> None:
    """Nothing is written down for it."""
    with raises(InvalidRequest, kind):
        started(home, source)
    with pytest.raises(InvalidRequest):
        started(home)
    assert list_unfinished_imports(home) == []


def test_a_record_names_only_what_was_asked_for(home: RepositoryContext) -> None:
    """An older version, which refuses fields that it does not know, reads the record of what it knows."""
    id = started(home, ImportSource("memory://x/y", "in"))
    assert import_status(home, id).ingested_count == 0
    raw = home.key_value.get(home.keys.import_record(id))
    assert raw is not None
    always = {"id", "branch", "sources", "message", "committer", "metadata", "replace", "updated_at_ms"}
    assert set(json.loads(raw)) == always


@pytest.mark.parametrize("place", ["record", "source"])
def test_a_newer_import_is_not_done_by_half(home: RepositoryContext, place: str) -> None:
    """Of a record, or of a source, with a field that is not known: it asks for an upgrade, and stays as it is."""
    id = started(home, ImportSource("memory://x/y", "in"))
    key = home.keys.import_record(id)
    fields = json.loads(home.key_value.get(key) or b"")
    (fields if place == "record" else fields["sources"][0])["colour"] = "red"
    home.key_value.set(key, json.dumps(fields).encode())
    for act in (run_import, cancel_import, import_status):
        with pytest.raises(UnsupportedFormat, match="colour"):
            act(home, id)
    assert json.loads(home.key_value.get(key) or b"") == fields


def test_an_import_has_at_most_ten_thousand_sources(home: RepositoryContext) -> None:
    """One more is refused, before anything is written."""
    sources = [ImportSource("memory://x/y", f"in/{number}") for number in range(10_001)]
    importing.check_sources(home, sources[1:])
    with raises(InvalidRequest, "no_sources"):
        importing.check_sources(home, sources)


def test_a_bucket_is_imported_with_the_credentials_of_the_caller(home: RepositoryContext, s3_server: Any) -> None:
    """They are given where the import runs, and are in no record."""
    url, options = s3_server.url(), s3_server.options
    open_store(url, storage_options=options).put("x/1", b"1")
    id = started(home, ImportSource(f"{url}/x", "bucket"))
    done = run_import(home, id, storage_options=options)
    assert (done.state, done.ingested_count) == ("completed", 1)
    assert sizes(home)["bucket/1"] == 1
    raw = home.key_value.get(home.keys.import_record(id))
    assert not any(str(value).encode() in (raw or b"") for value in options.values())


def test_own_objects_are_not_imported(home: RepositoryContext) -> None:
    """What a collection may delete is refused: the repository's data, a folder in it, and every folder above it."""
    root = home.store.root_url
    for url in (root, f"{root}/data", f"{root}/data/01/x", f"{root}/ranges", f"{root}/metaranges/x", f"{root}/uploads"):
        with raises(InvalidRequest, "own_objects"):
            started(home, ImportSource(url, "in"))
    started(home, ImportSource(f"{root}/database", "in"))


def test_a_cancelled_import_moves_nothing(
    home: RepositoryContext, elsewhere: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it runs, or in the middle of it; and what has ended cannot be cancelled."""
    before = head(home)
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    assert cancel_import(home, id).state == "cancelled"
    assert run_import(home, id).state == "cancelled"

    second = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    home.hooks.register("pre-commit", lambda call: cancel_import(home, second) and None)
    assert run_import(home, second).state == "cancelled"
    assert head(home) == before
    with raises(Conflict, "import_ended"):
        cancel_import(home, second)
    with pytest.raises(NotFound):
        cancel_import(home, "no-such-import")

    monkeypatch.setattr(importing, "_PROGRESS_ROW_COUNT", 1)
    monkeypatch.setattr(importing, "_BATCH_ROW_COUNT", 2)
    third = started(home, ImportSource(f"{elsewhere.root_url}/other", ""), ImportSource(elsewhere.root_url, "in"))
    seen = []

    def watched(home: RepositoryContext, id: str) -> tuple[importing.Import, bytes]:
        result = load(home, id)
        seen.append(result[0].ingested_count)
        return result

    load = importing._load
    monkeypatch.setattr(importing, "_load", watched)
    with pytest.raises(LakebedError):
        run_import(home, third)  # the hook that cancels the second one fails here
    assert import_status(home, third).ingested_count > 2  # progress was written as it went


def test_records_of_imports_are_forgotten_in_time(elsewhere: ObjectStore) -> None:
    """A week after an import ended, or was left behind, its record goes; one that goes on stays."""
    clock = ManualClock()
    with open_context(MemoryRepository(environment=Environment(clock=clock))) as home:
        ended = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
        assert run_import(home, ended).state == "completed"
        left_behind = started(home, ImportSource(f"{elsewhere.root_url}/other", "in"))
        clock.advance(6 * 86_400)
        running = started(home, ImportSource(f"{elsewhere.root_url}/other", "on"))
        assert trim_imports(home) == 0
        clock.advance(2 * 86_400)
        assert trim_imports(home) == 2
        for gone in (ended, left_behind):
            with pytest.raises(NotFound):
                import_status(home, gone)
        assert run_import(home, running).state == "completed"


def test_two_runs_complete_it_once(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """Another process that runs the same import in the middle of ours: one commit, one answer."""
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    before = head(home)
    other_ran = []

    def run_other(call: object) -> None:
        if not other_ran:
            other_ran.append(True)
            other_ran.append(run_import(home, id))

    home.hooks.register("pre-commit", run_other)
    done = run_import(home, id)
    assert done == other_ran[1]
    assert resolve(home, "main").commit.parents == (before,)


def test_what_moved_to_another_place_is_read_there(home: RepositoryContext) -> None:
    """The same bytes imported from a second place: the entry names that one, though its content is the same."""
    old, new = (open_store(f"memory://{uuid.uuid4().hex}/{name}") for name in ("old", "new"))
    for store in (old, new):
        store.put("a", b"1")
        run_import(home, started(home, ImportSource(store.root_url, "in")))
        again = run_import(home, started(home, ImportSource(store.root_url, "in")))
        assert again.commit_id == head(home)
    with at_reference(home, "main") as view:
        addresses = [entry.entry.address for entry in view.list() if entry.path == "in/a" and entry.entry is not None]
    assert addresses == [f"{new.root_url}/a"]


def test_what_may_not_be_imported_is_refused_again_when_the_import_runs(
    home: RepositoryContext, elsewhere: ObjectStore, tmp_path: Path
) -> None:
    """The allowed locations may have changed meanwhile, and so may the branch's protection."""
    folder = ImportSource(f"{elsewhere.root_url}/lake", "in")
    single = ImportSource(f"{elsewhere.root_url}/other/single", "one", "object")
    limited = replace(home, foreign=ForeignStores(allowed=[f"file://{tmp_path}/elsewhere"]))
    before = head(home)
    for source in (folder, single):
        with raises(InvalidRequest, "import_not_allowed"):
            started(limited, source)
        id = started(home, source)
        with raises(InvalidRequest, "import_not_allowed"):
            run_import(limited, id)
        assert import_status(home, id).state == "failed"
    id = started(home, folder)
    protect(home, "main")
    with raises(InvalidRequest, "protected_branch"):
        run_import(home, id)
    assert (import_status(home, id).state, head(home)) == ("failed", before)


def test_a_folder_comes_below_paths_that_may_be_written(home: RepositoryContext) -> None:
    """Others are refused before anything is recorded, by their folder, not by its objects."""
    for destination, kind in (("_lakefs", "reserved_path"), ("_lakefs/", "reserved_path"), ("a/../b", "invalid_path")):
        with raises(InvalidRequest, kind):
            importing.check_sources(home, [ImportSource("memory://x/y", destination)])
    importing.check_sources(home, [ImportSource("memory://x/y", "")])


def test_the_state_of_each_end_is_kept(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """What completed, failed or was cancelled is unfinished no more, cannot be cancelled and does not run again."""
    folder = ImportSource(f"{elsewhere.root_url}/other", "in")
    completed, cancelled, running = (started(home, folder) for _ in range(3))
    failed = started(home, ImportSource(f"{elsewhere.root_url}/nowhere", "in"))
    run_import(home, completed)
    cancel_import(home, cancelled)
    with pytest.raises(NotFound):
        run_import(home, failed)
    assert [record.id for record in list_unfinished_imports(home)] == [running]
    for id, state in ((completed, "completed"), (cancelled, "cancelled"), (failed, "failed")):
        with raises(Conflict, "import_ended"):
            cancel_import(home, id)
        before = head(home)
        assert run_import(home, id).state == state
        assert (import_status(home, id).state, head(home)) == (state, before)


@pytest.mark.parametrize("times", [1, 2])
def test_an_import_that_another_run_writes_to_goes_on(
    home: RepositoryContext, elsewhere: ObjectStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Its record has changed and says that it runs: progress is written on what is there now."""
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    left = [times]
    replaced = importing._set

    def write_first(context: RepositoryContext, raw: bytes, record: importing.Import) -> bool:
        if left[0]:
            left[0] -= 1
            now = import_status(home, id)
            home.key_value.set(home.keys.import_record(id), encode_record(replace_fields(now, updated_at_ms=left[0])))
        return replaced(context, raw, record)

    monkeypatch.setattr(importing, "_set", write_first)
    done = run_import(home, id)
    assert (done.state, done.ingested_count, left) == ("completed", 13, [0])


@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_an_import_that_another_ended_stays_as_it_ended(
    home: RepositoryContext, elsewhere: ObjectStore, state: Any
) -> None:
    """Whatever it is: the run that is in the middle of it moves no branch and answers with it."""
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    before = head(home)

    def end_it(call: object) -> None:
        key = home.keys.import_record(id)
        record = replace_fields(import_status(home, id), state=state, error="by another")
        home.key_value.set(key, encode_record(record))

    home.hooks.register("pre-commit", end_it)
    assert (run_import(home, id).state, head(home)) == (state, before)
    assert (import_status(home, id).state, import_status(home, id).error) == (state, "by another")


def test_progress_is_written_every_so_many_rows(
    home: RepositoryContext, elsewhere: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the beginning, when that many more have come, and at the end; whoever asks sees it."""
    monkeypatch.setattr(importing, "_PROGRESS_ROW_COUNT", 4)
    monkeypatch.setattr(importing, "_BATCH_ROW_COUNT", 2)
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    counts: list[int] = []
    replaced = importing._set

    def noted(context: RepositoryContext, raw: bytes, record: importing.Import) -> bool:
        counts.append(record.ingested_count)
        return replaced(context, raw, record)

    monkeypatch.setattr(importing, "_set", noted)
    assert run_import(home, id).ingested_count == 13
    assert counts == [0, 4, 8, 12, 13]


def test_an_import_without_a_change_is_completed_at_the_head(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """Its record says so to all who ask; when another run has ended it, that end is the answer."""
    folder = ImportSource(f"{elsewhere.root_url}/lake", "in")
    run_import(home, started(home, folder))
    again = started(home, folder)
    done = run_import(home, again)
    assert (done.state, done.commit_id, done.ingested_count) == ("completed", head(home), 13)
    assert import_status(home, again) == done
    assert run_import(home, again) == done


def test_an_object_without_a_checksum_is_imported(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """The checksum of an entry is what the store calls it, without quotes; where it says nothing there is none."""
    run_import(home, started(home, ImportSource(f"{elsewhere.root_url}/lake", "in")))
    with at_reference(home, "main") as view:
        entry = view.get("in/7")
    meta = elsewhere.head("lake/7")
    assert entry is not None
    assert (entry.checksum, entry.size_bytes, entry.modified_ms) == (
        (meta.etag or "").strip('"'),
        7,
        meta.modified_ms,
    )
    assert importing._entry("s3://b", replace_fields(meta, etag=None)).checksum == ""
    assert importing._entry("s3://b", replace_fields(meta, etag='"0a-1"')).checksum == "0a-1"


def test_a_commit_in_between_is_kept(home: RepositoryContext, elsewhere: ObjectStore) -> None:
    """The import is applied again, on the commit that was faster."""
    id = started(home, ImportSource(f"{elsewhere.root_url}/lake", "in"))
    faster = []

    def commit_first(call: object) -> None:
        if not faster:
            faster.append(None)
            put(home, "main", "faster", "1")
            faster.append(commit(home, "main", message="faster").id)

    home.hooks.register("pre-commit", commit_first)
    run_import(home, id)
    assert resolve(home, "main").commit.parents == (faster[1],)
    assert sizes(home)["faster"] == 1
    assert sizes(home)["in/7"] == 7
