"""Credentials: login, the current user, access keys, and the audit log."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.responses import Response

from lakebed.http.declaration import Routes
from lakebed.http.pages import Page
from lakebed.server.audit import AuditLine
from lakebed.server.bodies import (
    AccessKeyCreation,
    AccessKeyRow,
    AccessKeyWithSecret,
    AuditRow,
    AuthenticationToken,
    CurrentUser,
    LoginInformation,
    User,
)
from lakebed.server.keys import AccessKey, NewAccessKey
from lakebed.server.routes.parameters import AFTER, AMOUNT, PAGE
from lakebed.server.site import RepositoryCall

ACCESS: Final = Routes[RepositoryCall]("auth")
_KEYS: Final = "/auth/keys"
_KEY: Final = "/auth/keys/{access_key}"


@ACCESS.add("POST", "/auth/login", "login", needs=None)
async def login(call: RepositoryCall, body: LoginInformation) -> AuthenticationToken:
    """Get a short-lived token for an access key and its secret."""
    token = await call.quick(call.site.keys.login, body.access_key_id, body.secret_access_key)
    return AuthenticationToken(token.token, (token.key.expires_at_ms or 0) // 1000)


@ACCESS.add("GET", "/user", "getCurrentUser", needs="read")
async def get_current_user(call: RepositoryCall) -> CurrentUser:
    """Get the user of the request; of an access key that is no user's, the access key."""
    principal = call.caller
    return CurrentUser(User(principal.name, principal.created_at_ms // 1000, friendly_name=principal.name))


@ACCESS.add("GET", _KEYS, "listAccessKeys", needs="admin", gives={200: Page[AccessKeyRow]}, parameters=PAGE)
async def list_keys(call: RepositoryCall) -> Response:
    """List access keys."""
    keys = call.site.keys
    return await call.list_page(
        lambda page: (key for key in keys.list() if key.id.startswith(page.prefix) and key.id > page.after),
        key=lambda key: key.id,
        row=_row,
    )


@ACCESS.add("POST", _KEYS, "createAccessKey", needs="admin", gives={201: AccessKeyWithSecret}, audited=True)
async def create_key(call: RepositoryCall, body: AccessKeyCreation) -> AccessKeyWithSecret:
    """Create an access key; its secret is shown only in this reply."""
    access_key = await call.quick(
        call.site.keys.create,
        role=body.role,
        repositories=None if body.repositories is None else tuple(body.repositories),
        tables=None if body.tables is None else tuple(body.tables),
        description=body.description or "",
    )
    call.subject = access_key.key.id
    return _row_with_secret(access_key)


@ACCESS.add("GET", _KEY, "getAccessKey", needs="admin")
async def get_key(call: RepositoryCall) -> AccessKeyRow:
    """Get an access key."""
    return _row(await call.quick(call.site.keys.get, call.path["access_key"]))


@ACCESS.add("DELETE", _KEY, "revokeAccessKey", needs="admin", audited=True)
async def revoke_key(call: RepositoryCall) -> None:
    """Delete an access key and its tokens."""
    await call.quick(call.site.keys.revoke, call.path["access_key"])


@ACCESS.add("POST", _KEY + "/rotate", "rotateAccessKey", needs="admin", gives={201: AccessKeyWithSecret}, audited=True)
async def rotate_key(call: RepositoryCall) -> AccessKeyWithSecret:
    """Replace the secret of an access key; the new one is shown only in this reply."""
    return _row_with_secret(await call.quick(call.site.keys.rotate, call.path["access_key"]))


@ACCESS.add("GET", "/auth/audit", "listAudit", needs="admin", gives={200: Page[AuditRow]}, parameters=(AFTER, AMOUNT))
async def list_audit(call: RepositoryCall) -> Response:
    """List the audit log, newest first."""
    log = call.site.audit_log
    return await call.list_page(
        lambda page: log.read(before=page.after or None, amount=page.probe),
        key=lambda row: row[0],
        row=lambda row: _audit_row(*row),
    )


def _audit_row(line_id: str, line: AuditLine) -> AuditRow:
    subject, status = line.subject, line.status
    return AuditRow(
        line_id, line.at_ms, line.access_key, line.action, line.repository, subject, status, line.request_id
    )


def _row(key: AccessKey) -> AccessKeyRow:
    repositories, tables = (None if names is None else list(names) for names in (key.repositories, key.tables))
    return AccessKeyRow(key.id, key.role, repositories, key.description, key.created_at_ms // 1000, tables)


def _row_with_secret(access_key: NewAccessKey) -> AccessKeyWithSecret:
    row = _row(access_key.key)
    return AccessKeyWithSecret(**msgspec.structs.asdict(row), secret_access_key=access_key.secret)
