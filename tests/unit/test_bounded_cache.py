"""The cache in memory: bounded in bytes and in number, least recently used goes first."""

from __future__ import annotations

from lakebed.bounded_cache import BoundedCache


def test_bound_and_order() -> None:
    """The bound holds, the least recently used goes, what is larger than the bound is not kept."""
    cache = BoundedCache(100)
    cache.put("a", 1, size_bytes=40)
    cache.put("b", 2, size_bytes=40)
    assert cache.get("a") == 1
    cache.put("c", 3, size_bytes=40)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.size_bytes) == (1, None, 3, 80)
    cache.put("huge", 4, size_bytes=101)
    assert (cache.get("huge"), cache.size_bytes) == (None, 80)
    cache.put("a", 5, size_bytes=10)
    assert (cache.get("a"), cache.size_bytes) == (5, 50)
    cache.clear()
    assert (cache.get("a"), cache.size_bytes) == (None, 0)


def test_the_number_is_bounded_too() -> None:
    """What was used last stays, also of values without a size; no number keeps nothing."""
    cache = BoundedCache(1_000, count_max=2)
    for key in "abc":
        cache.put(key, key, size_bytes=0)
        assert cache.get("a") == "a"
    assert [cache.get(key) for key in "abc"] == ["a", None, "c"]
    cache.put("c", "again", size_bytes=900)
    cache.put("d", "d", size_bytes=200)
    assert ([cache.get(key) for key in "acd"], cache.count, cache.size_bytes) == ([None, None, "d"], 1, 200)
    none = BoundedCache(1_000, count_max=0)
    none.put("a", "a", size_bytes=0)
    assert (none.count, none.size_bytes) == (0, 0)
