"""Signatures of URLs: what they permit, and until when."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidRequest
from lakebed.http.signing import Signer
from lakebed.testing.clock import ManualClock
from worlds.errors import raises

KEY = bytes(32)


def test_a_signature_permits_what_it_was_made_for() -> None:
    """With its parts and its time of expiry it is valid until then, and not a millisecond longer."""
    clock = ManualClock(start_ms=0)
    signer = Signer(KEY, clock=clock)
    signature = signer.sign("analytics", "data/1", expires_at_s=60)
    clock.advance(59.999)
    signer.check(signature, "analytics", "data/1", expires_at_s=60)
    clock.advance(0.001)
    with pytest.raises(InvalidRequest, match="expired"):
        signer.check(signature, "analytics", "data/1", expires_at_s=60)


@pytest.mark.parametrize(
    ("parts", "expires_at_s"),
    [
        (("analytics", "data/1"), 61),
        (("analytics", "data/1"), 6000),
        (("analyticsd", "ata/1"), 60),
        (("analytics", "data/16"), 0),
        (("analytics", "data/1", ""), 60),
        (("analytics",), 60),
    ],
)
def test_a_signature_is_of_every_part(parts: tuple[str, ...], expires_at_s: int) -> None:
    """Another time of expiry, a letter that moved to the next part, or another number of parts is not permitted."""
    signer = Signer(KEY, clock=ManualClock(start_ms=0))
    signature = signer.sign("analytics", "data/1", expires_at_s=60)
    with raises(InvalidRequest, "forbidden", match="not valid"):
        signer.check(signature, *parts, expires_at_s=expires_at_s)
    with pytest.raises(InvalidRequest, match="not valid"):
        Signer(b"1" * 32, clock=ManualClock(start_ms=0)).check(signature, "analytics", "data/1", expires_at_s=60)
