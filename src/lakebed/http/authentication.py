"""``Authorization`` headers: an access key and its secret, in one of two forms. Pure.

Owns: the forms (``Basic``, ``Bearer <access key>.<secret>``) and the messages of refusals.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode
from dataclasses import dataclass
from typing import Final

from lakebed.http.errors import authentication_error

CREDENTIAL_BYTES_MAX: Final = 1_024
"""Longest ``Authorization`` header that is parsed."""

_HOW: Final = "send an access key and its secret as Basic authentication, or a token as Bearer"


def parse_credential(header: bytes | None) -> tuple[str, str]:
    """Access key and secret of an ``Authorization`` header. Pure.

    Raises:
        InvalidRequest: kind ``unauthorized``: the header is missing, or has another form.
    """
    if header is None:
        raise authentication_error(f"The request has no Authorization header: {_HOW}.")
    scheme, _, value = header.strip().partition(b" ")
    if len(header) > CREDENTIAL_BYTES_MAX:
        raise authentication_error(f"The Authorization header is too long: {_HOW}.")
    try:
        if scheme.lower() == b"basic":
            access_key, mark, secret = b64decode(value.strip(), validate=True).decode().partition(":")
        elif scheme.lower() == b"bearer":
            token = value.strip().decode()
            access_key, mark, secret = token.partition("." if "." in token else ":")
        else:
            raise authentication_error(f"The Authorization scheme is not supported: {_HOW}.")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise authentication_error(f"The Authorization header cannot be read: {_HOW}.") from error
    if not (access_key and mark and secret):
        raise authentication_error(f"The Authorization header lacks an access key or a secret: {_HOW}.")
    return access_key, secret


@dataclass(frozen=True, slots=True)
class TokenCaller:
    """A caller of a service that has one token for all callers."""

    id: str


def check_token(header: bytes | None, token: str | None, *, service: str) -> None:
    """Refuse a caller who does not send the one token of a service. Compare the tokens in constant time.

    Args:
        header: ``Authorization: Bearer <token>``.
        token: the service's; None: callers need none.
        service: for the message, such as ``The log``.

    Raises:
        InvalidRequest: kind ``unauthorized``.
    """
    if token is None:
        return
    scheme, _, sent_token = (header or b"").strip().partition(b" ")
    if scheme.lower() != b"bearer" or not hmac.compare_digest(sent_token.strip(), token.encode()):
        raise authentication_error(f"{service} needs its token: send Authorization: Bearer <token>.")
