"""`Document` + variables -> `Plan`: loops unrolled, values typed, names unique, tables understood. Pure.

Every mistake in the text of a pipeline file is found here or in `parse`, before Spark or Java is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from lakebed.errors import InvalidRequest
from lakebed.pipeline.inputs import digest
from lakebed.pipeline.keys import Key, read_key, read_settings
from lakebed.pipeline.model import ColumnSpec, Plan, PlannedStep, TableSpec
from lakebed.pipeline.nodes import Mapping as MappingNode
from lakebed.pipeline.nodes import Node, Scalar, SourceLocation, nearest
from lakebed.pipeline.parse import Document, Loop, StepNode
from lakebed.pipeline.steps import KINDS
from lakebed.pipeline.values import Value, loop_values, substitute
from lakebed.pipeline.workspace import split_branch
from lakebed.table.branch.branches import check_branch_name
from lakebed.table.model.types import parse_type

STEP_COUNT_MAX = 100_000
"""Most steps of one plan after unrolling. More are a typing mistake in a range."""

_SEQUENCE_FIELD = "sequence.field"

_TABLE_KEYS = (
    Key("schema", "texts", "columns with their types"),
    Key("primary_key", "names", "key columns", default=()),
    Key("partition_by", "names", "partition columns", default=()),
    Key("options", "texts", "table options", default={}),
    Key("comment", "text", "a comment", default=""),
)


def make_plan(document: Document, *, variables: Mapping[str, str] | None = None) -> Plan:
    """Apply variables to a document.

    Args:
        document: what `parse.load` read.
        variables: values from the caller. They take precedence over the file's.

    Raises `InvalidRequest`: a variable, value, table or step is wrong; names file and line.
    """
    scope = _scope(document, variables or {})
    tables = {name: _table(name, entry.value, entry.location, scope) for name, entry in document.tables.entries.items()}
    branch, table_branch = _branch(document, scope), _table_branch(document, scope)
    steps: list[PlannedStep] = []
    lines_by_name: dict[str, int] = {}
    views: set[str] = set()
    for node, step_scope, loop_names in _unroll(document.steps, scope, ()):
        step = _plan_step(node, step_scope, loop_names, ordinal=len(steps) + 1)
        if step.name in lines_by_name:
            raise node.location.error(
                f"the name '{step.name}' is already that of the step in line {lines_by_name[step.name]}; "
                "give each step its own `name`."
            )
        if len(steps) >= STEP_COUNT_MAX:
            raise node.location.error(f"the pipeline has more than {STEP_COUNT_MAX:,} steps.")
        _check_branch(step, node.location, branch=branch, table_branch=table_branch)
        if step.settings.get("version") is not None and step.settings["from"] in views:
            raise node.location.error(
                f"'{step.settings['from']}' is a view, which has no versions: leave `version` out, or name a table."
            )
        if step.settings.get("as") is not None:
            views.add(step.settings["as"])
        lines_by_name[step.name] = step.line
        tables = _with_sequence(tables, step, node.location)
        steps.append(step)
    if table_branch is not None:
        _check_main_only(steps, document.file, table_branch)
    return Plan(
        pipeline=document.name,
        file=document.file,
        lake=substitute(document.lake.text, scope, document.lake.location),
        variables={name: value.text for name, value in scope.items()},
        tables=tables,
        steps=tuple(steps),
        fingerprint=_fingerprint(document.name, tables, steps, table_branch),
        branch=branch,
        table_branch=table_branch,
    )


def _branch(document: Document, scope: Mapping[str, Value]) -> str | None:
    if document.branch is None:
        return None
    text = substitute(document.branch.text, scope, document.branch.location)
    try:
        split_branch(text)
    except InvalidRequest as error:
        raise document.branch.location.error(f"`branch`: {error.message}") from error
    return text


def _table_branch(document: Document, scope: Mapping[str, Value]) -> str | None:
    if document.table_branch is None:
        return None
    location = document.table_branch.location
    if document.branch is not None:
        raise location.error(
            "a pipeline has both `branch` and `table_branch`: keep `branch` to work in a branch of a repository, or "
            "`table_branch` to work in a branch of each table."
        )
    text = substitute(document.table_branch.text, scope, location)
    try:
        check_branch_name(text)
    except InvalidRequest as error:
        raise location.error(f"`table_branch`: {error.message}") from error
    return text


def _check_branch(step: PlannedStep, location: SourceLocation, *, branch: str | None, table_branch: str | None) -> None:
    """Refuse a step, or one of its keys, that needs a branch of the other kind."""
    kind, branches = KINDS[step.kind], {"branch": branch, "table_branch": table_branch}
    if kind.needs_branch and branch is None and table_branch is None:
        raise location.error(
            f"a '{step.kind}' step needs a pipeline that works in a branch: name the branch above the steps, as in "
            "`branch: analytics/dev` or `table_branch: dev`."
        )
    for key in kind.keys:
        if key.only_with and step.settings[key.name] != key.default and branches[key.only_with] is None:
            raise location.error(
                f"'{key.name}' of step '{step.kind}' is for a pipeline with `{key.only_with}`, which this one lacks: "
                "leave it out."
            )


def _check_main_only(steps: Sequence[PlannedStep], file: str, table_branch: str) -> None:
    """Refuse a step on versions of a table that is in its branch when the step runs."""
    in_branch: set[str] = set()
    for step in steps:
        kind = KINDS[step.kind]
        table_name = kind.table_written(step.settings)
        if table_name is not None:
            in_branch.add(table_name)
        elif kind.needs_branch and not step.settings["dry_run"]:
            in_branch.clear()
        elif kind.main_only and step.settings["table"] in in_branch:
            raise SourceLocation(file, step.line).error(
                f"'{step.settings['table']}' is in its branch '{table_branch}' here, which is deleted when it was "
                f"published: put the step '{step.kind}' after the step 'publish'."
            )


def _fingerprint(
    name: str, tables: Mapping[str, TableSpec], steps: Sequence[PlannedStep], table_branch: str | None
) -> str:
    parts: list[Any] = [name, [asdict(table) for table in tables.values()], [step.fingerprint for step in steps]]
    return digest(parts if table_branch is None else [*parts, table_branch])


def _scope(document: Document, given: Mapping[str, str]) -> dict[str, Value]:
    for name in given:
        if name not in document.variables:
            raise InvalidRequest(
                f"{document.file} has no variable '{name}'.{nearest(name, document.variables)}",
                file=document.file,
                variable=name,
            )
    scope = {"here": Value(document.folder)}
    for name, scalar in document.variables.items():
        if name in given:
            scope[name] = Value(given[name])
        elif scalar.is_null:
            raise scalar.location.error(f"the variable '{name}' has no value; give it one, as in `--var {name}=...`.")
        else:
            scope[name] = Value(substitute(scalar.text, scope, scalar.location))
    return scope


def _unroll(
    body: tuple[StepNode | Loop, ...], scope: Mapping[str, Value], loop_names: tuple[str, ...]
) -> Iterator[tuple[StepNode, Mapping[str, Value], tuple[str, ...]]]:
    for node in body:
        if isinstance(node, StepNode):
            yield node, scope, loop_names
        else:
            for inner, inner_names in _iterations(node, scope, loop_names):
                yield from _unroll(node.body, inner, inner_names)


def _iterations(
    loop: Loop, scope: Mapping[str, Value], loop_names: tuple[str, ...]
) -> Iterator[tuple[Mapping[str, Value], tuple[str, ...]]]:
    """Yield every combination of the loop's variables. The last variable changes fastest."""
    pending: list[tuple[Mapping[str, Value], tuple[str, ...]]] = [(scope, loop_names)]
    for name, entry in loop.variables.entries.items():
        if name in scope or not name.isidentifier():
            raise entry.location.error(
                f"the loop variable '{name}' is already taken or is not a word; choose another name."
            )
        pending = [
            ({**outer, name: value}, (*names, name))
            for outer, names in pending
            for value in loop_values(entry.value, outer, name=name)
        ]
    yield from pending


def _plan_step(node: StepNode, scope: Mapping[str, Value], loop_names: tuple[str, ...], *, ordinal: int) -> PlannedStep:
    settings = read_settings(node.settings.entries, KINDS[node.kind], scope, node.location)
    raw_name = node.kind if node.name is None else node.name.text
    name = raw_name if node.name is None else substitute(raw_name, scope, node.name.location)
    if loop_names and "${" not in raw_name:
        name = " ".join([name, *(scope[variable].text for variable in loop_names)])
    return PlannedStep(
        ordinal=ordinal,
        name=name,
        kind=node.kind,
        settings=settings,
        line=node.location.line,
        group=f"{loop_names[0]} {scope[loop_names[0]].text}" if loop_names else "",
        fingerprint=digest([node.kind, name, _identifying(node.kind, settings)]),
    )


def _identifying(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    later = {key.name: key.default for key in KINDS[kind].keys if key.is_later}
    return {name: value for name, value in settings.items() if name not in later or value != later[name]}


def _with_sequence(
    tables: Mapping[str, TableSpec], step: PlannedStep, location: SourceLocation
) -> dict[str, TableSpec]:
    """Return the tables, with the option that the `sequence` of a merge step sets."""
    columns, name = step.settings.get("sequence"), step.settings.get("into")
    if not columns or name is None or name not in tables:
        return dict(tables)
    spec, sequence = tables[name], ",".join(columns)
    column_names = [column.name for column in spec.columns]
    for column in columns:
        if column_names and column not in column_names:
            raise location.error(
                f"the table '{name}' has no column '{column}' for its sequence.{nearest(column, column_names)}"
            )
    declared_sequence = spec.options.get(_SEQUENCE_FIELD)
    if declared_sequence is not None and [part.strip() for part in declared_sequence.split(",")] != list(columns):
        raise location.error(
            f"the step orders rows by '{sequence}', but the table '{name}' is declared with {_SEQUENCE_FIELD}: "
            f"{declared_sequence}; say the same in both places, or in one."
        )
    return {**tables, name: replace(spec, options={**spec.options, _SEQUENCE_FIELD: declared_sequence or sequence})}


def _table(name: str, node: Node, location: SourceLocation, scope: Mapping[str, Value]) -> TableSpec:
    if isinstance(node, Scalar) and node.is_null:
        return TableSpec(name)
    if not isinstance(node, MappingNode):
        raise location.error(f"the table '{name}' must be a mapping.")
    keys_by_name = {key.name: key for key in _TABLE_KEYS}
    values = {key.name: key.default for key in _TABLE_KEYS}
    for key_name, entry in node.entries.items():
        if key_name not in keys_by_name:
            raise entry.location.error(f"a table has no key '{key_name}'.{nearest(key_name, keys_by_name)}")
        values[key_name] = read_key(entry.value, keys_by_name[key_name], scope, f"'{key_name}' of table '{name}'")
    columns = _columns(name, node, values["schema"] or {})
    names = [column.name for column in columns]
    for key_name in ("primary_key", "partition_by"):
        for column in values[key_name]:
            if columns and column not in names:
                raise node.entries[key_name].location.error(
                    f"the table '{name}' has no column '{column}' for its {key_name}.{nearest(column, names)}"
                )
    return TableSpec(
        name=name,
        columns=columns,
        primary_key=values["primary_key"],
        partition_by=values["partition_by"],
        options=values["options"],
        comment=values["comment"],
    )


def _columns(table: str, node: MappingNode, schema: Mapping[str, str]) -> tuple[ColumnSpec, ...]:
    columns: list[ColumnSpec] = []
    schema_node = node.get("schema")
    for column, text in schema.items():
        bare = text.strip()
        nullable = not bare.upper().endswith(" NOT NULL")
        bare = bare if nullable else bare[: -len(" NOT NULL")].rstrip()
        try:
            parse_type(bare)
        except InvalidRequest as error:
            location = node.location
            if isinstance(schema_node, MappingNode) and column in schema_node.entries:
                location = schema_node.entries[column].location
            raise location.error(f"column '{column}' of table '{table}': {error.message}") from error
        columns.append(ColumnSpec(column, bare.upper(), nullable))
    return tuple(columns)
