"""Read ranges and metaranges of lakeFS in its storage namespace, and check them against their ids.

Owns: their names, how an id is computed from contents, and the three metaranges of a dump. Invariants: rows are those
that the id names. The id is the SHA-256 of all keys, values and properties, so any damaged or exchanged file is
`Corruption`. Nothing is written here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from lakebed.decoding import decode_json
from lakebed.errors import Corruption, InvalidRequest, NotFound
from lakebed.objects.port import ObjectStore
from lakebed.repo.lakefs.messages import Identity, LakefsRange, decode_lakefs_range, split_value
from lakebed.repo.lakefs.sstable import SSTable
from lakebed.repo.model.layout import LAKEFS_FOLDER

MANIFEST_PATH: Final = f"{LAKEFS_FOLDER}/refs_manifest.json"
"""The file in which lakeFS's older operation for dumps writes their three ids."""
COMPUTED_PROPERTIES: Final = frozenset(("min_key", "max_key", "count", "estimated_size_bytes"))
"""Properties that are added after the id is computed, so they are not hashed."""
ID_CHARACTERS: Final = 64
"""Length of an id, which is a SHA-256 in hexadecimal."""
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_RANGES_KEPT_MAX: Final = 10_000
"""Most metaranges whose list of ranges is cached: a history names each a few times."""


class RefsDump(msgspec.Struct, frozen=True):
    """A dump of lakeFS: the ids of the metaranges that hold its commits, tags and branches."""

    commits_meta_range_id: str
    tags_meta_range_id: str
    branches_meta_range_id: str


def parse_refs_dump(text: bytes, *, where: str) -> RefsDump:
    """Parse the ids of a dump, as ``lakectl refs-dump`` prints them.

    Raises:
        InvalidRequest: kind ``invalid_dump``: it is not such a document.
    """
    try:
        dump = decode_json(text, RefsDump)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(
            f"{where} is not a dump of lakeFS ({error}): give what `lakectl refs-dump` has written.",
            kind="invalid_dump",
        ) from error
    check_dump(dump)
    return dump


def check_dump(dump: RefsDump) -> None:
    """Refuse ids that name no file of lakeFS. Raises `InvalidRequest` (``invalid_dump``)."""
    for field in dump.__struct_fields__:
        id = getattr(dump, field)
        if not is_range_id(id):
            raise InvalidRequest(
                f"{field} is {id!r}, and the id of a metarange has {ID_CHARACTERS} hexadecimal digits: give what "
                "`lakectl refs-dump` has written.",
                kind="invalid_dump",
            )


def is_range_id(text: str) -> bool:
    """Whether a text has the form of the id of a range or metarange."""
    return len(text) == ID_CHARACTERS and _HEXADECIMAL.issuperset(text)


def lakefs_range_path(id: str) -> str:
    """The path of a range's or metarange's file, relative to the namespace."""
    return f"{LAKEFS_FOLDER}/{id}"


def hash_rows(digest: Any, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Add rows to the hash of their range: for each key and value, its length in decimal digits, its bytes, a bar."""
    for key, value in rows:
        digest.update(b"%d%b|%d%b|" % (len(key), key, len(value), value))


def hash_properties(digest: Any, properties: Mapping[str, str]) -> None:
    """Add the properties of a range to its hash, except `COMPUTED_PROPERTIES`."""
    hashed = {key: value for key, value in properties.items() if key not in COMPUTED_PROPERTIES}
    digest.update(Identity().texts_by_text(hashed).content())


class LakefsNamespace:
    """The files of one lakeFS repository. Not thread-safe.

    Args:
        store: the storage namespace.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._ranges: dict[str, tuple[LakefsRange, ...]] = {}

    @property
    def url(self) -> str:
        """URL of the storage namespace."""
        return self._store.root_url

    def load_dump(self) -> RefsDump:
        """Load the latest dump of lakeFS's older operation, which writes the ids to `MANIFEST_PATH`.

        Raises:
            NotFound: kind ``dump_not_found``: there is none.
        Cost: 1 GET.
        """
        try:
            text = bytes(self._store.get(MANIFEST_PATH))
        except NotFound as error:
            raise NotFound(
                f"{self._store.url(MANIFEST_PATH)} is not there: give what `lakectl refs-dump` has printed (--refs).",
                kind="dump_not_found",
            ) from error
        return parse_refs_dump(text, where=self._store.url(MANIFEST_PATH))

    def rows(self, id: str) -> list[tuple[bytes, bytes]]:
        """Load keys and values of a range or metarange, sorted.

        Raises:
            NotFound: kind ``range_not_found``: its file is not in the namespace.
            Corruption: it is damaged, or its contents do not match the id.
        Cost: 1 GET; about 3 us a row.
        """
        path = lakefs_range_path(id)
        if not is_range_id(id):
            raise Corruption(f"{self.url} names a range {id!r}, which is no id.", path=self.url)
        try:
            content = bytes(self._store.get(path))
        except NotFound as error:
            raise NotFound(
                f"{self._store.url(path)} is not there: the namespace {self.url} is not the one that the dump was made "
                "of, or lakeFS's files in it were deleted.",
                kind="range_not_found",
                path=path,
            ) from error
        table = SSTable(content, path=self._store.url(path))
        rows = list(table.rows())
        digest = hashlib.sha256()
        hash_rows(digest, rows)
        without_properties = digest.hexdigest()  # the id of ranges in lakeFS's first versions
        hash_properties(digest, table.properties)
        if id not in (digest.hexdigest(), without_properties):
            raise Corruption(
                f"{self._store.url(path)} is damaged: its contents have the hash {digest.hexdigest()}.", path=path
            )
        return rows

    def ranges(self, metarange_id: str) -> tuple[LakefsRange, ...]:
        """Load the ranges of a metarange, in the order of their keys; none for the empty id. As `rows`, but cached."""
        if not metarange_id:
            return ()
        ranges = self._ranges.get(metarange_id)
        if ranges is None:
            ranges = tuple(decode_lakefs_range(value) for _, value in self.rows(metarange_id))
            _check_order(ranges, path=self._store.url(lakefs_range_path(metarange_id)))
            if len(self._ranges) >= _RANGES_KEPT_MAX:
                del self._ranges[next(iter(self._ranges))]
            self._ranges[metarange_id] = ranges
        return ranges

    def records(self, metarange_id: str) -> Iterator[bytes]:
        """Iterate over the data of every value of a metarange, in the order of keys. As `rows`."""
        for range_ in self.ranges(metarange_id):
            for _, value in self.rows(range_.id):
                yield split_value(value)[1]


def _check_order(ranges: Sequence[LakefsRange], *, path: str) -> None:
    before: bytes | None = None
    for range_ in ranges:
        if range_.first_key > range_.last_key or (before is not None and range_.first_key <= before):
            raise Corruption(
                f"{path} is damaged: its range {range_.id} is from {range_.first_key!r} to {range_.last_key!r}, behind "
                f"{before!r}.",
                path=path,
            )
        before = range_.last_key
