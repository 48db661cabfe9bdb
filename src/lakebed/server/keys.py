"""Access keys: the credentials of a server's clients, and what they permit.

Owns: the records below ``keys/`` and ``user-keys/`` of the key-value store, secrets and their hashes, tokens, and the
cache of verified headers. Field names are stored: DO NOT CHANGE them; add fields at the end, with a default.

Secrets. A secret has 240 bits, which are random or derived, and never chosen by a person. A dictionary does not help to
guess it, and the cost that slow hashes add to each guess is not needed against 2**240 possible secrets. So the hash is
fast and keyed (blake2b, whose key is a random salt for each access key): a stolen database reveals no secret, and
verifying takes microseconds.

Secrets of clients that sign. Only a server that knows the secret can check S3's signatures. A server with a secret key,
which is in a file and not in the database, derives each secret from it, as a keyed hash of the access key's id and
salt. It can derive the secret again, and stores no more than other servers. The database alone, or the secret key
alone, still reveals no secret. Memory holds only the signing key that is derived from a secret for one day and region.

Tokens. ``POST /auth/login`` makes a short-lived access key, ``<its parent>-<id>``, with the rights of its parent. It is
sent as ``Bearer <id>.<secret>``, as any access key may be. Nothing is signed, so a stolen database does not help to
forge one. A token ends when it expires, and when its parent is revoked or rotated: it records the salt of its parent,
and a rotation changes the salt, so a token made during a rotation is invalid too.

Keys of users. A key has a role, or it belongs to a user and may do what the user's policies permit
(`lakebed.server.identity`). The records of users' keys are below ``user-keys/``, where an older server does not look. A
user's key names the `User.uid`: it ends with the user, and does not belong to a later user of the same name.

Limits. A key may be limited to repositories and to tables: ``shop.orders`` is a table, ``shop.*`` a database, and ``*``
all tables of the lake. A key that is limited only in one kind reaches nothing of the other kind. Therefore a record
with `AccessKey.tables` always has `AccessKey.repositories`, even if it is empty: an older server, which does not know
limits of tables, then refuses such a key everything.

Invariants: a secret is in the reply that created it and nowhere else: no record, log, error or cache holds one. Changes
by this process take effect at once, changes by another process within `ServerOptions.key_recheck_s`.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b32encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from lakebed.errors import Conflict, InvalidRequest, NotFound
from lakebed.http.declaration import ROLES, Role
from lakebed.http.errors import forbidden
from lakebed.key_value.port import KeyValue
from lakebed.kv.ranges import prefix_end
from lakebed.lake.names import parse_table_name
from lakebed.repo.model.layout import IDENTITY_KEY, access_key_key, user_key_key
from lakebed.repo.model.names import check_repository_name
from lakebed.repo.records.records import decode_record, encode_record
from lakebed.runtime import Environment
from lakebed.server.identity import RESERVED_BEGIN, IdentityStore
from lakebed.server.options import ServerOptions
from lakebed.server.permissions import NAMESPACES, REPOSITORIES, Grants, Permission
from lakebed.server.s3.signature import derive_key

ALL_TABLES: Final = "*"
"""In limits: every table of the lake or, after a database's name and a dot, of that database. No name contains it."""

_ID_PREFIX: Final = RESERVED_BEGIN
_USER_ID_PREFIX: Final = RESERVED_BEGIN + "0"
"""Begins the ids of users' keys: no other id has a 0. Stored: DO NOT CHANGE."""
_ID_BYTES: Final = 10
_ID_CHARACTERS_MAX: Final = 64
_SECRET_BYTES: Final = 30
_SALT_BYTES: Final = 16
_PERSON: Final = b"lakebed s3 key"
"""Keeps secrets apart from other uses of the secret key. DO NOT CHANGE: no secret could be derived again."""
_HASH_BYTES: Final = 32
_TOKEN_MARK: Final = "-"
_CACHED_MAX: Final = 10_000
_TRIES_MAX: Final = 16
_PREFIX: Final = access_key_key("")


class AccessKey(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of an access key or token."""

    id: str
    role: Role
    salt: bytes
    secret_hash: bytes
    created_at_ms: int
    repositories: tuple[str, ...] | None = None
    """The only repositories it may see; None: all."""
    description: str = ""
    expires_at_ms: int | None = None
    """When a token expires, Unix ms; None: not a token."""
    parent_salt: bytes = b""
    """In tokens, the salt of the access key when the token was made. A token with another salt is refused."""
    tables: tuple[str, ...] | None = None
    """The only tables it may see, as of `parse_table_limit`; None: all, or none if `repositories` is given."""
    user: str = ""
    """The user whose key this is; the key's role then has no meaning. Empty: no user's key, and the role applies."""
    user_uid: str = ""

    @property
    def parent(self) -> str | None:
        """The access key of a token; None: this is not a token."""
        before, mark, _ = self.id.partition(_TOKEN_MARK)
        return before if mark else None


@dataclass(frozen=True, slots=True)
class NewAccessKey:
    """A new access key with its secret, which is shown only now. Its `repr` does not show it."""

    key: AccessKey
    secret: str

    def __repr__(self) -> str:
        return f"NewAccessKey({self.key.id})"

    @property
    def token(self) -> str:
        """The value to send as ``Authorization: Bearer``."""
        return f"{self.key.id}.{self.secret}"


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller."""

    id: str
    """The access key's id; for a token, its parent's."""
    role: Role | None
    """The role in all repositories that it may see; None: a user whose policies permit no whole role."""
    repositories: frozenset[str] | None
    created_at_ms: int
    tables: frozenset[str] | None = None
    """The limits of the tables that it may see (`lakebed.server.auth.may_see_table`); None: all."""
    user: str = ""
    """The user whose key it is; empty: the key is no user's."""
    grants: Grants | None = None
    """What the user may do; None: the key is no user's, and its role applies."""

    @property
    def name(self) -> str:
        """The author of what it changes: the user, or else the access key."""
        return self.user or self.id

    def may(self, needed: Role) -> bool:
        """Whether the role includes `needed`."""
        return self.role is not None and ROLES.index(self.role) >= ROLES.index(needed)

    def sees(self, repository: str) -> bool:
        """Whether it may see a repository at all."""
        if self.grants is not None:
            return self.grants.permits(Permission("fs:ListRepositories", REPOSITORIES + repository))
        return self.repositories is None or repository in self.repositories

    @property
    def sees_all(self) -> bool:
        """Whether it may read all repositories, also those that are made later."""
        return self.repositories is None and self.role is not None

    @property
    def is_import_limited(self) -> bool:
        """Whether it may import only from places that are named for one repository."""
        if self.grants is not None:
            return not self.grants.permits(Permission("fs:ImportFromStorage", NAMESPACES, is_prefix=True))
        return self.repositories is not None


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: Principal
    checked_at_s: float
    expires_at_ms: int | None


def parse_table_limit(text: str) -> str:
    """Return a limit as it is stored: ``flights`` becomes ``default.flights``; ``shop.*`` and ``*`` stay as they are.

    Raises `InvalidRequest`: the text is neither a table's name nor such a pattern.
    """
    if text == ALL_TABLES:
        return text
    database, mark, table = text.rpartition(".")
    if mark and table == ALL_TABLES:
        return f"{parse_table_name(f'{database}.t').database}.{ALL_TABLES}"
    name = parse_table_name(text)
    return f"{name.database}.{name.table}"


def check_revocable(key: AccessKey, *, listed: Iterable[AccessKey]) -> None:
    """Raise `InvalidRequest` (``last_admin``) for the last of the listed access keys with the role admin."""
    if key.role == "admin" and not any(other.role == "admin" and other.id != key.id for other in listed):
        raise InvalidRequest(
            f"{key.id} is the last access key with the role admin: create another one first.", kind="last_admin"
        )


class AccessKeys:
    """The access keys of a server. Thread-safe.

    Attributes:
        changes: number of times that this process has ended keys, or changed what they permit.
    """

    def __init__(
        self,
        key_value: KeyValue,
        *,
        environment: Environment,
        options: ServerOptions | None = None,
        secret_key: bytes | None = None,
    ) -> None:
        self._key_value = key_value
        self._secret_key = secret_key
        self._signers: dict[tuple[str, str], tuple[Principal, bytes, float]] = {}
        self._environment = environment
        self._options = options or ServerOptions()
        self._pepper = self._random(_SALT_BYTES)
        self._cache: dict[bytes, _Verified] = {}
        self.changes = 0
        self.identity = IdentityStore(key_value, environment=environment, changed=self._forget)

    def create(
        self,
        *,
        role: Role,
        repositories: tuple[str, ...] | None = None,
        tables: tuple[str, ...] | None = None,
        description: str = "",
    ) -> NewAccessKey:
        """Create an access key.

        Args:
            repositories: the only ones it may see; None: all, or none if `tables` is given.
            tables: the only ones it may see, as ``database.table``, ``database.*`` or ``*``; None: all, or none if
                `repositories` is given.

        Raises `InvalidRequest` for an invalid role, repository or table. Cost: 1 write.
        """
        if role not in ROLES:
            raise InvalidRequest(f"{role!r} is not a valid role: use read, write or admin.", kind="invalid_role")
        for name in repositories or ():
            check_repository_name(name)
        if tables is not None:
            tables, repositories = tuple(map(parse_table_limit, tables)), repositories or ()
        key_id = self._new_id(_ID_PREFIX)
        now_ms, salt = self._environment.clock.now_ms(), self._random(_SALT_BYTES)
        return self._store(AccessKey(key_id, role, salt, b"", now_ms, repositories, description, tables=tables))

    def create_of_user(self, user: str) -> NewAccessKey:
        """Create an access key of a user. Raises `NotFound`, `Conflict`. Cost: 1 write."""
        for _ in range(_TRIES_MAX):
            raw, identity = self.identity.load()
            uid = identity.user(user).uid
            now_ms, salt = self._environment.clock.now_ms(), self._random(_SALT_BYTES)
            key = AccessKey(self._new_id(_USER_ID_PREFIX), "read", salt, b"", now_ms, user=user, user_uid=uid)
            try:
                return self._store(key, expected={IDENTITY_KEY: raw})
            except Conflict:
                continue  # a user was changed concurrently, perhaps this one: read again
        raise _changing(f"of {user}")

    def list_of_user(self, user: str) -> list[AccessKey]:
        """Return the access keys of a user, ordered by id. Raises `NotFound`, `Corruption`.

        Cost: 1 scan of users' keys.
        """
        uid = self.identity.read().user(user).uid
        return [key for key in self._scan(_USER_ID_PREFIX) if key.user_uid == uid and key.parent is None]

    def get_of_user(self, user: str, access_key: str) -> AccessKey:
        """Return one access key of a user. Raises `NotFound`."""
        uid = self.identity.read().user(user).uid
        key = self._load(access_key)
        if key is None or key.parent is not None or key.user_uid != uid:
            raise _unknown(access_key)
        return key

    def revoke_of_user(self, user: str, access_key: str) -> None:
        """Delete an access key of a user, and its tokens. Raises `NotFound`. Cost: 1 scan, 1 write."""
        self.get_of_user(user, access_key)
        self._end([access_key, *(token.id for token in self._scan(access_key + _TOKEN_MARK))])

    def delete_user(self, user: str) -> None:
        """Delete a user, which ends the user's keys at once, and then the records of the keys. Raises `NotFound`.

        Cost: 1 scan of all users' keys, 2 writes. A crash in between leaves records that permit nothing.
        """
        uid = self.identity.read().user(user).uid
        self.identity.delete_user(user)
        self._end([key.id for key in self._scan(_USER_ID_PREFIX) if key.user_uid == uid])

    def _new_id(self, begins_with: str) -> str:
        return begins_with + b32encode(self._random(_ID_BYTES)).decode()

    def create_first(self) -> NewAccessKey | None:
        """Create an access key with the role admin if no key exists; else return None. Cost: 1 scan, 1 write."""
        with self._key_value.snapshot() as snapshot:
            if next(iter(snapshot.scan(_PREFIX, prefix_end(_PREFIX))), None) is not None:
                return None
        return self.create(role="admin", description="the first one")

    def list(self) -> list[AccessKey]:
        """Return all access keys, without tokens, ordered by id. Raises `Corruption`."""
        return [key for key in self._scan("") if key.parent is None]

    def get(self, access_key: str) -> AccessKey:
        """Return one access key. Raises `NotFound`."""
        key = self._load(access_key)
        if key is None or key.parent is not None or key.user:
            raise _unknown(access_key)
        return key

    def revoke(self, access_key: str) -> None:
        """Delete an access key and its tokens. Raises `NotFound`; `InvalidRequest` for the last with the role admin.

        Cost: 2 scans, 1 write.
        """
        for _ in range(_TRIES_MAX):
            key, all_keys = self.get(access_key), self.list()
            check_revocable(key, listed=all_keys)
            # One of the others has to stay: two admins who revoke each other concurrently must not both succeed.
            other_ids = (other.id for other in all_keys if key.role == other.role == "admin" and other.id != key.id)
            expected = {_record_key(other): self._key_value.get(_record_key(other)) for other in islice(other_ids, 1)}
            if None in expected.values():
                continue
            try:
                self._end([key.id, *(token.id for token in self._scan(key.id + _TOKEN_MARK))], expected=expected)
            except Conflict:
                continue
            return
        raise _changing(access_key)

    def rotate(self, access_key: str) -> NewAccessKey:
        """Replace the secret of an access key and delete its tokens. Raises `NotFound`, `Conflict`."""
        for _ in range(_TRIES_MAX):
            raw = self._key_value.get(_record_key(access_key))
            key = self.get(access_key)
            new = self._new(msgspec.structs.replace(key, salt=self._random(_SALT_BYTES)))
            try:
                self._key_value.set_if(_record_key(access_key), encode_record(new.key), expected=raw)
            except Conflict:
                continue  # rotated or revoked concurrently: read it again
            self._forget()
            self._end([token.id for token in self._scan(access_key + _TOKEN_MARK)])
            return new
        raise _changing(access_key)

    def login(self, access_key: str, secret: str) -> NewAccessKey:
        """Create a token. Raises `InvalidRequest` (``unauthorized``). Cost: 1 scan, 1 write."""
        for _ in range(_TRIES_MAX):
            raw = self._key_value.get(_record_key(access_key)) if _is_id(access_key) else None
            key = None if raw is None else decode_record(raw, AccessKey, key=_record_key(access_key))
            if raw is None or key is None or key.parent is not None or not _matches(key, secret):
                raise _credentials_error()
            now_ms = self._environment.clock.now_ms()
            tokens = sorted(self._scan(access_key + _TOKEN_MARK), key=lambda token: token.created_at_ms)
            live_tokens = [token for token in tokens if (token.expires_at_ms or 0) > now_ms]
            keep = live_tokens[max(0, len(live_tokens) - self._options.tokens_per_key_max + 1) :]
            self._end([token.id for token in tokens if token not in keep])
            try:
                return self._store(
                    AccessKey(
                        f"{access_key}{_TOKEN_MARK}{b32encode(self._random(_ID_BYTES)).decode()}",
                        key.role,
                        self._random(_SALT_BYTES),
                        b"",
                        now_ms,
                        key.repositories,
                        expires_at_ms=now_ms + self._options.token_lifetime_s * 1000,
                        parent_salt=key.salt,
                        user=key.user,
                        user_uid=key.user_uid,
                        tables=key.tables,
                    ),
                    expected={_record_key(access_key): raw},
                )
            except Conflict:
                continue  # rotated or revoked concurrently: read it again
        raise _changing(access_key)

    def recall(self, credential: bytes) -> Principal | None:
        """Return the caller whose credential was verified recently; None: call `verify`. Cost: 1 us, no store call.

        Args:
            credential: the ``Authorization`` header. Only a keyed hash of it is kept.
        """
        cached = self._cache.get(self._digest(credential))
        if cached is None:
            return None
        clock = self._environment.clock
        if clock.monotonic_s() - cached.checked_at_s > self._options.key_recheck_s:
            return None
        if cached.expires_at_ms is not None and clock.now_ms() >= cached.expires_at_ms:
            return None
        return cached.principal

    def verify(self, credential: bytes, *, access_key: str, secret: str) -> Principal:
        """Verify a secret. Raises `InvalidRequest` (``unauthorized``). Cost: 1 GET, or 2 for a token.

        Args:
            credential: the key under which `recall` finds the result.
        """
        changes = self.changes
        key = self._load(access_key)
        if key is None or not _matches(key, secret):
            raise _credentials_error()
        if key.expires_at_ms is not None and self._environment.clock.now_ms() >= key.expires_at_ms:
            raise InvalidRequest("The token has expired: log in again.", kind="unauthorized")
        if key.parent is not None:
            parent = self._load(key.parent)
            if parent is None or not hmac.compare_digest(parent.salt, key.parent_salt):
                raise _credentials_error()
        principal = self._principal(key)
        cache = self._cache
        if changes == self.changes:
            if len(cache) >= _CACHED_MAX:
                cache.clear()
            now_s = self._environment.clock.monotonic_s()
            cache[self._digest(credential)] = _Verified(principal, now_s, key.expires_at_ms)
        return principal

    def holder(self, access_key: str) -> tuple[Principal, str]:
        """Return the caller who has an access key, and a text that changes whenever its secret does, for signatures.

        Raises `InvalidRequest` (``forbidden``) if the key is unknown or revoked. Cost: 1 GET.
        """
        key = self._load(access_key)
        if key is None or key.parent is not None:
            raise forbidden("The access key that this was made with is unknown or revoked: ask for it with another.")
        return self._principal(key), key.salt.hex()

    @property
    def has_signers(self) -> bool:
        """Whether secrets can be derived, and so signatures checked."""
        return self._secret_key is not None

    def recall_signer(self, access_key: str, scope: str) -> tuple[Principal, bytes] | None:
        """As `signer`, if it was called recently; None: call `signer`. Cost: 1 us, no store call."""
        cached = self._signers.get((access_key, scope))
        if cached is None or self._environment.clock.monotonic_s() - cached[2] > self._options.key_recheck_s:
            return None
        return cached[:2]

    def signer(self, access_key: str, scope: str) -> tuple[Principal, bytes]:
        """Return the caller who has an access key, and the key that it signs with in a scope of AWS's signatures.

        Args:
            scope: scope of version 4; empty: version 2, whose clients sign with the secret, which is not cached.

        Raises:
            InvalidRequest: kind ``InvalidAccessKeyId``: the key is unknown or revoked, or was made without the secret
                key of this server, and so cannot sign.

        Cost: 1 GET.
        """
        changes = self.changes
        key = self._load(access_key)
        if key is None or key.parent is not None:
            raise _no_signer("The AWS Access Key Id you provided does not exist in our records.")
        secret = self._derive(key)
        if secret is None or not _matches(key, secret):
            raise _no_signer(
                "The access key was made before the server had its S3 key, or with another one: rotate the access key."
            )
        try:
            principal = self._principal(key)
        except InvalidRequest as error:
            raise _no_signer(error.message) from error
        if not scope:
            return principal, secret.encode()
        signing_key = derive_key(secret, scope)
        if changes == self.changes:
            if len(self._signers) >= _CACHED_MAX:
                self._signers.clear()
            self._signers[access_key, scope] = principal, signing_key, self._environment.clock.monotonic_s()
        return principal, signing_key

    def _principal(self, key: AccessKey) -> Principal:
        """Return the caller who has a key. Raises `InvalidRequest` (``unauthorized``): its user was deleted."""
        key_id = key.parent or key.id
        if not key.id.startswith(_USER_ID_PREFIX):
            is_limited = key.repositories is not None or key.tables is not None
            return Principal(
                key_id,
                key.role,
                frozenset(key.repositories or ()) if is_limited else None,
                key.created_at_ms,
                frozenset(key.tables or ()) if is_limited else None,
            )
        identity = self.identity.read()
        user = identity.users.get(key.user)
        if user is None or user.uid != key.user_uid:
            raise InvalidRequest("The user of the access key was deleted: use a key of another.", kind="unauthorized")
        grants = identity.grants(key.user)
        role = grants.role(None)
        # Policies do not cover the tables of the lake: only users who may do everything may use them.
        tables: frozenset[str] | None = None if role == "admin" else frozenset()
        return Principal(key_id, role, None, user.created_at_ms, tables, user=key.user, grants=grants)

    def _derive(self, key: AccessKey) -> str | None:
        """Return the secret of a key that was made with the secret key; None: there is no secret key."""
        if self._secret_key is None:
            return None
        text = f"{key.id}\x00".encode() + key.salt
        digest = hashlib.blake2b(text, key=self._secret_key, digest_size=_SECRET_BYTES, person=_PERSON).digest()
        return urlsafe_b64encode(digest).decode()

    def _store(self, key: AccessKey, *, expected: Mapping[bytes, bytes | None] = {}) -> NewAccessKey:
        """Record a new key or token with a new secret. Raises `Conflict` unless records are as expected."""
        new = self._new(key)
        record_key = _record_key(key.id)
        self._key_value.write([(record_key, encode_record(new.key))], expected={record_key: None, **expected})
        return new

    def _new(self, key: AccessKey) -> NewAccessKey:
        """Give a key a new secret and salt. Draw both again if a command line would take the secret for an option."""
        while True:
            secret = self._derive(key) or urlsafe_b64encode(self._random(_SECRET_BYTES)).decode()
            if not secret.startswith("-"):
                return NewAccessKey(msgspec.structs.replace(key, secret_hash=_hash(key.salt, secret)), secret)
            key = msgspec.structs.replace(key, salt=self._random(_SALT_BYTES))

    def _end(self, ids: Sequence[str], *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        if ids:
            self._key_value.write(deletes=[_record_key(key_id) for key_id in ids], expected=expected)
            self._forget()

    def _forget(self) -> None:
        """Empty the cache, and keep running calls of `verify` from caching the older records that they have read."""
        self.changes += 1
        self._cache = {}
        self._signers = {}

    def _load(self, key_id: str) -> AccessKey | None:
        if not _is_id(key_id):
            return None
        key = _record_key(key_id)
        raw = self._key_value.get(key)
        return None if raw is None else decode_record(raw, AccessKey, key=key)

    def _scan(self, begins_with: str) -> Iterator[AccessKey]:
        start = _record_key(begins_with)
        with self._key_value.snapshot() as snapshot:
            for key, raw in snapshot.scan(start, prefix_end(start)):
                yield decode_record(raw, AccessKey, key=key)

    def _digest(self, credential: bytes) -> bytes:
        return hashlib.blake2b(credential, key=self._pepper, digest_size=_HASH_BYTES).digest()

    def _random(self, count: int) -> bytes:
        return self._environment.rng.getrandbits(8 * count).to_bytes(count, "big")


def _record_key(key_id: str) -> bytes:
    """Return the key of the record of an access key or token, or the prefix of such keys."""
    return user_key_key(key_id) if key_id.startswith(_USER_ID_PREFIX) else access_key_key(key_id)


def _no_signer(message: str) -> InvalidRequest:
    return InvalidRequest(message, kind="InvalidAccessKeyId")


def _is_id(text: str) -> bool:
    return 0 < len(text) <= _ID_CHARACTERS_MAX and text.isascii()


def _changing(access_key: str) -> Conflict:
    return Conflict(f"The access key {access_key} is being changed concurrently: try again.", kind="key_changed")


def _hash(salt: bytes, secret: str) -> bytes:
    return hashlib.blake2b(secret.encode(), key=salt, digest_size=_HASH_BYTES).digest()


def _matches(key: AccessKey, secret: str) -> bool:
    return hmac.compare_digest(_hash(key.salt, secret), key.secret_hash)


def _unknown(access_key: str) -> NotFound:
    return NotFound(f"There is no access key {access_key}: list the keys, and check the spelling.", kind="access_key")


def _credentials_error() -> InvalidRequest:
    return InvalidRequest(
        "The access key is unknown or revoked, or its secret is wrong: check both.", kind="unauthorized"
    )
