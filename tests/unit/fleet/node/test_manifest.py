"""The bytes of manifests and deadlists: golden files, every damaged byte, newer formats."""

from __future__ import annotations

import pathlib
from types import ModuleType

import pytest
import xxhash

from lakebed.errors import Corruption, UnsupportedFormat
from lakebed.fleet.manifest import (
    decode_deadlist,
    decode_manifest,
    decode_referenced,
    encode_deadlist,
    encode_manifest,
    refer,
)
from worlds.modules import load_module

FOLDER = pathlib.Path(__file__).parents[3] / "golden" / "fleet"


@pytest.fixture(scope="module")
def written() -> ModuleType:
    """The script that wrote the files, for what it put into them."""
    return load_module(FOLDER / "write_manifests.py")


@pytest.mark.parametrize(("name", "constant"), [("first.manifest", "FIRST"), ("full.manifest", "FULL")])
def test_manifests_of_format_1(written: ModuleType, name: str, constant: str) -> None:
    """A manifest of format 1 is read as what it was, and written as the same bytes."""
    body = (FOLDER / name).read_bytes()
    assert decode_manifest(body, path=name) == getattr(written, constant)
    assert encode_manifest(getattr(written, constant)) == body
    assert decode_referenced(body, refer("a/manifest.1", body)) == getattr(written, constant)


def test_deadlists_of_format_1(written: ModuleType) -> None:
    """So is a deadlist."""
    body = (FOLDER / "full.deadlist").read_bytes()
    assert decode_deadlist(body, path="deadlist") == written.DEADLIST
    assert encode_deadlist(written.DEADLIST) == body


def test_every_damaged_byte_is_found() -> None:
    """A flipped bit, a missing end, another object: never another manifest."""
    body = (FOLDER / "first.manifest").read_bytes()
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 1
        with pytest.raises(Corruption):
            decode_manifest(bytes(damaged), path="x")
        with pytest.raises(Corruption):
            decode_manifest(body[:at], path="x")
    with pytest.raises(UnsupportedFormat):  # another kind of document: it has a field that a deadlist does not have
        decode_deadlist(body, path="x")


def test_a_reference_pins_the_bytes() -> None:
    """A valid manifest of another content, or place, is not the one that was committed."""
    first, full = (FOLDER / "first.manifest").read_bytes(), (FOLDER / "full.manifest").read_bytes()
    with pytest.raises(Corruption, match="is not the manifest that was committed"):
        decode_referenced(full, refer("a/manifest.1", first))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"min_reader":1', b'"min_reader":2'),
        (b'"features":[]', b'"features":["x"]'),
        (b'"tenant":"acme"', b'"tenant":"acme","later":1'),
    ],
)
def test_newer_formats_are_refused(old: bytes, new: bytes) -> None:
    """Nothing unknown is dropped."""
    body = (FOLDER / "first.manifest").read_bytes()
    rest = body[30:].replace(old, new)
    newer = b'{"checksum":"%016x"' % xxhash.xxh3_64_intdigest(rest) + rest
    with pytest.raises(UnsupportedFormat, match="upgrade lakebed"):
        decode_manifest(newer, path="x")
