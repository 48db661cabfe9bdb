"""Kinds of Avro fields: references resolved, and the Arrow type of each. Pure."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

_PRIMITIVES: Final = {"int": pa.int64(), "long": pa.int64(), "bytes": pa.binary(), "string": pa.string()}


def resolve_type(kind: Any, names: dict[str, Any]) -> Any:
    """A type with references to named types replaced by what they name, and one-branch wrappers removed."""
    if isinstance(kind, str):
        return names.get(kind, kind)
    if isinstance(kind, list):
        return [resolve_type(branch, names) for branch in kind]
    inner = kind["type"]
    if inner == "record":
        fields = [{"name": field["name"], "type": resolve_type(field["type"], names)} for field in kind["fields"]]
        whole: Any = {"type": "record", "fields": fields}
    elif inner == "array":
        whole = {"type": "array", "items": resolve_type(kind["items"], names)}
    elif inner in ("fixed", "enum", "map"):
        whole = kind
    else:
        return resolve_type(inner, names)
    if "name" in kind:
        names[kind["name"]] = names[kind["name"].rpartition(".")[2]] = whole
        if kind.get("namespace"):
            names[f"{kind['namespace']}.{kind['name']}"] = whole
    return whole


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
