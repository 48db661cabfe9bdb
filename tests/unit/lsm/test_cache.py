"""The caches of blocks and rows: within their bounds, and never stale."""

from __future__ import annotations

import random
import sys
from itertools import pairwise

from lakebed.lsm.cache import CACHE_BYTES_MAX_DEFAULT, OPEN, BlockCache, RowCache, block_cache, set_shared_cache_bytes
from lakebed.runtime import ThreadRuntime

KIB = 1 << 10


def test_blocks_stay_within_the_setting() -> None:
    """Whatever is put in, the sum of what is kept is at most the setting, and is what is there."""
    cache = BlockCache(64 * KIB)
    rng = random.Random(1)
    for step in range(3000):
        cache.put(
            f"file-{rng.randrange(9)}", rng.randrange(-1, 20), step, size_bytes=rng.choice([0, 9, 5000, 70 * KIB])
        )
        cache.get(f"file-{rng.randrange(9)}", rng.randrange(-1, 20))
        assert cache.size_bytes <= 64 * KIB
        if not step % 100:
            cache.forget(f"file-{rng.randrange(9)}")
    assert cache.size_bytes > 32 * KIB
    for number in range(9):
        cache.forget(f"file-{number}")
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_what_is_used_stays() -> None:
    """What is read between two puts outlives what is not; a value that is replaced is gone."""
    cache = BlockCache(10 * KIB)
    cache.put("hot", 0, "old", size_bytes=KIB)
    cache.put("hot", 0, "hot", size_bytes=KIB)
    for number in range(100):
        assert cache.get("hot", 0) == "hot"
        cache.put("cold", number, number, size_bytes=KIB)
    assert cache.get("cold", 0) is None
    assert cache.get("cold", 99) == 99


def test_all_used_entries_make_room_too() -> None:
    """When everything was used since, something goes all the same."""
    cache = BlockCache(4 * KIB)
    for number in range(20):
        cache.put("file", number, number, size_bytes=KIB)
        for other in range(number + 1):
            cache.get("file", other)
    assert cache.get("file", 19) == 19
    assert cache.size_bytes <= 4 * KIB


def test_too_large_and_no_budget() -> None:
    """What is larger than the cache is not kept and drives nothing out; a cache of no bytes keeps nothing."""
    cache = BlockCache(4 * KIB)
    cache.put("file", 1, "small", size_bytes=KIB)
    cache.put("file", 2, "large", size_bytes=4 * KIB)
    assert (cache.get("file", 1), cache.get("file", 2)) == ("small", None)
    nothing = BlockCache(0)
    nothing.put("file", 1, "small", size_bytes=0)
    assert nothing.get("file", 1) is None


def test_open_files_do_not_go_for_pages_while_they_are_used() -> None:
    """Pages put out pages, and open files that nothing asks for; other open files put out them when they must."""
    cache = BlockCache(100 * KIB)
    for number in range(4):
        cache.put(f"file-{number}", OPEN, number, size_bytes=20 * KIB)
    for page in range(400):
        cache.put("file-0", page, page, size_bytes=4 * KIB)
        assert [cache.get(f"file-{number}", OPEN) for number in range(3)] == [0, 1, 2]
        assert cache.size_bytes <= 100 * KIB
    assert cache.get("file-3", OPEN) is None
    assert len(cache) > 6
    for number in range(9):
        cache.put(f"other-{number}", OPEN, number, size_bytes=20 * KIB)
        assert cache.get(f"other-{number}", OPEN) == number
        assert cache.size_bytes <= 100 * KIB
    assert not cache.numbers_of("file-0")
    cache.put("other-8", 0, "page", size_bytes=4 * KIB)
    assert cache.get("other-8", 0) == "page", "there was space for it"


def test_open_files_grow_within_a_part_of_the_cache() -> None:
    """Each once, while it is kept; when more are opened they lose it again, the first before the others."""
    cache = BlockCache(100 * KIB)
    lost: list[int] = []

    def grow(number: int) -> bool:
        return cache.grow(f"file-{number}", number, size_bytes=20 * KIB, take_back=lambda: lost.append(number))

    assert not grow(0)
    for number in range(3):
        cache.put(f"file-{number}", OPEN, number, size_bytes=10 * KIB)
    for page in range(40):
        cache.put("file-0", page, page, size_bytes=4 * KIB)
        assert [cache.get(f"file-{number}", OPEN) for number in range(3)] == [0, 1, 2]
    assert [grow(number) for number in (0, 0, 1, 2)] == [True, False, True, False]
    assert not cache.grow("file-2", "another", size_bytes=1, take_back=lambda: None)
    assert cache.size_bytes <= 100 * KIB
    cache.put("file-3", OPEN, 3, size_bytes=10 * KIB)
    assert lost == [0]
    cache.forget("file-1")
    assert grow(2)
    cache.forget("file-2")
    cache.put("file-4", OPEN, 4, size_bytes=60 * KIB)
    assert lost == [0]
    cache.clear()
    assert (len(cache), cache.size_bytes) == (0, 0)
    cache.put("file-0", OPEN, 0, size_bytes=10 * KIB)
    assert grow(0), "nothing is counted of what is gone"


def test_a_full_cache_wants_what_is_read_twice() -> None:
    """While space is free every row is admitted; then only rows read before: one reading evicts nothing."""
    cache = BlockCache(100_000)
    assert cache.wants("f", 1)
    for number in range(10):
        cache.put("f", number, object(), size_bytes=9_500)
    assert not cache.wants("f", 77)
    assert cache.wants("f", 77)
    assert not any(cache.wants("f", number) for number in range(1000, 4000))
    assert not cache.wants("f", 77), "what was read once is not remembered for ever"


def test_a_cache_remembers_twice_as_much_as_it_keeps() -> None:
    """What was read once is known at its second reading, though as many others were read between as are kept."""
    cache = BlockCache(2 << 20)
    for number in range(10_000):
        cache.put("kept", number, object(), size_bytes=0)
    kept_count = len(cache)
    assert kept_count > 4000
    assert not cache.wants_each("before", range(kept_count)), "all that was remembered so far is forgotten with these"
    assert not cache.wants("f", 1)
    assert not cache.wants_each("others", range(kept_count + 1000))
    assert cache.wants("f", 1)


def test_forget_and_resize() -> None:
    """A file's entries can be dropped alone, and a smaller setting holds at once."""
    cache = BlockCache(64 * KIB)
    for number in range(10):
        cache.put("a", number, number, size_bytes=KIB)
        cache.put("b", number, number, size_bytes=KIB)
    cache.forget("a")
    assert (len(cache), cache.get("a", 3), cache.get("b", 3)) == (10, None, 3)
    cache.resize(5 * KIB)
    assert cache.size_bytes <= cache.bytes_max == 5 * KIB
    cache.clear()
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_many_threads_share_a_cache() -> None:
    """Reads without a lock during puts and drops by other threads: right values, bound and sum hold."""
    runtime = ThreadRuntime()
    cache = BlockCache(32 * KIB, runtime=runtime)
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(3000):
            file, number = f"file-{rng.randrange(4)}", rng.randrange(20)
            if rng.random() < 0.01:
                cache.forget(file)
            elif cache.get(file, number) not in (None, (file, number)):
                wrong.append((file, number))
            else:
                cache.put(file, number, (file, number), size_bytes=rng.randrange(4 * KIB))
            if cache.size_bytes > 32 * KIB:
                wrong.append(cache.size_bytes)

    ends = [runtime.spawn(lambda seed=seed: work(seed), name="cache") for seed in range(4)]
    for end in ends:
        end()
    assert not wrong
    for number in range(4):
        cache.forget(f"file-{number}")
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_shared_cache() -> None:
    """There is one cache a process, whose size can be set."""
    assert block_cache() is block_cache()
    set_shared_cache_bytes(123)
    assert block_cache().bytes_max == 123
    set_shared_cache_bytes(CACHE_BYTES_MAX_DEFAULT)


def test_rows_stay_within_the_setting() -> None:
    """Rows put, read and discarded in any order: at most the setting, and the sum is right in the end."""
    cache = RowCache(20 * KIB)
    rng = random.Random(2)
    keys = [b"key %03d" % number for number in range(200)]
    for step in range(5000):
        key = rng.choice(keys)
        cache.put(key, b"v" * rng.randrange(200), generation=cache.generation)
        cache.get(rng.choice(keys))
        if not step % 50:
            cache.discard(rng.sample(keys, rng.choice([1, 190])))
        assert cache.size_bytes <= 20 * KIB
    cache.put(b"large", b"v" * 15 * KIB, generation=cache.generation)
    assert cache.get(b"large") is None
    cache.discard(keys)
    assert cache.size_bytes == 0


def test_rows_that_are_read_outlive_the_others() -> None:
    """A read moves a row from the older generation to the younger."""
    cache = RowCache(20 * KIB)
    for number in range(1000):
        for _ in range(2):
            cache.put(b"cold %d" % number, b"v" * 100, generation=0)
        cache.put(b"hot", b"hot", generation=0) if not number else cache.get(b"hot")
    assert cache.get(b"hot") == b"hot"
    assert cache.get(b"cold 0") is None
    assert cache.get(b"cold 999") == b"v" * 100


def test_rows_that_are_read_once_put_out_no_others() -> None:
    """While half of the budget is taken a row stays at its second reading; one in 256 others is mistaken for such."""
    cache = RowCache(20 * KIB)
    for number in range(34):
        cache.put(b"early %02d" % number, b"v" * 100, generation=0)
    size_bytes = cache.size_bytes
    for number in range(1000):
        cache.put(b"once %d" % number, b"v" * 100, generation=0)
    assert cache.get(b"early 33") == b"v" * 100
    assert cache.size_bytes < size_bytes + 20 * 308
    cache.put(b"once 999", b"second", generation=0)
    assert cache.get(b"once 999") == b"second"


def test_rows_that_are_read_together_are_kept_as_single_ones() -> None:
    """Rows of one read fill half of the budget; then one stays at its second reading, whichever way the first was."""
    cache = RowCache(20 * KIB)
    rows = {b"row %04d" % number: b"v" * 100 for number in range(1000)}
    cache.put_each(rows, generation=0)
    assert 10 * KIB < cache.size_bytes <= 20 * KIB
    last = {b"row 0999": b"v" * 100}
    for _ in range(2):
        cache.put_each(last, generation=0)
    assert cache.get_many(last) == last
    cache.put(b"single", b"v", generation=0)
    cache.put_each({b"single": b"v"}, generation=0)
    assert cache.get(b"single") == b"v"
    nothing = RowCache(0)
    for _ in range(2):
        nothing.put_each(last, generation=0)
    assert nothing.size_bytes == 0


def test_many_keys_pass_by_a_cache_that_has_few_of_them() -> None:
    """While half of it is taken: one call in eight asks it, and where that has many keys all do again."""
    cache = RowCache(20 * KIB)
    kept = [b"kept %03d" % number for number in range(30)]
    others = [b"other %03d" % number for number in range(100)]
    for _ in range(9):
        cache.get_many(others)
    assert not cache.is_passed_by(), "a cache with room is not passed by"
    cache.put_each(dict.fromkeys(kept, b"v" * 200), generation=0)
    answers = []
    for _ in range(64):
        answers.append(cache.is_passed_by())
        if not answers[-1]:
            cache.get_many(others)
    assert 7 <= answers.count(False) <= 10
    assert cache.get_many(others[:5]) == {}, "what says nothing of many keys"
    assert cache.get_many(kept).keys() == set(kept)
    assert not any(cache.is_passed_by() for _ in range(8))


def test_rows_go_one_by_one_where_room_is_needed() -> None:
    """A cache of rows that was full stays so, whatever is read next, and of what is not read again the oldest goes."""
    cache = RowCache(20 * KIB)
    keys = [b"key %03d" % number for number in range(300)]
    row_bytes = 307
    for number, key in enumerate(keys):
        for _ in range(2):
            cache.put(key, b"v" * 100, generation=0)
        assert number < 66 or 20 * KIB - row_bytes < cache.size_bytes <= 20 * KIB
    kept = cache.get_many(keys)
    assert sorted(kept) == keys[-len(kept) :]


def test_rows_are_kept_at_once_where_there_is_room() -> None:
    """Rows that were written to leave room in the cache: the next ones that are read stay at their first reading."""
    cache = RowCache(20 * KIB)
    keys = [b"%02d" % number for number in range(40)]
    for key in keys:
        cache.put(key, b"v" * 100, generation=0)
    cache.discard(keys)
    for key in keys[:20]:
        cache.put(key, b"new", generation=cache.generation)
    assert cache.get_many(keys[:20]) == dict.fromkeys(keys[:20], b"new")


def test_a_row_read_before_a_write_is_not_kept() -> None:
    """A value that was read from files before its key was discarded cannot be put in afterwards."""
    cache = RowCache(20 * KIB)
    generation = cache.generation
    cache.discard({b"key"})
    cache.put(b"key", b"stale", generation=generation)
    cache.put_each({b"key": b"stale"}, generation=generation)
    assert cache.get(b"key") is None
    cache.put(b"key", b"fresh", generation=cache.generation)
    assert cache.get(b"key") == b"fresh"
    generation = cache.generation
    cache.clear()
    cache.put(b"key", b"stale", generation=generation)
    assert (cache.get(b"key"), cache.size_bytes) == (None, 0)


def test_rows_are_accounted_with_their_objects() -> None:
    """A row's stated cost is at least what Python takes for it and for its place in a dictionary."""
    cache = RowCache(100 << 20)
    sizes = [cache.size_bytes]
    for number in range(1000):
        cache.put(b"%016d" % number, b"v" * 100, generation=0)
        sizes.append(cache.size_bytes)
    row = sys.getsizeof(b"%016d" % 0) + sys.getsizeof(b"v" * 100)
    table = sys.getsizeof(dict.fromkeys(range(1000))) / 1000
    assert min(high - low for low, high in pairwise(sizes)) >= row + table
