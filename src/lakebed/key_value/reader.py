"""Read a key-value store while another process owns it. A reader owns and writes nothing.

Invariants: each `get` and each snapshot opens its own reader, and reads what is durable in the database at the call.
A snapshot fails with `NotFound` if a collection deletes its files meanwhile: use it in commands, not in servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from lakebed.errors import Closed, InvalidRequest
from lakebed.key_value.database import DatabaseSnapshot
from lakebed.key_value.port import KeyValue
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import ReaderOptions
from lakebed.kv.reader import DatabaseReader

_OPTIONS: Final = ReaderOptions(follow_latest=True, background=False)


class ReadOnlyKeyValue(KeyValue):
    """As `KeyValue`; every write is an `InvalidRequest` of kind ``read_only``.

    Raises:
        NotFound: there is no database.
    Cost: 1 LIST + 1 GET, 1 LIST of the log, and 1 GET for each log object that is in no file yet; the same for each
    call.
    """

    is_local = False

    def __init__(self, location: DatabaseLocation) -> None:
        self._location = location
        self._is_closed = False
        self.snapshot().close()

    def get(self, key: bytes) -> bytes | None:
        with self.snapshot() as now:
            return now.get(key)

    def peek(self, key: bytes) -> bytes | None:
        """As `get`."""
        return self.get(key)

    def snapshot(self) -> DatabaseSnapshot:
        if self._is_closed:
            raise Closed("The repositories were closed: open them again.")
        return DatabaseSnapshot(DatabaseReader.open(self._location, options=_OPTIONS))

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> NoReturn:
        self._refuse()

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> NoReturn:
        self._refuse()

    def maintain(self) -> NoReturn:
        self._refuse()

    def close(self) -> None:
        self._is_closed = True

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(
            f"The repositories of {self._location.url} were opened to read: open them without read_only to change "
            "them.",
            kind="read_only",
        )
