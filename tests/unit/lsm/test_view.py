"""The read path: which files are asked, what a read costs, and what it must not see."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from lakebed.errors import InvalidRequest, NotFound
from lakebed.lsm.cache import BlockCache
from lakebed.lsm.file_id import mint_file_id
from lakebed.lsm.file_writer import FileOptions
from lakebed.lsm.files import FileStore
from lakebed.lsm.memtable import Memtable, batch_of
from lakebed.lsm.model import FileMeta, FileSet, Kind, Row, Run
from lakebed.lsm.operators import MergeOperator, find_operator
from lakebed.lsm.view import View, levels_of
from lakebed.objects import open_store
from lakebed.objects.port import ObjectStore
from lakebed.runtime import Environment
from lakebed.testing.clock import ManualClock

FILE_ROWS = 400


def key_of(number: int) -> bytes:
    """Keys in the order of their numbers."""
    return b"key %06d" % number


class Place:
    """A store of files, and views over them."""

    def __init__(self) -> None:
        self.clock = ManualClock(start_ms=1_000)
        self.environment = Environment(clock=self.clock)
        self.store: ObjectStore = open_store(f"memory://view-{uuid.uuid4().hex}")
        self.files = self.opened()
        self._last_id: str | None = None

    def opened(self) -> FileStore:
        """The files as a process sees them that has read nothing yet."""
        return FileStore(
            self.store,
            path_of="sst/{}.sst".format,
            cache=BlockCache(1 << 20),
            options=FileOptions(block_bytes=1_000),
            environment=self.environment,
        )

    def write(self, rows: Sequence[Row]) -> FileMeta:
        """A file of these rows."""
        self._last_id = mint_file_id(self._last_id, environment=self.environment)
        writer = self.files.writer(self._last_id)
        writer.write(batch_of(rows))
        return writer.finish()

    def view(
        self,
        memtables: Sequence[Memtable] = (),
        l0: Sequence[FileMeta] = (),
        runs: Sequence[Run] = (),
        *,
        sequence: int | None = None,
        operator: MergeOperator | None = None,
    ) -> View:
        """A view by a process with an empty cache."""
        return View(
            memtables=memtables,
            file_set=FileSet(tuple(l0), tuple(runs)),
            sequence=sequence,
            operator=operator,
            environment=self.environment,
            files=self.opened(),
        )


@pytest.fixture
def place() -> Place:
    """A place of its own."""
    return Place()


def puts(low: int, high: int, *, first_sequence: int = 1, value: bytes = b"v" * 40) -> list[Row]:
    """Puts of the keys [low, high)."""
    return [Row(key_of(n), first_sequence + n - low, int(Kind.PUT), value, None) for n in range(low, high)]


def run_of(place: Place, file_count: int) -> Run:
    """A run of files of `FILE_ROWS` keys each, every tenth key missing."""
    rows = [row for row in puts(0, file_count * FILE_ROWS) if int(row.key[4:]) % 10 != 9]
    size = FILE_ROWS * 9 // 10
    return Run("run", tuple(place.write(rows[at : at + size]) for at in range(0, len(rows), size)))


def test_a_cold_get_is_two_requests(place: Place) -> None:
    """Whatever the number of files in a run: one for the file's tail, one for the block; then none."""
    view = place.view(runs=[run_of(place, 5)])
    with place.store.count() as requests:
        assert view.get(key_of(3 * FILE_ROWS + 7)) == b"v" * 40
        assert (requests.get, requests.total) == (2, 2)
        assert view.get(key_of(3 * FILE_ROWS + 7)) == b"v" * 40
        assert requests.total == 2
    assert view.get_row(key_of(8)) == Row(key_of(8), 9, Kind.PUT, b"v" * 40, None)


def test_a_file_with_rows_on_both_sides_of_a_sequence_is_read(place: Place) -> None:
    """A view of an older moment finds the older versions of a file that has newer ones too, and nothing newer."""
    rows = [
        Row(key, sequence, int(Kind.PUT), b"%d" % sequence, None)
        for key, sequences in ((b"a", (9, 2)), (b"b", (7,)), (b"c", (4, 1)))
        for sequence in sequences
    ]
    file, newer = place.write(rows), place.write([Row(b"c", 12, int(Kind.PUT), b"12", None)])
    for levels in ({"l0": [newer, file]}, {"l0": [newer], "runs": [Run("run", (file,))]}):
        for sequence in range(13):
            view = place.view(**levels, sequence=sequence)  # type: ignore[arg-type]
            wanted = {}
            for row in sorted([*rows, Row(b"c", 12, int(Kind.PUT), b"12", None)], key=lambda row: row.sequence):
                if row.sequence <= sequence:
                    wanted[row.key] = row.value
            assert {key: value for key in (b"a", b"b", b"c") if (value := view.get(key)) is not None} == wanted
            assert view.get_many([b"a", b"b", b"c"]) == [wanted.get(key) for key in (b"a", b"b", b"c")]
            assert dict(view.scan()) == wanted
            assert view.scan_arrow().read_all()["value"].to_pylist() == [wanted[key] for key in sorted(wanted)]


def test_an_absent_key_reads_no_block(place: Place) -> None:
    """Outside of every range nothing is asked; inside, the filter answers."""
    view = place.view(runs=[run_of(place, 3)])
    with place.store.count() as requests:
        for key in (b"a", b"z", key_of(3 * FILE_ROWS - 1)):
            assert view.get(key) is None
        assert requests.total == 0
        absent = [key_of(number) for number in range(9, 390, 10)]
        assert [view.get(key) for key in absent] == [None] * len(absent)
        assert view.get_many(absent) == [None] * len(absent)
        assert requests.total <= 1 + 4, "a tail, and what one in a hundred false answers may cost"


def test_many_keys_of_one_file_are_few_requests(place: Place) -> None:
    """Neighbouring blocks are read together, and every key is answered in the order asked."""
    view = place.view(runs=[run_of(place, 4)])
    wanted = [key_of(number) for number in range(2 * FILE_ROWS - 30, FILE_ROWS - 30, -1)]
    with place.store.count() as requests:
        values = view.get_many([*wanted, b"absent", wanted[0]])
        assert requests.total <= 4, "two tails, two runs of blocks"
    assert values == [None if key.endswith(b"9") else b"v" * 40 for key in wanted] + [None, values[0]]
    assert view.get_many([]) == []


def test_newer_sources_hide_older_ones(place: Place) -> None:
    """Memtables before level 0 before runs, in single reads and in scans; reads stop at the first answer."""
    run = run_of(place, 1)
    old = place.write([Row(key_of(n), 1_000 + n, int(Kind.PUT), b"old l0", None) for n in range(6)])
    new = place.write(
        [
            Row(key_of(n), 2_000 + n, int(Kind.DELETE if n == 3 else Kind.PUT), b"" if n == 3 else b"new l0", None)
            for n in range(2, 4)
        ]
    )
    memtable = Memtable(3_000)
    memtable.put(key_of(2), b"memory")
    memtable.delete(key_of(5))
    view = place.view([Memtable(3_002), memtable], [new, old], [run])
    expected = [b"old l0", b"old l0", b"memory", None, b"old l0", None, b"v" * 40]
    keys = [key_of(n) for n in range(7)]
    with place.store.count() as requests:
        assert view.get(key_of(2)) == b"memory"
        assert requests.total == 0
    assert [view.get(key) for key in keys] == view.get_many(keys) == expected
    pairs = [(key, value) for key, value in zip(keys, expected, strict=True) if value is not None]
    assert list(view.scan(None, key_of(7))) == pairs
    assert list(view.scan(None, key_of(7), reverse=True)) == pairs[::-1]


def test_a_view_does_not_change(place: Place) -> None:
    """Rows written after it was made are in none of its reads, not even in a scan that goes on meanwhile."""
    memtable = Memtable(1)
    for number in range(0, 3_000, 2):
        memtable.put(key_of(number), b"before")
    view = place.view([memtable], sequence=memtable.last_sequence)
    scan = view.scan()
    result = [next(scan) for _ in range(5)]
    for number in range(3_000):
        memtable.put(key_of(number), b"after")
    later = place.view([memtable], sequence=memtable.last_sequence)
    assert list(later.scan()) == [(key_of(n), b"after") for n in range(3_000)]
    expected = [(key_of(n), b"before") for n in range(0, 3_000, 2)]
    assert result + list(scan) == expected
    assert list(view.scan(reverse=True)) == expected[::-1]
    assert view.scan_arrow().read_all().column("key").to_pylist() == [key for key, _ in expected]
    assert (view.get(key_of(0)), view.get(key_of(1))) == (b"before", None)
    assert view.get_many([key_of(0), key_of(1)]) == [b"before", None]


def test_time_stands_still_during_a_read(place: Place) -> None:
    """What had not ended when a scan was asked for is in it, however long it takes."""
    memtable = Memtable(1)
    for number in range(2_000):
        memtable.put(key_of(number), b"v", 1_010)
    view = place.view([memtable], l0=[place.write(puts(2_000, 2_400))])
    scan, batches = view.scan(), view.scan_arrow()
    place.clock.sleep(0.02)
    assert len(list(scan)) == batches.read_all().num_rows == 2_400
    assert len(list(view.scan())) == 400
    assert view.get(key_of(1)) is None
    assert view.get_many([key_of(1)]) == [None]


def test_ranges(place: Place) -> None:
    """[start, end), in both directions; empty and backward ranges read nothing."""
    view = place.view(runs=[run_of(place, 3)])
    everything = list(view.scan())
    assert len(everything) == 3 * FILE_ROWS * 9 // 10
    assert list(view.scan(reverse=True)) == everything[::-1]
    inside = [pair for pair in everything if key_of(390) <= pair[0] < key_of(820)]
    assert list(view.scan(key_of(390), key_of(820))) == inside
    assert list(view.scan(key_of(390), key_of(820), reverse=True)) == inside[::-1]
    table = view.scan_arrow(key_of(390), key_of(820), columns=("key", "value", "sequence", "expires_at_ms")).read_all()
    assert table.column("key").to_pylist() == [key for key, _ in inside]
    assert table.column("sequence").to_pylist() == [int(key[4:]) + 1 for key, _ in inside]
    assert table.column("expires_at_ms").null_count == len(inside)
    with place.store.count() as requests:
        for start, end in ((key_of(5), key_of(5)), (key_of(6), key_of(5)), (b"z", None), (None, b"a")):
            assert list(view.scan(start, end)) == list(view.scan(start, end, reverse=True)) == []
            assert view.scan_arrow(start, end).read_all().num_rows == 0
        assert requests.total == 0


def test_a_small_scan_reads_one_block_once(place: Place) -> None:
    """A few neighbouring keys of one file cost its tail and a block, and nothing when asked again."""
    view = place.view(runs=[run_of(place, 3)])
    with place.store.count() as requests:
        assert len(list(view.scan(key_of(450), key_of(453)))) == 3
        assert requests.total == 2
        assert len(list(view.scan(key_of(450), key_of(453)))) == 3
        assert requests.total == 2


def test_files_newer_than_the_view_are_not_opened(place: Place) -> None:
    """A file whose rows are all beyond the sequence costs nothing."""
    view = place.view(l0=[place.write(puts(0, 10, first_sequence=50))], sequence=49)
    with place.store.count() as requests:
        assert view.get(key_of(3)) is None
        assert list(view.scan()) == []
        assert requests.total == 0


def test_operands_meet_across_sources(place: Place) -> None:
    """Operands in memtables and files are combined with the base below, oldest first; duplicate rows count once."""
    base = place.write([Row(b"k", 1, int(Kind.PUT), b"a", None)])
    middle = place.write([Row(b"k", 3, int(Kind.MERGE), b"c", None), Row(b"k", 2, int(Kind.MERGE), b"b", None)])
    replayed, memtable = Memtable(3), Memtable(4)
    replayed.merge(b"k", b"c")
    memtable.merge(b"k", b"d")
    view = place.view([memtable, replayed], [middle, base], operator=find_operator("append"))
    assert view.get_row(b"k") == Row(b"k", 4, Kind.PUT, b"abcd", None)
    assert view.get_many([b"k"]) == [b"abcd"]
    assert list(view.scan()) == [(b"k", b"abcd")]
    assert view.scan_arrow().read_all().to_pydict() == {"key": [b"k"], "value": [b"abcd"]}
    unknown = place.view([memtable], [middle, base])
    for read in (lambda: unknown.get(b"k"), lambda: list(unknown.scan()), lambda: unknown.scan_arrow().read_all()):
        with pytest.raises(InvalidRequest, match="has operands"):
            read()


def test_a_missing_file_is_said_as_it_is(place: Place) -> None:
    """NotFound passes through every way to read: who keeps the files decides what it means."""
    file = place.write(puts(0, 100))
    view = place.view(l0=[file])
    place.store.delete([f"sst/{file.id}.sst"])
    reads = (
        lambda: view.get(key_of(1)),
        lambda: view.get_many([key_of(1)]),
        lambda: list(view.scan()),
        lambda: list(view.scan(reverse=True)),
        lambda: view.scan_arrow().read_all(),
    )
    for read in reads:
        with pytest.raises(NotFound):
            read()


def test_levels_are_shared(place: Place) -> None:
    """A view made with the levels of another of the same set does not arrange the files again."""
    view = place.view(runs=[run_of(place, 2)])
    assert view.levels is view.levels
    levels = levels_of(view.file_set)
    assert [len(level.files) for level in levels] == [2]
    other = View(
        memtables=(),
        file_set=view.file_set,
        sequence=None,
        operator=None,
        environment=place.environment,
        files=place.files,
        levels=view.levels,
    )
    assert other.levels is view.levels
    assert other.get(key_of(0)) is not None


def test_rows_beyond_the_sequence_are_not_taken_for_plain(place: Place) -> None:
    """A block of puts alone passes through a scan as it is only where the view sees all of it."""
    view = place.view(l0=[place.write(puts(0, 500))], sequence=300)
    expected = [key_of(n) for n in range(300)]
    assert view.scan_arrow().read_all().column("key").to_pylist() == expected
    assert [key for key, _ in view.scan()] == expected
    assert [key for key, _ in view.scan(reverse=True)] == expected[::-1]


def test_a_level_asks_each_file_for_its_own_keys(place: Place) -> None:
    """Keys before, between and behind the files of a run are asked of none."""
    files = [place.write(puts(low, low + 10)) for low in (10, 30, 50)]
    (level,) = levels_of(FileSet(runs=(Run("run", tuple(files)),)))
    keys = [key_of(n) for n in (0, 5, 12, 19, 20, 25, 50, 59, 60, 99)]
    assert [(reader.meta.id, keys[low:high]) for reader, low, high in level.of_keys(keys, place.files)] == [
        (files[0].id, [key_of(12), key_of(19)]),
        (files[2].id, [key_of(50), key_of(59)]),
    ]
    assert list(level.of_keys([], place.files)) == []
    readers = [level.reader_of(key_of(n), place.files) for n in (9, 10, 25, 59, 60)]
    assert [reader and reader.meta for reader in readers] == [None, files[0], None, files[2], None]
    assert list(level.of_range(key_of(20), key_of(30))) == []
    assert list(level.of_range(key_of(19), key_of(31))) == files[:2]
    assert list(level.of_range(None, None)) == files
