"""Signatures with an expiry time, for URLs that permit one request without credentials.

Invariants: a signature permits only what it was made for. The key is never in the store: it is random, and is lost with
the server that made it, or it is derived from a secret that several servers share. The form on the wire is a
hexadecimal keyed BLAKE2b of the permitted parts and the expiry time, which are separate parameters: DO NOT CHANGE.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from lakebed.clock import Clock
from lakebed.errors import InvalidRequest

SIGNING_KEY_BYTES: Final = 32


class Signer:
    """Makes and checks signatures."""

    def __init__(self, key: bytes, *, clock: Clock) -> None:
        self._key = key
        self._clock = clock

    def sign(self, *parts: str, expires_at_s: int) -> str:
        """The signature (hexadecimal) of what is permitted until a time in Unix seconds."""
        text = "\x00".join((*parts, str(expires_at_s))).encode()
        return hashlib.blake2b(text, key=self._key, digest_size=32).hexdigest()

    def check(self, signature: str, *parts: str, expires_at_s: int) -> None:
        """Raise `InvalidRequest` (``forbidden``) when the signature is wrong or has expired."""
        expected = self.sign(*parts, expires_at_s=expires_at_s)
        if not hmac.compare_digest(expected.encode(), signature.encode(errors="replace")):
            raise InvalidRequest("The URL's signature is not valid for it: ask for a new URL.", kind="forbidden")
        if self._clock.now_ms() >= expires_at_s * 1000:
            raise InvalidRequest("The URL has expired: ask for a new URL.", kind="forbidden")
