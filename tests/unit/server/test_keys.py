"""Access keys, without a server."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from lakebed.errors import InvalidRequest, NotFound, UnsupportedFormat
from lakebed.runtime import Environment
from lakebed.server.auth import may_see_all_tables, may_see_database, may_see_table
from lakebed.server.keys import AccessKeys, Principal
from lakebed.server.options import ServerOptions
from lakebed.server.permissions import Statement
from lakebed.testing.clock import ManualClock
from worlds.errors import raises
from worlds.memory_key_value import MemoryKeyValue

OPTIONS = ServerOptions(key_recheck_s=2.0, token_lifetime_s=60, tokens_per_key_max=3)


@pytest.fixture
def environment(clock: ManualClock) -> Environment:
    """Time and chance."""
    return Environment(clock=clock, rng=random.Random(7))


@pytest.fixture
def store() -> MemoryKeyValue:
    """Records."""
    return MemoryKeyValue()


@pytest.fixture
def keys(store: MemoryKeyValue, environment: Environment) -> AccessKeys:
    """The keys of one process."""
    return AccessKeys(store, environment=environment, options=OPTIONS)


def stored(store: MemoryKeyValue) -> bytes:
    """Everything that is stored."""
    with store.snapshot() as snapshot:
        return b"".join(key + value for key, value in snapshot.scan())


def test_no_record_holds_a_secret(keys: AccessKeys, store: MemoryKeyValue) -> None:
    """Of secrets and tokens only salted hashes are stored; equal hashes never, not even of equal secrets."""
    made = [keys.create(role="write"), keys.create(role="write")]
    token = keys.login(made[0].key.id, made[0].secret)
    for item in (*made, token):
        assert len(item.secret) == 40
        assert item.secret.encode() not in stored(store)
        assert item.secret not in repr(item)
    assert len({element.key.salt for element in (*made, token)}) == 3


@pytest.mark.parametrize("secret_key", [None, b"k" * 32])
def test_no_secret_looks_like_an_option(
    store: MemoryKeyValue, environment: Environment, secret_key: bytes | None
) -> None:
    """A secret is pasted behind options of command lines, such as those of `aws configure`: none begins with a dash."""
    keys = AccessKeys(store, environment=environment, options=OPTIONS, secret_key=secret_key)
    made = [keys.create(role="read") for _ in range(200)]
    secrets = [keys.rotate(made[0].key.id).secret, *(new.secret for new in made[1:])]
    assert not [secret for secret in secrets if secret.startswith("-")]
    for new in made[1:]:
        credential = f"{new.key.id}:{new.secret}".encode()
        assert keys.verify(credential, access_key=new.key.id, secret=new.secret).role == "read"


def test_what_another_process_revoked_ends_within_the_bound(
    keys: AccessKeys, store: MemoryKeyValue, environment: Environment, clock: ManualClock
) -> None:
    """A verified key is trusted for `key_recheck_s` without a look, and not longer."""
    made = keys.create(role="read")
    keys.create(role="admin")
    keys.verify(b"header", access_key=made.key.id, secret=made.secret)
    AccessKeys(store, environment=environment, options=OPTIONS).revoke(made.key.id)
    clock.advance(1.9)
    recalled = keys.recall(b"header")
    assert recalled is not None
    assert recalled.id == made.key.id
    clock.advance(0.2)
    assert keys.recall(b"header") is None
    with raises(InvalidRequest, "unauthorized"):
        keys.verify(b"header", access_key=made.key.id, secret=made.secret)


def test_a_token_ends_with_its_time(keys: AccessKeys, clock: ManualClock) -> None:
    """A token is good until it expires, also where it was verified a moment before."""
    made = keys.create(role="write", repositories=("abc",))
    token = keys.login(made.key.id, made.secret)
    clock.advance(59.5)
    principal = keys.verify(b"t", access_key=token.key.id, secret=token.secret)
    assert (principal.id, principal.role, principal.repositories) == (made.key.id, "write", frozenset({"abc"}))
    clock.advance(0.5)
    assert keys.recall(b"t") is None
    with pytest.raises(InvalidRequest, match="expired"):
        keys.verify(b"t", access_key=token.key.id, secret=token.secret)


def test_limits_of_tables_are_stored_whole_and_a_token_has_them(keys: AccessKeys) -> None:
    """A name without a database is in the default one; a server that knows no tables refuses everything to the key."""
    made = keys.create(role="read", tables=("flights", "shop.orders", "shop.*", "*"))
    token = keys.login(made.key.id, made.secret)
    assert made.key.tables == ("default.flights", "shop.orders", "shop.*", "*")
    assert made.key.repositories == ()
    principal = keys.verify(b"t", access_key=token.key.id, secret=token.secret)
    assert principal.tables == frozenset(made.key.tables)
    assert not principal.sees("analytics")
    rotated = keys.rotate(made.key.id)
    assert rotated.key.tables == made.key.tables
    assert keys.create(role="read", tables=("a.b",), repositories=("abc",)).key.repositories == ("abc",)


@pytest.mark.parametrize("text", ["", "*.*", "*.a", "a.b.c", "a/b", "../x.t", "a.b$branch_x", ".*", "a..b", "a*"])
def test_what_is_no_limit_of_tables_is_refused(keys: AccessKeys, text: str) -> None:
    """A limit that no table can match is a mistake, and makes no key."""
    with raises(InvalidRequest, "invalid_table_name"):
        keys.create(role="read", tables=(text,))
    assert keys.list() == []


@pytest.mark.parametrize(
    ("limits", "tables", "databases", "whole"),
    [
        (None, ["a.t", "a.u", "b.t"], ["a", "b"], ["a", "b"]),
        (["*"], ["a.t", "a.u", "b.t"], ["a", "b"], ["a", "b"]),
        (["a.*"], ["a.t", "a.u"], ["a"], ["a"]),
        (["a.t", "b.x"], ["a.t"], ["a", "b"], []),
        ([], [], [], []),
    ],
)
def test_what_limits_cover(limits: list[str] | None, tables: list[str], databases: list[str], whole: list[str]) -> None:
    """Tables, databases of which some table is seen, and databases of which every table is."""
    caller = Principal("k", "read", None, 0, None if limits is None else frozenset(limits))
    names = [("a", "t"), ("a", "u"), ("b", "t")]
    assert [f"{database}.{table}" for database, table in names if may_see_table(caller, database, table)] == tables
    assert [name for name in "ab" if may_see_database(caller, name)] == databases
    assert [name for name in "ab" if may_see_all_tables(caller, name)] == whole


def test_tokens_are_bounded_and_cleaned_up(keys: AccessKeys, store: MemoryKeyValue, clock: ManualClock) -> None:
    """A key has at most so many tokens; a login ends the oldest beyond them, and removes what has expired."""
    made = keys.create(role="write")
    tokens = []
    for _ in range(5):
        clock.advance(1)
        tokens.append(keys.login(made.key.id, made.secret))
    good = []
    for token in tokens:
        try:
            keys.verify(b"t", access_key=token.key.id, secret=token.secret)
            good.append(token)
        except InvalidRequest:
            continue
    assert good == tokens[2:]
    clock.advance(61)
    keys.login(made.key.id, made.secret)
    with store.snapshot() as snapshot:
        assert len(list(snapshot.scan())) == 2
    assert [key.id for key in keys.list()] == [made.key.id]


def test_a_token_makes_no_tokens(keys: AccessKeys) -> None:
    """A token cannot log in for another one, and cannot be rotated or revoked as a key."""
    made = keys.create(role="write")
    token = keys.login(made.key.id, made.secret)
    with pytest.raises(InvalidRequest):
        keys.login(token.key.id, token.secret)
    for verb in (keys.rotate, keys.revoke, keys.get):
        with pytest.raises(NotFound):
            verb(token.key.id)


def test_the_first_key_is_made_once(keys: AccessKeys) -> None:
    """The first key is created only when there is none."""
    first = keys.create_first()
    assert first is not None
    assert first.key.role == "admin"
    assert keys.create_first() is None


def test_the_cache_is_bounded(keys: AccessKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many credentials are sent, only so many are remembered."""
    monkeypatch.setattr("lakebed.server.keys._CACHED_MAX", 3)
    made = keys.create(role="read")
    for number in range(10):
        keys.verify(b"%d" % number, access_key=made.key.id, secret=made.secret)
        assert len(keys._cache) <= 3


def test_a_rotation_beside_a_verification_wins(
    keys: AccessKeys, store: MemoryKeyValue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is verified with a secret that is rotated at that very moment is not remembered."""
    made = keys.create(role="admin")
    read = store.get

    def rotate_behind_it(key: bytes) -> bytes | None:
        rows = read(key)
        monkeypatch.undo()
        keys.rotate(made.key.id)
        return rows

    monkeypatch.setattr(store, "get", rotate_behind_it)
    keys.verify(b"header", access_key=made.key.id, secret=made.secret)
    assert keys.recall(b"header") is None


@pytest.mark.parametrize("change", ["rotate", "revoke"])
@pytest.mark.parametrize("when", range(6))
def test_a_token_made_beside_a_change_of_its_key_is_dead(
    keys: AccessKeys, store: MemoryKeyValue, monkeypatch: pytest.MonkeyPatch, change: str, when: int
) -> None:
    """Whichever call of a login another process's rotation or revocation falls into, no token of it is valid after."""
    keys.create(role="admin")
    made = keys.create(role="write")
    others = AccessKeys(store, environment=Environment(rng=random.Random(8)), options=OPTIONS)
    calls = 0

    def beside(name: str) -> None:
        real = getattr(store, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == when + 1:
                getattr(others, change)(made.key.id)
            return real(*arguments, **settings)

        monkeypatch.setattr(store, name, call)

    for name in ("get", "snapshot", "write", "set_if"):
        beside(name)
    token = None
    with suppress(InvalidRequest):  # the secret was not right any more
        token = keys.login(made.key.id, made.secret)
    monkeypatch.undo()
    if calls <= when:  # the login was over before
        getattr(others, change)(made.key.id)
    if token is not None:
        with pytest.raises(InvalidRequest):
            keys.verify(b"new header", access_key=token.key.id, secret=token.secret)
    assert b"-" not in b"".join(key for key, _ in records(store))


@pytest.mark.parametrize("change", ["rotate", "revoke"])
def test_a_token_that_outlived_its_key_is_refused(keys: AccessKeys, store: MemoryKeyValue, change: str) -> None:
    """A token record that survived its key's rotation or revocation, as of a process that died in it, is refused."""
    keys.create(role="admin")
    made = keys.create(role="admin")
    token = keys.login(made.key.id, made.secret)
    keys.verify(b"a", access_key=token.key.id, secret=token.secret)
    [(place, raw)] = [(key, value) for key, value in records(store) if b"-" in key]
    getattr(keys, change)(made.key.id)
    store.set(place, raw)
    with pytest.raises(InvalidRequest):
        keys.verify(b"b", access_key=token.key.id, secret=token.secret)


def records(store: MemoryKeyValue) -> list[tuple[bytes, bytes]]:
    """All records."""
    with store.snapshot() as snapshot:
        return list(snapshot.scan())


def test_a_key_of_a_user_ends_with_the_user(
    keys: AccessKeys, store: MemoryKeyValue, environment: Environment, clock: ManualClock
) -> None:
    """Also in another process within `key_recheck_s`, and a user of the same name does not have it again."""
    keys.identity.create_user("ann")
    made = keys.create_of_user("ann")
    other = AccessKeys(store, environment=environment, options=OPTIONS)
    assert other.verify(b"header", access_key=made.key.id, secret=made.secret).user == "ann"
    keys.identity.delete_user("ann")  # a crash here leaves the record of the key
    clock.advance(2.1)
    assert other.recall(b"header") is None
    for _ in range(2):
        for process in (keys, other):
            with raises(InvalidRequest, "unauthorized"):
                process.verify(b"header", access_key=made.key.id, secret=made.secret)
        keys.identity.create_user("ann") if "ann" not in keys.identity.read().users else None
    assert keys.list_of_user("ann") == []


def test_a_token_of_a_user_is_the_users(keys: AccessKeys) -> None:
    """It may what the user may, and a policy that is detached ends that at once."""
    keys.identity.create_user("ann")
    made = keys.create_of_user("ann")
    keys.identity.attach("FSReadAll", user="ann")
    token = keys.login(made.key.id, made.secret)
    principal = keys.verify(b"token", access_key=token.key.id, secret=token.secret)
    assert (principal.user, principal.role) == ("ann", "read")
    keys.identity.detach("FSReadAll", user="ann")
    assert keys.recall(b"token") is None
    assert keys.verify(b"token", access_key=token.key.id, secret=token.secret).role is None


def test_keys_of_users_are_not_among_those_with_roles(keys: AccessKeys, store: MemoryKeyValue) -> None:
    """They are below a prefix of their own, so a server that knows no users knows none of them."""
    keys.identity.create_user("ann")
    made = keys.create_of_user("ann")
    assert keys.list() == []
    for ask in (keys.get, keys.revoke, keys.rotate):
        with pytest.raises(NotFound):
            ask(made.key.id)
    with store.snapshot() as snapshot:
        assert [key for key, _ in snapshot.scan(b"keys/", b"keys0")] == []


def test_users_are_changed_by_several_at_once(
    keys: AccessKeys, store: MemoryKeyValue, environment: Environment
) -> None:
    """Two processes that change users by turns lose nothing: each builds on what the other wrote."""
    other = AccessKeys(store, environment=environment, options=OPTIONS)
    for number in range(6):
        (keys, other)[number % 2].identity.create_user(f"user-{number}")
    assert sorted(keys.identity.read().users) == [f"user-{number}" for number in range(6)]
    assert keys.identity.read() == other.identity.read()


def test_a_key_of_a_user_who_is_deleted_at_that_moment_is_not_made(
    keys: AccessKeys, store: MemoryKeyValue, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write expects the users to be unchanged since the user was looked up."""
    other = AccessKeys(store, environment=environment, options=OPTIONS)
    keys.identity.create_user("ann")
    load = keys.identity.load

    def load_before_deletion() -> Any:
        result = load()
        if "ann" in result[1].users:
            other.delete_user("ann")
        return result

    monkeypatch.setattr(keys.identity, "load", load_before_deletion)
    with pytest.raises(NotFound):
        keys.create_of_user("ann")
    with store.snapshot() as snapshot:
        assert [key for key, _ in snapshot.scan(b"user-keys/", b"user-keys0")] == []


def test_two_admins_who_revoke_each_other_leave_one(store: MemoryKeyValue, environment: Environment) -> None:
    """Each looks, through a server of its own, and finds the other one: the second is refused as the last."""
    keys = AccessKeys(store, environment=environment, options=OPTIONS)
    first, second = keys.create(role="admin"), keys.create(role="admin")
    keys.create(role="read")
    refused: list[str] = []

    class Between(MemoryKeyValue):
        """Lets the other one be revoked before the first write."""

        def write(self, *args: Any, **named: Any) -> None:
            if not refused:
                refused.append("looked")
                keys.revoke(first.key.id)
            super().write(*args, **named)

    other = AccessKeys(Between(store.space), environment=environment, options=OPTIONS)
    with raises(InvalidRequest, "last_admin"):
        other.revoke(second.key.id)
    assert [key.id for key in keys.list() if key.role == "admin"] == [second.key.id]


@pytest.mark.parametrize("of_user", [False, True])
def test_a_key_with_a_limit_that_is_not_known_lets_nobody_in(
    keys: AccessKeys, store: MemoryKeyValue, of_user: bool
) -> None:
    """A newer server may have limited it by a field that this one does not know, and a rotation keeps the field."""
    keys.identity.create_user("ann")
    made = keys.create_of_user("ann") if of_user else keys.create(role="admin")
    key = (b"user-keys/" if of_user else b"keys/") + made.key.id.encode()
    raw = store.get(key)
    assert raw is not None
    newer = raw[:-1] + b',"only_from":["10.0.0.0/8"]}'
    store.set(key, newer)
    asks: list[Callable[[], object]] = [
        lambda: keys.verify(b"header", access_key=made.key.id, secret=made.secret),
        lambda: keys.login(made.key.id, made.secret),
        lambda: keys.signer(made.key.id, "20231114/us-east-1/s3"),
    ]
    for ask in asks if of_user else [*asks, lambda: keys.rotate(made.key.id)]:
        with pytest.raises(UnsupportedFormat, match=r"only_from.*upgrade lakebed"):
            ask()
    assert store.get(key) == newer


@pytest.mark.parametrize("kind", ["statement", "policy", "group", "user", "identity"])
def test_a_condition_of_a_policy_that_is_not_known_permits_nothing(
    keys: AccessKeys, store: MemoryKeyValue, kind: str
) -> None:
    """Nor is it dropped by a change of another user."""
    keys.identity.create_user("ann")
    keys.identity.create_group("all")
    keys.identity.set_member("all", "ann", is_member=True)
    keys.identity.create_policy("read", [Statement("allow", ("fs:*",), ("*",))])
    keys.identity.attach("read", user="ann")
    made = keys.create_of_user("ann")
    members = msgspec.json.decode(store.get(b"identity") or b"")
    policy = members["policies"]["read"]
    places = {"policy": policy, "statement": policy["statements"][0], "identity": members}
    places |= {"group": members["groups"]["all"], "user": members["users"]["ann"]}
    places[kind]["condition"] = {"ip": "10.0.0.0/8"}
    newer = msgspec.json.encode(members)
    store.set(b"identity", newer)
    other = AccessKeys(store, environment=Environment(), options=OPTIONS)
    for ask in (
        lambda: other.verify(b"header", access_key=made.key.id, secret=made.secret),
        lambda: other.identity.create_user("ben"),
    ):
        with pytest.raises(UnsupportedFormat, match=r"condition.*upgrade lakebed"):
            ask()
    assert store.get(b"identity") == newer
