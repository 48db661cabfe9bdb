"""The cache of decoded manifests: bounded, least recently used goes first."""

from __future__ import annotations

from lakebed.table.branch.manifest_cache import ManifestCache


def test_bound_and_order() -> None:
    """The bound holds, the least recently used goes, what is larger than the bound is not kept."""
    cache = ManifestCache(100)
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
