"""Records of the key-value store: the removal of old ones."""

from __future__ import annotations

from lakebed.repo.records.records import trim_records
from worlds.memory_key_value import MemoryKeyValue


def test_old_records_go_in_several_writes_and_no_others() -> None:
    """More than one write removes at once; what is young, or below another prefix, stays."""
    records = {b"a/%05d" % number: b"old" if number % 2 else b"young" for number in range(5_000)}
    key_value = MemoryKeyValue()
    key_value.write([*records.items(), (b"b/1", b"old")])
    assert trim_records(key_value, b"a/", lambda _, raw: raw == b"old") == 2_500
    with key_value.snapshot() as snapshot:
        assert dict(snapshot.scan(b"a/", b"c")) == {key: raw for key, raw in records.items() if raw == b"young"} | {
            b"b/1": b"old"
        }


def test_a_record_that_changes_after_it_was_looked_at_stays() -> None:
    """Another process resumes what the record stands for, between the look and the write."""
    key_value = MemoryKeyValue()
    key_value.write([(b"a/1", b"old"), (b"a/2", b"old")])

    def is_old(key: bytes, raw: bytes) -> bool:
        if key == b"a/1":
            key_value.write([(b"a/1", b"resumed")])
        return raw == b"old"

    assert trim_records(key_value, b"a/", is_old) == 0
    assert key_value.get(b"a/1") == b"resumed"
    assert trim_records(key_value, b"a/", lambda _, raw: raw == b"old") == 1
    assert key_value.get(b"a/2") is None


def test_one_call_removes_ten_thousand_at_most() -> None:
    """So that a background that is to end waits for no more."""
    key_value = MemoryKeyValue()
    key_value.write([(b"a/%05d" % number, b"old") for number in range(10_001)])
    assert [trim_records(key_value, b"a/", lambda _, raw: raw == b"old") for _ in range(3)] == [10_000, 1, 0]
