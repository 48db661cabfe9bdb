"""The key-value port over PostgreSQL, where several servers share one set of repositories.

Owns: the table and the function that writes. Why a write is linearizable:

- A write is one transaction that *locks* every row that it depends on, and holds the locks until its commit (two-phase
  locking). It locks the row of each key that it writes in exclusive mode, and the row of each key that it only expects
  in share mode. So the expected values hold at its commit, and no snapshot can fall between another writer's change of
  an expected key and this write. (PostgreSQL's SERIALIZABLE would allow that: its serial order may differ from the
  order of commits.)
- The absence of a key is locked as a row, too. A key that is expected to be absent, and is, gets a row whose value is
  null. Readers do not see such a row. A later put gives it a value, and a delete removes it. Many writers may share its
  lock.
- Locks are taken in the order of the keys, so writes never deadlock with each other. If PostgreSQL ends a transaction
  for a deadlock nevertheless, it is tried again.
- Each transaction stores its number in a row that belongs to its connection. When the reply to a commit is lost, that
  row tells whether it was committed: at once, or before the next read. Until that is known, no read is answered. (The
  transaction's id cannot tell: after a crash the server forgets ids that were not on disk, and assigns them again.)

A snapshot is a REPEATABLE READ transaction with its own connection, read in pages by key. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID
from weakref import WeakKeyDictionary

import pyarrow as pa

from lakebed.backoff import Backoff, Pauses
from lakebed.errors import (
    Closed,
    InvalidRequest,
    LakebedError,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedFormat,
)
from lakebed.key_value.port import (
    Change,
    KeyValue,
    KeyValueSnapshot,
    check_key,
    pair_batch,
    validate_bounds,
    validate_change,
    validate_columns,
    value_conflict,
)
from lakebed.key_value.postgres_connections import Connections, NumberedWrite, load_psycopg, raise_translated
from lakebed.runtime import Environment

if TYPE_CHECKING:
    import psycopg

    from lakebed.key_value.postgres_connections import Connection

FORMAT: Final = 1
"""Version of the tables' format. A newer version is refused."""

_SERVER_VERSION_MIN: Final = 13_00_00  # for pg_xact_status of xid8
_SETUP_LOCK: Final = 0x6C616B65626564  # any number that no other program uses: "lakebed"
_ONE_CALL_KEY_COUNT_MAX: Final = 64
"""Most keys that a write handles key by key, in one call. Larger writes use statements over many rows."""
_STATEMENT_ROW_COUNT_MAX: Final = 10_000
_STATEMENT_BYTES_MAX: Final = 8 << 20
_PAGE_ROW_COUNT: Final = 500
_PAGE_ROW_COUNT_MAX: Final = 20_000
_PAGE_BYTES: Final = 4 << 20
_TRIES_MAX: Final = 8
_PAUSES: Final = Pauses(0.01, 1.0, jitter=1.0)
_SETTLE_TRIES_MAX: Final = 40
_SETTLE_PAUSES: Final = Pauses(0.005, 0.5)
_RETRIED: Final = {"40001", "40P01"}  # serialization failure, deadlock

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS lakebed_format (version int NOT NULL);
CREATE TABLE IF NOT EXISTS lakebed_pairs (key bytea PRIMARY KEY, value bytea);
CREATE TABLE IF NOT EXISTS lakebed_writers (
    id uuid PRIMARY KEY, number bigint NOT NULL, used_at timestamptz NOT NULL DEFAULT now()
);
"""
"""A row of the last table belongs to one connection, and has the number of its last committed transaction."""

_FUNCTION: Final = """
CREATE OR REPLACE FUNCTION lakebed_write(
    keys bytea[], is_written bool[], news bytea[], is_expected bool[], olds bytea[]
) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
    there bytea;
BEGIN
    FOR i IN 1 .. coalesce(array_length(keys, 1), 0) LOOP
        IF is_expected[i] THEN
            LOOP
                IF is_written[i] THEN
                    SELECT value INTO there FROM lakebed_pairs WHERE key = keys[i] FOR UPDATE;
                ELSE
                    SELECT value INTO there FROM lakebed_pairs WHERE key = keys[i] FOR SHARE;
                END IF;
                EXIT WHEN FOUND;
                IF olds[i] IS NOT NULL THEN
                    RETURN keys[i];
                END IF;
                INSERT INTO lakebed_pairs VALUES (keys[i], NULL) ON CONFLICT DO NOTHING;
            END LOOP;
            IF there IS DISTINCT FROM olds[i] THEN
                RETURN keys[i];
            END IF;
        END IF;
        IF is_written[i] AND news[i] IS NULL THEN
            DELETE FROM lakebed_pairs WHERE key = keys[i];
        ELSIF is_written[i] THEN
            INSERT INTO lakebed_pairs VALUES (keys[i], news[i]) ON CONFLICT (key) DO UPDATE SET value = excluded.value;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
"""
"""Lock, check and write keys, which ascend. Returns the first key whose value is not as expected, or null."""

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_STORE_NUMBER: Final = (
    "INSERT INTO lakebed_writers VALUES (%b, %b) "
    "ON CONFLICT (id) DO UPDATE SET number = excluded.number, used_at = now()"
)
_FORGET: Final = "DELETE FROM lakebed_writers WHERE used_at < now() - interval '30 days'"
_WRITE: Final = "SELECT lakebed_write(%b::bytea[], %b::bool[], %b::bytea[], %b::bool[], %b::bytea[])"
_PUT_MANY: Final = (
    "INSERT INTO lakebed_pairs SELECT * FROM unnest(%b::bytea[], %b::bytea[]) ON CONFLICT (key) DO UPDATE SET "
    "value = excluded.value"
)
_DELETE_MANY: Final = "DELETE FROM lakebed_pairs WHERE key = ANY(%b::bytea[])"
_GET: Final = "SELECT value FROM lakebed_pairs WHERE key = %b"
_GET_MANY: Final = "SELECT key, value FROM lakebed_pairs WHERE key = ANY(%b::bytea[]) AND value IS NOT NULL"


def open_postgres(url: str, *, environment: Environment, create: bool = True) -> PostgresKeyValue:
    """Open the tables in a PostgreSQL database, in the schema that its search path names first.

    Args:
        url: ``postgresql://user:password@host:port/database``.
        create: create the tables if they are missing.

    Raises:
        NotFound: kind ``database_not_found``; there are no tables, and `create` is False.
        InvalidRequest: the URL, the user or the database is invalid, or psycopg is missing.
        UnsupportedFormat: a newer lakebed made the tables.
        Unavailable: the server does not answer.
    Cost: 1 connection and 2 statements; some more to create.
    """
    connections = Connections(url, environment=environment)
    try:
        connections.ask(lambda connection: _check_or_create(connection, shown=connections.shown, create=create))
    except BaseException:
        connections.close()
        raise
    return PostgresKeyValue(connections, environment=environment)


def _check_or_create(connection: Connection, *, shown: str, create: bool) -> None:
    if connection.info.server_version < _SERVER_VERSION_MIN:
        raise InvalidRequest(
            f"PostgreSQL at {shown} is of version {connection.info.server_version // 10_000}, and 13 or newer is "
            "needed.",
            kind="postgresql_refused",
        )
    version = _version(connection)
    if version is None:
        if not create:
            raise NotFound(f"There are no repositories in {shown}.", kind="database_not_found", url=shown)
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SETUP_LOCK])
            version = _version(connection)
            if version is None:
                connection.execute(_TABLES)
                connection.execute(_FUNCTION)
                connection.execute("INSERT INTO lakebed_format VALUES (%s)", [FORMAT])
                version = FORMAT
    elif create:
        connection.execute(_FORGET)
    if version != FORMAT:
        raise UnsupportedFormat(
            f"The tables in {shown} have format {version}, and this lakebed knows {FORMAT}: upgrade it.", url=shown
        )


def _version(connection: Connection) -> int | None:
    """Return the format of the existing tables; None: there are no tables."""
    if connection.execute("SELECT to_regclass('lakebed_format')").fetchone() == (None,):
        return None
    row = connection.execute("SELECT max(version) FROM lakebed_format").fetchone()
    return None if row is None else row[0]


class PostgresSnapshot(KeyValueSnapshot):
    """Made by `PostgresKeyValue.snapshot`. Has a connection until it is closed."""

    def __init__(self, connections: Connections, connection: Connection, *, environment: Environment) -> None:
        self._connections = connections
        self._connection: Connection | None = connection
        self._lock = environment.runtime.lock()
        self._process = os.getpid()

    def _rows(self, query: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._lock:  # of this connection: a second caller waits for it anyway
            connection = self._require_connection()
            try:
                return connection.execute(query, parameters, binary=True).fetchall()
            except load_psycopg().Error as error:
                raise_translated(error, shown=self._connections.shown)

    def _require_connection(self) -> Connection:
        if self._process != os.getpid():
            raise Closed("The snapshot belongs to the process that this one was forked from: take a new one.")
        if self._connection is None:
            raise Closed("The snapshot was closed: take a new one.")
        return self._connection

    def get(self, key: bytes) -> bytes | None:
        """Cost: 1 round trip."""
        rows = self._rows(_GET, [check_key(key)])
        return rows[0][0] if rows else None

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Cost: 1 round trip a ten thousand keys."""
        checked_keys = [check_key(key) for key in keys]
        self._require_connection()
        values: dict[bytes, bytes] = {}
        remaining = iter(dict.fromkeys(checked_keys))
        while batch := list(islice(remaining, _STATEMENT_ROW_COUNT_MAX)):
            values.update(self._rows(_GET_MANY, [batch]))
        return [values.get(key) for key in checked_keys]

    def _pages(self, start: bytes | None, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        bounds = validate_bounds(start, end)
        self._require_connection()
        return iter(()) if bounds is None else self._page_after_page(*bounds)

    def _page_after_page(self, start: bytes | None, end: bytes | None) -> Iterator[list[tuple[bytes, bytes]]]:
        after, count = start or b"", _PAGE_ROW_COUNT
        comparison = ">="
        while True:
            end_condition = "" if end is None else "AND key < %b "
            query = (
                f"SELECT key, value FROM lakebed_pairs WHERE key {comparison} %b {end_condition}AND value IS NOT NULL "
                "ORDER BY key LIMIT %b"
            )
            page = self._rows(query, [after, *([] if end is None else [end]), count])
            if page:
                yield page
            if len(page) < count:
                return
            after, comparison = page[-1][0], ">"
            size = sum(len(key) + len(value) for key, value in page)
            count = max(1, min(_PAGE_ROW_COUNT_MAX, _PAGE_BYTES * count // max(1, size)))

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Cost: 1 round trip a page of 4 MiB, or of twenty thousand rows."""
        return (pair for page in self._pages(start, end) for pair in page)

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """A batch is a page."""
        return (pair_batch(*zip(*page, strict=True)) for page in self._pages(start, end))

    def close(self) -> None:
        """Return the connection to the pool. In a forked process it stays with the parent."""
        if self._process != os.getpid():
            return
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.give_back(connection)


class PostgresKeyValue(KeyValue):
    """The port over tables; see `lakebed.key_value.port.KeyValue` for what each call promises.

    Args:
        connections: for reads and writes, closed by `close`; snapshots have as many of their own.
    """

    is_local = False

    def __init__(self, connections: Connections, *, environment: Environment) -> None:
        self._connections = connections
        self._for_snapshots = connections.another()
        self._environment = environment
        self._psycopg = load_psycopg()
        self._lock = environment.runtime.lock()
        self._writers: WeakKeyDictionary[Connection, NumberedWrite] = WeakKeyDictionary()
        """The last transaction of each connection."""
        self._unresolved: frozenset[NumberedWrite] = frozenset()
        """Transactions whose commit was sent, and not answered."""

    def get(self, key: bytes) -> bytes | None:
        """Cost: 1 round trip."""
        check_key(key)
        self._resolve_outcomes()
        row = self._connections.ask(lambda connection: connection.execute(_GET, [key], binary=True).fetchone())
        return None if row is None else row[0]

    def peek(self, key: bytes) -> bytes | None:
        """The same as `get`, because other processes write, too."""
        return self.get(key)

    def snapshot(self) -> PostgresSnapshot:
        """Cost: 1 round trip, and a connection until it is closed."""
        self._connections.check_open()
        self._resolve_outcomes()
        for fresh in (False, True):
            connection, was_used = self._for_snapshots.take(fresh=fresh)
            try:
                with connection.pipeline():
                    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    connection.execute("SELECT 1")  # the moment is that of the first query
                return PostgresSnapshot(self._for_snapshots, connection, environment=self._environment)
            except self._psycopg.Error as error:
                is_stale = was_used and connection.closed
                self._for_snapshots.give_back(connection)
                if not is_stale:
                    raise_translated(error, shown=self._connections.shown)
        raise Unavailable(f"PostgreSQL at {self._connections.shown} closes every connection.")

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> None:
        """Cost: 2 round trips, and for many rows 1 more for every ten thousand rows or 8 MiB."""
        self._write(validate_change(puts, deletes, expected))

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> None:
        """Cost: as `write`."""
        columns = validate_columns(keys, values, expected)
        self._write(Change(dict(zip(*columns, strict=True)), (), expected))

    def _write(self, change: Change) -> None:
        """Begin, lock, check, write and commit. After a deadlock, repeat; after a stale connection, on a new one."""
        self._connections.check_open()
        if not (change.puts or change.deletes or change.expected):
            return
        fresh, failure = False, None
        for _ in Backoff(self._environment, _PAUSES, attempts_max=_TRIES_MAX):
            with self._connections.lent(fresh=fresh) as (connection, was_used):
                try:
                    numbered = self._next_number(connection)
                    wrong = _write_change(connection, change, numbered)
                except self._psycopg.Error as error:
                    fresh = was_used and connection.closed
                    if not fresh and error.sqlstate not in _RETRIED:
                        raise_translated(error, shown=self._connections.shown)
                    failure = error
                else:
                    if wrong is not None:
                        raise value_conflict(wrong)
                    self._commit(connection, numbered)
                    return
        raise Unavailable(
            f"A write to {self._connections.shown} met others {_TRIES_MAX} times: try again.", kind="contention"
        ) from failure

    def _next_number(self, connection: Connection) -> NumberedWrite:
        """Return the number that the next transaction of a connection stores. No other transaction ever stores it."""
        with self._lock:
            last = self._writers.get(connection)
            if last is None:
                last = NumberedWrite(UUID(int=self._environment.rng.getrandbits(128)), 0)
            self._writers[connection] = after = NumberedWrite(last.writer, last.number + 1)
            return after

    def _commit(self, connection: Connection, numbered: NumberedWrite) -> None:
        try:
            connection.execute("COMMIT")
            return
        except self._psycopg.Error as error:
            lost_error = error
        connection.close()  # nothing else may be written by it: its row is the answer
        with self._lock:
            self._unresolved |= {numbered}
        try:
            is_committed = self._wait_for_outcome(numbered)
        except LakebedError as unanswered:
            raise OutcomeUnknown(
                f"The connection to {self._connections.shown} was lost during a commit, and the server cannot be asked "
                "yet what became of it: read before trying again.",
                kind="commit_unanswered",
            ) from unanswered
        if not is_committed:
            raise_translated(lost_error, shown=self._connections.shown)

    def _wait_for_outcome(self, numbered: NumberedWrite) -> bool:
        """Return whether a transaction was committed. Raises `Unavailable` if that is not known yet."""
        for _ in Backoff(self._environment, _SETTLE_PAUSES, attempts_max=_SETTLE_TRIES_MAX):
            is_committed = self._connections.became_of(numbered)
            if is_committed is not None:
                with self._lock:
                    self._unresolved -= {numbered}
                return is_committed
        raise Unavailable(f"A commit to {self._connections.shown} does not end: try again later.", kind="slow_commit")

    def _resolve_outcomes(self) -> None:
        """Resolve the outcome of commits whose replies were lost, before a read. Raises `Unavailable`."""
        for numbered in self._unresolved:
            self._wait_for_outcome(numbered)

    def maintain(self) -> None:
        """Do nothing: the database server vacuums by itself."""

    def close(self) -> None:
        """Open snapshots stay open."""
        self._connections.close()
        self._for_snapshots.close()

    def __repr__(self) -> str:
        return f"PostgresKeyValue({self._connections.shown!r})"


def _write_change(connection: Connection, change: Change, numbered: NumberedWrite) -> bytes | None:
    """Begin a transaction, make the change and store its number. Return the first unexpected key, if any."""
    news: dict[bytes, bytes | None] = {**dict.fromkeys(change.deletes), **change.puts}
    expected = change.expected
    keys = sorted(news.keys() | expected.keys())
    if len(keys) <= _ONE_CALL_KEY_COUNT_MAX:
        with connection.pipeline():
            connection.execute(_BEGIN)
            connection.execute(_STORE_NUMBER, numbered)
            cursor = _call(connection, keys, news, expected)
        return _only(cursor)
    connection.execute(_BEGIN)
    for is_expected, group in groupby(keys, key=expected.__contains__):
        if is_expected:
            wrong = _only(_call(connection, list(group), news, expected))
            if wrong is not None:
                return wrong
        else:
            for statement in _statements((key, news[key]) for key in group):
                connection.execute(_PUT_MANY, statement)
    # These are ours already, as rows without a value: nothing is waited for, whatever the order.
    deleted_keys = [key for key in change.deletes if key not in expected]
    for start in range(0, len(deleted_keys), _STATEMENT_ROW_COUNT_MAX):
        connection.execute(_DELETE_MANY, [deleted_keys[start : start + _STATEMENT_ROW_COUNT_MAX]])
    connection.execute(_STORE_NUMBER, numbered)
    return None


def _call(
    connection: Connection,
    keys: list[bytes],
    news: Mapping[bytes, bytes | None],
    expected: Mapping[bytes, bytes | None],
) -> psycopg.Cursor[tuple[Any, ...]]:
    """Call the function for some keys, which ascend."""
    parameters = [
        keys,
        [key in news for key in keys],
        [news.get(key) for key in keys],
        [key in expected for key in keys],
        [expected.get(key) for key in keys],
    ]
    return connection.execute(_WRITE, parameters, binary=True)


def _only(cursor: psycopg.Cursor[tuple[Any, ...]]) -> bytes | None:
    row = cursor.fetchone()
    assert row is not None, "a SELECT without FROM has a row"
    wrong: bytes | None = row[0]
    return wrong


def _statements(rows: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[list[bytes], list[bytes | None]]]:
    """Rows in portions that fit into one statement."""
    keys: list[bytes] = []
    values: list[bytes | None] = []
    size = 0
    for key, value in rows:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value or b"")
        if len(keys) == _STATEMENT_ROW_COUNT_MAX or size >= _STATEMENT_BYTES_MAX:
            yield keys, values
            keys, values, size = [], [], 0
    if keys:
        yield keys, values
