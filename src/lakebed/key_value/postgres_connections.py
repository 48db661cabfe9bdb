"""Connections to PostgreSQL: a bounded pool, the meaning of errors, and the outcome of a commit without a reply.

Owns: the use of psycopg, which is imported when the first connection is made, so that repositories on folders and
buckets work without it; and the translation of its errors.

Invariants:
- No message and no repr contains the URL or a password.
- One thread at a time uses a connection; for a snapshot, the thread that holds the snapshot's lock.
- A broken connection never goes back to the pool.
- A forked process neither uses nor closes a connection of its parent. Each of the two would read replies to the other,
  and closing a connection would end the parent's session.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar
from uuid import UUID

from lakebed.errors import Closed, InternalError, InvalidRequest, LakebedError, Unavailable
from lakebed.runtime import Environment, follow_forks
from lakebed.texts import host_in_url

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

R = TypeVar("R")

CONNECTIONS_MAX: Final = 12
"""Most connections of one pool. PostgreSQL allows 100 by default, for all its clients together."""

_DEFAULTS: Final = {
    "connect_timeout": 10,  # seconds
    "tcp_user_timeout": 60_000,  # milliseconds until a network that swallows everything is an error
    "keepalives_idle": 30,  # seconds
    "target_session_attrs": "read-write",
    "application_name": "lakebed",
}
"""Settings of libpq that a URL may change."""

_WAIT: Final = "SET LOCAL lock_timeout = 200"
_LOOK: Final = (
    "INSERT INTO lakebed_writers VALUES (%s, -1) ON CONFLICT (id) DO UPDATE SET number = lakebed_writers.number "
    "RETURNING number"
)

WAIT_TIMEOUT_S: Final = 30.0
"""How long a call waits for a connection if all are in use."""

_FOR_GOOD: Final = {
    "25006": "is read-only: name the primary, not a standby",
    "28000": "refused the user",
    "28P01": "refused the password",
    "3D000": "has no such database: create it first",
    "42501": "does not allow this user what is needed: grant it, or name the tables' owner",
}
"""Errors that a retry does not change, by SQLSTATE."""


def load_psycopg() -> Any:
    """Return the driver. Raises `InvalidRequest` when it is not installed."""
    try:
        return importlib.import_module("psycopg")
    except ImportError as error:
        raise InvalidRequest(
            "PostgreSQL was asked for, and psycopg is not installed: pip install 'lakebed[server]'.",
            kind="missing_package",
        ) from error


def raise_translated(error: Any, *, shown: str) -> NoReturn:
    """Raise the translation of an error of psycopg, for a call that has had no effect.

    Args:
        shown: the location, without secrets.

    Raises `Unavailable`, `InvalidRequest`, `InternalError`.
    """
    state = getattr(error, "sqlstate", None)
    words = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if state in _FOR_GOOD:
        raise InvalidRequest(f"PostgreSQL at {shown} {_FOR_GOOD[state]}.", kind="postgresql_refused") from error
    if isinstance(error, load_psycopg().OperationalError | load_psycopg().InterfaceError):
        if "password authentication failed" in words:  # while connecting there is no SQLSTATE
            raise InvalidRequest(f"PostgreSQL at {shown} {_FOR_GOOD['28P01']}.", kind="postgresql_refused") from error
        if "does not exist" in words:
            raise InvalidRequest(f"PostgreSQL at {shown} refused: {words}", kind="postgresql_refused") from error
        raise Unavailable(f"PostgreSQL at {shown} cannot be used now: {words}", sqlstate=state) from error
    raise InternalError(f"PostgreSQL at {shown} answered {state}: {words}", sqlstate=state) from error


class NumberedWrite(NamedTuple):
    """A transaction: its connection, and its number there."""

    writer: UUID
    number: int


class Connections:
    """A bounded pool. Thread-safe.

    Args:
        url: ``postgresql://user:password@host:port/database``, with any of libpq's parameters; or these as a mapping.
        count_max: most connections at once.

    Raises `InvalidRequest` for an invalid URL, or if psycopg is missing. Cost: no connection.
    """

    def __init__(
        self, url: str | Mapping[str, Any], *, environment: Environment, count_max: int = CONNECTIONS_MAX
    ) -> None:
        self._psycopg = load_psycopg()
        self._settings = _parse_url(url) if isinstance(url, str) else dict(url)
        host, port = self._settings.get("host", "localhost"), self._settings.get("port", "5432")
        self.shown = f"postgresql://{host_in_url(host)}:{port}/{self._settings.get('dbname', '')}"
        """The location, without user and password."""
        self._environment = environment
        self._changed = environment.runtime.condition()
        self._idle: list[Connection] = []
        self._count = 0
        self._count_max = count_max
        self._is_closed = False
        self._of_parents: list[Connection] = []
        """Connections of the processes from which this process was forked."""
        follow_forks(self, Connections._leave_parents)

    def _leave_parents(self) -> None:
        """Begin without connections, in a forked process."""
        self._of_parents += self._idle
        self._idle, self._count = [], 0

    def __repr__(self) -> str:
        return f"Connections({self.shown!r})"

    def another(self) -> Connections:
        """Another pool to the same location."""
        return Connections(self._settings, environment=self._environment, count_max=self._count_max)

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._is_closed:
            raise Closed(f"The key-value store {self.shown} was closed: open it again.")

    def connect(self) -> Connection:
        """Return a new connection, outside of the pool. Raises `Unavailable`, `InvalidRequest`. Cost: about 5 ms."""
        connection: Connection | None = None
        try:
            connection = self._psycopg.connect(**self._settings, autocommit=True)
            if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
                connection.execute("SET synchronous_commit TO on")  # what is acknowledged is durable
        except self._psycopg.Error as error:
            if connection is not None:
                connection.close()
            raise_translated(error, shown=self.shown)
        return connection

    def take(self, *, fresh: bool = False) -> tuple[Connection, bool]:
        """Take a connection from the pool. Return it, and whether it was used before; give it back with `give_back`.

        Args:
            fresh: make a new connection. The idle ones are assumed to be broken, and dropped.

        Raises `Closed`, `InvalidRequest`, and `Unavailable`, also if all are in use for `WAIT_TIMEOUT_S`.
        """
        clock = self._environment.clock
        ends_s = clock.monotonic_s() + WAIT_TIMEOUT_S
        with self._changed:
            if fresh:
                self._drop_idle()
            while True:
                self.check_open()
                if self._idle:
                    return self._idle.pop(), True
                if self._count < self._count_max:
                    self._count += 1
                    break
                left_s = ends_s - clock.monotonic_s()
                if left_s <= 0:
                    raise Unavailable(
                        f"All {self._count_max} connections to {self.shown} are in use: close snapshots that are not "
                        "read any more, and try again.",
                        kind="no_connection",
                    )
                self._changed.wait(left_s)
        try:
            return self.connect(), False
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()
            raise

    def give_back(self, connection: Connection) -> None:
        """Return a connection to the pool. Drop it if it is broken, or in a transaction that cannot be ended."""
        with suppress(self._psycopg.Error):
            if not connection.closed and connection.info.transaction_status:
                connection.execute("ROLLBACK")
        is_sound = not connection.closed and not connection.info.transaction_status
        with self._changed:
            if is_sound and not self._is_closed:
                self._idle.append(connection)
            else:
                self._count -= 1
            self._changed.notify_all()
        if not is_sound or self._is_closed:
            connection.close()

    @contextmanager
    def lent(self, *, fresh: bool = False) -> Iterator[tuple[Connection, bool]]:
        """Take a connection for a ``with`` block, and give it back."""
        connection, was_used = self.take(fresh=fresh)
        try:
            yield connection, was_used
        finally:
            self.give_back(connection)

    def ask(self, question: Callable[[Connection], R]) -> R:
        """Return the result of a query without effect. A connection that broke while it was idle is replaced, once.

        Raises `Unavailable`, `InvalidRequest`, `Closed`.
        """
        for fresh in (False, True):
            with self.lent(fresh=fresh) as (connection, was_used):
                try:
                    return question(connection)
                except self._psycopg.Error as error:
                    if not (was_used and connection.closed):
                        raise_translated(error, shown=self.shown)
        raise Unavailable(f"PostgreSQL at {self.shown} closes every connection.")

    def became_of(self, numbered: NumberedWrite) -> bool | None:
        """Return whether a transaction was committed; None: it has not ended yet.

        After True or False, it cannot be committed any more. ``pg_xact_status`` is not enough: after a crash the server
        assigns the ids of lost transactions again, so it may describe another transaction. The row that the transaction
        wrote is reliable. This call writes the same row, and so waits for the transaction.

        Raises `Unavailable` if the server does not answer.
        """

        def question(connection: Connection) -> int | None:
            try:
                with connection.transaction():
                    connection.execute(_WAIT)
                    row = connection.execute(_LOOK, [numbered.writer]).fetchone()
            except self._psycopg.errors.LockNotAvailable:
                return None
            return -1 if row is None else int(row[0])

        number = self.ask(question)
        return None if number is None else number == numbered.number

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._count -= len(self._idle)
        self._idle.clear()

    def close(self) -> None:
        """Close idle connections now, and the others when they are given back. Closing twice is a no-op."""
        with self._changed:
            self._is_closed = True
            self._drop_idle()
            self._changed.notify_all()


def _parse_url(url: str) -> dict[str, Any]:
    """Return the settings in a URL. Raises `InvalidRequest` with a message of its own: libpq's would show the URL."""
    conninfo = importlib.import_module("psycopg.conninfo")
    try:
        settings: dict[str, Any] = conninfo.conninfo_to_dict(url)
    except load_psycopg().Error:
        problem: LakebedError | None = InvalidRequest(
            "The URL of a PostgreSQL database is postgresql://user:password@host:port/database, with special "
            "characters of user and password percent-encoded, and the one given cannot be read.",
            kind="invalid_url",
        )
    else:
        problem = None
    if problem is not None:
        raise problem  # outside of the handler, so that the error that has the URL is not its context
    return {**_DEFAULTS, **settings}
