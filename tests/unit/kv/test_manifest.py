"""The bytes of a manifest."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.kv.manifest import FORMAT, decode_manifest, encode_manifest, find_write_id
from lakebed.kv.model import Checkpoint, CloneSource, ExternalDatabase, Job, Manifest, Owner
from lakebed.lsm.model import FileMeta, Run

FILE = FileMeta(
    id="01M7Z0AX9JD0889MTSQGP4ADK0",
    size_bytes=1234,
    tail_offset=1000,
    row_count=3,
    first_key=b"\x00a",
    last_key=b"\xff\xfe",
    min_sequence=1,
    max_sequence=2**64 - 1,
    tombstone_count=1,
)
FULL = Manifest(
    manifest_id=7,
    write_id="00000000-0000-4000-8000-000000000007",
    created_at_ms=1_700_000_000_000,
    initialized=True,
    writer_epoch=3,
    compactor_epoch=2,
    replay_after_wal_id=5,
    wal_id_last_seen=9,
    last_sequence=41,
    newest_l0_id="01M7Z0AX9JD0889MTSQGP4ADK0",
    content_since=6,
    readable_since=4,
    l0=(FILE,),
    runs=(Run("01M7Z0AX9JD0889MTSQGP4ADK1", (FILE,)),),
    jobs=(Job("j", "compaction", "01M7Z0AX9JD0889MTSQGP4ADK0", 2, 1_700_000_000_001),),
    checkpoints=(
        Checkpoint("c1", 6, 1, Owner("user"), None, "nightly ✓"),
        Checkpoint("c2", 7, 2, Owner("writer", epoch=3), 5),
    ),
    external_databases=(ExternalDatabase("memory://parent", "s", "p", ("01M7Z0AX9JD0889MTSQGP4ADK0",)),),
    source=CloneSource("memory://parent", None),
    merge_operator="add_int64",
    wal_enabled=False,
    previous_write_ids=("a", "b"),
)
SMALL = msgspec.structs.replace(
    FULL, l0=(), runs=(), jobs=(), checkpoints=FULL.checkpoints[1:], external_databases=(), previous_write_ids=("a",)
)


def sealed(document: dict[str, Any]) -> bytes:
    """A document with a right checksum, whatever else it says."""
    rest = json.dumps({"checksum": "0" * 16, **document}, separators=(",", ":")).encode()[len(b'{"checksum":"') + 16 :]
    return b'{"checksum":"' + b"%016x" % xxhash.xxh3_64_intdigest(rest[1:]) + rest


def document(**changed: Any) -> dict[str, Any]:
    """The envelope and body of `FULL` as plain JSON, with changes of the envelope."""
    plain: dict[str, Any] = json.loads(encode_manifest(FULL))
    del plain["checksum"]
    return {**plain, **changed}


def test_a_manifest_comes_back() -> None:
    """A manifest is what its bytes say."""
    decoded = decode_manifest(encode_manifest(FULL), path="x")
    assert decoded.manifest == FULL
    assert decoded.min_writer == FORMAT


@given(
    keys=st.tuples(st.binary(max_size=20), st.binary(max_size=20)),
    name=st.text(max_size=30).filter(lambda text: text.isprintable()),
    number=st.integers(0, 2**63 - 1),
)
def test_any_content_comes_back(keys: tuple[bytes, bytes], name: str, number: int) -> None:
    """Whatever keys, names and numbers are in it."""
    file = msgspec.structs.replace(FILE, first_key=keys[0], last_key=keys[1], max_sequence=number)
    named = msgspec.structs.replace(FULL.checkpoints[0], name=name)
    manifest = msgspec.structs.replace(FULL, l0=(file,), checkpoints=(named,), last_sequence=number)
    assert decode_manifest(encode_manifest(manifest), path="x").manifest == manifest


def test_any_json_tool_reads_it() -> None:
    """The object is one JSON document, on one line, with the manifest inside."""
    body = encode_manifest(FULL)
    plain = json.loads(body)
    assert (plain["format"], plain["min_reader"], plain["min_writer"], plain["features"]) == (1, 1, 1, [])
    assert plain["manifest"]["checkpoints"][0]["name"] == "nightly ✓"
    assert body.endswith(b"}\n")
    assert body.count(b"\n") == 1


def test_every_flipped_byte_is_found() -> None:
    """Change any byte to any of eight others: `Corruption` with the path, never a manifest, never another error."""
    body = encode_manifest(SMALL)
    for position in range(len(body)):
        for bit in range(8):
            damaged = bytearray(body)
            damaged[position] ^= 1 << bit
            with pytest.raises(Corruption) as caught:
                decode_manifest(damaged, path="manifest/7")
            assert caught.value.facts["path"] == "manifest/7"


def test_every_dropped_byte_is_found() -> None:
    """Drop any byte, cut anywhere, add something: `Corruption`."""
    body = encode_manifest(SMALL)
    damaged = [body[:at] + body[at + 1 :] for at in range(len(body))]
    damaged += [body[:at] for at in range(len(body))] + [body + b" ", body + body, b"{" + body]
    for item in damaged:
        with pytest.raises(Corruption):
            decode_manifest(item, path="x")


@given(body=st.binary(max_size=300) | st.sampled_from([b"{}", b"null", b'{"checksum":"', b'{"format":2}']))
def test_isolation_are_corruption(body: bytes) -> None:
    """Bytes of any other kind are named as such."""
    with pytest.raises(Corruption):
        decode_manifest(body, path="x")
    assert find_write_id(body) is None


@pytest.mark.parametrize(
    "changed",
    [
        {"min_reader": 2},
        {"min_reader": 2, "format": 2, "manifest": {"other": 1}},
        {"features": ["sharding"]},
        {"features": ["sharding"], "manifest": [1]},
        {"compressed": True},
        {"manifest": {**document()["manifest"], "shards": 3}},
        {"manifest": {**document()["manifest"], "l0": [{**document()["manifest"]["l0"][0], "zone": "a"}]}},
        {"manifest": {**document()["manifest"], "jobs": [{**document()["manifest"]["jobs"][0], "kind": "backup"}]}},
    ],
)
def test_what_is_newer_is_refused(changed: dict[str, Any]) -> None:
    """A newer format, a feature or a field that is not known here asks for an upgrade; nothing is dropped."""
    with pytest.raises(UnsupportedFormat, match="upgrade") as caught:
        decode_manifest(sealed(document(**changed)), path="manifest/7")
    assert caught.value.facts["path"] == "manifest/7"


def parts_of(value: Any, place: str = "") -> dict[str, dict[str, Any]]:
    """Every object of a document, by where it stands."""
    parts = {place: value} if isinstance(value, dict) else {}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        parts |= parts_of(item, f"{place}/{name}")
    return parts


@pytest.mark.parametrize("place", parts_of(document()))
def test_a_field_that_is_not_known_is_refused_wherever_it_stands(place: str) -> None:
    """A newer lakebed wrote it: what it means for a checkpoint, a file or a job is not known, and is never dropped."""
    changed = document()
    parts_of(changed)[place]["novel"] = 1
    with pytest.raises(UnsupportedFormat, match="novel"):
        decode_manifest(sealed(changed), path="manifest/7")


def test_a_newer_writer_can_be_read() -> None:
    """A manifest that asks its followers for more is readable, and says so."""
    decoded = decode_manifest(sealed(document(format=2, min_writer=2)), path="x")
    assert (decoded.manifest, decoded.min_writer) == (FULL, 2)


@pytest.mark.parametrize(
    "changed",
    [{"manifest": {}}, {"manifest": {**document()["manifest"], "manifest_id": "7"}}, {"features": 3}, {"format": None}],
)
def test_wrong_content_is_corruption(changed: dict[str, Any]) -> None:
    """A document with a right checksum and a wrong shape is not a manifest."""
    with pytest.raises(Corruption):
        decode_manifest(sealed(document(**changed)), path="x")


def test_the_write_id_is_found_without_decoding() -> None:
    """The write id of a manifest is read from its first bytes."""
    assert find_write_id(encode_manifest(FULL)) == FULL.write_id
    assert find_write_id(memoryview(encode_manifest(FULL))) == FULL.write_id
