"""Errors of S3: a code, its status, and XML.

Owns: the codes, and the code for each error of lakebed. `s3_error` raises an error whose kind is a code. Every other
error is mapped by its kind, or else by the status that the REST interface gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response

from lakebed.errors import InvalidRequest, LakebedError
from lakebed.http.ranges import content_range
from lakebed.server.errors import shown_error, status_of
from lakebed.server.s3.xml import echo, render

XML_TYPE: Final = "application/xml"

_STATUSES: Final[dict[str, int]] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyExists": 409,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "ConditionalRequestConflict": 409,
    "EntityTooLarge": 400,
    "EntityTooSmall": 400,
    "ErrNoSuchBucketPossibleAPIEndpoint": 404,  # a code of lakeFS
    "IncompleteBody": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartNumber": 416,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MaxMessageLengthExceeded": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotImplemented": 501,
    "OperationAborted": 409,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "RequestTimeout": 400,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}

_CODES: Final[dict[str, str]] = {
    "body_differs": "BadDigest",
    "branch_exists": "BucketAlreadyOwnedByYou",
    "branch_not_found": "NoSuchBucket",
    "import_gone": "NoSuchKey",
    "invalid_metadata": "MetadataTooLarge",
    "invalid_path": "InvalidArgument",
    "invalid_query": "InvalidArgument",
    "invalid_reference": "NoSuchKey",
    "invalid_repository_name": "NoSuchBucket",
    "object_gone": "NoSuchKey",
    "oversized_metadata": "MetadataTooLarge",
    "path_not_found": "NoSuchKey",
    "precondition_failed": "PreconditionFailed",
    "range_not_satisfiable": "InvalidRange",
    "reference_not_found": "NoSuchKey",
    "repository_not_found": "NoSuchBucket",
    "reserved_path": "AccessDenied",
    "stalled": "RequestTimeout",
    "too_large": "EntityTooLarge",
    "unsupported": "NotImplemented",
    "upload_expired": "OperationAborted",
}

_BY_STATUS: Final = {
    401: "AccessDenied",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    409: "OperationAborted",
    412: "PreconditionFailed",
    413: "EntityTooLarge",
    503: "SlowDown",
}


_CONDITIONS: Final = (
    "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since",
    "x-amz-copy-source-If-Match", "x-amz-copy-source-If-None-Match",
    "x-amz-copy-source-If-Modified-Since", "x-amz-copy-source-If-Unmodified-Since",
)  # fmt: skip
"""Headers of conditions, as S3 writes their names in errors."""


def s3_error(code: str, message: str) -> InvalidRequest:
    """Return an error with a code of S3. Clients see the message."""
    assert code in _STATUSES, code
    return InvalidRequest(message, kind=code)


def code_of(error: BaseException) -> str:
    """Return the code of S3 for an error."""
    if not isinstance(error, LakebedError):
        return "InternalError"
    if error.kind in _STATUSES:
        return error.kind
    status = status_of(error)
    if status >= 500 and status != 503:
        return "InternalError"
    return _CODES.get(error.kind) or _BY_STATUS.get(status, "InvalidRequest")


def error_fields(
    error: BaseException, *, request_id: str, root_url: str, headers: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return code and message of an error, in the form for clients. A bug's message only tells where to look.

    Args:
        root_url: the storage's URL. If it is a folder, no message contains it.
        headers: headers of the request, by lower-case names. They name the condition that did not hold.
    """
    code = code_of(error)
    if code == "InternalError" or not isinstance(error, LakebedError):
        return [("Code", code), ("Message", f"The server failed; its log says why, under request {request_id}.")]
    fields = [("Code", code), ("Message", shown_error(error, root_url=root_url).message)]
    conditions = [name for name in _CONDITIONS if name.lower() in headers] if code == "PreconditionFailed" else []
    # Clients tell "the object exists" from "the object changed" by it. Of several it is not known which one failed.
    return [*fields, ("Condition", conditions[0])] if len(conditions) == 1 else fields


def error_reply(
    error: BaseException, *, request_id: str, resource: str, root_url: str, headers: Mapping[str, str]
) -> Response:
    """Return the reply to a failed request.

    Args:
        resource: the path of the request.
        root_url, headers: as of `error_fields`.
    """
    fields = error_fields(error, request_id=request_id, root_url=root_url, headers=headers)
    status = _STATUSES[fields[0][1]]
    size_bytes = error.facts.get("size_bytes") if status == 416 and isinstance(error, LakebedError) else None
    # Clients that read an object in ranges without knowing its size learn from this that it is empty.
    fields += [] if size_bytes is None else [("ActualObjectSize", str(size_bytes))]
    body = render("Error", [*fields, *echo("Resource", resource), ("RequestId", request_id)], namespace=None)
    reply = Response(body, status, media_type=XML_TYPE)
    if size_bytes is not None:
        reply.headers["content-range"] = content_range(None, size_bytes=int(size_bytes))
    elif status == 503:
        reply.headers["retry-after"] = "1"
    return reply
