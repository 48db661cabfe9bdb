"""Which versions are tagged, as the index knows them, against the tags themselves."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.tag_index import TagEntry, load_entries
from lakebed.table.codec.snapshot_json import encode_snapshot, encode_tag
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import Snapshot
from lakebed.testing.clock import ManualClock
from lakebed.testing.wrapper import StoreWrapper

SNAPSHOT = Snapshot(1, 0, "b", "d", "me", 1, "APPEND", 0, 0, 0)


@pytest.fixture
def store(clock: ManualClock) -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4()}", environment=Environment(clock=clock))


def put_tag(store: ObjectStore, name: str, snapshot_id: int, *, expires_ms: int | None = None) -> TagEntry:
    """A tag file, and what the index says of it."""
    body = encode_snapshot(replace(SNAPSHOT, id=snapshot_id))
    create_time_ms = None if expires_ms is None else 0
    store.put(Layout().tag(name), encode_tag(body, create_time_ms=create_time_ms, lifetime_ms=expires_ms))
    return TagEntry(snapshot_id, name, expires_ms)


def entries_of(store: ObjectStore, clock: ManualClock, listed: Sequence[ObjectMeta] | None = None) -> list[TagEntry]:
    return list(load_entries(store, layout=Layout(), environment=Environment(clock=clock), listed=listed))


@pytest.mark.parametrize("seed", range(5))
def test_the_index_says_what_the_tags_say(store: ObjectStore, clock: ManualClock, seed: int) -> None:
    """Ids of any size in any order, tags that expire at any time or never; only what changed is read."""
    rng = random.Random(seed)
    entries = dict[str, TagEntry]()
    for _ in range(6):
        changed = {f"t{rng.randrange(12)}" for _ in range(rng.randrange(5))}
        for name in changed:
            expires_ms = rng.choice((None, None, 0, 1, 2**40, 2**61))
            entries[name] = put_tag(
                store, name, rng.choice((1, 7, 2**31, 2**53)) + rng.randrange(3), expires_ms=expires_ms
            )
        gone = rng.sample(sorted(entries), min(len(entries), rng.randrange(3)))
        store.delete([Layout().tag(name) for name in gone])
        for name in gone:
            del entries[name]
        store.put("tag/other", b"no tag")
        clock.advance(1)
        expected = sorted(entries.values(), key=lambda entry: (entry.snapshot_id, entry.name))
        with store.count() as requests:
            assert entries_of(store, clock) == expected
        assert requests.get - 1 <= len(changed - set(gone))
        with store.count() as requests:
            assert entries_of(store, clock) == expected
        assert requests.total == (2 if expected else 1)


def test_without_tags_no_index_is_read_or_written(store: ObjectStore, clock: ManualClock) -> None:
    """One listing says that there is none."""
    with store.count() as requests:
        assert entries_of(store, clock) == []
    assert requests.total == requests.list == 1


@pytest.mark.parametrize(("age_ms", "get_count"), [(0, 2), (5_000, 2), (5_001, 1), (-9_000, 2)])
def test_a_young_tag_without_an_etag_is_read_again(
    store: ObjectStore, clock: ManualClock, age_ms: int, get_count: int
) -> None:
    """It may be replaced within the same millisecond by a tag of the same size; one with an etag is remembered."""
    clock.advance(10)
    entry = put_tag(store, "a", 3)
    (meta,) = store.list("tag")
    listed = [msgspec.structs.replace(meta, etag=None)]
    later = ManualClock(start_ms=meta.modified_ms + age_ms)
    assert entries_of(store, later, listed) == [entry]
    with store.count() as requests:
        assert entries_of(store, later, listed) == [entry]
    assert requests.get == get_count
    assert entries_of(store, later) == [entry]
    with store.count() as requests:
        assert entries_of(store, later) == [entry]
    assert requests.get == 1


def test_a_tag_that_is_replaced_is_read_again_by_any_sign(store: ObjectStore, clock: ManualClock) -> None:
    """Another size, time or etag, or the name of another tag: the index says nothing of it."""
    for name in ("a", "b"):
        put_tag(store, name, 3)
    metas = {meta.path: meta for meta in store.list("tag")}
    meta, other = metas["tag/tag-a"], metas["tag/tag-b"]
    entries_of(store, clock)
    put_tag(store, "a", 4)
    assert [entry.snapshot_id for entry in entries_of(store, clock, [meta])] == [3]
    for sign in ({"size_bytes": meta.size_bytes + 1}, {"modified_ms": meta.modified_ms + 1}, {"etag": "x"}):
        changed = msgspec.structs.replace(meta, **sign)
        assert [entry.snapshot_id for entry in entries_of(store, clock, [changed])] == [4], sign
    moved = msgspec.structs.replace(other, path="tag/tag-a")
    assert [entry.snapshot_id for entry in entries_of(store, clock, [moved])] == [4]


def test_a_tag_that_goes_after_the_listing_is_left_out(store: ObjectStore, clock: ManualClock) -> None:
    """Those behind it are known all the same."""
    kept = [put_tag(store, name, 2) for name in ("a", "b", "c")]
    listed = list(store.list("tag"))
    store.delete(["tag/tag-b"])
    assert entries_of(store, clock, listed) == [kept[0], kept[2]]


class Versioned(StoreWrapper):
    """A store that is versioned as a whole."""

    @property
    def is_versioned(self) -> bool:
        return True


def test_a_store_that_is_versioned_as_a_whole_gets_no_index(store: ObjectStore, clock: ManualClock) -> None:
    """It would be one more difference between two versions."""
    entry = put_tag(store, "a", 2)
    assert entries_of(Versioned(store), clock) == [entry]
    assert [meta.path for meta in store.list("")] == ["tag/tag-a"]
