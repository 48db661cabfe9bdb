"""URLs of our own that carry an expiring permission, for uploads to stores whose vendor signs none.

Owns: the signature over what a URL permits (one address, one method, until one time). A local folder has no vendor to
sign for it; clients that upload through presigned URLs then put to the server itself. Invariants: a signature permits
nothing but what it was made for; the key is random, is never stored, and ends with the server that made it.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from lakebed.clock import Clock
from lakebed.errors import InvalidRequest

__all__ = ["SIGNING_KEY_BYTES", "Signer"]

SIGNING_KEY_BYTES: Final = 32


class Signer:
    """Signs, and checks what was signed."""

    def __init__(self, key: bytes, *, clock: Clock) -> None:
        self._key = key
        self._clock = clock

    def sign(self, *parts: str, expires_at_s: int) -> str:
        """The signature (hexadecimal) of what is permitted until a time in Unix seconds."""
        text = "\x00".join((*parts, str(expires_at_s))).encode()
        return hashlib.blake2b(text, key=self._key, digest_size=32).hexdigest()

    def check(self, signature: str, *parts: str, expires_at_s: int) -> None:
        """Raises `InvalidRequest` (``forbidden``): the signature is wrong, or its time is over."""
        expected = self.sign(*parts, expires_at_s=expires_at_s)
        if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
            raise InvalidRequest("The URL's signature does not fit it: ask for a new one.", kind="forbidden")
        if self._clock.now_ms() >= expires_at_s * 1000:
            raise InvalidRequest("The URL has expired: ask for a new one.", kind="forbidden")
