"""Laws of planning: live files, splits and rows equal those of plain Python, whatever was cached before."""

from __future__ import annotations

import dataclasses
import pickle
import random
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from lakebed.bounded_cache import BoundedCache
from lakebed.objects.open import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.table.branch.manifest_reader import ManifestReader
from lakebed.table.codec.binary_row import EMPTY_ROW
from lakebed.table.codec.manifest import (
    ADD,
    DELETE,
    encode_manifest,
    encode_manifest_list,
    entries_of_changes,
    files_of,
)
from lakebed.table.codec.stats import EMPTY_STATS
from lakebed.table.files.splits import plan_splits
from lakebed.table.model.layout import Layout
from lakebed.table.model.model import BucketChange, DataFile, ManifestMeta, Snapshot
from lakebed.table.schema.schema import new_schema
from lakebed.table.table import Table
from worlds.binary_rows import encode_row
from worlds.table.foreign import foreign_commit
from worlds.table.made_up import TableModel, data_file

Identity = tuple[int, int, str]
"""Bucket, level and name of a file."""
Event = tuple[int, Identity]
"""`ADD` or `DELETE` of a file."""
Live = dict[Identity, int]
"""Live files with the snapshot that committed them, in order of their last ADD."""

CACHE_SIZES = (0, 40_000, 64 << 20)
COLUMNS = pa.schema([("pt", pa.string()), ("id", pa.int64()), ("v", pa.int64())])


def applied(live: Live, events: list[Event], snapshot_id: int) -> Live:
    """The live files after some events, one at a time."""
    after = dict(live)
    for kind, identity in events:
        after.pop(identity, None)
        if kind == ADD:
            after[identity] = snapshot_id
    return after


def entries_of(events: list[Event]) -> pa.Table:
    """Events as manifest entries, in their order."""
    tables = []
    for kind, (bucket, level, name) in events:
        file = data_file(name, level=level)
        change = {"added": (file,)} if kind == ADD else {"deleted": (file,)}
        tables.append(entries_of_changes([BucketChange(EMPTY_ROW, bucket, 4, **change)]))
    return pa.concat_tables(tables).combine_chunks()


class Histories:
    """One random history of manifests, as several clients write them, and what each of its versions holds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store: ObjectStore = open_store(f"memory://planning-{uuid.uuid4()}")
        self.metas: list[ManifestMeta] = []
        self.model = TableModel[Live](empty={})
        self.versions: list[tuple[Snapshot, Live]] = []
        """Every version that was made, those of lines that were rolled back too."""
        self.met: Counter[str] = Counter()
        self.made = 0

    def name(self, kind: str) -> str:
        """A name that no other object has."""
        self.made += 1
        return f"{kind}-{self.made}"

    def put_manifest(self, events: list[Event]) -> ManifestMeta:
        """One manifest on the store, of the snapshot that is being made."""
        body = encode_manifest(entries_of(events))
        name = self.name("manifest")
        self.store.put(f"manifest/{name}", body)
        added = sum(kind == ADD for kind, _ in events)
        return ManifestMeta(name, len(body), added, len(events) - added, EMPTY_STATS, 0, self.model.last_id + 1)

    def put_list(self, metas: list[ManifestMeta]) -> tuple[str, int]:
        """One manifest list on the store."""
        body, name = encode_manifest_list(metas), self.name("list")
        self.store.put(f"manifest/{name}", body)
        return name, len(body)

    def events(self) -> list[Event]:
        """A few adds, deletes, upgrades, restores, doubled adds and deletes of what is not there."""
        items: list[Event] = []
        present = list(self.model.head)
        for _ in range(self.rng.randint(1, 6)):
            what = self.rng.choice(["add", "add", "delete", "upgrade", "again", "stray", "both"])
            new = (self.rng.randint(0, 2), 0, self.rng.choice(["f", "файл"]) + str(self.rng.randint(0, 30)))
            old = self.rng.choice(present) if present else new
            self.met[what] += 1
            if what == "add":
                items.append((ADD, new))
            elif what == "upgrade":
                items += [(DELETE, old), (ADD, (old[0], old[1] + 1, old[2]))]
            elif what == "both":
                items += [(ADD, new), (DELETE, new)]
            else:
                items.append((ADD if what == "again" else DELETE, new if what == "stray" else old))
        return items

    def commit(self) -> None:
        """A version on top of the newest; now and then its base is merged, or the table was rolled back before."""
        if self.versions and self.rng.random() < 0.1:
            self.met["rollback"] += 1
            keep = self.rng.randrange(len(self.versions))
            snapshot, live = self.versions[keep]
            # Another client's rollback: the ids above are used again.
            self.model = TableModel(empty={}, snapshots={snapshot.id: live}, last_id=snapshot.id)
            reader = ManifestReader(self.store, Layout(), environment=Environment(), cache=BoundedCache(0))
            self.metas = reader.all_metas(snapshot)
        live, snapshot_id = self.model.head, self.model.last_id + 1
        if live and self.rng.random() < 0.15:
            self.met["merge"] += 1
            self.metas = [self.put_manifest([(ADD, identity) for identity in live])]
            live = dict.fromkeys(live, snapshot_id)
        events = self.events()
        delta = [self.put_manifest(events)]
        base_list, delta_list = self.put_list(self.metas), self.put_list(delta)
        self.model.publish(applied(live, events, snapshot_id))
        self.metas = self.metas + delta
        snapshot = Snapshot(
            snapshot_id, 0, base_list[0], delta_list[0], "me", 1, "APPEND", 0, 0, 0,
            base_manifest_list_size=base_list[1], delta_manifest_list_size=delta_list[1],
        )  # fmt: skip
        self.versions.append((snapshot, self.model.head))

    def check(self, reader: ManifestReader, which: int) -> None:
        """One version as the reader gives it, in order, with the snapshots that committed the files."""
        snapshot, live = self.versions[which]
        entries = reader.live_entries(snapshot)
        result = zip(*(entries[name].to_pylist() for name in ("bucket", "level", "file_name")), strict=True)
        assert list(zip(result, entries["commit_snapshot"].to_pylist(), strict=True)) == list(live.items())
        assert set(entries["kind"].to_pylist()) <= {ADD}


@pytest.mark.parametrize("cache_bytes", CACHE_SIZES)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_live_files_equal_a_replay_of_the_events(seed: int, cache_bytes: int) -> None:
    """Whatever was read before, in any order, each version holds what a replay of its own history leaves."""
    history = Histories(seed)
    cache = BoundedCache(cache_bytes)
    reader = ManifestReader(history.store, Layout(), environment=Environment(), cache=cache)
    for _ in range(60):
        history.commit()
        if history.rng.random() < 0.7:
            history.check(reader, len(history.versions) - 1)
        if history.rng.random() < 0.3:
            history.met["older"] += 1
            history.check(reader, history.rng.randrange(len(history.versions)))
        assert cache.size_bytes <= cache_bytes
    assert min(history.met[what] for what in ("rollback", "merge", "upgrade", "again", "stray", "both", "older")) > 0


def test_threads_share_the_cache() -> None:
    """Threads that plan different versions of one table at once, through one small cache, all see their own."""
    history = Histories(99)
    for _ in range(40):
        history.commit()
    cache = BoundedCache(60_000)
    readers = [ManifestReader(history.store, Layout(), environment=Environment(), cache=cache) for _ in range(4)]

    def look(number: int) -> None:
        for which in random.Random(number).choices(range(len(history.versions)), k=25):
            history.check(readers[number], which)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(look, range(4)))
    assert cache.size_bytes <= 60_000


# ---- splits

SINGLE = new_schema(COLUMNS, primary_keys=["id"], options={"bucket": "4"}, time_ms=0)
DOUBLE = new_schema(COLUMNS, partition_keys=["pt"], primary_keys=["pt", "id", "v"], options={"bucket": "4"}, time_ms=0)
APPEND = new_schema(COLUMNS, partition_keys=["pt"], time_ms=0)
NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 2**63 - 1)

Member = tuple[bytes, int, DataFile, tuple[int, ...], tuple[int, ...]]
"""Partition, bucket, file, its least and its greatest key."""


def some_files(rng: random.Random, key_count: int) -> list[Member]:
    """Files of a few buckets, of all sizes, ages and levels, with ranges that touch, overlap or stand apart."""
    members = []
    for number in range(rng.choice([1, 3, 12, 40])):
        keys = sorted(tuple(rng.choice(NUMBERS) for _ in range(key_count)) for _ in range(2))
        if rng.random() < 0.5:
            keys[1] = keys[0]
        low, high = (encode_row(list(key), ["BIGINT"] * key_count) for key in keys)
        file = data_file(
            f"f{number}",
            file_size=rng.choice([0, 1, 10, 100]),
            row_count=rng.randint(0, 9),
            min_key=low,
            max_key=high,
            min_sequence_number=rng.randint(0, 3),
            max_sequence_number=rng.randint(3, 5),
            level=rng.choice([0, 0, 1, 5]),
            delete_row_count=rng.choice([None, 0, 0, 0, 1]),
            commit_snapshot=rng.choice([-1, 1, 2]),
        )
        partition = encode_row([rng.choice([None, "a", "b"])], ["STRING"])
        members.append((partition, rng.randint(0, 2), file, keys[0], keys[1]))
    return members


def age(file: DataFile) -> tuple[int, ...]:
    """Sorts files that are merged oldest first."""
    if file.level:
        return (-file.level, 0, 0, 0)
    return (0, file.max_sequence_number, file.min_sequence_number, file.commit_snapshot or 0)


def may_be_copied(file: DataFile) -> bool:
    """Whether a file's rows are as they stand, without deletes."""
    return (file.level > 0 or (file.commit_snapshot or 0) >= 0) and file.delete_row_count == 0


def packed(sections: list[list[Member]], target: int, cost: int) -> list[list[Member]]:
    """Neighbours together while they weigh no more than the target."""
    packs: list[list[Member]] = []
    sums: list[int] = []
    for section in sections:
        weight = sum(max(member[2].file_size, cost) for member in section)
        if packs and sums[-1] + weight <= target:
            packs[-1] += section
            sums[-1] += weight
        else:
            packs.append(list(section))
            sums.append(weight)
    return packs


def expected_splits(members: list[Member], wanted: set[str], *, keyed: bool, target: int, cost: int) -> list[Any]:
    """Partition, bucket, whether it merges and the names in order, of each split: one file after the other."""
    partitions = list(dict.fromkeys(member[0] for member in members))
    result = []
    for partition, bucket in sorted({(partitions.index(m[0]), m[1]) for m in members}):
        inside = [member for member in members if member[:2] == (partitions[partition], bucket)]
        plain: list[list[Member]] = []
        merging: list[list[Member]] = []
        if keyed:
            sections: list[list[Member]] = []
            for member in sorted(inside, key=lambda m: (m[3], m[4])):
                if sections and member[3] <= max(item[4] for item in sections[-1]):
                    sections[-1].append(member)
                else:
                    sections.append([member])
            for section in sections:
                alone = len(section) == 1 and may_be_copied(section[0][2])
                (plain if alone else merging).append(section)
        else:
            plain = [[member] for member in inside]
        plain = [section for section in plain if section[0][2].file_name in wanted]
        for pack in packed(plain, target, cost):
            result.append((partitions[partition], bucket, False, [member[2] for member in pack]))
        for pack in packed([sorted(s, key=lambda m: (age(m[2]), m[3])) for s in merging], target, cost):
            result.append((partitions[partition], bucket, True, [m[2] for m in sorted(pack, key=lambda m: age(m[2]))]))
    return result


@pytest.mark.parametrize("shape", ["single", "double", "append"])
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 40))])
def test_splits_equal_those_made_file_by_file(seed: int, shape: str) -> None:
    """Sections, merge order, packing, order of splits, row counts and what is left out, for any files."""
    rng = random.Random(f"{seed} {shape}")
    schema = {"single": SINGLE, "double": DOUBLE, "append": APPEND}[shape]
    members = some_files(rng, max(1, len(schema.trimmed_primary_keys)))
    if shape == "single":
        members = [(EMPTY_ROW, *member[1:]) for member in members]
    changes = [BucketChange(partition, bucket, 4, added=(file,)) for partition, bucket, file, _, _ in members]
    may = [rng.random() < 0.8 for _ in members]
    target, cost = rng.choice([0, 5, 30, 200, 2**62]), rng.choice([0, 1, 7])
    entries = pa.concat_tables(entries_of_changes([change]) for change in changes)
    wanted = {member[2].file_name for member, keep in zip(members, may, strict=True) if keep}
    splits = plan_splits(
        entries,
        schema=schema,
        target_bytes=target,
        open_cost_bytes=cost,
        may_match=pa.array(may).to_numpy(zero_copy_only=False),
    )
    pairs = [(split.partition, split.bucket, split.needs_merge, list(split.files)) for split in splits]
    assert pairs == expected_splits(members, wanted, keyed=shape != "append", target=target, cost=cost)
    assert [split.row_count for split in splits] == [sum(f.row_count for f in split.files) for split in splits]


def test_files_of_a_split_behave_as_a_tuple() -> None:
    """Length, indexes, slices, comparison, hashing and pickling are those of the files, and only a split's files go."""
    members = some_files(random.Random(5), 1)
    changes = [BucketChange(partition, bucket, 4, added=(file,)) for partition, bucket, file, _, _ in members]
    entries = entries_of_changes(changes)
    splits = plan_splits(entries, schema=APPEND, target_bytes=20, open_cost_bytes=1)
    assert sum(len(split.files) for split in splits) == len(members) > len(splits)
    for split in splits:
        plain = tuple(files_of(entries.filter(pa.array([m[2] in set(split.files) for m in members]))))
        assert split.files == plain
        assert plain == split.files
        assert (split.files[0], split.files[-1], split.files[1:]) == (plain[0], plain[-1], plain[1:])
        assert hash(split.files) == hash(plain)
        assert repr(split.files) == repr(plain)
        copy = pickle.loads(pickle.dumps(split))
        assert copy == split
        assert type(copy.files) is tuple
        assert split.files != plain[1:]
    assert splits[0] != splits[1]


# ---- tables


def test_a_rollback_that_uses_ids_again_is_seen() -> None:
    """A handle that has planned snapshot 3 reads another client's snapshot 3, not its own from the cache."""
    schema = pa.schema([("pt", pa.string()), ("v", pa.int64())])
    table = Table.create(
        open_store(f"memory://again-{uuid.uuid4()}"), name="t", schema=schema, partition_keys=["pt"], options={}
    )
    for value in (1, 2, 3):
        table.append(pa.table({"pt": ["a"], "v": [value]}, schema=schema))
    assert sorted(table.read()["v"].to_pylist()) == [1, 2, 3]
    kept = table.snapshot(2)
    (old,) = table.scan(version=1).splits()
    table.store.delete([table.context.layout.snapshot(3)])
    table.store.put(table.context.layout.latest_hint, b"2")
    file = dataclasses.replace(old.files[0], commit_snapshot=None)
    change = BucketChange(old.partition, old.bucket, 1, deleted=(file,))
    again = foreign_commit(table, [change], merges=False, name="other")
    assert (again.id, kept.id) == (3, 2)
    for handle in (table, Table.open(table.store, name="t")):
        assert handle.read(version=3)["v"].to_pylist() == [2]
        assert sorted(handle.read(version=2)["v"].to_pylist()) == [1, 2]
