"""What each tag alone holds, against a count of the names of every object, and against what deletions free."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.table.branch.manifest_reader import PROCESS_CACHE
from lakebed.table.collect.bytes_alone import bytes_alone
from worlds.table.foreign_world import ForeignWorld
from worlds.table.world import TableWorld

STEPS = 24


def check(world: TableWorld) -> int:
    """Compare all tags with the model; how many of them hold something."""
    expected = world.bytes_alone()
    assert bytes_alone(world.table.context) == expected
    return sum(size_bytes > 0 for size_bytes in expected.values())


@pytest.mark.parametrize(
    "seed", [3, 7, 9, 10, 15, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(20, 50))]
)
def test_every_tag_holds_what_nothing_else_names(seed: int) -> None:
    """In random histories, also of other clients, with rollbacks and branches, each figure is the count by names."""
    world = (ForeignWorld if seed % 4 == 3 else TableWorld)(seed)
    world.commit()
    holding = 0
    for number in range(STEPS):
        world.step()
        if number % 4 == 3:
            world.tag()
            world.commit()
            world.tag()
            world.commit()
            world.expire()
        holding += check(world)
    assert holding > 0


def test_a_figure_is_what_the_deletion_frees(tmp_path: Path) -> None:
    """Of real files, with a key, in partitions: the bytes that are gone from the disk when a tag has been deleted."""
    lake = lakebed.open(str(tmp_path))
    columns = pa.schema([("p", pa.string()), ("id", pa.int64()), ("v", pa.string())])
    table = lake.create_table("t", columns, primary_keys=["p", "id"], partition_keys=["p"], options={"bucket": "1"})
    for number in range(12):
        table.upsert(pa.table({"p": ["a", "b\nc"], "id": [number % 3] * 2, "v": [f"{number}"] * 2}))
        if number % 2:
            table.create_tag(f"t{number}")
        if number % 5 == 4:
            table.compact(full=True)
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    table.create_tag("twin", tag="t3")
    while left := [pin for pin in lake.pins() if pin.kind == "tag"]:
        for pin in left:
            assert table.bytes_alone(pin.name) == pin.bytes_alone
        pin = left[len(left) // 2]
        tag_bytes = (table.store.head(table.context.layout.tag(pin.name))).size_bytes
        before = sum(meta.size_bytes for meta in table.store.list(""))
        hints = sum(meta.size_bytes for meta in table.store.list("lakebed"))
        table.delete_tag(pin.name)
        after = sum(meta.size_bytes for meta in table.store.list(""))
        hints_after = sum(meta.size_bytes for meta in table.store.list("lakebed"))
        assert before - after - (hints - hints_after) - tag_bytes == pin.bytes_alone


def test_what_cannot_be_read_may_need_everything(tmp_path: Path) -> None:
    """A tag next to a damaged one is not said to hold files that the damaged one may name."""
    lake = lakebed.open(str(tmp_path))
    table = lake.create_table("t", pa.schema([("id", pa.int64())]))
    for number in range(3):
        table.overwrite(pa.table({"id": [number]}))
        table.create_tag(f"t{number}")
    table.overwrite(pa.table({"id": [9]}))
    table.expire(retain_max=1, retain_min=1, older_than_ms=2**60)
    whole = bytes_alone(table.context)
    assert all(size_bytes > 0 for size_bytes in whole.values())
    listed = table.context.tags.tag("t1").snapshot.delta_manifest_list
    table.store.put(table.context.layout.manifest(listed), b"damaged")
    reopened = lakebed.open(str(tmp_path)).table("t")
    PROCESS_CACHE.clear()
    assert bytes_alone(reopened.context) == {"t0": 0, "t1": 0, "t2": whole["t2"]}


def test_many_tags_cost_one_request_each() -> None:
    """Of 1,000 tags each file is read once, and each manifest, however many tags name it."""
    lake = lakebed.open(f"memory://{uuid.uuid4()}")
    table = lake.create_table("t", pa.schema([("id", pa.int64())]))
    bodies = []
    for number in range(10):
        table.append(pa.table({"id": [number]}))
        bodies.append(bytes(table.store.get(table.context.layout.snapshot(number + 1))))
    for number in range(1_000):
        table.store.put(table.context.layout.tag(f"t{number:03d}"), bodies[number % 10])
    PROCESS_CACHE.clear()
    table = lake.table("t")
    with table.store.count() as requests:
        alone = bytes_alone(table.context)
    assert (len(alone), sum(alone.values())) == (1_000, 0)
    assert requests.get <= 1_000 + 60  # 10 snapshots, each with 2 lists and 1 manifest
    assert requests.total - requests.get <= 12
    with table.store.count() as requests:
        assert sum(pin.kind == "tag" for pin in lake.pins()) == 1_000
    assert requests.total <= 2 * (1_000 + 60)
