"""Members of nested columns: changes of a type, and values of files that were written before such changes. Pure.

Owns: the paths that name members, and `carry_nested`. Invariants: a member is identified by its field id, as a column
is. A new member is null in older rows. Keys of maps do not change.

A path begins with the column; then come names of members, ``element`` inside an array and ``value`` inside a map:
``("orders", "element", "price")`` is the price in ``ARRAY<ROW<price: DOUBLE>>``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from lakebed.errors import InvalidRequest
from lakebed.table.model.types import NestedField, Type, arrow_type

Members = tuple[NestedField, ...]


def change_members(parsed: Type, path: Sequence[str], change: Callable[[Members], Members]) -> Type:
    """Return a type after one of its rows got other members.

    Args:
        parsed: the type of a column.
        path: the path to the row, without the column: empty where the column itself is the row.

    Raises `InvalidRequest`: the path does not lead to a row.
    """

    def change_row(row: Type) -> Type:
        if row.root != "ROW":
            raise _change_error(f"{row.text} has no fields: only those of a ROW can be changed.")
        return replace(row, fields=change(row.fields))

    return change_part(parsed, path, change_row)


def change_part(parsed: Type, path: Sequence[str], change: Callable[[Type], Type]) -> Type:
    """Return a type after the part at a path got another type.

    Raises `InvalidRequest`: the path does not lead to a part; and what `change` raises.
    """
    if not path:
        return change(parsed)
    step, rest = path[0], path[1:]
    if parsed.root == "ARRAY" and step == "element":
        return replace(parsed, children=(change_part(parsed.children[0], rest, change),))
    if parsed.root == "MAP" and step == "value":
        key, value = parsed.children
        return replace(parsed, children=(key, change_part(value, rest, change)))
    if parsed.root != "ROW":
        raise _change_error(f"{parsed.text} has no field {step!r} that can be changed.")
    member_of(parsed.fields, step)
    return replace(
        parsed,
        fields=tuple(
            replace(member, type=change_part(member.type, rest, change)) if member.name == step else member
            for member in parsed.fields
        ),
    )


def add_member(members: Members, member: NestedField, *, after: str | None, first: bool) -> Members:
    """Add a member, by default as the last one. Raises `InvalidRequest`: its name is taken."""
    refuse_taken(members, member.name)
    place = 0 if first else len(members)
    if after is not None:
        place = members.index(member_of(members, after)) + 1
    return (*members[:place], member, *members[place:])


def drop_member(members: Members, name: str) -> Members:
    """Drop a member. Raises `InvalidRequest`: it does not exist, or is the only member."""
    dropped_member = member_of(members, name)
    if len(members) == 1:
        raise _change_error(f"The field {name!r} is the only one and cannot be dropped: drop the column instead.")
    return tuple(member for member in members if member is not dropped_member)


def rename_member(members: Members, old: str, new: str) -> Members:
    """Rename a member; its values stay. Raises `InvalidRequest`: it does not exist, or the new name is taken."""
    old_member = member_of(members, old)
    refuse_taken(members, new)
    return tuple(replace(member, name=new) if member is old_member else member for member in members)


def member_of(members: Members, name: str) -> NestedField:
    """Return the member with this name. Raises `InvalidRequest`."""
    for member in members:
        if member.name == name:
            return member
    raise _change_error(f"There is no field {name!r}: there are {', '.join(member.name for member in members)}.")


def refuse_taken(members: Members, name: str) -> None:
    """Refuse a name that a member has already, or that is not a valid name."""
    if not name.strip():
        raise _change_error("A field's name must not be blank.")
    if any(member.name == name for member in members):
        raise _change_error(f"The field {name!r} exists already.")


def _change_error(sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, kind="invalid_schema_change")


def carry_nested(column: pa.ChunkedArray, stored: Type, wanted: Type) -> pa.ChunkedArray:
    """Return the values of a nested column with its present members: found by id, null where a file lacks them.

    Args:
        column: the column as a file has it.
        stored: the column's type in the schema that the file was written with.
        wanted: the present type, of the same shape except for the members of rows.

    Raises `pyarrow.ArrowInvalid`: a value does not fit a wider type. Cost: no copy, except for wider types.
    """
    return pa.chunked_array(
        [_carry(chunk, stored, wanted) for chunk in column.chunks], type=arrow_type(replace(wanted, nullable=True).text)
    )


def _carry(values: pa.Array, stored_type: Type, wanted_type: Type) -> pa.Array:
    target = arrow_type(replace(wanted_type, nullable=True).text)
    if wanted_type.root == "ROW":
        by_id = {member.id: member for member in stored_type.fields}
        children = [_member(values, by_id.get(member.id), member) for member in wanted_type.fields]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=values.is_null())
    if wanted_type.root == "ARRAY":
        return _with_child(values, target, _carry(values.values, stored_type.children[0], wanted_type.children[0]))
    if wanted_type.root == "MAP":
        keys, items = (
            _carry(part, stored_type.children[index], wanted_type.children[index])
            for index, part in enumerate((values.keys, values.items))
        )
        entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
        return _with_child(values, target, entries)
    return values if values.type == target else values.cast(target)


def _member(values: pa.StructArray, stored_field: NestedField | None, wanted_field: NestedField) -> pa.Array:
    position = -1 if stored_field is None else values.type.get_field_index(stored_field.name)
    if stored_field is None or position < 0:
        return pa.nulls(len(values), arrow_type(replace(wanted_field.type, nullable=True).text))
    return _carry(values.field(position), stored_field.type, wanted_field.type)


def _with_child(values: pa.Array, target: pa.DataType, child: pa.Array) -> pa.Array:
    """The same lists over other elements. `values` may be a slice that uses only some of the elements."""
    return pa.Array.from_buffers(target, len(values), values.buffers()[:2], offset=values.offset, children=[child])
