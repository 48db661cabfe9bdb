"""Snapshot and tag JSON: names, unknown members, damage, newer versions."""

from __future__ import annotations

import json

import pytest

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.table.codec.snapshot_json import decode_snapshot, decode_tag, encode_snapshot, encode_tag
from lakebed.table.model.model import Snapshot

SNAPSHOT = Snapshot(3, 0, "base", "delta", "me", 2**63 - 1, "COMPACT", 5, 10, -2, properties={"k": "v"}, watermark=-1)


def test_names() -> None:
    """The members are named as the format says, absent ones are left out."""
    assert json.loads(encode_snapshot(SNAPSHOT)) == {
        "version": 3,
        "id": 3,
        "schemaId": 0,
        "baseManifestList": "base",
        "deltaManifestList": "delta",
        "commitUser": "me",
        "commitIdentifier": 2**63 - 1,
        "commitKind": "COMPACT",
        "timeMillis": 5,
        "totalRecordCount": 10,
        "deltaRecordCount": -2,
        "watermark": -1,
        "properties": {"k": "v"},
    }
    assert decode_snapshot(encode_snapshot(SNAPSHOT), path="p") == SNAPSHOT


def test_tag_keeps_unknown_members() -> None:
    """What a newer client wrote into a snapshot is still in its tag, and in a tag made from that tag."""
    members = json.loads(encode_snapshot(SNAPSHOT)) | {"futureMember": {"deep": [1, 2.5, None]}, "big": 2**62 + 1}
    body = json.dumps(members).encode()
    assert encode_tag(body) == body
    tag = encode_tag(body, create_time_ms=1_700_000_000_000, lifetime_ms=1500)
    assert json.loads(tag) == members | {"tagCreateTime": [2023, 11, 14, 22, 13, 20], "tagTimeRetained": 1.5}
    assert json.loads(encode_tag(tag)) == members


@pytest.mark.parametrize(
    ("created", "retained", "expected"),
    [
        ([2023, 11, 14, 22, 13], 86400.0, (1_699_999_980_000, 86_400_000)),
        ([2023, 11, 14, 22, 13, 20, 123456789], "PT24H", (1_700_000_000_123, 86_400_000)),
        ("2023-11-14T22:13:20.5", 60, (1_700_000_000_500, 60_000)),
        (None, None, (None, None)),
    ],
)
def test_lifetimes_of_other_clients(created: object, retained: object, expected: tuple[int, int]) -> None:
    """Lifetimes are read in each form a client writes them."""
    members = json.loads(encode_snapshot(SNAPSHOT)) | {"tagCreateTime": created, "tagTimeRetained": retained}
    tag = decode_tag(json.dumps(members).encode(), name="t", path="p")
    assert (tag.create_time_ms, tag.lifetime_ms) == expected


def test_older_snapshots_open() -> None:
    """Snapshots of versions 1 and 2 may lack the counts."""
    members = json.loads(encode_snapshot(SNAPSHOT)) | {"version": 1}
    del members["totalRecordCount"], members["deltaRecordCount"]
    assert decode_snapshot(json.dumps(members).encode(), path="p").total_record_count == 0


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"{}", b"\xff\xfe", b'{"id": "x"}'])
def test_damage_names_the_path(body: bytes) -> None:
    """A file that is not a snapshot is named."""
    with pytest.raises(Corruption, match="snapshot/snapshot-3"):
        decode_snapshot(body, path="snapshot/snapshot-3")


def test_every_truncation_is_found() -> None:
    """A snapshot cut anywhere is an error."""
    body = encode_snapshot(SNAPSHOT)
    for length in range(len(body)):
        with pytest.raises(Corruption):
            decode_snapshot(body[:length], path="p")


@pytest.mark.parametrize("retained", [-1, True, [], "soon"])
def test_unreadable_lifetime(retained: object) -> None:
    """A lifetime that is none is damage, not a tag without lifetime."""
    members = json.loads(encode_snapshot(SNAPSHOT)) | {"tagTimeRetained": retained}
    with pytest.raises(Corruption, match="lifetime"):
        decode_tag(json.dumps(members).encode(), name="t", path="p")


def test_newer_version() -> None:
    """A newer version is refused by its number, even when its members are strange."""
    with pytest.raises(UnsupportedFormat, match="version 4"):
        decode_snapshot(b'{"version": 4, "new": true}', path="p")
