"""Data files outside the table's folder: the locations of new files, and which files belong to the table.

Owns: the choice of a location for a new file (`Targets`), all roots in the table's schemas (`Roots`), and the test
whether the table may delete a file with an external path (`OwnFiles`). Folders and URL texts are those of the format's
Java implementation (DO NOT CHANGE: other clients find files by them).

Invariants:
- A root may be shared with other tables and other files. A file below it belongs to the table in two cases only: a
  manifest entry of the table names it at exactly the location that the table's options yield, or its name has the
  table's mark (`owner_of`), which only writers of this table use.
- The mark depends on the table's first schema, its URL and the location of the file. So a table that is created under
  the name of one that was moved away has other marks, and so has a copy of a table's folder. A copy of a file at
  another location, as a clone makes it, has no valid mark.
- In a branch of a repository no external file belongs to the table: commits of the repository may need it.

Docs: docs/format/layout.md, docs/design/0035-external-paths.md.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

import lakebed.compute as pc
from lakebed.errors import InvalidRequest, NotFound
from lakebed.ids import new_uuid
from lakebed.objects.open import open_elsewhere
from lakebed.objects.port import ObjectMeta, ObjectStore
from lakebed.table.codec.ragged import one_array
from lakebed.table.codec.row_codes import distinct_rows
from lakebed.table.files.placement import Placement
from lakebed.table.model.external_paths import ENTROPY, ExternalPaths
from lakebed.table.model.layout import Layout, parse_schema
from lakebed.table.model.model import TableSchema
from lakebed.table.model.options import EXTERNAL_PATHS_STRATEGY
from lakebed.table.schema.schema import decode_schema

BoolArray = npt.NDArray[np.bool_]
U32 = npt.NDArray[np.uint32]
FoldersOf = Callable[[bytes, int], tuple[str, ...]]

_ENTROPY_FOLDERS: Final = r"(/[01]{4}){3}/[01]{8}$"
_MARK_DIGITS: Final = 15
"""DO NOT CHANGE: names of files contain marks of this length."""
MARKED_NAME: Final = (
    r"(?P<a>[0-9a-f]{8})-(?P<b>[0-9a-f]{4})-8(?P<c>[0-9a-f]{3})-[89ab][0-9a-f]{3}-[0-9a-f]{12}-[0-9]+\.parquet$"
)
"""The end of a file name with a mark: a UUID of version 8, which no other file has."""


# ---- new files


@dataclass(frozen=True, slots=True)
class FileLocation:
    """The location of a new file."""

    store: ObjectStore
    """The store of the root."""
    path: str
    """The path in that store."""
    name: str
    url: str
    """The URL for the manifest entry."""


class Targets:
    """Chooses names and locations of the new files of one writer. Thread-safe."""

    def __init__(self, store: ObjectStore, paths: ExternalPaths, *, owner: str | None, rng: random.Random) -> None:
        self._store = store
        self._paths = paths
        self._owner = owner
        self._rng = rng
        self._turns = itertools.count(rng.randrange(len(paths.roots)))
        self._opened: dict[str, ObjectStore] = {}

    def next_location(self, folder: str, *, prefix: str, number: int) -> FileLocation:
        """The location of the next file.

        Args:
            folder: the bucket's folder, relative to the table's.
            prefix, number: the first and the last part of the file's name.
        """
        if self._paths.weights is not None:
            (root,) = self._rng.choices(self._paths.roots, self._paths.weights)
        else:
            root = self._paths.roots[next(self._turns) % len(self._paths.roots)]
        is_hashed = self._paths.strategy == ENTROPY
        name = f"{prefix}{self._uuid(f'{root}/{folder}', is_hashed=is_hashed)}-{number}.parquet"
        path = f"{folder}/{entropy_folders([name])[0]}/{name}" if is_hashed else f"{folder}/{name}"
        root_store = self._opened.get(root)
        if root_store is None:
            root_store = self._opened.setdefault(root, open_elsewhere(self._store, root))
        return FileLocation(root_store, path, name, f"{root}/{path}")

    def _uuid(self, folder: str, *, is_hashed: bool) -> str:
        """A random UUID with the table's mark (version 8); without a mark version 4."""
        if self._owner is None:
            return new_uuid(self._rng)
        mark = int(_mark(self._owner, folder, is_hashed=is_hashed), 16)
        number = (mark >> 12) << 80 | 8 << 76 | (mark & 0xFFF) << 64 | 2 << 62 | self._rng.getrandbits(62)
        return str(uuid.UUID(int=number))


def targets_of(store: ObjectStore, schema: TableSchema, *, rng: random.Random) -> Targets | None:
    """The `Targets` of a table; None for a table without external paths.

    Raises `InvalidRequest`: invalid options, or a table with external paths in a branch of a repository. Cost: nothing
    without external paths, else 1 GET.
    """
    paths = ExternalPaths.of(schema.options)
    if not paths.roots:
        return None
    if store.is_versioned:
        raise InvalidRequest(
            f"The table at {store.root_url} has the option {EXTERNAL_PATHS_STRATEGY.name} = {paths.strategy!r} and is "
            "in a branch of a repository, which keeps no versions of files outside of it: set the strategy to 'none', "
            "then write.",
            kind="unsupported_option",
            option=EXTERNAL_PATHS_STRATEGY.name,
        )
    return Targets(store, paths, owner=owner_of(store), rng=rng)


def owner_of(store: ObjectStore) -> str | None:
    """The identity of a table in the marks of its files; None without a first schema. Cost: 1 GET."""
    try:
        first = bytes(store.get(Layout().schema(0)))
    except NotFound:
        return None
    return hashlib.sha256(store.root_url.encode() + b"\n" + first).hexdigest()


def _mark(owner: str, folder: str, *, is_hashed: bool) -> str:
    """The mark in the names of a table's files in one folder: 60 bits, as hexadecimal digits.

    A copy of such a file at another location does not have the mark of that location.
    """
    text = f"{owner}\n{folder}\n{ENTROPY if is_hashed else ''}"
    return hashlib.sha256(text.encode()).hexdigest()[:_MARK_DIGITS]


def names_of(paths: pa.Array) -> pa.Array:
    """The last part of each path.

    It is unique among data files, manifests and index files, whatever folder they are in. A folder's name may contain a
    line break, because other clients write values of partitions unescaped.
    """
    return pc.replace_substring_regex(paths, r"(?s)^.*/", "")


def is_marked(urls: pa.Array, owner: str) -> BoolArray:
    """Which URLs have a file name with the table's mark for the URL's folder."""
    folder_urls = pc.replace_substring_regex(urls, r"/[^/]*$", "")
    names = names_of(urls)
    folders = pc.replace_substring_regex(folder_urls, _ENTROPY_FOLDERS, "")
    is_plain = _flags(pc.equal(folders, folder_urls))
    parts = pc.extract_regex(names, MARKED_NAME).flatten()
    marks = pc.binary_join_element_wise(*parts, "")
    result = np.zeros(len(urls), np.bool_)
    for is_hashed, rows in ((False, np.flatnonzero(is_plain)), (True, np.flatnonzero(~is_plain))):
        selection = pa.array(rows)
        distinct = folders.take(selection).dictionary_encode()
        expected_marks = [_mark(owner, folder, is_hashed=is_hashed) for folder in distinct.dictionary.to_pylist()]
        result[rows] = _flags(
            pc.fill_null(
                pc.equal(marks.take(selection), pa.array(expected_marks, pa.string()).take(distinct.indices)), False
            )
        )
    rows = np.flatnonzero(result & ~is_plain)
    selection = pa.array(rows)
    entropy_parts = pa.array(entropy_folders(names.take(selection).to_pylist()), pa.string())
    expected_urls = pc.binary_join_element_wise(folders.take(selection), entropy_parts, "/")
    result[rows] = _flags(pc.equal(expected_urls, folder_urls.take(selection)))
    return result


def entropy_folders(names: list[str]) -> list[str]:
    """The folders between bucket and file with the strategy ``entropy-inject``: ``0101/1100/0011/10010110``.

    They are the low 20 bits of the name's Murmur3 hash (32 bit, seed 0).
    """
    bodies = [name.encode() for name in names]
    folders = [""] * len(names)
    lengths = np.array([len(body) for body in bodies], np.int64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        matrix = np.frombuffer(b"".join(bodies[row] for row in rows), np.uint8).reshape(len(rows), length)
        for row, code in zip(rows.tolist(), _murmur(matrix).tolist(), strict=True):
            bits = f"{code & 0xFFFFF:020b}"
            folders[row] = f"{bits[:4]}/{bits[4:8]}/{bits[8:12]}/{bits[12:]}"
    return folders


def _murmur(texts: npt.NDArray[np.uint8]) -> U32:
    """Murmur3 (32 bit, seed 0) of equally long texts, one in each row."""
    count, length = texts.shape
    padded = np.zeros((count, (length + 3) // 4 * 4), np.uint8)
    padded[:, :length] = texts
    words: U32 = padded.view("<u4").astype(np.uint32)
    state: U32 = np.zeros(count, np.uint32)
    for column in range(words.shape[1]):
        mixed = words[:, column] * np.uint32(0xCC9E2D51)
        mixed = ((mixed << np.uint32(15)) | (mixed >> np.uint32(17))) * np.uint32(0x1B873593)
        state = state ^ mixed
        if column < length // 4:
            state = ((state << np.uint32(13)) | (state >> np.uint32(19))) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(length)
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


# ---- files that are there


@dataclass(frozen=True, slots=True)
class Roots:
    """The external roots in all schemas of a table."""

    plain: tuple[str, ...] = ()
    entropy: tuple[str, ...] = ()
    """Roots with folders of hashes."""

    @property
    def every(self) -> tuple[str, ...]:
        """Each root once."""
        return tuple(dict.fromkeys((*self.plain, *self.entropy)))

    @classmethod
    def of(cls, schemas: Iterable[TableSchema]) -> Roots:
        """The roots in some schemas; a schema with invalid options has none."""
        plain: dict[str, None] = {}
        entropy: dict[str, None] = {}
        for schema in schemas:
            try:
                paths = ExternalPaths.of(schema.options)
            except InvalidRequest:
                continue  # lakebed never wrote files with such a schema
            (entropy if paths.strategy == ENTROPY else plain).update(dict.fromkeys(paths.roots))
        return cls(tuple(plain), tuple(entropy))


def roots_of(store: ObjectStore, paths: Iterable[str] | None = None) -> Roots:
    """The external roots of a table, from all its schemas and those of its branches.

    Args:
        paths: a listing of the table's folder; None: list it.

    Raises `Corruption`: a schema is not readable. Cost: 1 GET a schema, and without `paths` 2 LISTs or more.
    """
    if paths is None:
        layout = Layout()
        metas = itertools.chain(store.list(layout.schema_folder), store.list(layout.branch_folder))
        paths = [meta.path for meta in metas]
    bodies = {bytes(store.get(path)): path for path in paths if parse_schema(path) is not None}
    return Roots.of(decode_schema(body, path=path) for body, path in bodies.items())


@dataclass(slots=True)
class OwnFiles:
    """Decides which files with an external path are at the locations that the table's options yield. For one operation.

    Args:
        folders_of: ``(partition, bucket)`` -> the bucket's folders, relative to the table's.
    """

    store: ObjectStore
    folders_of: FoldersOf
    _roots: Roots | None = field(default=None, init=False)

    def among(self, files: pa.Table) -> BoolArray:
        """Which files are the table's own.

        Args:
            files: columns ``partition``, ``bucket``, ``file_name`` and ``external_path``, which is never null.

        Raises: as `roots_of`.
        Cost: that of `roots_of` once.
        """
        if self.store.is_versioned or files.num_rows == 0:
            return np.zeros(files.num_rows, np.bool_)
        if self._roots is None:
            self._roots = roots_of(self.store)
        buckets, numbers = distinct_rows(("partition", "bucket"), files)
        folders = [self.folders_of(partition, bucket) for partition, bucket in buckets]
        urls, names = (one_array(files[name]) for name in ("external_path", "file_name"))
        folder_urls = pc.replace_substring_regex(urls, r"/[^/]*$", "")
        is_named = pc.equal(pc.binary_join_element_wise(folder_urls, names, "/"), urls)
        is_plain = _are_in(folder_urls, numbers, folders, self._roots.plain)
        return _flags(is_named) & (is_plain | self._are_hashed(folder_urls, names, numbers, folders))

    def _are_hashed(
        self, folder_urls: pa.Array, names: pa.Array, numbers: npt.NDArray[np.int64], folders: list[tuple[str, ...]]
    ) -> BoolArray:
        """Which files are in the folders that the hashes of their names yield."""
        assert self._roots is not None
        parent_urls = pc.replace_substring_regex(folder_urls, _ENTROPY_FOLDERS, "")
        is_hashed = _are_in(parent_urls, numbers, folders, self._roots.entropy)
        rows = np.flatnonzero(is_hashed)
        entropy_parts = entropy_folders(names.take(pa.array(rows)).to_pylist())
        expected_urls = pc.binary_join_element_wise(
            parent_urls.take(pa.array(rows)), pa.array(entropy_parts, pa.string()), "/"
        )
        is_hashed[rows] = _flags(pc.equal(expected_urls, folder_urls.take(pa.array(rows))))
        return is_hashed


def _are_in(
    folder_urls: pa.Array, numbers: npt.NDArray[np.int64], folders: list[tuple[str, ...]], roots: tuple[str, ...]
) -> BoolArray:
    """Which folders are the folder of the file's bucket below some root; `numbers` are positions of buckets."""
    allowed_keys = [
        f"{number} {root}/{folder}"
        for number, alternatives in enumerate(folders)
        for folder in alternatives
        for root in roots
    ]
    keys = pc.binary_join_element_wise(pa.array(numbers).cast(pa.string()), folder_urls, " ")
    return _flags(pc.is_in(keys, value_set=pa.array(allowed_keys, pa.string())))


def list_root(store: ObjectStore, root: str, schema: TableSchema) -> Iterator[ObjectMeta]:
    """The objects in the folders of buckets below an external root of a table, by their URLs.

    Cost: 1 LIST for each folder of partitions and 1 for each thousand files.
    """
    place = open_elsewhere(store, root)
    for folder in _bucket_folders(place, Placement.of(schema).directory, depth=len(schema.partition_keys)):
        for meta in place.list(folder):
            yield replace(meta, path=f"{root}/{meta.path}")


def _bucket_folders(place: ObjectStore, prefix: str, *, depth: int) -> Iterator[str]:
    """Folders of buckets below a folder, under `depth` levels of partitions."""
    for folder in place.list_with_delimiter(prefix).folders:
        name = folder.rpartition("/")[2]
        if depth == 0:
            if re.fullmatch(r"bucket-(-?[0-9]+|postpone)", name):
                yield folder
        elif "=" in name:
            yield from _bucket_folders(place, folder, depth=depth - 1)


def _flags(column: Any) -> BoolArray:
    flags: BoolArray = column.to_numpy(zero_copy_only=False).astype(np.bool_)
    return flags
