"""A key-value store that is read beside its owner: nothing is owned, nothing is written.

Owns: the refusal of writes. Invariants: each `get` and each snapshot reads what is durable in the database at the call,
by a reader of its own, so two of them never differ by less than what was written between. Snapshots end with
`NotFound` when a collector took their files away meanwhile: they are for commands, not for servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import pyarrow as pa

from lakebed.errors import Closed, InvalidRequest
from lakebed.key_value.port import PAIR_SCHEMA, check_key
from lakebed.kv.database_location import DatabaseLocation
from lakebed.kv.options import ReaderOptions
from lakebed.kv.reader import DatabaseReader

__all__ = ["ReadOnlyKeyValue"]

_OPTIONS: Final = ReaderOptions(follow_latest=True, background=False)


class ReadOnlyKeyValue:
    """As `KeyValue`; every write is an `InvalidRequest` of kind ``read_only``.

    Args:
        location: the database's.

    Raises:
        NotFound: there is no database.
    Cost: 1 LIST + 1 GET, 1 LIST of the log and 1 GET a log object that is in no file yet; the same for each call.
    """

    is_local = False

    def __init__(self, place: DatabaseLocation) -> None:
        self._place = place
        self._is_closed = False
        self.snapshot().close()

    def get(self, key: bytes) -> bytes | None:
        """As `KeyValue.get`."""
        with self.snapshot() as now:
            return now.get(key)

    def peek(self, key: bytes) -> bytes | None:
        """As `get`: there is no owner here who could know more."""
        return self.get(key)

    def snapshot(self) -> _Snapshot:
        """As `KeyValue.snapshot`."""
        if self._is_closed:
            raise Closed("The repositories were closed: open them again.")
        return _Snapshot(DatabaseReader.open(self._place, options=_OPTIONS))

    def set(self, key: bytes, value: bytes) -> NoReturn:
        """Refused."""
        self._refuse()

    def set_if(self, key: bytes, value: bytes | None, *, expected: bytes | None) -> NoReturn:
        """Refused."""
        self._refuse()

    def delete(self, key: bytes) -> NoReturn:
        """Refused."""
        self._refuse()

    def write(
        self,
        puts: Sequence[tuple[bytes, bytes]] = (),
        deletes: Iterable[bytes] = (),
        *,
        expected: Mapping[bytes, bytes | None] = {},
    ) -> NoReturn:
        """Refused."""
        self._refuse()

    def put_columns(self, keys: Any, values: Any, *, expected: Mapping[bytes, bytes | None] = {}) -> NoReturn:
        """Refused."""
        self._refuse()

    def maintain(self) -> NoReturn:
        """Refused."""
        self._refuse()

    def close(self) -> None:
        """End; again is fine."""
        self._is_closed = True

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(
            f"The repositories of {self._place.url} were opened to read: open them without read_only to change them.",
            kind="read_only",
        )


class _Snapshot:
    """One version of the database."""

    def __init__(self, reader: DatabaseReader) -> None:
        self._reader = reader

    def get(self, key: bytes) -> bytes | None:
        """As `KeyValueSnapshot.get`."""
        return self._reader.get(check_key(key))

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """As `KeyValueSnapshot.get_many`."""
        return self._reader.get_many([check_key(key) for key in keys])

    def scan(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """As `KeyValueSnapshot.scan`."""
        return self._reader.scan(start, end)

    def scan_arrow(self, start: bytes | None = None, end: bytes | None = None) -> Iterator[pa.RecordBatch]:
        """As `KeyValueSnapshot.scan_arrow`."""
        for batch in self._reader.scan_arrow(start, end):
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=PAIR_SCHEMA)

    def close(self) -> None:
        """Let the moment go; again is fine."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
