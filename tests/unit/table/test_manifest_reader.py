"""Reading manifests: what is fetched, what is cached, what is damage."""

from __future__ import annotations

import dataclasses
import random

import pyarrow as pa
import pytest

from lakebed.bounded_cache import BoundedCache
from lakebed.errors import Corruption, NotFound
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import ManifestReader, _resident_bytes
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.index_manifest import IndexEntry, VectorRange, encode_index_manifest
from lakebed.table.codec.manifest import ADD, encode_manifest, encode_manifest_list, entries_of_changes
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import BucketChange, DataFile, ManifestMeta, Snapshot

FILE = DataFile("a", 1, 1, EMPTY_ROW, EMPTY_ROW, EMPTY_STATS, EMPTY_STATS, 0, 0, 0, 0)


def stored(store: ObjectStore, name: str, change: BucketChange, added_snapshot: int) -> ManifestMeta:
    """One manifest on the store."""
    body = encode_manifest(entries_of_changes([change]))
    store.put(f"manifest/{name}", body)
    return ManifestMeta(name, len(body), len(change.added), len(change.deleted), EMPTY_STATS, 0, added_snapshot)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """An empty store of its own for each test."""
    return open_store(f"memory://{request.node.name}")


@pytest.fixture
def snapshot(store: ObjectStore) -> Snapshot:
    """Snapshot 2: base adds a and b, delta deletes a and adds c."""
    second, third = (dataclasses.replace(FILE, file_name=name) for name in "bc")
    base = stored(store, "m1", BucketChange(EMPTY_ROW, 0, 1, added=(FILE, second)), 1)
    gone = dataclasses.replace(FILE, commit_snapshot=1)
    delta = stored(store, "m2", BucketChange(EMPTY_ROW, 0, 1, added=(third,), deleted=(gone,)), 2)
    bodies = [encode_manifest_list([base]), encode_manifest_list([delta])]
    for name, body in zip(("l1", "l2"), bodies, strict=True):
        store.put(f"manifest/{name}", body)
    sizes = {"base_manifest_list_size": len(bodies[0]), "delta_manifest_list_size": len(bodies[1])}
    return Snapshot(2, 0, "l1", "l2", "me", 1, "APPEND", 0, 2, 0, **sizes)


def reader(store: ObjectStore, *, cache: BoundedCache | None = None) -> ManifestReader:
    """A reader with a cache of its own."""
    return ManifestReader(store, Layout(), environment=Environment(), cache=cache or BoundedCache(1 << 28))


def test_live_and_delta(store: ObjectStore, snapshot: Snapshot) -> None:
    """Live files are base and delta folded; the delta is returned as committed; each object is fetched once."""
    manifests = reader(store)
    with store.count() as counts:
        live = manifests.live_entries(snapshot)
        delta = manifests.delta_entries(snapshot)
        manifests.live_entries(snapshot)
    assert (live.column("file_name").to_pylist(), live.column("commit_snapshot").to_pylist()) == (["b", "c"], [1, 2])
    assert (delta.column("kind").to_pylist(), delta.column("commit_snapshot").to_pylist()) == ([1, 0], [1, 2])
    assert (counts.get, counts.total) == (4, 4)


def test_manifests_can_be_left_out(store: ObjectStore, snapshot: Snapshot) -> None:
    """A manifest that is not wanted is not fetched."""
    with store.count() as counts:
        live = reader(store).live_entries(snapshot, keep_manifest=lambda meta: meta.file_name == "m2")
    assert (live.column("file_name").to_pylist(), counts.get) == (["c"], 3)


def test_truncation_is_corruption(store: ObjectStore, snapshot: Snapshot) -> None:
    """A manifest or list that is not as long as committed is damage, even where its bytes alone look whole."""
    for name in ("m1", "l2"):
        whole = bytes(store.get(f"manifest/{name}"))
        store.put(f"manifest/{name}", whole + b"")
        store.put(f"manifest/{name}", whole[:-1])
        with pytest.raises(Corruption, match=f"manifest/{name}"):
            reader(store).live_entries(snapshot)
        store.put(f"manifest/{name}", whole)


def test_wrong_count_is_corruption(store: ObjectStore) -> None:
    """A manifest of another number of entries than its list says is damage."""
    meta = stored(store, "m", BucketChange(EMPTY_ROW, 0, 1, added=(FILE,)), 1)
    with pytest.raises(Corruption, match="has 1 entries"):
        reader(store).entries(dataclasses.replace(meta, added_file_count=2))


def test_missing_manifest(store: ObjectStore, snapshot: Snapshot) -> None:
    """A manifest that is gone is NotFound, for the caller to judge."""
    store.delete(["manifest/m1"])
    with pytest.raises(NotFound):
        reader(store).live_entries(snapshot)


def test_two_added_snapshots_do_not_mix(store: ObjectStore) -> None:
    """The same manifest named with and without its snapshot decodes each way."""
    meta = stored(store, "m", BucketChange(EMPTY_ROW, 0, 1, added=(FILE,)), 5)
    manifests = reader(store)
    assert manifests.entries(meta).column("commit_snapshot").to_pylist() == [5]
    assert manifests.entries(dataclasses.replace(meta, added_snapshot=None)).column("commit_snapshot").to_pylist() == [
        -1
    ]


def test_small_manifests_count_at_what_they_take(store: ObjectStore) -> None:
    """A manifest of one entry takes tens of kilobytes decoded, whatever its values: the cache's bound means that."""
    cache = BoundedCache(1 << 28)
    reader(store, cache=cache).entries(stored(store, "m", BucketChange(EMPTY_ROW, 0, 1, added=(FILE,)), 1))
    assert cache.size_bytes > 20_000


def test_entries_in_pieces_count_at_what_all_of_them_take(store: ObjectStore) -> None:
    """Arrow's overhead comes once for each column of each piece."""
    metas = [stored(store, f"s{number}", BucketChange(EMPTY_ROW, 0, 1, added=(FILE,)), 1) for number in range(8)]
    parts = [reader(store).entries(meta) for meta in metas]
    assert _resident_bytes(pa.concat_tables(parts)) == sum(map(_resident_bytes, parts))


def test_live_files_count_against_the_bound(store: ObjectStore, snapshot: Snapshot) -> None:
    """The cache counts the live files it keeps, and drops those of an earlier snapshot that it extended."""
    cache = BoundedCache(1 << 28)
    manifests = reader(store, cache=cache)
    metas = manifests.all_metas(snapshot)
    entries = [manifests.entries(meta) for meta in metas]
    before = cache.size_bytes
    live = manifests.live_entries(snapshot)
    assert cache.size_bytes - before >= live.get_total_buffer_size() > 0
    assert before >= sum(part.get_total_buffer_size() for part in entries)
    third = stored(store, "m3", BucketChange(EMPTY_ROW, 0, 1, added=(dataclasses.replace(FILE, file_name="d"),)), 3)
    body = encode_manifest_list([third])
    store.put("manifest/l3", body)
    base = encode_manifest_list(metas)
    store.put("manifest/l4", base)
    later = dataclasses.replace(snapshot, id=3, base_manifest_list="l4", delta_manifest_list="l3",
                                base_manifest_list_size=len(base), delta_manifest_list_size=len(body))  # fmt: skip
    with store.count() as counts:
        assert manifests.live_entries(later).column("file_name").to_pylist() == ["b", "c", "d"]
    assert counts.get == 3, "only the two lists and the new manifest are read"
    states = [key for key in cache._items if isinstance(key[1], bytes)]
    assert len(states) == 1, "the state that was extended is not kept beside the new one"


def test_of_many_manifests_only_the_newest_state_is_kept(store: ObjectStore) -> None:
    """One manifest after the other: the state that is extended goes, and not another one."""
    cache = BoundedCache(1 << 28)
    manifests = reader(store, cache=cache)
    metas = [
        stored(
            store,
            f"n{number}",
            BucketChange(EMPTY_ROW, 0, 1, added=(dataclasses.replace(FILE, file_name=f"f{number}"),)),
            1,
        )
        for number in range(8)
    ]
    for count in range(1, 9):
        names = manifests.live_of(metas[:count]).column("file_name").to_pylist()
        assert names == [f"f{number}" for number in range(count)]
        assert len([key for key in cache._items if isinstance(key[1], bytes)]) == 1


def test_a_cache_too_small_keeps_nothing(store: ObjectStore, snapshot: Snapshot) -> None:
    """With a bound of no bytes every plan reads its manifests again, and answers the same."""
    cache = BoundedCache(0)
    for _ in range(2):
        with store.count() as counts:
            assert reader(store, cache=cache).live_entries(snapshot).column("file_name").to_pylist() == ["b", "c"]
        assert (counts.get, cache.size_bytes) == (4, 0)


def test_many_manifests_are_read_as_each_alone(store: ObjectStore) -> None:
    """Small and large ones, with a missing, a damaged and a miscounted one among them: those alone are left out."""
    metas = []
    for number in range(40):
        files = tuple(dataclasses.replace(FILE, file_name=f"{number}-{place}") for place in range(number % 4 + 1))
        if number == 9:
            files = tuple(dataclasses.replace(FILE, file_name=f"{number}-{place}") for place in range(200))
        metas.append(stored(store, f"m{number}", BucketChange(EMPTY_ROW, 0, 1, added=files), number + 1))
    store.delete(["manifest/m3"])
    body = bytearray(store.get("manifest/m4"))
    body[-20] ^= 1
    store.put("manifest/m4", bytes(body))
    metas[5] = dataclasses.replace(metas[5], added_file_count=1)
    columns = ("file_name", "commit_snapshot", "kind")
    for cached in ((), (0, 9)):
        manifests = reader(store)
        for number in cached:
            manifests.entries(metas[number])
        with store.count() as counts:
            joined = manifests.entries_of_each(metas, columns)
        assert counts.get == 40 - len(cached)
        assert sorted(joined.ranges) == sorted(f"m{number}" for number in range(40) if number not in (3, 4, 5))
        for meta in metas:
            if meta.file_name in joined.ranges:
                start, end = joined.ranges[meta.file_name]
                assert joined.rows.slice(start, end - start).equals(reader(store).entries(meta).select(columns))
        readable = [meta for meta in metas if meta.file_name in joined.ranges]
        with store.count() as counts:
            manifests.entries_of_each(readable, columns)
            gets = counts.get
            manifests.entries_of_each(readable, columns)
        assert counts.get == gets > 0


def test_lists_of_many_snapshots_are_read_as_each_alone(store: ObjectStore, snapshot: Snapshot) -> None:
    """Each has what `all_metas` returns, and one whose list is missing has none; no list is read twice."""
    snapshots = []
    for number in range(12):
        for name in ("l1", "l2"):
            store.put(f"manifest/{name}-{number}", bytes(store.get(f"manifest/{name}")))
        snapshots.append(
            dataclasses.replace(snapshot, base_manifest_list=f"l1-{number}", delta_manifest_list=f"l2-{number}")
        )
    store.delete(["manifest/l2-7"])
    manifests = reader(store)
    with store.count() as counts:
        metas = manifests.all_metas_of_each(snapshots)
    assert counts.get == 24
    assert metas[7] is None
    with store.count() as counts:
        for each, expected in zip(metas, snapshots, strict=True):
            if each is not None:
                assert each == manifests.all_metas(expected) == reader(store).all_metas(expected)
    assert counts.get == 22


def test_an_index_manifest_is_read_once(store: ObjectStore) -> None:
    """The cache counts its ranges, most of what it holds; each name is another manifest."""
    few = (IndexEntry(EMPTY_ROW, 0, "index-0", 9, 2),)
    ranges = tuple(VectorRange(f"f{number}", number, 4, None) for number in range(50))
    many = (IndexEntry(EMPTY_ROW, 1, "index-1", 9, 50, "DELETION_VECTORS", ranges),)
    cache = BoundedCache(1 << 28)
    manifests = reader(store, cache=cache)
    sizes_bytes = []
    for name, entries in (("i1", few), ("i2", many)):
        store.put(f"manifest/{name}", encode_index_manifest(entries))
        before_bytes = cache.size_bytes
        with store.count() as counts:
            assert manifests.index_entries(name) == manifests.index_entries(name) == entries
        assert counts.total == counts.get == 1
        sizes_bytes.append(cache.size_bytes - before_bytes)
    assert sizes_bytes[0] > 0
    assert 50 * 100 < sizes_bytes[1] - sizes_bytes[0] < 50 * 1000


def test_a_list_counts_at_what_its_manifests_take(store: ObjectStore) -> None:
    """A list without manifests counts too, for its name; what a commit remembers counts as what is read."""
    metas = [ManifestMeta(f"m{number}", 1, 1, 0, EMPTY_STATS, 0, 1) for number in range(40)]
    for some in (metas[:0], metas[:1], metas):
        store.put(f"manifest/l{len(some)}", encode_manifest_list(some))
        caches = [BoundedCache(1 << 28) for _ in range(2)]
        assert reader(store, cache=caches[0]).metas(f"l{len(some)}") == some
        reader(store, cache=caches[1]).remember_list(f"l{len(some)}", some)
        assert caches[0].size_bytes == caches[1].size_bytes
        assert 100 * (len(some) + 1) < caches[0].size_bytes <= 1000 * (len(some) + 1)
        with store.count() as counts:
            assert reader(store, cache=caches[1]).metas(f"l{len(some)}") == some
        assert counts.total == 0


def test_what_a_commit_remembers_is_what_is_read(store: ObjectStore) -> None:
    """Entries without a birth of their own are of the snapshot that added them, also those that are remembered."""
    old = dataclasses.replace(FILE, file_name="old", commit_snapshot=3)
    change = BucketChange(EMPTY_ROW, 0, 1, added=(FILE, old))
    meta = stored(store, "m", change, 7)
    manifests = reader(store)
    manifests.remember_entries(meta, entries_of_changes([change]))
    with store.count() as counts:
        entries = manifests.entries(meta)
    assert counts.total == 0
    assert entries["commit_snapshot"].to_pylist() == [7, 3]
    assert entries.equals(reader(store).entries(meta))


def test_a_changelog_is_read_by_its_own_list(store: ObjectStore, snapshot: Snapshot) -> None:
    """None where the snapshot names none; its size is that which was committed."""
    manifests = reader(store)
    with store.count() as counts:
        assert manifests.changelog_entries(snapshot).num_rows == 0
    assert counts.total == 0
    named = {"changelog_manifest_list": "l2", "changelog_manifest_list_size": snapshot.delta_manifest_list_size}
    changed = dataclasses.replace(snapshot, **named)
    assert manifests.changelog_entries(changed)["file_name"].to_pylist() == ["a", "c"]
    named["changelog_manifest_list_size"] = 1
    with pytest.raises(Corruption, match="1 were committed"):
        reader(store).changelog_entries(dataclasses.replace(snapshot, **named))


def test_a_list_that_repeats_others_is_read_once(store: ObjectStore) -> None:
    """Whichever of the lists that it repeats were read before, and in whatever order."""
    metas = [ManifestMeta(f"m{number}", 1, 1, 0, EMPTY_STATS, 0, 1) for number in range(9)]
    for name, some in (("l0", metas[:4]), ("l1", metas[4:6]), ("l2", metas)):
        store.put(f"manifest/{name}", encode_manifest_list(some))
    size_bytes = len(bytes(store.get("manifest/l2")))
    for known in ((), ("l0",), ("l1",), ("l0", "l1"), ("l2",)):
        cache = BoundedCache(1 << 28)
        manifests = reader(store, cache=cache)
        for name in known:
            manifests.extended_metas(name)
        before_bytes = cache.size_bytes
        with store.count() as counts:
            for _ in range(2):
                assert manifests.extended_metas("l2", size_bytes=size_bytes, parts=["l0", "l1"]) == metas
            assert manifests.metas("l2") == metas
        assert counts.total == counts.get == ("l2" not in known)
        assert cache.size_bytes - before_bytes >= (0 if "l2" in known else size_bytes)
    with pytest.raises(Corruption, match="l2 has"):
        reader(store).extended_metas("l2", size_bytes=size_bytes + 1)


@pytest.mark.parametrize("seed", range(4))
def test_live_files_are_those_of_a_dictionary(store: ObjectStore, seed: int) -> None:
    """One reader that is asked for histories that grow, fork and go back: whatever it knows, it answers for that list.

    No manifest is read twice.
    """
    rng = random.Random(seed)
    manifests = reader(store)
    history: list[tuple[list[ManifestMeta], dict[str, int]]] = [([], {})]
    read = set[str]()
    for number in range(30):
        metas, files = history[-1] if rng.random() < 0.6 else rng.choice(history)
        files = dict(files)
        gone = rng.sample(sorted(files), min(len(files), rng.choice((0, 0, 1, 2))))
        added = [f"f{number}-{place}" for place in range(rng.choice((1, 1, 3)))]
        deleted = tuple(dataclasses.replace(FILE, file_name=name, commit_snapshot=files.pop(name)) for name in gone)
        change = BucketChange(
            EMPTY_ROW, 0, 1, tuple(dataclasses.replace(FILE, file_name=name) for name in added), deleted
        )
        metas = [*metas, stored(store, f"m{number}", change, number)]
        files |= dict.fromkeys(added, number)
        history.append((metas, files))
        for some, expected in (history[-1], rng.choice(history)):
            with store.count() as counts:
                live = manifests.live_of(some)
            names, born = live["file_name"].to_pylist(), live["commit_snapshot"].to_pylist()
            assert dict(zip(names, born, strict=True)) == expected
            assert (len(names), set(live["kind"].to_pylist()) <= {ADD}) == (len(expected), True)
            assert live.num_rows == 0 or live.column(0).num_chunks <= 16
            unread = {meta.file_name for meta in some} - read
            assert counts.total <= len(unread)
            read |= unread
    with store.count() as counts:
        for metas, _ in history:
            manifests.concat_entries(metas)
    assert counts.total == 0
