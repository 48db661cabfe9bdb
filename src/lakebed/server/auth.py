"""Who asks: from the ``Authorization`` header to a verified principal, and what it may do.

Owns: the two forms (``Basic``, ``Bearer <access key>.<secret>``) and the sentences of refusals. A header that was
verified a short while ago is recalled without a call of the store; else the verifying call goes to the pool, or is made
inline where the key-value store answers from memory. Does not know: how keys are kept (`lakebed.server.keys`).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Final

from lakebed.server.errors import forbidden, unauthorized
from lakebed.server.keys import Principal, Role

__all__ = ["CREDENTIAL_BYTES_MAX", "check_role", "parse_credential"]

CREDENTIAL_BYTES_MAX: Final = 1_024
"""Longest ``Authorization`` header that is looked at."""

_HOW: Final = "send an access key and its secret as Basic authentication, or a token as Bearer"


def parse_credential(header: bytes | None) -> tuple[str, str]:
    """Access key and secret of an ``Authorization`` header. Pure.

    Raises:
        InvalidRequest: kind ``unauthorized``: there is none, or it has another form.
    """
    if header is None:
        raise unauthorized(f"The request does not say who asks: {_HOW}.")
    scheme, _, value = header.strip().partition(b" ")
    if len(header) > CREDENTIAL_BYTES_MAX:
        raise unauthorized(f"The Authorization header is too long: {_HOW}.")
    try:
        if scheme.lower() == b"basic":
            access_key, mark, secret = b64decode(value.strip(), validate=True).decode().partition(":")
        elif scheme.lower() == b"bearer":
            token = value.strip().decode()
            access_key, mark, secret = token.partition("." if "." in token else ":")
        else:
            raise unauthorized(f"This Authorization scheme is not known here: {_HOW}.")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise unauthorized(f"The Authorization header cannot be read: {_HOW}.") from error
    if not (access_key and mark and secret):
        raise unauthorized(f"The Authorization header lacks an access key or a secret: {_HOW}.")
    return access_key, secret


def check_role(principal: Principal, *, needed: Role, repository: str | None) -> None:
    """Refuse what a principal may not do.

    Args:
        needed: the least role for it.
        repository: the one it concerns; None: none, or all.

    Raises:
        InvalidRequest: kind ``forbidden``.
    """
    if repository is not None and not principal.sees(repository):
        raise forbidden(f"The access key {principal.id} may not use the repository {repository}.")
    if not principal.may(needed):
        raise forbidden(
            f"The access key {principal.id} has the role {principal.role}, and this needs the role {needed}."
        )
    if needed == "admin" and repository is None and principal.repositories is not None:
        raise forbidden(f"The access key {principal.id} is limited to some repositories, and this concerns all.")
