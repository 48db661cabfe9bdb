"""Checksums of S3's clients, against their published values and against one byte at a time."""

from __future__ import annotations

import random

import pytest

from lakebed.server.s3.checksums import new_checksum


def digest_of(name: str, pieces: list[bytes]) -> str:
    checksum = new_checksum(name)
    assert checksum is not None
    for piece in pieces:
        checksum.update(piece)
    return checksum.digest().hex()


@pytest.mark.parametrize(
    ("name", "check"), [("crc32", "cbf43926"), ("crc32c", "e3069283"), ("crc64nvme", "ae8b14860a799888")]
)
def test_checksums_have_their_published_values(name: str, check: str) -> None:
    """The check value of each checksum's definition is computed, and a checksum that S3 has not is none."""
    assert digest_of(name, [b"123456789"]) == check
    assert new_checksum(name + "x") is None


@pytest.mark.parametrize("name", ["crc32c", "crc64nvme"])
def test_lanes_give_what_single_bytes_give(name: str) -> None:
    """However a body is cut, and whether lanes are used or not, its checksum is that of its bytes in order."""
    body = random.Random(5).randbytes(70_001)
    cuts = [body[at : at + 100] for at in range(0, len(body), 100)]
    assert digest_of(name, [body]) == digest_of(name, cuts) == digest_of(name, [body[:40_000], body[40_000:]])
    assert digest_of(name, [body]) != digest_of(name, [body[:-1] + bytes([body[-1] ^ 1])])
