"""`RepositorySite`: repositories, access keys and the audit log, as `lakebed.http` serves them.

Owns: `RepositorySite`, which handlers use, and `RepositoryCall`, which they take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope

from lakebed.errors import LakebedError
from lakebed.http.authentication import parse_credential
from lakebed.http.call import Call, parse_query
from lakebed.http.declaration import Endpoint
from lakebed.http.pools import run_in
from lakebed.http.serving import Serving
from lakebed.http.signing import Signer
from lakebed.http.site import Change
from lakebed.objects.path import parse_url
from lakebed.objects.port import ByteRange
from lakebed.objects.reserve import freeing_space
from lakebed.repo.heads.uploads import SmallUpload, upload_many
from lakebed.repo.model.model import Entry
from lakebed.repo.objects.data import read, read_resident
from lakebed.repo.records.context import RepositoryContext
from lakebed.repo.repositories import Repositories, local_catalog
from lakebed.repo.transport.transport import context_of
from lakebed.server.audit import AuditLine, AuditLog
from lakebed.server.auth import check_catalog, check_permission, check_role
from lakebed.server.encoded_rows import EncodedRows
from lakebed.server.errors import error_reply
from lakebed.server.iceberg.catalog import ICEBERG_TAG, IcebergCatalog
from lakebed.server.import_runner import ImportRunner
from lakebed.server.keys import AccessKeys, Principal
from lakebed.server.moments import Moments
from lakebed.server.needs import BodyNeeds, needs_of, object_resource
from lakebed.server.options import ServerOptions
from lakebed.server.paimon.catalog import PAIMON_TAG, PaimonCatalog
from lakebed.server.permissions import NAMESPACES, Permission
from lakebed.server.places import name_place
from lakebed.server.uploads import SmallUploads

_LATE_LINES_S: Final = 0.5
"""How long lines of the audit log wait for further lines, if no reply waits for them."""
_ENDPOINT: Final = "lakebed.endpoint"
"""The key in the scope of a request of the endpoint that its caller was permitted to use."""
_BODY_NEEDS: Final = "lakebed.body_needs"
"""The key in the scope of a user's request of what its body needs."""

B = TypeVar("B")
R = TypeVar("R")


def is_on_disk(storage_url: str) -> bool:
    """Whether a storage is a folder of this machine, or its memory."""
    return parse_url(storage_url).scheme in ("file", "memory")


_SUBJECTS: Final = ("branch", "tag", "access_key", "group", "user", "policy", "pull_request")
"""Parameters of paths that name the changed object; the first that a path has is used."""


@dataclass(slots=True)
class RepositorySite:
    """Everything that handlers use."""

    serving: Serving
    options: ServerOptions
    repositories: Repositories
    keys: AccessKeys
    audit_log: AuditLog
    signer: Signer
    imports: ImportRunner
    paimon: PaimonCatalog
    iceberg: IcebergCatalog = field(init=False)
    description: Callable[[], dict[str, Any]]
    encoded_rows: EncodedRows
    moments: Moments = field(init=False)
    uploads: SmallUploads = field(init=False)
    signs: bool = field(init=False)
    """Whether the storage's vendor signs URLs."""

    def __post_init__(self) -> None:
        self.signs = not is_on_disk(self.repositories.url)
        self.iceberg = IcebergCatalog(self.paimon)
        self.moments = Moments(local_catalog(self.repositories).key_value, self.serving.arrivals)
        self.uploads = SmallUploads(self.serving.pools.quick, waits_for_disk=self.options.durable)

    async def context(self, name: str, *, is_proven_later: bool = False) -> RepositoryContext:
        """Return a repository by name. Raises `NotFound`.

        Args:
            is_proven_later: the caller then reads a snapshot of the records, or writes them with a condition.
        """
        catalog = local_catalog(self.repositories)
        if catalog.key_value.is_local:
            context = catalog.known_context(name) if is_proven_later else None
            if context is not None:
                return context
            return context_of(self.repositories.repository(name))
        return context_of(await run_in(self.serving.pools.quick, self.repositories.repository, name))

    async def authenticate(self, header: bytes | None) -> Principal:
        """Return the caller who sends an ``Authorization`` header. Raises `InvalidRequest` (``unauthorized``).

        Cost: 1 us for a recently verified header; else as `AccessKeys.verify`, inline if the key-value store answers
        from memory.
        """
        principal = None if header is None else self.keys.recall(header)
        if principal is not None:
            return principal
        access_key, secret = parse_credential(header)
        assert header is not None
        if local_catalog(self.repositories).key_value.is_local:
            return self.keys.verify(header, access_key=access_key, secret=secret)
        return await run_in(self.serving.pools.quick, self.keys.verify, header, access_key=access_key, secret=secret)

    def authorize(self, principal: Principal, endpoint: Endpoint, scope: Scope) -> None:
        """Refuse a request that an access key may not make; `RepositoryCall.read` checks what depends on the body."""
        assert endpoint.needs is not None
        scope[_ENDPOINT] = endpoint
        path: Mapping[str, str] = scope["path_params"]
        if endpoint.tag in (PAIMON_TAG, ICEBERG_TAG):
            check_catalog(principal, needed=endpoint.needs)
            return
        needs = needs_of(endpoint)
        if principal.grants is None or needs.whole_role:
            check_role(principal, needed=endpoint.needs, repository=path.get("repository"))
        if principal.grants is not None:
            for permission in needs.of_request(path, dict(parse_query(scope))):
                check_permission(principal, permission)
            scope[_BODY_NEEDS] = needs.body

    def new_call(
        self, scope: Scope, receive: Receive, *, principal: Principal | None, request_id: str
    ) -> RepositoryCall:
        """Return the call that a handler takes."""
        return RepositoryCall(self, scope, receive, principal=principal, request_id=request_id)

    async def audit(self, change: Change) -> None:
        """Write a line of the audit log. Lines of commits to tables are written together, soon after."""
        path = change.path
        subject = change.subject or next((path[name] for name in _SUBJECTS if name in path), "")
        line = AuditLine(
            self.serving.environment.clock.now_ms(),
            change.principal_id,
            change.endpoint.name,
            path.get("repository", ""),
            subject,
            change.status,
            change.request_id,
        )
        if not change.endpoint.audited_after:
            await run_in(self.serving.pools.quick, self.audit_log.append, line)
        elif self.audit_log.defer(line):
            asyncio.get_running_loop().call_later(_LATE_LINES_S, self._write_late_lines)

    def _write_late_lines(self) -> None:
        with suppress(RuntimeError):  # the pool is closed: `close` writes them
            self.serving.pools.quick.submit(self._flush_audit_log)

    def _flush_audit_log(self) -> None:
        try:
            self.audit_log.flush()
        except LakebedError as error:
            self.serving.log_problem(f"no audit lines of some commits: {error}")

    def error_reply(self, error: BaseException, *, request_id: str, statuses: Mapping[str, int]) -> Response:
        """Return the reply to a request that failed."""
        return error_reply(error, request_id=request_id, statuses=statuses, root_url=self.repositories.url)

    def close(self) -> None:
        """Wait for running calls; close the repositories; write the buffered lines."""
        self.serving.pools.close()
        self._flush_audit_log()
        try:
            self.repositories.close()
        finally:
            self.serving.close_log()


class RepositoryCall(Call):
    """A request of a repository server.

    Attributes:
        principal: the caller; None for public endpoints.
    """

    __slots__ = ("principal", "site")

    def __init__(
        self,
        site: RepositorySite,
        scope: Scope,
        receive: Receive,
        *,
        principal: Principal | None,
        request_id: str,
    ) -> None:
        super().__init__(site.serving, scope, receive, request_id=request_id)
        self.site = site
        self.principal = principal

    @property
    def caller(self) -> Principal:
        """The caller of an endpoint that is not public."""
        assert self.principal is not None
        return self.principal

    @property
    def committer(self) -> str:
        """The committer of the caller's commits: the user, or else the access key."""
        return self.principal.name if self.principal is not None else ""

    async def read(self, kind: type[B], *, default: B | None = None, bytes_max: int | None = None) -> B:
        """Return the JSON body as a struct, if the caller may do what it says.

        Raises:
            InvalidRequest: as `Call.read`; kind ``forbidden``.
        """
        body = await super().read(kind, default=default, bytes_max=bytes_max)
        needs: BodyNeeds | None = self.scope.get(_BODY_NEEDS)
        if needs is not None:
            for permission in needs(body, self.path.get("repository", "")):
                self.check(permission)
        return body

    async def check_late(self, elapsed_s: float) -> None:
        """Check the caller again: when the body ends, perhaps hours later, a key may be revoked or a policy changed."""
        endpoint: Endpoint | None = self.scope.get(_ENDPOINT)
        if self.principal is None or endpoint is None:
            return
        header = next((value for name, value in self.scope["headers"] if name == b"authorization"), None)
        self.principal = await self.site.authenticate(header)
        self.site.authorize(self.principal, endpoint, self.scope)

    async def store_small(
        self, context: RepositoryContext, branch: str, upload: SmallUpload, *, size_bytes: int
    ) -> Entry:
        """Store and stage a small object, together with others that came at the same time if that is faster."""
        if self.serving.reads_inline:
            return await self.site.uploads.store(context, branch, upload, size_bytes=size_bytes)
        [outcome] = await self.quick(upload_many, context, branch, [upload])
        if isinstance(outcome, LakebedError):
            raise outcome
        return outcome

    async def read_small(
        self, context: RepositoryContext, entry: Entry, *, byte_range: ByteRange | None = None
    ) -> memoryview:
        """Return the bytes of a small object: at once if this machine has them in memory, else read in a pool.

        Raises as `lakebed.repo.objects.data.read`.
        """
        body = read_resident(context, entry, byte_range=byte_range) if self.serving.reads_inline else None
        if body is None:
            body = await self.quick(read, context, entry, byte_range=byte_range)
        return memoryview(body)

    def check(self, permission: Permission) -> None:
        """Refuse a user who may not do something. Raises `InvalidRequest` (``forbidden``)."""
        if self.principal is not None:
            check_permission(self.principal, name_place(permission, root_url=self.site.repositories.url))

    def check_link(self, context: RepositoryContext, address: str) -> None:
        """Refuse a user who may not import, if an address is outside of the repository."""
        if not address.startswith(context.store.root_url + "/"):
            self.check(Permission("fs:ImportFromStorage", NAMESPACES + address))

    @property
    def reads_all(self) -> bool:
        """Whether the caller may read every object of the repository."""
        grants = None if self.principal is None else self.principal.grants
        return grants is None or grants.permits(
            Permission("fs:ReadObject", object_resource(self.path["repository"], ""), is_prefix=True)
        )

    def may_read(self, path: str) -> bool:
        """Whether the caller, who may list a repository, may read an object of it."""
        grants = None if self.principal is None else self.principal.grants
        if grants is None:
            return True
        return grants.permits(Permission("fs:ReadObject", object_resource(self.path["repository"], path)))

    async def optional_principal(self) -> Principal | None:
        """Return the caller of a public endpoint that shows more to some callers; None: the request has no credentials.

        Raises:
            InvalidRequest: kind ``unauthorized``: the credentials are not valid.
        """
        header = next((value for name, value in self.scope["headers"] if name == b"authorization"), None)
        return None if header is None else await self.site.authenticate(header)

    async def context(
        self, *, force: bool = False, is_proven_later: bool = False, name: str | None = None
    ) -> RepositoryContext:
        """Return the repository that the path names, limited to what the caller may use.

        Args:
            force: allow changes although the repository is read-only.
            is_proven_later: as `RepositorySite.context`.
            name: name of another repository, which the caller may use; None: the one of the path.

        Raises `NotFound`.
        """
        context = await self.site.context(name or self.path["repository"], is_proven_later=is_proven_later)
        if force:
            context = context.as_writable()
        if self.principal is None or not self.principal.is_import_limited:
            return context
        return replace(context, foreign=context.foreign.of(context.name, is_limited=True))

    async def give_up(self, change: Callable[[RepositoryContext], R], *, force: bool = False) -> R:
        """Run a change that frees objects for collection: on a full disk it may use the reserve.

        The lookup of the repository may use it too: it writes if an earlier change has an unknown outcome.

        Args:
            force: as `context`.

        Raises `NotFound`, and what the change raises.
        """
        with freeing_space():
            context = await self.context(force=force)
        return await self.heavy(freeing_space()(change), context)
