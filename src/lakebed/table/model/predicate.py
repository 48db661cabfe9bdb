"""Predicates on rows: checked against columns, translated to Arrow.

Owns: `bind`, which checks a predicate against columns, and its translation to Arrow. The tree is in
`predicate_tree.py`, the text parser in `predicate_text.py`, the values in `literal.py`. `file_stats.py` decides by
statistics which files cannot match.

Invariants: every user of a predicate calls `bind` first; calling it again changes nothing. A filter of many terms is
never passed to Arrow as one expression (`mask_of`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import pyarrow as pa

import lakebed.compute as pc
from lakebed.errors import InvalidRequest
from lakebed.table.model.literal import bind_comparison, bind_list
from lakebed.table.model.predicate_tree import And, Compare, In, IsNull, Known, Not, OneOf, Or, Predicate, StartsWith

T = TypeVar("T")
EXPRESSION_TERMS_MAX: Final = 200
"""Limit of comparisons in one Arrow expression."""
_GATHERED_MIN: Final = 3
"""So many ``=`` of one column joined by OR (or ``<>`` by AND), or more, become one IN, which is one lookup."""


def bind(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """The predicate with its columns checked and its values converted to Arrow, in the columns' types.

    Raises:
        InvalidRequest: a column that does not exist (suggests the nearest), or a value that cannot be compared with it.
    """
    if isinstance(predicate, Or):
        return Or(tuple(bind(part, schema) for part in _gather(predicate.parts, "=")))
    if isinstance(predicate, And):
        return And(tuple(bind(part, schema) for part in _gather(predicate.parts, "<>")))
    if isinstance(predicate, Not):
        return Not(bind(predicate.part, schema))
    assert isinstance(predicate, Compare | In | IsNull | StartsWith | OneOf | Known)
    kind = _type_in(schema, predicate.column)
    if isinstance(predicate, Compare):
        return bind_comparison(predicate.column, predicate.op, predicate.value, kind)
    if isinstance(predicate, In) and predicate.values:
        return bind_list(predicate.column, predicate.values, kind)
    if isinstance(predicate, StartsWith) and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise InvalidRequest(
            f"LIKE needs a text column; {predicate.column!r} is {kind}.",
            kind="invalid_predicate",
            column=predicate.column,
        )
    if isinstance(predicate, StartsWith):
        bind_comparison(predicate.column, "=", predicate.prefix, kind)  # refuses a text that is not Unicode
    return predicate


def _gather(parts: Sequence[Predicate], op: str) -> list[Predicate]:
    """The parts, with many comparisons of one column combined into one IN, or for ``<>`` into its negation."""
    values: dict[str, list[Any]] = defaultdict(list)
    for part in parts:
        if isinstance(part, Compare) and part.op == op:
            values[part.column].append(part.value)
    lists = {name: tuple(constants) for name, constants in values.items() if len(constants) >= _GATHERED_MIN}
    if not lists:
        return list(parts)
    other_parts = [part for part in parts if not (isinstance(part, Compare) and part.op == op and part.column in lists)]
    terms = [In(name, members) for name, members in lists.items()]
    return [*other_parts, *(terms if op == "=" else map(Not, terms))]


def _type_in(schema: pa.Schema, name: str) -> pa.DataType:
    if name in schema.names:  # Arrow's own search refuses a name that is not Unicode
        return schema.field(name).type
    nearest = get_close_matches(name, schema.names, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(schema.names)}."
    raise InvalidRequest(f"Column {name!r} does not exist: {hint}", kind="unknown_column", column=name)


def join_balanced(parts: Sequence[T], join: Callable[[T, T], T]) -> T:
    """Join parts pairwise; there is at least one. The depth is the logarithm of their number."""
    level = list(parts)
    while len(level) > 1:
        pairs = [join(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) - len(level) % 2 :]
    return level[0]


ARROW_COMPARISON: Final = {
    "=": "equal",
    "<>": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
"""Names of Arrow's functions; the functions are not loaded yet."""


def to_arrow(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """The filter expression for rows of `schema`; binds first. Works for datasets, tables and record batches.

    Only for predicates that are `is_small`: Arrow turns every AND and OR into a chain and recurses over it.
    """
    return _evaluate(
        bind(predicate, schema),
        column_of=lambda name: (pc.field(name), schema.field(name).type),
        constant=lambda truth: pc.scalar(pa.scalar(truth, pa.bool_())),
    )


def is_small(bound: Predicate) -> bool:
    """Whether a predicate has few enough comparisons for Arrow's expressions."""
    return not isinstance(bound, And | Or | Not) or bound.terms <= EXPRESSION_TERMS_MAX


def mask_of(predicate: Predicate, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
    """For each row true, false or null (unknown); binds first. Cost: one pass over the rows for each comparison."""
    mask = _evaluate(
        bind(predicate, rows.schema),
        column_of=lambda name: (rows.column(name), rows.schema.field(name).type),
        constant=lambda truth: pa.scalar(truth, pa.bool_()),
    )
    return pa.repeat(mask, rows.num_rows) if isinstance(mask, pa.Scalar) else mask


def _evaluate(
    bound: Predicate,
    *,
    column_of: Callable[[str], tuple[Any, pa.DataType]],
    constant: Callable[[bool | None], Any],
) -> Any:
    """Evaluate the predicate over columns or over expressions; Arrow's functions accept both."""
    if isinstance(bound, And | Or):
        join = pc.and_kleene if isinstance(bound, And) else pc.or_kleene
        parts = [_evaluate(part, column_of=column_of, constant=constant) for part in bound.parts]
        return join_balanced(parts, join) if parts else constant(isinstance(bound, And))
    if isinstance(bound, Not):
        return pc.invert(_evaluate(bound.part, column_of=column_of, constant=constant))
    assert isinstance(bound, Compare | In | IsNull | StartsWith | OneOf | Known)
    if isinstance(bound, In):
        return constant(False)  # an empty list
    column, kind = column_of(bound.column)
    if isinstance(bound, IsNull):
        return pc.is_null(column)
    if isinstance(bound, StartsWith):
        return pc.starts_with(column, pattern=bound.prefix)
    if pa.types.is_floating(kind) and kind != pa.float64():
        column = column.cast(pa.float64())
    if isinstance(bound, Compare):
        return getattr(pc, ARROW_COMPARISON[bound.op])(column, bound.value)
    unknown = constant(None)
    if isinstance(bound, Known):
        return pc.if_else(pc.is_valid(column), constant(bound.truth), unknown)
    # Arrow's IN is false for null; in SQL it is unknown, which NOT must not turn into true.
    is_member = pc.if_else(pc.is_valid(column), pc.is_in(column, value_set=bound.values), unknown)
    return pc.or_kleene(is_member, unknown) if bound.has_null else is_member
