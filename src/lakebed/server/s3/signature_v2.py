"""Version 2 of S3's signatures, which older clients make: parse what was signed, and verify the signature. Pure.

Owns: its two places (header and query) and its string to sign. A signature of this version is a `Signature` without a
scope. It signs the bucket and key, the sub-resources of the query, the time and every ``x-amz-`` header. It does not
sign the host and the rest of the query, and it signs the body only if a signed header contains its hash. So the parts
that distinguish operations must always be among `_SUBRESOURCES`, or in the method and path.

Source: AWS's "Signing and authenticating REST requests", version 2 of S3.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from calendar import timegm
from datetime import UTC
from email.utils import parsedate_to_datetime
from time import gmtime, strftime, strptime
from typing import Final
from urllib.parse import quote

from lakebed.server.s3.errors import s3_error
from lakebed.server.s3.signature import (
    LIFETIME_S_MAX,
    UNSIGNED,
    Headers,
    HeaderTexts,
    Pairs,
    Signature,
    is_sha256,
    is_signature,
    mismatch,
)

UNSIGNED_CHUNKS_TRAILER: Final = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_MARK: Final = "AWS "
_KEY_QUERY: Final = "AWSAccessKeyId"
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_EPOCH: Final = "19700101T000000Z"
# fmt: off
_SUBRESOURCES: Final = frozenset((
    "accelerate", "acl", "analytics", "cors", "defaultObjectAcl", "delete", "encryption", "inventory", "legal-hold",
    "lifecycle", "location", "logging", "metrics", "notification", "object-lock", "partNumber", "policy", "replication",
    "requestPayment", "response-cache-control", "response-content-disposition", "response-content-encoding",
    "response-content-language", "response-content-type", "response-expires", "restore", "retention", "select",
    "select-type", "storageClass", "tagging", "torrent", "uploadId", "uploads", "versionId", "versioning", "versions",
    "website",
))
# fmt: on
"""Query parameters that are signed."""


def is_version_2(headers: HeaderTexts, pairs: Pairs) -> bool:
    """Whether a request states a signature of this version."""
    if (authorization := headers.get("authorization")) is not None:
        return authorization.startswith(_MARK)
    names = {name for name, _ in pairs}
    return _KEY_QUERY in names and "X-Amz-Algorithm" not in names


def parse_version_2(headers: HeaderTexts, pairs: Pairs) -> Signature:
    """Parse the signature of a request. An expiry in the query is an absolute time, stored as a lifetime since 1970.

    Raises:
        InvalidRequest: kind ``AccessDenied``, ``InvalidArgument``: it is malformed, or has no time.
    """
    query = dict(pairs)
    authorization = headers.get("authorization")
    payload = headers.get("x-amz-content-sha256") or UNSIGNED
    if not (payload in (UNSIGNED, UNSIGNED_CHUNKS_TRAILER) or is_sha256(payload)):
        raise s3_error("InvalidArgument", "Chunks of a body are signed by AWS4-HMAC-SHA256 only.")
    if authorization is None:
        expires, signature = query.get("Expires", ""), query.get("Signature", "")
        if not (signature and expires.isascii() and expires.isdigit() and len(expires) <= 11 and expires[0] != "0"):
            raise s3_error("AccessDenied", "A signed query needs Signature, Expires and AWSAccessKeyId.")
        return Signature(query[_KEY_QUERY], "", _EPOCH, (), signature, payload, int(expires))
    access_key, mark, signature = authorization[len(_MARK) :].strip().rpartition(":")
    if not (access_key and mark and signature):
        raise s3_error("InvalidArgument", "The Authorization header is malformed: it is AWS KEY:SIGNATURE.")
    date = headers.get("x-amz-date") or headers.get("date", "")
    return Signature(access_key, "", _basic_form(date), (), signature, payload)


def _basic_form(date: str) -> str:
    """Return a date in the format of mail, or a timestamp, as a timestamp; empty: invalid."""
    try:
        return strftime(_STAMP, gmtime(timegm(strptime(date, _STAMP))))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(date)
        return (moment if moment.tzinfo is None else moment.astimezone(UTC)).strftime(_STAMP)
    except (TypeError, ValueError, OverflowError):
        return ""


def check_lifetime(signature: Signature, *, now_ms: int) -> None:
    """Refuse a URL that is valid for too long. Raises `InvalidRequest` (``AccessDenied``)."""
    if signature.expires_s is not None and signature.expires_s - now_ms // 1000 > LIFETIME_S_MAX:
        raise s3_error("AccessDenied", f"Expires is a time of at most {LIFETIME_S_MAX} seconds from now.")


def check_version_2(
    signature: Signature, secret: bytes, *, method: str, path: str, raw_path: bytes, pairs: Pairs, headers: Headers
) -> None:
    """Verify the signature of a request.

    Args:
        path, raw_path: decoded, and as sent, which clients sign. Both begin with the bucket, wherever it was sent.
        pairs: the query, decoded.

    Raises:
        InvalidRequest: kind ``SignatureDoesNotMatch``.
    """
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1").strip())
    first = {name: ",".join(values.get(name, ())) for name in ("content-md5", "content-type", "date")}
    if signature.expires_s is not None:
        first["date"] = str(signature.expires_s)
    elif "x-amz-date" in values:
        first["date"] = ""
    begin = "\n".join((method, *first.values(), ""))
    extra = "".join(f"{name}:{','.join(values[name])}\n" for name in sorted(values) if name.startswith("x-amz-"))
    query = "&".join(f"{name}={value}" if value else name for name, value in sorted(pairs) if name in _SUBRESOURCES)
    end = ("?" if query else "") + query
    sent_path = raw_path.decode("latin-1")
    is_bucket = "/" not in path[1:]  # clients sign it with a final slash, and send it without
    for candidate in dict.fromkeys((sent_path, quote(path, safe="/-_.~"), *([sent_path + "/"] if is_bucket else []))):
        text = (begin + extra + candidate).encode("latin-1", "replace") + end.encode("utf-8", "replace")
        if is_signature(signature.signature, b64encode(hmac.new(secret, text, "sha1").digest()).decode()):
            return
    raise mismatch()
