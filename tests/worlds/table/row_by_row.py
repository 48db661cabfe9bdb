"""What a merge engine gives for the rows of one key, applied one by one: the oracle of the tests of engines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyroaring

Row = Mapping[str, Any]
BY_ARRIVAL = ("sum", "product", "max", "min", "bool_and", "bool_or", "rbm32", "collect", "collect_distinct")
"""Functions for which a late row of a group is a row like any other."""
Event = tuple[bool, Any]
"""Whether a row is taken back, and its value in one column."""


def ordered(value: Any) -> Any:
    """NaN is above all numbers, -0.0 below 0.0."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value, math.copysign(1, value) if value == 0 else 0)
    return value


def blank(text: str | None) -> bool:
    """Whether a text is left out of a list."""
    return text is None or not text.strip()


def step(name: str, state: Any, event: Event) -> Any:
    """The next state of an aggregate function; None is a null."""
    taken_back, value = event
    if taken_back:
        return _retracted(name, state, value)
    match name:
        case "last_value":
            return value
        case "last_non_null_value":
            return state if value is None else value
        case "first_non_null_value":
            return value if state is None else state
        case "listagg" | "listagg_distinct" if blank(state) or blank(value):
            return (None if blank(value) else value) if blank(state) else state
        case "nested_update" | "nested_update_by_key" if value is not None:
            rows = [row for row in (*(state or ()), *value) if row is not None]
            keys = [_nested_key(name, row) for row in rows]
            newest = [row for at, row in enumerate(rows) if keys[at] not in keys[at + 1 :]]
            return newest if name == "nested_update_by_key" else rows
        case _ if state is None or value is None:
            return (
                (dict.fromkeys(value) if name == "collect_distinct" else value)
                if state is None and value
                else (value if state is None else state)
            )
        case "sum":
            return state + value
        case "product":
            return state * value
        case "max":
            return max(state, value, key=ordered)
        case "min":
            return min(state, value, key=ordered)
        case "bool_and":
            return state and value
        case "bool_or":
            return state or value
        case "rbm32":
            sets = [set(pyroaring.BitMap.deserialize(body)) for body in (state, value)]
            return pyroaring.BitMap(set.union(*sets)).serialize()
        case "listagg":
            return f"{state},{value}"
        case "listagg_distinct":
            parts = state.split(",")
            for part in value.split(","):
                if part not in parts and part.strip():
                    parts.append(part)
            return ",".join(parts)
        case "collect":
            return [*state, *value]
        case "collect_distinct":
            return {**dict.fromkeys(state), **dict.fromkeys(value)}
        case "merge_map":
            return {**dict(state), **dict(value)}
    raise AssertionError(name)


def _nested_key(name: str, row: Row) -> Any:
    """By what rows in an array are compared."""
    return row["k"] if name == "nested_update_by_key" else row


def _retracted(name: str, state: Any, value: Any) -> Any:
    match name:
        case "last_value":
            return None
        case "last_non_null_value":
            return state if value is None else None
        case "sum":
            return (None if value is None else -value) if state is None else state if value is None else state - value
        case _ if state is None or value is None:
            return state
        case "product":
            return int(state / value)
        case "collect":
            left = list(state)
            for element in value:
                if element in left:
                    left.remove(element)
            return left
        case "collect_distinct":
            return {element: None for element in state if element not in value}
        case "nested_update" | "nested_update_by_key":
            keys = [_nested_key(name, row) for row in value if row is not None]
            return [row for row in state if row is not None and _nested_key(name, row) not in keys]
        case "merge_map":
            gone = dict(value)
            return {key: item for key, item in dict(state).items() if key not in gone}
    raise AssertionError(f"{name} takes no row back")


@dataclass(frozen=True, slots=True)
class Column:
    """A column's function and whether it ignores rows that are taken back."""

    name: str
    ignores: bool = False

    def of(self, events: Sequence[Event]) -> Any:
        """The value of some rows, oldest first."""
        seen = [event for event in events if not (self.ignores and event[0])]
        if self.name == "first_value":
            return seen[0][1] if seen else None
        state = None
        for event in seen:
            state = step(self.name, state, event)
        return list(state) if self.name == "collect_distinct" and state is not None else state


def aggregated(rows: Sequence[tuple[bool, Row]], columns: Mapping[str, Column], *, removes: bool) -> Row | None:
    """The row of a key by the engine ``aggregation``; None: there is none."""
    if removes:
        last = max((number for number, (gone, _) in enumerate(rows) if gone), default=-1)
        rows = rows[last + 1 :]
    if not rows or (len(rows) == 1 and rows[0][0]):
        return None
    if len(rows) == 1:
        return rows[0][1]
    made = {name: column.of([(gone, row[name]) for gone, row in rows]) for name, column in columns.items()}
    return {**rows[-1][1], **made}


@dataclass(frozen=True, slots=True)
class Groups:
    """The sequence groups of a table: the columns of each, by its sequence columns."""

    columns: Mapping[tuple[str, ...], Sequence[str]]
    functions: Mapping[str, Column]

    def values(self, rows: Sequence[tuple[bool, Row]], sequence: tuple[str, ...]) -> dict[str, Any]:
        """The values of one group's columns, its rows applied one by one."""
        names = self.columns[sequence]
        made: dict[str, Any] = dict.fromkeys((*sequence, *names))
        events: dict[str, list[Event]] = {name: [] for name in names}
        highest: tuple[Any, ...] | None = None
        for gone, row in rows:
            if all(row[name] is None for name in sequence):
                continue
            age = tuple((row[name] is not None, ordered(row[name])) for name in sequence)
            is_newer = highest is None or age >= highest
            if is_newer:
                highest = age
                made.update({name: row[name] for name in sequence})
            for name in names:
                event = (gone, row[name])
                if name not in self.functions:
                    made[name] = (None if gone else row[name]) if is_newer else made[name]
                elif is_newer or gone or self.functions[name].name in BY_ARRIVAL:
                    events[name].append(event)
                else:
                    events[name].insert(0, event)
        return {**made, **{name: self.functions[name].of(events[name]) for name in names if name in self.functions}}


def updated(rows: Sequence[tuple[bool, Row]], *, groups: Groups, deletes: str) -> Row | None:
    """The row of a key by the engine ``partial-update``.

    Args:
        deletes: ``ignore``, ``remove`` or ``retract``.
    """
    if deletes == "ignore":
        rows = [row for row in rows if not row[0]]
    if deletes == "remove":
        last = max((number for number, (gone, _) in enumerate(rows) if gone), default=-1)
        rows = rows[last + 1 :]
    if not rows or all(gone for gone, _ in rows):
        return None
    if len(rows) == 1:
        return rows[0][1]
    made: dict[str, Any] = dict(rows[-1][1])
    for name in made:
        made[name] = next((row[name] for gone, row in reversed(rows) if not gone and row[name] is not None), None)
    for sequence in groups.columns:
        made.update(groups.values(rows, sequence))
    return made
