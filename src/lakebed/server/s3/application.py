"""The ASGI application of the gateway: it recognizes requests of S3, and runs each operation.

Owns: the order of checks. First the signature, then whether the operation exists, then whether the caller may use it.
Only after these anything is looked up.

Invariants: no handler runs for a request whose signature was not verified. An error is XML with a code of S3, and
reveals nothing of the server's internals.
"""

from __future__ import annotations

import traceback
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lakebed.errors import LakebedError, NotFound
from lakebed.http.access_log import TRACE, RequestTrace
from lakebed.http.call import ClientGone, parse_query
from lakebed.http.pools import run_in
from lakebed.http.replies import send_reply
from lakebed.http.site import Change
from lakebed.repo.repositories import local_catalog
from lakebed.server.auth import check_role
from lakebed.server.keys import Principal
from lakebed.server.s3.body import plan_body
from lakebed.server.s3.buckets import BUCKETS
from lakebed.server.s3.call import S3Call, Target, decode_path, host_bucket, is_domain, split_path
from lakebed.server.s3.errors import error_reply, s3_error
from lakebed.server.s3.listing import LISTING
from lakebed.server.s3.multipart import MULTIPART
from lakebed.server.s3.objects import OBJECTS
from lakebed.server.s3.operations import Level, Operation
from lakebed.server.s3.signature import (
    Headers,
    HeaderTexts,
    Signature,
    check_headers,
    check_signature,
    check_time,
    is_signed,
    parse_signature,
)
from lakebed.server.s3.signature_v2 import check_lifetime, check_version_2, is_version_2, parse_version_2
from lakebed.server.site import RepositorySite

_OPERATIONS: Final[dict[tuple[str, Level], list[Operation]]] = {}
for _operation in (*MULTIPART, *LISTING, *OBJECTS, *BUCKETS):
    _OPERATIONS.setdefault((_operation.endpoint.method, _operation.level), []).append(_operation)
for _alike in _OPERATIONS.values():
    _alike.sort(key=lambda operation: -2 * len(operation.query) - bool(operation.header))

# fmt: off
_SUBRESOURCES: Final = frozenset((
    "accelerate", "acl", "analytics", "attributes", "cors", "delete", "encryption", "intelligent-tiering",
    "inventory", "legal-hold", "lifecycle", "location", "logging", "metadataTable", "metrics", "notification",
    "object-lock", "ownershipControls", "policy", "policyStatus", "publicAccessBlock", "renameObject",
    "replication", "requestPayment", "restore", "retention", "select", "session", "tagging", "torrent",
    "uploadId", "uploads", "versioning", "versions", "website",
))
# fmt: on
"""Query parameters that distinguish an operation from the plain one of its method."""

_API: Final = b"/api/v1"
_METHOD_NOT_ALLOWED: Final = "The specified method is not allowed against this resource."


_UNSERVED_HEADERS: Final = (
    "x-amz-server-side-encryption", "x-amz-copy-source-server-side-encryption", "x-amz-object-lock-", "x-amz-tagging",
    "x-amz-website-redirect-location", "x-amz-write-offset-bytes",
)  # fmt: skip
"""Prefixes of headers for features that are not served.

Ignoring one would store something else than the client expects.
"""
_SERVED_HEADERS: Final = frozenset(("x-amz-tagging-directive",))


class S3Application:
    """The operations of S3 on a site."""

    def __init__(self, site: RepositorySite) -> None:
        self._site = site
        self._domains = tuple(site.options.s3_domains)

    def claims(self, scope: Scope) -> bool:
        """Whether a request is one of S3: it has a signature of S3, or came to a domain of the gateway."""
        if is_signed(scope["headers"], scope["query_string"]):
            return True
        if not self._domains:
            return False
        return is_domain(_host(scope["headers"]), domains=self._domains)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        trace: RequestTrace = scope[TRACE]
        trace.route = "s3"
        texts = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        waits = "expect" in texts

        async def receive_first() -> Message:
            nonlocal waits
            waits = False
            return await receive()

        try:
            reply = await self._answer(scope, receive_first if waits else receive, trace, texts)
        except ClientGone:
            trace.status, trace.error = 499, "client_gone"
            return
        except Exception as error:
            reply = self._explain(error, scope, trace, texts)
        if waits:  # the client may or may not send the body that it held back, and that could be read as a request
            reply.raw_headers.append((b"connection", b"close"))
        request_id = trace.request_id.encode()
        reply.raw_headers += [(b"x-amz-request-id", request_id), (b"x-request-id", request_id)]
        trace.sent(reply.status_code, await send_reply(reply, scope, receive, send))

    async def _answer(self, scope: Scope, receive: Receive, trace: RequestTrace, texts: HeaderTexts) -> Response:
        headers: Headers = scope["headers"]
        raw_path = _raw_path(scope)
        pairs = parse_query(scope)
        path = decode_path(raw_path)
        bucket, name = split_path(path, host=_host(headers), domains=self._domains)
        target = Target(bucket, name, path, raw_path, pairs)
        signature, key, principal = await self._authenticate(scope["method"], target, headers, texts)
        trace.access_key = principal.id
        operation = _find(scope["method"], target, texts)
        endpoint = operation.endpoint
        trace.route = f"s3/{endpoint.name}"
        plan = plan_body(signature, key, texts)
        if plan.md5 is not None:  # it is the checksum of the object, which may be sent in chunks with framing
            scope["headers"] = [pair for pair in headers if pair[0] != b"content-md5"]
        call = S3Call(
            self._site,
            scope,
            receive,
            principal=principal,
            request_id=trace.request_id,
            target=target,
            headers=texts,
            body_plan=plan,
        )
        assert endpoint.needs is not None
        if principal.grants is None:
            check_role(principal, needed=endpoint.needs, repository=call.place.repository or None)
        else:
            call.check_needs(endpoint.name)
        reply = await operation.handler(call)
        if endpoint.audited and reply.status_code < 300:
            await self._audit(call, operation, principal, reply.status_code)
        return reply

    async def _authenticate(
        self, method: str, target: Target, headers: Headers, texts: HeaderTexts
    ) -> tuple[Signature, bytes, Principal]:
        """Verify the signature of a request. Return it with its key, and the caller."""
        path, raw_path, pairs = target.path, target.raw_path, target.pairs
        if not is_version_2(texts, pairs):
            signature = parse_signature(texts, pairs)
            principal, key = await self._verify(signature)
            check_headers(signature, texts)
            check_signature(signature, key, method=method, path=path, raw_path=raw_path, pairs=pairs, headers=headers)
            return signature, key, principal
        signature = parse_version_2(texts, pairs)
        principal, key = await self._verify(signature)
        check_lifetime(signature, now_ms=self._site.serving.environment.clock.now_ms())
        host = host_bucket(_host(headers), domains=self._domains)
        raw_path, path = (f"/{host}".encode() + raw_path, f"/{host}{path}") if host else (raw_path, path)
        check_version_2(signature, key, method=method, path=path, raw_path=raw_path, pairs=pairs, headers=headers)
        return signature, key, principal

    async def _verify(self, signature: Signature) -> tuple[Principal, bytes]:
        """Return the caller whose key a signature names, and the signing key. Raises ``InvalidAccessKeyId``."""
        site = self._site
        check_time(signature, now_ms=site.serving.environment.clock.now_ms())
        signer = site.keys.recall_signer(signature.access_key, signature.scope)
        if signer is None:
            verify = site.keys.signer
            if local_catalog(site.repositories).key_value.is_local:
                signer = verify(signature.access_key, signature.scope)
            else:
                signer = await run_in(site.serving.pools.quick, verify, signature.access_key, signature.scope)
        return signer

    async def _audit(self, call: S3Call, operation: Operation, principal: Principal, status: int) -> None:
        change = Change(operation.endpoint, principal.id, call.path, "", status, call.request_id)
        try:
            await self._site.audit(change)
        except LakebedError as error:  # the change is made, and its reply must report that
            name = operation.endpoint.name
            self._site.serving.log_problem(f"no audit line of {name}: {error}", request_id=call.request_id)

    def _explain(self, error: Exception, scope: Scope, trace: RequestTrace, texts: HeaderTexts) -> Response:
        if isinstance(error, NotFound) and error.kind == "repository_not_found" and _raw_path(scope).startswith(_API):
            error = s3_error(
                "ErrNoSuchBucketPossibleAPIEndpoint",
                'There is no repository "api": the endpoint of S3 is the URL of the server without "/api/v1".',
            )
        reply = error_reply(
            error,
            request_id=trace.request_id,
            resource=_raw_path(scope).decode("latin-1"),
            root_url=self._site.repositories.url,
            headers=texts,
        )
        if isinstance(error, LakebedError) and reply.status_code != 500:
            trace.error = error.kind
        else:
            trace.error = "".join(traceback.format_exception(error))
        return reply


def _raw_path(scope: Scope) -> bytes:
    """Return the path as sent."""
    path: bytes = scope["raw_path"]
    return path


def _host(headers: Headers) -> str:
    return next((value.decode("latin-1") for name, value in headers if name == b"host"), "")


def _find(method: str, target: Target, headers: HeaderTexts) -> Operation:
    """Return the operation that a request asks for. Raises ``NotImplemented``, ``MethodNotAllowed``."""
    level: Level = "object" if target.key else "bucket" if target.bucket else "service"
    names = {name for name, _ in target.pairs}
    for operation in _OPERATIONS.get((method, level), ()):
        if operation.query <= names and (not operation.header or operation.header in headers):
            _check_headers_served(headers)
            other_names = (names & _SUBRESOURCES) - operation.query
            if other_names:
                raise s3_error("NotImplemented", f"The operation {min(other_names)} is not served.")
            return operation
    if names & _SUBRESOURCES:
        raise s3_error("NotImplemented", f"The operation {min(names & _SUBRESOURCES)} is not served.")
    raise s3_error("MethodNotAllowed", _METHOD_NOT_ALLOWED)


def _check_headers_served(headers: HeaderTexts) -> None:
    for name in headers:
        if name.startswith(_UNSERVED_HEADERS) and name not in _SERVED_HEADERS:
            raise s3_error("NotImplemented", f"What the header {name} asks for is not served.")
