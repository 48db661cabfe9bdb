"""Version 4 of AWS's signatures: parse what was signed, and verify the signature. Pure.

Owns: the two places of a signature (header and query), the canonical request, the string to sign, and their time
limits. Invariants: no part of a request has an effect unless it was signed. The signed parts are the host, every
``x-amz-`` header, the path, the query and, unless the client said otherwise, the body. Signatures are compared in
constant time.

Source: AWS's Signature Version 4 for S3. A path is encoded once, never normalised.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from calendar import timegm
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from time import strptime
from typing import Final
from urllib.parse import quote

import msgspec

from lakebed.server.s3.errors import s3_error

ALGORITHM: Final = "AWS4-HMAC-SHA256"
UNSIGNED: Final = "UNSIGNED-PAYLOAD"
EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
SKEW_S_MAX: Final = 900
"""Largest difference between the clocks of client and server."""
LIFETIME_S_MAX: Final = 7 * 86_400
"""Longest lifetime of a presigned URL."""

_SIGNATURE_QUERY: Final = "X-Amz-Signature"
_PARTS: Final = re.compile(r"\s*(Credential|SignedHeaders|Signature)=([^,\s]+)\s*")
_USUAL_PARTS: Final = re.compile(r"Credential=([^,\s]+),\s*SignedHeaders=([^,\s]+),\s*Signature=([^,\s]+)")
"""The three parts in the order in which most clients write them: parsed in a third of the time."""
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_NEED_NO_SIGNATURE: Final = "x-amz-content-sha256"
"""A header that is part of the canonical request in any case."""


class Signature(msgspec.Struct, frozen=True):
    """The signature of a request, as the request states it.

    Attributes:
        scope: date, region, service and ``aws4_request``, joined by slashes; empty: a signature of version 2
            (`lakebed.server.s3.signature_v2`).
        timestamp: ``20260131T235959Z``.
        headers: the names of the signed headers, lower-case.
        payload: the hash of the body, or one of the words for a body that is not hashed.
        expires_s: lifetime of a presigned URL; None: the signature is in a header.
    """

    access_key: str
    scope: str
    timestamp: str
    headers: tuple[str, ...]
    signature: str
    payload: str
    expires_s: int | None = None


Pairs = Sequence[tuple[str, str]]
Headers = Iterable[tuple[bytes, bytes]]
HeaderTexts = Mapping[str, str]
"""Headers by their lower-case names, as Latin-1. Of a repeated header only the last value."""


def is_signed(headers: Headers, query: bytes) -> bool:
    """Whether a request states a signature of AWS, of any version. Only clients of S3 do."""
    for name, value in headers:
        if name == b"authorization":
            return value[:3] == b"AWS"
    return b"X-Amz-Algorithm=" in query or (b"AWSAccessKeyId=" in query and b"Signature=" in query)


def parse_signature(headers: HeaderTexts, pairs: Pairs) -> Signature:
    """Parse the signature of a request.

    Raises:
        InvalidRequest: kind ``AccessDenied``: there is none; ``AuthorizationHeaderMalformed``,
            ``AuthorizationQueryParametersError``; ``InvalidRequest``: it is of another version.
    """
    query = dict(pairs)
    authorization = headers.get("authorization")
    if authorization is not None:
        if "X-Amz-Algorithm" in query:
            raise s3_error("InvalidArgument", "The request is signed in its header and in its query: choose one.")
        return _parse_header(authorization, headers)
    if "X-Amz-Algorithm" in query:
        return _parse_query(query, headers)
    raise s3_error("AccessDenied", "The request is not signed: sign it with an access key of this server.")


def _wrong_version() -> Exception:
    return s3_error("InvalidRequest", f"The signature is of another version: please use {ALGORITHM}.")


def _parse_header(authorization: str, headers: HeaderTexts) -> Signature:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise _wrong_version()
    usual = _USUAL_PARTS.fullmatch(rest)
    credential, names, signature = _find_parts(rest) if usual is None else usual.groups()
    access_key, scope = _split_credential(credential, _malformed_header)
    return Signature(
        access_key=access_key,
        scope=scope,
        timestamp=headers.get("x-amz-date") or _basic_form(headers.get("date", "")),
        headers=tuple(names.split(";")),
        signature=signature,
        payload=headers.get("x-amz-content-sha256", ""),
    )


def _find_parts(text: str) -> tuple[str, str, str]:
    """Return credential, names of the signed headers, and signature, in any order."""
    matches = (_PARTS.fullmatch(part) for part in text.split(","))
    parts = {match[1]: match[2] for match in matches if match is not None}
    if len(parts) != 3:
        raise _malformed_header("it needs Credential, SignedHeaders and Signature")
    return parts["Credential"], parts["SignedHeaders"], parts["Signature"]


def _malformed_header(what: str) -> Exception:
    return s3_error("AuthorizationHeaderMalformed", f"The Authorization header is malformed: {what}.")


def _malformed_query(what: str) -> Exception:
    return s3_error("AuthorizationQueryParametersError", f"The signature in the query is malformed: {what}.")


def _split_credential(credential: str, malformed: Callable[[str], Exception]) -> tuple[str, str]:
    access_key, _, scope = credential.partition("/")
    parts = scope.split("/")
    if not access_key or len(parts) != 4 or parts[2:] != ["s3", "aws4_request"]:
        raise malformed("the credential is KEY/DATE/REGION/s3/aws4_request")
    return access_key, scope


def _basic_form(date: str) -> str:
    """Return a ``Date`` header as a timestamp; empty: invalid."""
    try:
        return parsedate_to_datetime(date).strftime("%Y%m%dT%H%M%SZ")
    except (TypeError, ValueError):
        return ""


def _parse_query(query: dict[str, str], headers: HeaderTexts) -> Signature:
    if query["X-Amz-Algorithm"] != ALGORITHM:
        raise _wrong_version()
    names = ("X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", _SIGNATURE_QUERY)
    missing = [name for name in names if not query.get(name)]
    if missing:
        raise _malformed_query(f"it needs {missing[0]}")
    access_key, scope = _split_credential(query["X-Amz-Credential"], _malformed_query)
    expires = query["X-Amz-Expires"]
    if not (expires.isascii() and expires.isdigit() and len(expires) <= 9 and int(expires) <= LIFETIME_S_MAX):
        raise s3_error("AccessDenied", f"X-Amz-Expires is a number of seconds up to {LIFETIME_S_MAX}.")
    payload = headers.get("x-amz-content-sha256") or query.get("X-Amz-Content-Sha256") or UNSIGNED
    return Signature(
        access_key=access_key,
        scope=scope,
        timestamp=query["X-Amz-Date"],
        headers=tuple(query["X-Amz-SignedHeaders"].split(";")),
        signature=query[_SIGNATURE_QUERY],
        payload=payload,
        expires_s=int(expires),
    )


def check_time(signature: Signature, *, now_ms: int) -> None:
    """Refuse a signature whose time is not valid now.

    Raises:
        InvalidRequest: kind ``AccessDenied``: it has no date, is not valid yet, or has expired;
            ``RequestTimeTooSkewed``; ``AuthorizationHeaderMalformed``: the credential is of another day.
    """
    try:
        signed_s = _parse_timestamp(signature.timestamp)
    except ValueError:
        raise s3_error("AccessDenied", "A signed request needs a valid Date or x-amz-date.") from None
    now_s = now_ms / 1000
    if signature.expires_s is None:
        if abs(now_s - signed_s) > SKEW_S_MAX:
            raise s3_error(
                "RequestTimeTooSkewed", "The time of the request differs too much from the server's: set the clock."
            )
    elif now_s >= signed_s + signature.expires_s:
        raise s3_error("AccessDenied", "Request has expired.")
    elif signed_s - now_s > SKEW_S_MAX:
        raise s3_error("AccessDenied", "Request is not valid yet.")
    if signature.scope and signature.scope.partition("/")[0] != signature.timestamp[:8]:
        raise _malformed_header("the date of the credential is not that of the request")


@lru_cache(maxsize=64)
def _parse_timestamp(text: str) -> int:
    """Return a time in Unix seconds. Raises `ValueError`.

    Cached, because the requests of a second have the same time.
    """
    return timegm(strptime(text, "%Y%m%dT%H%M%SZ"))


def derive_key(secret: str, scope: str) -> bytes:
    """Return the signing key for a scope: one day, one region and one service."""
    key = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def check_headers(signature: Signature, headers: HeaderTexts) -> None:
    """Refuse a request whose host or ``x-amz-`` headers are not signed. Raises `InvalidRequest` (``AccessDenied``)."""
    signed_names = signature.headers
    for name in headers:
        if (name.startswith("x-amz-") or name == "host") and name not in signed_names and name != _NEED_NO_SIGNATURE:
            raise s3_error("AccessDenied", f"There were headers present in the request which were not signed: {name}.")


def check_signature(
    signature: Signature, key: bytes, *, method: str, path: str, raw_path: bytes, pairs: Pairs, headers: Headers
) -> None:
    """Verify the signature of a request.

    Args:
        key: from `derive_key`.
        path, raw_path: decoded, and as sent: a client may have signed the path in the encoding in which it sent it.
        pairs: the query, decoded.

    Raises:
        InvalidRequest: kind ``SignatureDoesNotMatch``.
    """
    begin, rest = method.encode(), _canonical_rest(signature, pairs, headers)

    def signs(candidate: bytes) -> bool:
        digest = hashlib.sha256(b"\n".join((begin, candidate, rest))).hexdigest()
        text = f"{ALGORITHM}\n{signature.timestamp}\n{signature.scope}\n{digest}"
        return is_signature(signature.signature, sign(key, text))

    if signs(raw_path):
        return
    canonical_path = quote(path, safe="/-_.~").encode()
    if canonical_path == raw_path or not signs(canonical_path):
        raise mismatch()


def _canonical_rest(signature: Signature, pairs: Pairs, headers: Headers) -> bytes:
    """Return query, headers, their names and the hash of the body, in the canonical form."""
    if signature.expires_s is not None:
        pairs = [pair for pair in pairs if pair[0] != _SIGNATURE_QUERY]
    query = "&".join(
        [
            f"{name}={value}"
            for name, value in sorted([(quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in pairs])
        ]
    )
    names = ";".join(signature.headers).encode("latin-1", "replace")
    signed_names = names.split(b";")
    values: dict[bytes, bytes | None] = dict.fromkeys(signed_names)
    for name, value in headers:
        if name in values:
            before, text = values[name], b" ".join(value.split())
            values[name] = text if before is None else b"%b,%b" % (before, text)
    lines = [b"%b:%b\n" % (name, values[name] or b"") for name in signed_names]
    payload = (signature.payload or UNSIGNED).encode("latin-1", "replace")
    return b"\n".join((query.encode(), b"".join(lines), names, payload))


def sign(key: bytes, text: str) -> str:
    """Return the signature of a text, hexadecimal.

    Does not use `hmac.digest`: it releases the interpreter's lock even for short texts. Under load the event loop would
    then wait for the lock longer than for all the rest of a request.
    """
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def is_signature(stated: str, expected: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(stated.encode("utf-8", "replace"), expected.encode())


def mismatch() -> Exception:
    """Return the error of a wrong signature. It reveals no more than S3's."""
    return s3_error(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing "
        "method.",
    )


def is_sha256(text: str) -> bool:
    """Whether a text is a SHA-256 hash in hexadecimal."""
    return _HEX.fullmatch(text) is not None
