"""Avro files of few records, decoded record by record. Pure.

Owns: `leaves_of` and `FewRecords`. Decoding whole columns has a fixed cost that equals some hundred records. Most
manifests of a table with frequent commits, and most lists, have fewer. Invariants: the results and the errors are those
of `avro.decode_columns`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from lakebed.table.codec.avro_container import LENGTHS_KEY, Cursor, DamageError, Header, unpack_lengths


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field that is not a record and not inside an optional record."""

    path: str
    read: Callable[[Cursor], Any]
    type: pa.DataType


@lru_cache(maxsize=64)
def leaves_of(schema_json: bytes) -> tuple[Leaf, ...] | None:
    """The fields of a file's records in order; None for a schema that `read_few` does not support."""
    leaves: list[Leaf] = []

    def is_plain(record: Any, prefix: str) -> bool:
        for field in record["fields"]:
            kind, name = field["type"], prefix + field["name"]
            if isinstance(kind, dict) and kind["type"] == "record":
                if not is_plain(kind, name + "."):
                    return False
                continue
            read = _read_of(kind)
            if read is None:
                return False
            leaves.append(Leaf(name, read, arrow_type(kind)))
        return True

    schema = resolve_type(json.loads(schema_json), {})
    is_record = isinstance(schema, dict) and schema["type"] == "record"
    return tuple(leaves) if is_record and is_plain(schema, "") else None


def _read_of(kind: Any) -> Callable[[Cursor], Any] | None:
    if kind in ("int", "long"):
        return Cursor.long
    if kind == "bytes":
        return lambda reader: reader.bytes(reader.long())
    if kind == "string":
        return lambda reader: reader.bytes(reader.long()).decode()
    if isinstance(kind, list):
        inner = _read_of(next((branch for branch in kind if branch != "null"), None))
        return None if inner is None or len(kind) != 2 or "null" not in kind else _optional(inner, kind.index("null"))
    if isinstance(kind, dict) and kind["type"] == "array":
        items = _element_of(kind["items"])
        return None if items is None else _several(items)
    return None


def _element_of(kind: Any) -> Callable[[Cursor], Any] | None:
    """Returns the reader of an element of an array: of a field, or of a record."""
    if isinstance(kind, list) and len(kind) == 2 and "null" in kind and is_record(kind):
        some = _element_of(kind[1 - kind.index("null")])
        return None if some is None else _optional(some, kind.index("null"))
    if not is_record(kind):
        return _read_of(kind)
    members = [(field["name"], _read_of(field["type"])) for field in kind["fields"]]
    reads = [(name, read) for name, read in members if read is not None]
    return _record(reads) if len(reads) == len(members) else None


def _record(members: list[tuple[str, Callable[[Cursor], Any]]]) -> Callable[[Cursor], dict[str, Any]]:
    return lambda reader: {name: read(reader) for name, read in members}


def _optional(inner: Callable[[Cursor], Any], null_index: int) -> Callable[[Cursor], Any]:
    def read(reader: Cursor) -> Any:
        branch = reader.long()
        if branch not in (0, 1):
            raise DamageError("a union names a branch that it does not have")
        return None if branch == null_index else inner(reader)

    return read


def _several(items: Callable[[Cursor], Any]) -> Callable[[Cursor], list[Any]]:
    def read(reader: Cursor) -> list[Any]:
        values: list[Any] = []
        while (count := reader.long()) != 0:
            if count < 0:
                reader.long()
            if abs(count) > len(reader.data):
                raise DamageError("an array claims more elements than there are bytes")
            values += [items(reader) for _ in range(abs(count))]
        return values

    return read


@dataclass(frozen=True, slots=True)
class FewRecords:
    """Few records, as Python values. Arrow's fixed cost for some of them is higher than the cost of decoding them."""

    leaves: tuple[Leaf, ...]
    rows: list[list[Any]]

    def values(self) -> dict[str, list[Any]]:
        """The values of each field, by its path."""
        columns = zip(*self.rows, strict=True) if self.rows else (() for _ in self.leaves)
        return {leaf.path: list(column) for leaf, column in zip(self.leaves, columns, strict=True)}

    def columns(self, narrow: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
        """The same values as Arrow arrays. Raises what Arrow raises for a value that its type cannot hold.

        Args:
            narrow: types of integers, by path, instead of int64. So Arrow's cast, which takes 20 ms to load, is not
                needed.
        """
        # Convert all columns in one Arrow call: the fixed cost of a call equals the conversion of a hundred values.
        types = [narrow.get(leaf.path, leaf.type) if leaf.type == pa.int64() else leaf.type for leaf in self.leaves]
        paths = [leaf.path for leaf in self.leaves]
        records = pa.array(
            [dict(zip(paths, row, strict=True)) for row in self.rows], pa.struct(list(zip(paths, types, strict=True)))
        )
        return dict(zip(paths, records.flatten(), strict=True))


def read_few(leaves: tuple[Leaf, ...], header: Header, counts: list[int], blocks: list[bytes]) -> FewRecords:
    """The records of a file with few of them, by a loop."""
    reads = [leaf.read for leaf in leaves]
    rows: list[list[Any]] = []
    lengths: list[int] = []
    for count, block in zip(counts, blocks, strict=True):
        reader = Cursor(block)
        for _ in range(count):
            start = reader.position
            rows.append([read(reader) for read in reads])
            lengths.append(reader.position - start)
        if reader.position != len(block):
            raise DamageError("a block's records do not fill it")
    packed_lengths = header.entries.get(LENGTHS_KEY)
    if packed_lengths is not None and unpack_lengths(packed_lengths).tolist() != lengths:
        raise DamageError("a record does not end where the next one begins")
    return FewRecords(leaves, rows)


_PRIMITIVES: Final = {"int": pa.int64(), "long": pa.int64(), "bytes": pa.binary(), "string": pa.string()}


def resolve_type(kind: Any, names: dict[str, Any]) -> Any:
    """A type with references to named types replaced by the types, and one-branch wrappers removed."""
    if isinstance(kind, str):
        return names.get(kind, kind)
    if isinstance(kind, list):
        return [resolve_type(branch, names) for branch in kind]
    inner = kind["type"]
    if inner == "record":
        fields = [{"name": field["name"], "type": resolve_type(field["type"], names)} for field in kind["fields"]]
        resolved_type: Any = {"type": "record", "fields": fields}
    elif inner == "array":
        resolved_type = {"type": "array", "items": resolve_type(kind["items"], names)}
    elif inner in ("fixed", "enum", "map"):
        resolved_type = kind
    else:
        return resolve_type(inner, names)
    if "name" in kind:
        names[kind["name"]] = names[kind["name"].rpartition(".")[2]] = resolved_type
        if kind.get("namespace"):
            names[f"{kind['namespace']}.{kind['name']}"] = resolved_type
    return resolved_type


def is_record(kind: Any) -> bool:
    """Whether a kind is a record, or an optional one."""
    if isinstance(kind, list):
        return any(is_record(branch) for branch in kind)
    return isinstance(kind, dict) and kind["type"] == "record"


def arrow_type(kind: Any) -> pa.DataType:
    """The Arrow type of a field, or of an element of an array; numbers are int64."""
    if isinstance(kind, list):
        return arrow_type(next(branch for branch in kind if branch != "null"))
    if is_record(kind):
        return pa.struct([(field["name"], arrow_type(field["type"])) for field in kind["fields"]])
    if isinstance(kind, dict):
        return pa.list_(arrow_type(kind["items"])) if kind["type"] == "array" else pa.int64()
    return _PRIMITIVES.get(kind, pa.null())
