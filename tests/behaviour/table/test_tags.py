"""Tags: every verb, every refusal, what each costs, and the race with expiry."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import zstandard

from lakebed.errors import AlreadyExists, Conflict, Corruption, InvalidRequest, NotFound
from lakebed.table.branch.tag_index import load_entries
from lakebed.table.branch.tags import HIDDEN_PREFIX, TAG_ID
from lakebed.table.table import Table
from lakebed.testing.between import Between

DAY_MS = 86_400_000


def test_a_tag_is_the_newest_snapshot_by_default(bench: Any) -> None:
    """Without further arguments the state of now is pinned, for ever."""
    bench.commit("a")
    newest = bench.commit("b")
    tag = bench.table.create_tag("v1")
    assert (tag.name, tag.snapshot.id, tag.create_time_ms, tag.lifetime_ms) == ("v1", newest.id, None, None)
    assert bench.table.tag("v1") == tag
    assert bench.table.tag_exists("v1")
    assert not bench.table.tag_exists("v2")
    assert bench.table.tag_directory() == "tag"
    assert bench.store.head(bench.table.tag_path("v1")).path == "tag/tag-v1"


def test_a_tag_is_a_copy_of_the_snapshot_file(bench: Any) -> None:
    """Members that lakebed does not know survive tagging; only lakebed's mark is added."""
    bench.commit("a")
    document = msgspec.json.decode(bench.store.get("snapshot/snapshot-1"))
    bench.store.put("snapshot/snapshot-1", msgspec.json.encode({**document, "unheardOf": {"x": 1}}))
    bench.table.create_tag("v1")
    copied = msgspec.json.decode(bench.store.get("tag/tag-v1"))
    assert copied.pop("properties").pop("lakebed.tag-id")
    document.pop("properties")
    assert copied == {**document, "unheardOf": {"x": 1}}


def test_every_source_can_be_tagged(bench: Any) -> None:
    """A snapshot id, a time, another tag, and an id whose snapshot expired but is held by a tag."""
    for name in "abc":
        bench.commit(name)
    assert bench.table.create_tag("by-id", snapshot_id=1).snapshot.id == 1
    assert bench.table.create_tag("by-time", timestamp_ms=bench.table.snapshot(2).time_ms).snapshot.id == 2
    bench.hide(1)
    assert bench.table.create_tag("by-tag", tag="by-id").snapshot.id == 1
    assert bench.table.create_tag("by-expired-id", snapshot_id=1).snapshot.id == 1
    assert [tag.name for tag in bench.table.tags()] == ["by-expired-id", "by-id", "by-tag", "by-time"]


def test_creating_a_tag_costs_six_requests(bench: Any) -> None:
    """1 GET, 2 HEADs, 2 LISTs and 1 PUT, however many snapshots and tags there are."""
    for number in range(20):
        bench.commit(f"f{number}")
        with bench.store.count() as requests:
            bench.table.create_tag(f"v{number}")
        assert (requests.get, requests.head, requests.list, requests.put) == (1, 2, 2, 1)
        assert requests.total == 6


def test_what_cannot_be_tagged_is_said_in_one_sentence(bench: Any) -> None:
    """Nothing written yet, no such snapshot, no such tag, a time before everything, several sources."""
    with pytest.raises(NotFound, match="no snapshot yet"):
        bench.table.create_tag("v1")
    bench.commit("a")
    with pytest.raises(NotFound, match="no snapshot 7: it has only snapshot 1"):
        bench.table.create_tag("v1", snapshot_id=7)
    with pytest.raises(NotFound, match="no tag 'nope': it has none"):
        bench.table.create_tag("v1", tag="nope")
    with pytest.raises(NotFound, match="earliest time that can be read"):
        bench.table.create_tag("v1", timestamp_ms="1999-01-01")
    with pytest.raises(InvalidRequest, match="one of snapshot, tag and timestamp"):
        bench.table.create_tag("v1", snapshot_id=1, tag="x")
    with pytest.raises(InvalidRequest, match="negative"):
        bench.table.create_tag("v1", lifetime_ms=-1)
    with pytest.raises(InvalidRequest, match="all digits"):
        bench.table.create_tag("2013")
    assert bench.table.tags() == []


def test_a_duplicate_is_refused_or_returned(bench: Any) -> None:
    """The second create fails and changes nothing; with if_not_exists it answers the tag that is there."""
    bench.commit("a")
    first = bench.table.create_tag("v1")
    bench.commit("b")
    with pytest.raises(AlreadyExists, match="'v1' exists already"):
        bench.table.create_tag("v1")
    assert bench.table.create_tag("v1", if_not_exists=True) == first
    assert bench.table.tag("v1") == first


def test_of_many_creators_one_wins(bench: Any) -> None:
    """Sixteen creators of one name, all from the same snapshot: one learns that it made the tag."""
    bench.commit("a")

    def create(_: int) -> bool:
        try:
            bench.reopen().create_tag("v1")
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(create, range(16))) == 1


def test_lifetimes_are_written_only_when_given(new_bench: Callable[..., Any]) -> None:
    """A lifetime is the argument's, else the option's; hidden pins have none."""
    bench = new_bench({"tag.default-time-retained": "2 d"})
    bench.commit("a")
    assert bench.table.create_tag("default").lifetime_ms == 2 * DAY_MS
    tag = bench.table.create_tag("own", lifetime_ms=5000)
    assert (tag.create_time_ms, tag.lifetime_ms) == (bench.clock.now_ms(), 5000)
    pin = bench.table.context.tags.pin_hidden("x", source=bench.table.context.tags.source())
    assert (pin.create_time_ms, pin.lifetime_ms) == (None, None)


def test_replacing_moves_a_tag_that_is_there(bench: Any) -> None:
    """A tag moves to another snapshot in one step; a missing one is not created by it."""
    bench.commit("a")
    bench.table.create_tag("v1")
    bench.commit("b")
    assert bench.table.replace_tag("v1").snapshot.id == 2
    assert bench.table.replace_tag("v1", snapshot_id=1).snapshot.id == 1
    with pytest.raises(NotFound, match="no tag 'v2': it has v1"):
        bench.table.replace_tag("v2")
    assert [tag.name for tag in bench.table.tags()] == ["v1"]


def test_renaming_keeps_everything_but_the_name(bench: Any) -> None:
    """Snapshot and lifetime stay; a taken or forbidden new name changes nothing."""
    bench.commit("a")
    tag = bench.table.create_tag("old", lifetime_ms=5000)
    bench.table.create_tag("taken")
    with pytest.raises(AlreadyExists):
        bench.table.rename_tag("old", "taken")
    with pytest.raises(InvalidRequest):
        bench.table.rename_tag("old", "12")
    with pytest.raises(NotFound, match="no tag 'nope'"):
        bench.table.rename_tag("nope", "new")
    bench.clock.advance(100)
    renamed = bench.table.rename_tag("old", "new")
    assert (renamed.snapshot.id, renamed.create_time_ms, renamed.lifetime_ms) == (1, tag.create_time_ms, 5000)
    assert [tag.name for tag in bench.table.tags()] == ["new", "taken"]


def test_neighbours_are_found_by_commit_time(bench: Any) -> None:
    """Previous and next go by the time of the tagged snapshots, not by name or time of tagging."""
    for name in "abc":
        bench.commit(name)
    bench.table.create_tag("z", snapshot_id=1)
    bench.table.create_tag("m", snapshot_id=3)
    bench.table.create_tag("a", snapshot_id=2)
    assert bench.table.previous_tag("z") is None
    assert bench.table.next_tag("z").name == "a"
    assert bench.table.previous_tag("m").name == "a"
    assert bench.table.next_tag("m") is None
    with pytest.raises(NotFound):
        bench.table.next_tag("nope")


def test_tagged_snapshots_come_once_and_oldest_first(bench: Any) -> None:
    """Two tags of one snapshot are one tagged snapshot."""
    for name in "abc":
        bench.commit(name)
    for name, snapshot_id in (("x", 3), ("y", 1), ("z", 3)):
        bench.table.create_tag(name, snapshot_id=snapshot_id)
    assert [snapshot.id for snapshot in bench.table.tagged_snapshots()] == [1, 3]


@pytest.mark.parametrize("kind", ["snapshot", "tag"])
def test_a_tag_whose_source_expired_meanwhile_is_withdrawn(bench: Any, kind: str) -> None:
    """Expiry hides the source between look and put: the tagger notices, and no tag points at deleted files."""
    bench.commit("a")
    bench.commit("b")
    bench.table.create_tag("held", snapshot_id=1)
    source = bench.table.context.tags.source(**({"snapshot_id": 1} if kind == "snapshot" else {"tag": "held"}))
    bench.hide(1)
    bench.table.context.tags.remove_files(["held"])
    with pytest.raises(Conflict, match="was withdrawn") as raised:
        bench.table.context.tags.create("late", source=source)
    assert raised.value.kind == "source_expired"
    assert bench.table.context.tags.all_names() == []


def test_a_replacement_whose_source_expired_is_undone(bench: Any) -> None:
    """The tag then points where it pointed before."""
    for name in "abc":
        bench.commit(name)
    bench.table.create_tag("v1", snapshot_id=3)
    source = bench.table.context.tags.source(snapshot_id=1)
    bench.hide(1)
    with pytest.raises(Conflict):
        bench.table.context.tags.replace("v1", source=source)
    assert bench.table.tag("v1").snapshot.id == 3


def test_hidden_pins_are_hidden_from_people_only(bench: Any) -> None:
    """No verb for people shows, moves or reads a hidden pin; collectors see it."""
    bench.commit("a")
    tagger = bench.table.context.tags
    pin = tagger.pin_hidden("rollback.1", source=tagger.source())
    assert pin.name == HIDDEN_PREFIX + "rollback.1"
    assert bench.table.tags() == []
    assert not bench.table.tag_exists(pin.name)
    for forbidden in (
        lambda: bench.table.tag(pin.name),
        lambda: bench.table.rename_tag(pin.name, "mine"),
        lambda: bench.table.resolve(version=pin.name),
        lambda: bench.table.resolve(version="tag." + pin.name),
    ):
        with pytest.raises(NotFound):
            forbidden()
    with pytest.raises(InvalidRequest):
        bench.table.replace_tag(pin.name)
    assert [tag.name for tag in tagger.list_all()] == [pin.name]
    assert [entry.snapshot_id for entry in tagger.index()] == [1]
    with pytest.raises(AlreadyExists):
        tagger.pin_hidden("rollback.1", source=tagger.source())
    tagger.unpin_hidden("rollback.1")
    assert tagger.list_all() == []


@pytest.mark.parametrize("happens", ["nothing", "unpinned", "another pin: 0", "another pin: ~"])
def test_a_copy_of_a_hidden_pin_stays_only_while_that_pin_does(bench: Any, happens: str) -> None:
    """What it copies may lose its files once the pin is gone, or another one: then the copy is withdrawn."""
    bench.commit("a")
    tags = bench.table.context.tags
    pin = tags.pin_hidden("old", source=tags.source())

    def interfere() -> None:
        if happens == "unpinned":
            tags.unpin_hidden("old")
        elif happens != "nothing":
            path, pin_id = f"tag/tag-{pin.name}", pin.snapshot.properties[TAG_ID].encode()
            bench.store.put(path, bytes(bench.store.get(path)).replace(pin_id, happens[-1:].encode() * len(pin_id)))

    store = Between(bench.store, kind="put", prefix=f"tag/tag-{HIDDEN_PREFIX}new", happens=interfere)
    copier = Table.open(store, name="t", environment=bench.environment).context.tags
    if happens == "nothing":
        copy = copier.copy_hidden("old", "new", marks={"mark": "m"})
        assert (copy.name, copy.snapshot.id, copy.lifetime_ms) == (HIDDEN_PREFIX + "new", 1, None)
        assert copy.snapshot.properties["mark"] == "m"
    else:
        with pytest.raises(NotFound, match=r"no tag 'lakebed\.pin\.old'"):
            copier.copy_hidden("old", "new", marks={})
    assert store.happened
    expected = {"nothing": ["new", "old"], "unpinned": []}.get(happens, ["old"])
    assert tags.all_names() == [HIDDEN_PREFIX + name for name in expected]


@pytest.mark.parametrize(("count", "end"), [(1, "t0."), (8, "t7."), (9, "t7 and others.")])
def test_a_missing_tag_is_said_with_at_most_eight_that_are_there(bench: Any, count: int, end: str) -> None:
    """By each verb that reads one; further ones are others."""
    bench.commit("a")
    for number in range(count):
        bench.table.create_tag(f"t{number}")
    names = ", ".join(f"t{number}" for number in range(min(count, 8)))
    for ask, before in ((bench.table.tag, "it has "), (bench.table.at, "tags: ")):
        with pytest.raises(NotFound) as missing:
            ask("nothing like it")
        assert f"{before}{names}" in str(missing.value)
        assert str(missing.value).endswith(end)


def test_a_thousand_tags_are_known_from_one_listing(bench: Any) -> None:
    """Once the index is written, all tagged ids cost 1 LIST and 1 GET of about ten bytes a tag."""
    for number in range(10):
        bench.commit(f"f{number}")
    for number in range(1000):
        bench.table.create_tag(f"t{number:04d}", snapshot_id=number % 10 + 1)
    first = bench.table.context.tags.index()
    with bench.store.count() as requests:
        second = bench.table.context.tags.index()
    assert second == first
    assert sorted({entry.snapshot_id for entry in first}) == list(range(1, 11))
    assert (requests.get, requests.list, requests.put) == (1, 1, 0)
    assert requests.bytes_read < 12_000


def test_the_index_notices_every_change(bench: Any) -> None:
    """New, moved, renamed and deleted tags are seen at once; only the changed ones are read."""
    for name in "abc":
        bench.commit(name)
    for number in range(20):
        bench.table.create_tag(f"t{number}", snapshot_id=1, lifetime_ms=number + 1)
    bench.table.context.tags.index()
    bench.table.context.tags.replace("t3", source=bench.table.context.tags.source(snapshot_id=2))
    bench.table.rename_tag("t4", "renamed")
    bench.table.context.tags.remove_files(["t5"])
    bench.table.create_tag("new", snapshot_id=3)
    with bench.store.count() as requests:
        index = bench.table.context.tags.index()
    snapshot_ids = {entry.name: entry.snapshot_id for entry in index}
    assert snapshot_ids == {tag.name: tag.snapshot.id for tag in bench.table.tags()}
    assert requests.get == 1 + 3
    expiries = {entry.name: entry.expires_ms for entry in index}
    assert expiries["t7"] == bench.table.tag("t7").create_time_ms + 8
    assert expiries["new"] is None


def test_an_index_with_a_damaged_bit_names_no_other_version(bench: Any) -> None:
    """Whichever bit it is: the tags are read again, for collectors go by the versions that they name."""
    for name in ("a", "b", "c"):
        bench.commit(name)
        bench.table.create_tag(f"of-{name}")
    bench.clock.advance(60)
    layout = bench.table.context.layout
    entries = load_entries(bench.store, layout=layout, environment=bench.environment)
    body = bytes(bench.store.get(layout.tag_index))
    for bit in range(8 * len(body)):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        bench.store.put(layout.tag_index, bytes(damaged))
        assert load_entries(bench.store, layout=layout, environment=bench.environment) == entries, bit


def test_the_index_forgets_deleted_tags_once_they_are_most_of_it(bench: Any) -> None:
    """It has at most twice as many rows as there are tags, so that a look costs no more than that."""
    bench.commit("a")
    for number in range(12):
        bench.table.create_tag(f"t{number}")
    bench.clock.advance(60)
    layout = bench.table.context.layout
    for left in (12, 6, 5, 3, 2, 1):
        bench.table.delete_tag(*(tag.name for tag in bench.table.tags()[left:]), if_exists=True)
        assert len(load_entries(bench.store, layout=layout, environment=bench.environment)) == left
        packed = bytes(bench.store.get(layout.tag_index))[16:]
        assert len(zstandard.ZstdDecompressor().decompress(packed)) // 24 <= 2 * left


@pytest.mark.parametrize("body", [b"", b"garbage", b"LBTAGIX1garbage", b"LBTAGIX2garbage", b"LBTAGIX2"])
def test_a_damaged_index_is_only_a_slower_look(bench: Any, body: bytes) -> None:
    """The index is a hint: with any bytes in it, the answer is right, and the index is rewritten."""
    bench.commit("a")
    bench.table.create_tag("v1")
    bench.store.put("lakebed/tag-index", body)
    assert [entry.snapshot_id for entry in bench.table.context.tags.index()] == [1]
    entries = load_entries(bench.store, layout=bench.table.context.layout, environment=bench.environment)
    assert [entry.snapshot_id for entry in entries] == [1]
    assert bytes(bench.store.get("lakebed/tag-index")) != body


def test_an_unreadable_tag_is_named(bench: Any) -> None:
    """A damaged tag file is corruption with its path, for readers and for collectors."""
    bench.commit("a")
    bench.store.put("tag/tag-broken", b"{")
    with pytest.raises(Corruption) as raised:
        bench.table.tag("broken")
    assert raised.value.facts["path"] == "tag/tag-broken"
    with pytest.raises(Corruption):
        bench.table.context.tags.index()


def test_automatic_tags_are_made_once_and_kept_to_their_number(new_bench: Callable[..., Any]) -> None:
    """A daily trigger makes one tag a day; beyond the limit the oldest automatic one goes, a person's never."""
    bench = new_bench({"tag.automatic-creation": "process-time", "tag.num-retained-max": "2"})
    bench.commit("a")
    bench.table.create_tag("0-mine")
    made = []
    for day in range(4):
        bench.clock.advance(86_400)
        bench.commit(f"d{day}")
        made += [tag.name for tag in bench.table.trigger_automatic_tags()]
        assert bench.table.trigger_automatic_tags() == []
    assert len(made) == len(set(made)) == 4
    assert [tag.name for tag in bench.table.tags()] == ["0-mine", *made[-2:]]


def test_a_branch_has_its_own_versions_over_shared_files(bench: Any) -> None:
    """A fork starts from a tag, commits alone, and main keeps what it shares while the branch is there."""
    bench.commit("a")
    bench.table.create_tag("v1")
    bench.commit("b")
    branch = bench.table.create_branch("dev", tag="v1")
    bench.commit("c", table=branch)
    assert bench.live(branch) == ["a", "c"]
    assert bench.live() == ["a", "b"]
    assert bench.table.resolve(version="dev").id == 2
    assert bench.live(bench.reopen(branch="dev")) == ["a", "c"]
    assert [branch.name for branch in bench.table.branches()] == ["dev"]
    assert bench.table.branches()[0].fork_snapshot_id == 1
    assert [pin.kind for pin in bench.table.pins()] == ["branch", "tag"]
    bench.table.delete_branch("dev")
    assert bench.table.branches() == []
    assert [pin.kind for pin in bench.table.pins()] == ["tag"]


def test_wrong_branches_are_refused(bench: Any) -> None:
    """A taken name, main, a branch of a branch, a missing one: one sentence each."""
    bench.commit("a")
    branch = bench.table.create_branch("dev")
    with pytest.raises(AlreadyExists, match="'dev' exists already"):
        bench.table.create_branch("dev")
    with pytest.raises(InvalidRequest, match="main branch"):
        bench.table.create_branch("main")
    with pytest.raises(InvalidRequest, match="cannot have branches"):
        branch.create_branch("more")
    with pytest.raises(NotFound, match="no branch 'nope': it has dev"):
        bench.table.delete_branch("nope")
    with pytest.raises(NotFound, match="no branch 'nope'"):
        bench.reopen(branch="nope")


def test_a_half_made_branch_can_be_cleared(bench: Any) -> None:
    """A creator that died after its pin leaves a name that delete frees."""
    bench.commit("a")
    bench.table.context.tags.pin_hidden("branch.dev", source=bench.table.context.tags.source())
    with pytest.raises(AlreadyExists, match="interrupted"):
        bench.table.create_branch("dev")
    bench.table.delete_branch("dev")
    bench.table.create_branch("dev")
